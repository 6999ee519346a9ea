r"""Wertich, section 3.3: what the thesis reports of related work."""

import math

import polars as pl
import torch

from headscope.core import Finding
from headscope.core.verdict import Evidence
from headscope.theory.checks import Lab, exact, fact, less_than, more_than
from headscope.theory.counted_products import Work
from headscope.theory.finding_reader import errors, mean_and_error, numbers, rows_of
from headscope.theory.works import wertich

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


def _grown_alike(streams: Finding, maps: Finding) -> Evidence | None:
    """Tokens after the last layer against the first; map components against shuffles.

    It reads the last stack and the longest maps.
    """
    cosine = rows_of(streams, "streams", ("value", "low", "high"), variant="as is", quantity="mean_cosine")
    counts = rows_of(maps, "components", ("value", "low", "high", "shuffled", "tokens"), quantity="components_90")
    if cosine is None or counts is None:
        return None
    cosine = cosine.filter(pl.col("stack") == cosine["stack"][-1]).sort("layer")
    size = int(numbers(counts, "tokens").max())
    if cosine.height < 2 or size < 64:
        return None
    (first, last), (first_error, last_error) = (series[[0, -1]] for series in (numbers(cosine), errors(cosine)))
    longest = counts.filter(pl.col("tokens") == size)
    needed, spread = mean_and_error(longest)
    return Evidence(
        (
            more_than(f"mean cosine of two tokens after the last layer ({last:.2f}) less that at the first "
                      f"({first:.2f})", 0.0, last - first, math.hypot(first_error, last_error)),
            less_than(f"singular values that hold 90 % of the energy of a {size} × {size} map, mean over "
                      f"{longest.height} heads, beside maps of the same sharpness with keys at random",
                      float(numbers(longest, "shuffled").mean()), needed, spread),
        )
    )  # fmt: skip


CHAPTER.of_a_model(
    "W-3.3c",
    section="3.3",
    statement="In deeper layers token embeddings grow alike, and only few singular values of attention are large.",
    formula=r"\cos(X_i^{(l)}, X_j^{(l)}) \ \mathrm{grows\ with}\ l, \quad \sigma_k(A) \ll \sigma_1(A)",
    lesson="Averaging makes tokens alike, and skip connections and feed-forward layers work against it. How far a "
    "trained model goes can only be measured in that model. To grow alike is not to become equal: most of a token's "
    "length may still distinguish it at the end, as the lens uniformity shows; only without skip connections do tokens "
    "become one. Few singular values are few beside maps of the same sharpness whose rows look at keys at random.",
    lens="uniformity",
    also=("lowrank",),
    reason="the cosines of tokens by layer, and the singular values of attention maps, of a trained model",
    judge=_grown_alike,
)
