r"""Wertich, section 3.3: what related work is said to have shown."""

import math

import polars as pl
import torch

from headscope.claims.lab import Lab, exact, fact
from headscope.claims.work import Work
from headscope.claims.works import wertich
from headscope.core import Finding
from headscope.core.verdict import Evidence

CHAPTER = wertich()


@CHAPTER.claim(
    "W-3.3a",
    section="3.3",
    statement="Attention is a kernel that is structurally related to RBF kernels, but not symmetric.",
    formula=r"\kappa(x, y) = e^{\langle W_q x,\, W_k y \rangle / \sqrt{d}} \neq \kappa(y, x)",
    lesson="The product of query and key is half of |q|² + |k|² − |q − k|², so the exponential of a score is a "
    "Gaussian (RBF) kernel of the distance between query and key, times a factor of the query and one of the key. "
    "Softmax cancels the query's factor; the key's stays, so long keys attract more attention than an RBF kernel would "
    "give them. It is not symmetric because a token is mapped differently as a query and as a key.",
)
def kernel(lab: Lab) -> Evidence:
    d, n = 8, 12
    x = lab.normal(n, d, purpose="tokens")
    q, k = (x @ lab.normal(d, d, purpose=name) / math.sqrt(d) for name in ("w_q", "w_k"))
    scores = torch.exp(q @ k.mT / math.sqrt(d))
    bell = torch.exp(-torch.cdist(q, k).square() / (2 * math.sqrt(d)))
    queries, keys = (torch.exp(t.square().sum(-1) / (2 * math.sqrt(d))) for t in (q, k))
    rows = bell * keys
    return Evidence(
        (
            exact("e^score against RBF(q, k) · f(q) · f(k), worst pair", queries[:, None] * bell * keys, scores),
            exact("softmax against RBF(q, k) · f(k), normalised", rows / rows.sum(-1, keepdim=True),
                  torch.softmax(q @ k.mT / math.sqrt(d), -1)),
            fact("κ(x, y) and κ(y, x) differ by more than a tenth on average",
                 bool((scores - scores.mT).abs().mean() > 0.1 * scores.mean())),
        )
    )  # fmt: skip


@CHAPTER.claim(
    "W-3.3b",
    section="3.3",
    statement="Linformer lowers the running time of attention from quadratic to linear in the sequence length.",
    formula=r"\mathcal{O}(n^2) \rightarrow \mathcal{O}(n)",
    lesson="Linformer averages the n keys and values into k of them, with fixed learned weights, so the map has n × k "
    "entries. For a fixed k the work doubles with the text instead of growing fourfold. The k must not grow with n "
    "for this: with the k of order log n of its own theorem the work is n log n.",
)
def linformer_work(lab: Lab) -> Evidence:
    d, k = 16, 32

    def dense(n: int) -> float:
        q, keys, v = lab.normal(3, n, d)
        work = Work()
        work.product(torch.softmax(work.product(q, keys.mT), -1), v)
        return work.multiplications

    def linformer(n: int) -> float:
        q, keys, v = lab.normal(3, n, d)
        e, f = lab.normal(2, k, n)
        work = Work()
        scores = work.product(q, work.product(e, keys).mT)
        work.product(torch.softmax(scores, -1), work.product(f, v))
        return work.multiplications

    return Evidence(
        (
            exact("work of dense attention at 1024 tokens over that at 512", 4.0, dense(1024) / dense(512)),
            exact("work of Linformer (k = 32) at 1024 tokens over that at 512", 2.0, linformer(1024) / linformer(512)),
        )
    )


# Below this share of their length that distinguishes tokens they are called alike.
_ALIKE = 0.1


def _grown_alike(finding: Finding) -> Evidence | None:
    """About the tokens of the deepest stack; attention maps are not in this finding."""
    rows = finding.tables["streams"].filter(pl.col("variant") == "as is", pl.col("value").is_not_null())
    if rows.is_empty():
        return None
    rows = rows.filter(pl.col("stack") == rows["stack"].to_list()[-1])
    cosine, share = (rows.filter(pl.col("quantity") == name) for name in ("mean_cosine", "residual_share"))
    if cosine.height < 2 or share.is_empty():
        return None
    first, last, left = cosine["value"][0], cosine["value"][-1], share["value"][-1]
    name = (
        f"mean cosine of two tokens {first:.2f} at the first layer and {last:.2f} at the end, where {left:.2f} of "
        "their length distinguishes them: "
    )
    alike = last > first and left < _ALIKE
    return Evidence(
        (fact(f"{name}closer, and below {_ALIKE:g}", alike),),
        (fact(f"{name}not both closer and below that", not alike),),
    )


CHAPTER.of_a_model(
    "W-3.3c",
    section="3.3",
    statement="In deeper layers token embeddings (and attention maps) grow alike, and only few singular values of "
    "attention are large.",
    formula=r"X_i^{(l)} \approx X_j^{(l)} \quad \mathrm{for\ large}\ l",
    correction="Tokens of the measured models grow more alike with depth, and stay far from equal: most of their "
    "length still distinguishes them at the end. Only without skip connections do they become one.",
    lesson="Averaging makes tokens alike, and skip connections and feed-forward layers work against it. How far a "
    "trained model goes can only be measured in that model: the share of the stream that still distinguishes tokens, "
    "layer by layer, beside the same model with random weights.",
    lens="uniformity",
    reason="the share of the residual stream that distinguishes tokens, by layer, and the spectra of attention maps of "
    "trained models; judged is what is said about tokens",
    judge=_grown_alike,
)
