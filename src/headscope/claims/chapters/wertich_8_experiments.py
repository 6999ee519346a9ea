r"""Wertich, chapter 8: attention of Mistral-7B in few-shot prompts."""

import math

import numpy as np
import polars as pl
import torch

from headscope.claims.lab import Lab, exact, fact, less_than, mean_of, more_than, trend_of
from headscope.claims.works import wertich
from headscope.core import Finding
from headscope.core.figure import Curves, Series
from headscope.core.verdict import Comparison, Evidence

CHAPTER = wertich()
_MISTRAL = "Mistral-7B-Instruct-v0.2"

# As published: the number of parameters, and the configuration files of both versions.
_PARAMETERS = 7_241_732_096
_WINDOW: dict[str, int | None] = {"Mistral-7B-v0.1": 4096, _MISTRAL: None}


@CHAPTER.claim(
    "W-8.1a",
    section="8.1",
    statement="Mistral-7B has 32 blocks of 32 heads, a vocabulary of 32000 and width 4096; in 16-bit numbers it needs "
    "nearly 14 GB.",
    formula=r"2\ \mathrm{bytes} \times 7.24 \cdot 10^9 \approx 14\ \mathrm{GB}",
    lesson="The sizes add up to the published 7,241,732,096 parameters (with 8 key heads of width 128 and a "
    "feed-forward width of 14336). At two bytes each that is 14.48 billion bytes, or 13.49 in the units of 2³⁰ bytes "
    "in which memory is counted: nearly 14.",
)
def mistral_size(lab: Lab) -> Evidence:
    total = _parameters(key_heads=8)
    gibibytes = 2 * total / 2**30
    return Evidence(
        (
            exact("parameters that these sizes give", float(_PARAMETERS), float(total)),
            fact(f"two bytes each: {gibibytes:.2f} GiB lies between 13 and 14", 13 < gibibytes < 14),
        )
    )


def _parameters(key_heads: int, blocks: int = 32, heads: int = 32, vocabulary: int = 32_000, d: int = 4096) -> int:
    d_head = d // heads
    attention = 2 * d * d + 2 * d * key_heads * d_head
    return 2 * vocabulary * d + blocks * (attention + 3 * d * 14_336 + 2 * d) + d


@CHAPTER.claim(
    "W-8.1b",
    section="8.1",
    statement="The model of the experiments (Mistral-7B-Instruct-v0.2) uses sliding-window attention over the last m "
    "tokens, and grouped-query attention in which several queries share one key.",
    formula=r"A_{ij} = 0 \quad \mathrm{for}\ i - j \geq m",
    correction="Grouped queries, yes: four query heads read one key head. But only version 0.1 has a window (4096 "
    "tokens); the configuration of Instruct-v0.2 sets none, and attends to its whole context.",
    corrected=r"m = 4096\ (\mathrm{v0.1}), \quad m = \infty\ (\mathrm{Instruct\ v0.2}), \quad 32 / 8 = 4\ "
    r"\mathrm{queries\ per\ key}",
    lesson="That keys are shared can be read off the number of parameters: only 8 key heads for 32 query heads give "
    "the published total. The window is a line in the configuration file, and it changed between versions. For prompts "
    "of a few hundred tokens a window of 4096 would make no difference anyway.",
)
def mistral_window(lab: Lab) -> Evidence:
    per_head = _parameters(1) - _parameters(0)
    key_heads = (_PARAMETERS - _parameters(0)) / per_head
    return Evidence(
        (fact("the configuration of Instruct-v0.2 sets a window", _WINDOW[_MISTRAL] is not None),
         fact("several queries share one key", 32 / key_heads > 1)),
        (fact("the configuration of Instruct-v0.2 sets no window", _WINDOW[_MISTRAL] is None),
         exact("queries per key that the number of parameters leaves", 4.0, 32 / key_heads)),
    )  # fmt: skip


def _more_shots(finding: Finding) -> Evidence:
    """The log-probability of reference clues: does its gain over no shots stay above 0?"""
    last = finding.tables["shots"].row(-1, named=True)
    told = (
        f"after {last['shots']} shots a token of the reference clue gains {last['gain']:.2f} nats, 95 % interval "
        f"{last['gain_low']:.2f} to {last['gain_high']:.2f}: above 0"
    )
    return _all_of(fact(told, last["gain_low"] > 0))


def _all_of(*parts: Comparison) -> Evidence:
    """A statement of several parts; its correction is that not all of them are so."""
    true = sum(one.measured == 1 for one in parts)
    return Evidence(parts, (fact(f"{true} of {len(parts)} parts are so: not all", true < len(parts)),))


def _depths(finding: Finding, quantity: str, column: str = "value") -> list[float]:
    rows = finding.tables["layers"].filter(pl.col("quantity") == quantity).sort("layer")
    return [float("nan") if x is None else float(x) for x in rows[column].to_list()]


def _thirds(values: list[float]) -> tuple[float, float, float]:
    n = max(1, len(values) // 3)
    parts = (values[:n], values[n:-n] or values, values[-n:])
    first, middle, last = (sum(part) / len(part) for part in parts)
    return first, middle, last


def _course(finding: Finding) -> Evidence:
    """The diagonal of word maps in the first, middle and last third of the layers, and the own shot in the middle."""
    first, middle, last = _thirds(_depths(finding, "diagonal_words"))
    own = _thirds(_depths(finding, "inside_share"))[1]
    near = _thirds(_depths(finding, "inside_share", "nearness"))[1]
    return _all_of(
        fact(f"diagonal of word maps, first third of the layers: {first:.2f}, at least one half", first >= 0.5),
        fact(f"last third: {last:.2f}, at least one half", last >= 0.5),
        fact(f"middle third: {middle:.2f}, less than in both", middle < min(first, last)),
        fact(f"middle third: {own:.3f} in the own shot, nearness alone {near:.3f}: more", own > near),
    )


def _borders(finding: Finding) -> Evidence:
    """Mass across shots, and from a clue to its word beside other words at the same distance; means over layers."""
    own, target, near = (
        sum(values) / len(values)
        for values in (
            _depths(finding, "inside_share"),
            _depths(finding, "target"),
            _depths(finding, "target", "nearness"),
        )
    )
    return _all_of(
        fact(f"of the mass between words {1 - own:.2f} crosses the borders of shots: less than a tenth", own > 0.9),
        fact(f"from a clue to its word {target:.3f}, other words as far away {near:.3f}: more", target > near),
    )


def _small(finding: Finding) -> Evidence:
    """The largest weight of a pair in the averaged maps, and in single heads: flat heads would keep both small."""
    average, single = (max(_depths(finding, name)) for name in ("largest_average", "largest_head"))
    return _all_of(
        fact(f"largest weight of a pair in a map averaged over heads: {average:.2f}, at most 0.1", average <= 0.1),
        fact(f"largest weight in a single head: {single:.2f}, at most 0.1 as flat weights would be", single <= 0.1),
    )


CHAPTER.of_a_model(
    "W-8.1c",
    section="8.1",
    statement="Quality and precision of the generated clues increase with the number of shots.",
    correction="Shots need not help: what they teach is form and style first.",
    lesson="More examples pin down length and style of the answer. Whether quality rises needs a measure of quality "
    "and many prompts: the log-probability of held-out clues by number of shots, with an interval.",
    lens="fewshot",
    reason="clues generated with a growing number of shots and a score for them",
    checkpoint=_MISTRAL,
    judge=_more_shots,
)

CHAPTER.of_a_model(
    "W-8.2a",
    section="8.2",
    statement="Averaged over heads, attention is dominated by the diagonal in early layers, shows one triangular block "
    "per shot in middle layers, and is sparse and diagonal again in the last ones.",
    correction="The diagonal need not dominate, and blocks need not be confined to the middle.",
    lesson="A head-averaged map shows only what many heads have in common. Mass on the diagonal, mass within the own "
    "shot, and entropy, by layer and by head, say the same with numbers, beside uniform attention over the same keys.",
    lens="fewshot",
    reason="attention maps of few-shot prompts by layer: mass on the diagonal and within a shot",
    checkpoint=_MISTRAL,
    judge=_course,
)

CHAPTER.of_a_model(
    "W-8.2b",
    section="8.2",
    statement="Words do not attend across the boundaries of shots, and the words of a clue attend to their target "
    "word.",
    correction="Words attend across shots too, and near words more than far ones whatever the shot.",
    lesson="Attention within a shot has to be compared with the share of visible keys that lie within it, since late "
    "shots see many others. If no information crossed the boundaries, examples could not help: heads that copy a style "
    "must look across.",
    lens="fewshot",
    reason="attention mass across shots and from clue to target word, beside uniform attention",
    checkpoint=_MISTRAL,
    judge=_borders,
)

CHAPTER.of_a_model(
    "W-8.2c",
    section="8.2",
    statement="Averaged attention scores between single tokens lie between 0 and 0.1, which supports the theory that "
    "log-normal weights are flat.",
    formula=r"A_{ij} \in [0,\ 0.1]",
    lesson="Small entries alone do not show flatness: with n visible keys uniform weights are 1/n, far below 0.1, and "
    "the average of 32 sharp heads that look at different places is small everywhere. The entropy of each head, beside "
    "log n, decides.",
    correction="Averaged weights are not all below 0.1, and single heads are far from flat.",
    lens="maps",
    reason="the largest weight of a pair of tokens in head-averaged maps and in those of single heads",
    checkpoint=_MISTRAL,
    judge=_small,
)


@CHAPTER.claim(
    "W-8.2d",
    section="8.2",
    statement="Adding up attention over all pairs of sub-word tokens of two words keeps the total.",
    formula=r"\sum_{I, J} \sum_{i \in I,\, j \in J} A_{ij} = \sum_{i, j} A_{ij}",
    lesson="Summing blocks only brackets the same sum differently. But the rows of the result no longer sum to 1: the "
    "row of a word sums to the number of its tokens, so long words look more attentive. For a distribution, sum over "
    "the keys and average over the queries.",
)
def word_totals(lab: Lab) -> Evidence:
    lengths = [1, 3, 2, 1, 4]
    n = sum(lengths)
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    a = torch.softmax(lab.normal(n, n, purpose="scores").masked_fill(future, -torch.inf), -1)
    words = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    by_word = torch.zeros(len(lengths), len(lengths), dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            by_word[words[i], words[j]] += a[i, j]
    return Evidence(
        (
            exact("total over words against the total over tokens", float(a.sum()), float(by_word.sum())),
            exact("row sums of words against their numbers of tokens", torch.tensor(lengths, dtype=torch.float64),
                  by_word.sum(1)),
        )
    )  # fmt: skip


def _unrelated(finding: Finding) -> Evidence | None:
    """Correlations of embedding cosines within rows: small in the typical head."""
    heads = finding.tables["heads"].filter(pl.col("value").is_not_null(), pl.col("null").is_not_null())
    stated = []
    for quantity, words in (("embedding_score", "score"), ("embedding_rank", "rank of the weight")):
        rows = heads.filter(pl.col("quantity") == quantity)
        if rows.is_empty():
            return None
        sizes, chance = (np.median(np.abs(np.array(rows[name].to_list()))) for name in ("value", "null"))
        stated.append(
            fact(
                f"correlation of embedding cosines with the {words}, within rows: {sizes:.3f} in size in the median of "
                f"{rows.height} heads (tokens shuffled {chance:.3f}): below 0.1",
                bool(sizes < 0.1),
            )
        )
    small = sum(one.measured == 1 for one in stated)
    return Evidence(tuple(stated), (fact(f"{small} of {len(stated)} are below 0.1: not both", small < len(stated)),))


CHAPTER.of_a_model(
    "W-8.3",
    section="8.3",
    statement="Cosine similarity of input embeddings and attention scores are almost unrelated (the conclusion says: "
    "slightly preserved).",
    lesson="Queries and keys are different maps of the stream, so similar tokens need not attend to each other. The "
    "rank correlation between cosine and score, per head and layer, beside the same with permuted tokens, says how "
    "much is left; both wordings of the thesis can be true of different layers.",
    correction="Not of every model: where the forms of queries and keys are near symmetric, angles are kept in part.",
    lens="angles",
    reason="correlation of embedding cosines with attention scores, by layer and head",
    judge=_unrelated,
    checkpoint=_MISTRAL,
)


@CHAPTER.claim(
    "W-8.4",
    section="8.4",
    statement="In a randomly initialised Mistral the attention scores approach the uniform distribution.",
    formula=r"A_{ij} \rightarrow \frac{1}{n}",
    correction="Only the average over many heads looks flat. In each head, in every layer, the scores have the "
    "variance (σ²d)² = 2.68 (entries of spread σ = 0.02, width 4096), so entropy falls short of log n by about 1 nat.",
    corrected=r"\mathrm{Var}(s_{ij}) = (\sigma^2 d)^2 = (0.02^2 \cdot 4096)^2 = 2.68, \quad "
    r"\log n - H \rightarrow \frac{1}{2} (\sigma^2 d)^2 = 1.34\ \ (n \rightarrow \infty)",
    lesson="The norm before attention gives each token the length √d; random queries and keys then have entries of "
    "variance σ²d = 1.64, and the scaled score has its square as variance. That is not small. Different heads prefer "
    "different keys at random, so their average is much flatter than any of them, which is what a head-averaged map "
    "shows. Depth does not change it: the skip connection keeps tokens apart.",
)
def random_mistral(lab: Lab) -> Evidence:
    d, heads, d_head, n = 4096, 32, 128, 48
    x = lab.normal(n, d, purpose="embeddings").to(torch.float32)
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    q = (x @ _normals(lab, d, heads * d_head, "q")).reshape(n, heads, d_head).transpose(0, 1)
    k = (x @ _normals(lab, d, heads // 4 * d_head, "k")).reshape(n, heads // 4, d_head).transpose(0, 1)
    scores = (q @ k.repeat_interleave(4, 0).mT / math.sqrt(d_head)).to(torch.float64)
    pattern = torch.softmax(scores, -1)
    gap = math.log(n) - torch.special.entr(pattern).sum(-1).mean(-1)
    groups = gap.reshape(8, 4).mean(1)  # the four heads of a group share their keys
    off = ~torch.eye(n, dtype=torch.bool)
    variances = scores[:, off].square().mean(-1).reshape(8, 4).mean(1)
    averaged = math.log(n) - float(torch.special.entr(pattern.mean(0)).sum(-1).mean())
    models = 6
    runs = [_depth(lab, model) for model in range(models)]
    gaps = np.array([single for single, _ in runs])  # [model, layer]
    layers, spreads = (1, 4, 16), gaps.std(0, ddof=1) / models**0.5
    return Evidence(
        (mean_of("entropy below log n, heads of the first layer at full size, 48 tokens (nats)", 0.0, groups),),
        (mean_of("variance of the scores", (0.02**2 * d) ** 2, variances),
         fact(f"the average over 32 heads is four times nearer to log n than its heads ({averaged:.2f} nats)",
              averaged < float(gap.mean()) / 4),
         more_than("single heads after 16 layers, width 256, same σ²d: nats below log n, beside half of those in the "
                   "first layer", float(gaps[:, 0].mean()) / 2, float(gaps[:, -1].mean()), float(spreads[-1]))),
        trend=trend_of("nats below log n, single heads of 6 models of width 256", "layers", layers,
                       [float(gaps[:, layer - 1].mean()) for layer in layers], 0.0,
                       [float(spreads[layer - 1]) for layer in layers]),
        figures=(runs[0][1],),
    )  # fmt: skip


def _normals(lab: Lab, rows: int, columns: int, name: str) -> torch.Tensor:
    return torch.randn(rows, columns, generator=lab.generator(name), dtype=torch.float32) * 0.02


def _depth(lab: Lab, model: int) -> tuple[list[float], Curves]:
    """A small random model of the same kind: RMS norms, skips, gated feed-forward, σ²d as at full size."""
    d, heads, key_heads, n, layers = 256, 8, 2, 48, 16
    d_head, wide, sigma = d // heads, 896, 0.02 * math.sqrt(4096 / d)
    generator = lab.generator(f"depth {model}")

    def w(rows: int, columns: int) -> torch.Tensor:
        return sigma * torch.randn(rows, columns, generator=generator, dtype=torch.float64)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    def cut(x: torch.Tensor, count: int) -> torch.Tensor:
        return x.reshape(n, count, d_head).transpose(0, 1).repeat_interleave(heads // count, 0)

    x = 0.02 * torch.randn(n, d, generator=generator, dtype=torch.float64)
    single, mean = [], []
    for _ in range(layers):
        h = norm(x)
        q, k, v = cut(h @ w(d, d), heads), cut(h @ w(d, d_head * key_heads), key_heads), h @ w(d, d_head * key_heads)
        pattern = torch.softmax(q @ k.mT / math.sqrt(d_head), -1)
        single.append(math.log(n) - float(torch.special.entr(pattern).sum(-1).mean()))
        mean.append(math.log(n) - float(torch.special.entr(pattern.mean(0)).sum(-1).mean()))
        x = x + (pattern @ cut(v, key_heads)).transpose(0, 1).reshape(n, d) @ w(d, d)
        h = norm(x)
        x = x + (torch.nn.functional.silu(h @ w(d, wide)) * (h @ w(d, wide))) @ w(wide, d)
    depth = np.arange(layers, dtype=float)
    figure = Curves(
        "random_model_entropy",
        "A randomly initialised model does not attend uniformly",
        "How far the entropy of attention lies below log n: single heads (mean of 8) and the map averaged over heads. "
        "Width 256 with entries scaled so that σ²d is that of Mistral; 48 tokens.",
        "layer",
        "nats below log n",
        (
            Series("single heads", depth, np.array(single)),
            Series("average of the heads", depth, np.array(mean)),
            Series("uniform attention", depth, np.zeros(layers), role="null"),
        ),
    )
    return single, figure


@CHAPTER.claim(
    "W-8.5a",
    section="8.5",
    statement="Multiplying the singular values of both W_q and W_k by α multiplies the scores by α².",
    formula=r"\langle (\alpha W_q) x,\, (\alpha W_k) y \rangle = \alpha^2 \langle W_q x,\, W_k y \rangle",
    lesson="A factor on all singular values is a factor on the matrix, and a score is linear in each of the two. So it "
    "holds for every pair, not only on average: α acts on softmax as an inverse temperature of α².",
)
def scaled_spectra(lab: Lab) -> Evidence:
    d = 12
    x, y = lab.normal(2, 6, d, purpose="tokens")
    w_q, w_k = lab.normal(2, d, d, purpose="weights")
    before = (x @ w_q) @ (y @ w_k).mT
    comparisons = []
    for alpha in (0.25, 2.0):
        q, k = (_scaled(w, alpha) for w in (w_q, w_k))
        comparisons.append(exact(f"scores with both spectra times {alpha}, worst pair", alpha**2 * before,
                                 (x @ q) @ (y @ k).mT))  # fmt: skip
    return Evidence(tuple(comparisons))


def _scaled(w: torch.Tensor, alpha: float) -> torch.Tensor:
    u, s, vh = torch.linalg.svd(w)
    scaled: torch.Tensor = u @ torch.diag(alpha * s) @ vh
    return scaled


@CHAPTER.claim(
    "W-8.5b",
    section="8.5",
    statement="Scaling scores up makes attention converge to a Dirac measure, scaling them down makes it flat.",
    formula=r"\mathrm{softmax}(\alpha^2 s) \rightarrow \delta_{\mathrm{argmax}\, s}\ (\alpha \rightarrow \infty), "
    r"\quad \rightarrow \frac{1}{n}\ (\alpha \rightarrow 0)",
    lesson="Only differences of scores count in softmax, and α² multiplies them. Entropy falls all the way: its "
    "derivative by the inverse temperature is minus the inverse temperature times the variance of the scores under the "
    "weights. If two scores tie for the largest, the limit is shared between them.",
)
def temperature_limits(lab: Lab) -> Evidence:
    s = lab.normal(20, 8, purpose="scores")
    gap = s.topk(2, -1).values.diff(dim=-1).abs().min()
    large, small = math.sqrt(40 / float(gap)), 1e-6
    top = torch.nn.functional.one_hot(s.argmax(-1), 8).to(torch.float64)
    sizes = torch.logspace(-1, 1, 30, dtype=torch.float64).reshape(-1, 1, 1)
    entropies = torch.special.entr(torch.softmax(sizes.square() * s, -1)).sum(-1)
    return Evidence(
        (
            exact(f"weights at α = {large:.0f} against the indicator of the largest score", top,
                  torch.softmax(large**2 * s, -1)),
            exact("weights at α = 10⁻⁶ against 1/n", 1 / 8, torch.softmax(small**2 * s, -1)),
            fact("entropy falls at every step from α = 0.1 to 10, in 20 rows", bool((entropies.diff(dim=0) < 0).all())),
        )
    )  # fmt: skip


def _scaled_spectra(finding: Finding) -> Evidence | None:
    """Mass on the token itself and copied text at α = 2, and whether the text at α = 1/2 is language."""
    if "ordinary" not in finding.tables.get("texts", pl.DataFrame()).columns:
        return None  # a model that writes nothing
    changed = pl.col("which") == "change"
    doubled, halved = pl.col("change") == "scale 2", pl.col("change") == "scale 1/2"
    itself = float(finding.tables["effects"].filter(changed, doubled)["self"].to_numpy().mean())
    texts = finding.tables["texts"].filter(changed)
    copied = float(texts.filter(doubled)["copied"].drop_nulls().to_numpy().mean())
    noise = texts.filter(halved).select(pl.col("surprise", "ordinary", "shuffled").mean()).row(0, named=True)
    middle = (noise["ordinary"] + noise["shuffled"]) / 2
    stated = (
        fact(f"α = 2: mass on the token itself {itself:.3f}: more than one half", itself > 0.5),
        fact(f"α = 2: share of the text copied from the prompt {copied:.2f}: more than a quarter", copied > 0.25),
        fact(
            f"α = 1/2: the text surprises the unchanged model by {noise['surprise']:.1f} nats per token, ordinary text "
            f"by {noise['ordinary']:.1f}, shuffled text by {noise['shuffled']:.1f}: nearer to the latter",
            noise["surprise"] > middle,
        ),
    )
    true = sum(one.measured == 1 for one in stated)
    return Evidence(stated, (fact(f"{true} of the {len(stated)} parts are so: not all", true < len(stated)),))


CHAPTER.of_a_model(
    "W-8.5c",
    section="8.5",
    statement="With the spectra of W_q and W_k scaled up, tokens attend predominantly to themselves and the text stays "
    "English but repeats the prompt; with half the spectra the output is noise.",
    correction="Scaling up sharpens whatever the head preferred; that need not be the token itself, and the text need "
    "not copy the prompt.",
    lesson="Scaling up sends attention to the key with the largest score, and that is the token itself only if the "
    "head prefers it: for unrelated W_q and W_k the winner is any key with equal chance. What the text does has to be "
    "tried, by changing the weights and generating.",
    lens="intervene",
    reason="generation and attention maps with the spectra of W_q and W_k multiplied by 2 and by 1/2",
    checkpoint=_MISTRAL,
    judge=_scaled_spectra,
)
