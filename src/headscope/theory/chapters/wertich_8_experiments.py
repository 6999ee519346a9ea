r"""Wertich, chapter 8: attention of Mistral-7B in few-shot prompts."""

import math

import numpy as np
import polars as pl
import torch

from headscope.core import Finding
from headscope.core.figure import Curves, Series
from headscope.core.verdict import Evidence
from headscope.maths.resampling.jackknife import student_quantile
from headscope.theory.checks import Lab, exact, fact, less_than, mean_of, more_than, trend_of
from headscope.theory.finding_reader import HALF_WIDTH, errors, numbers, rows_of
from headscope.theory.works import wertich

CHAPTER = wertich()
_MISTRAL = "Mistral-7B-Instruct-v0.2"

_PARAMETERS = 7_241_732_096  # as published


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


CHAPTER.of_a_model(
    "W-8.1b",
    section="8.1",
    statement="The model of the experiments (Mistral-7B-Instruct-v0.2) uses sliding-window attention over the last m "
    "tokens, and grouped-query attention in which several queries share one key.",
    formula=r"A_{ij} = 0 \quad \mathrm{for}\ i - j \geq m",
    lesson="That keys are shared can be read off the number of parameters: only 8 key heads for 32 query heads give "
    "the published total (W-8.1a). The window is a line in the configuration file, and it changed between versions: "
    "version 0.1 is published with one of 4096 tokens, Instruct-v0.2 with none. For prompts of a few hundred tokens a "
    "window of 4096 would make no difference anyway.",
    reason="the configuration file of this checkpoint; `headscope look` tells the window of every layer",
    checkpoint=_MISTRAL,
    related=("W-8.1a", "W-7.2i"),
)


def _more_shots(finding: Finding) -> Evidence | None:
    """Gain in log-probability of reference clues over no shots: does it stay above 0?"""
    shots = rows_of(finding, "shots", ("gain", "gain_low", "gain_high"))
    if shots is None:
        return None
    last = shots.tail(1)
    quantity = f"gain of a token of the reference clue after {last['shots'][0]} shots, nats"
    return Evidence((more_than(quantity, 0.0, float(numbers(last, "gain")[0]), float(errors(last, "gain")[0])),))


def _depths(finding: Finding, quantity: str, column: str = "value") -> tuple[np.ndarray, np.ndarray] | None:
    """A quantity of the study by depth, and its standard errors."""
    rows = rows_of(finding, "layers", tuple(dict.fromkeys((column, "value", "low", "high"))), quantity=quantity)
    return None if rows is None else (numbers(rows.sort("layer"), column), errors(rows.sort("layer")))


def _thirds(values: np.ndarray) -> tuple[float, float, float]:
    n = max(1, len(values) // 3)
    first, middle_mean, last = (float(part.mean()) for part in (values[:n], values[n:-n], values[-n:]))
    return first, middle_mean, last


def _course(finding: Finding) -> Evidence | None:
    """The diagonal of word maps by thirds of the layers, and the own shot.

    The own shot is measured in the middle third.
    """
    diagonal, inside = _depths(finding, "diagonal_words"), _depths(finding, "inside_share")
    near = _depths(finding, "inside_share", "nearness")
    if diagonal is None or inside is None or near is None or len(diagonal[0]) < 3:
        return None
    (first, middle_mean, last), (first_error, middle_error, last_error) = (_thirds(series) for series in diagonal)
    own_mass, own_error = (_thirds(series)[1] for series in inside)
    return Evidence(
        (
            more_than("diagonal of word maps, first third of the layers: dominates", 0.5, first, first_error),
            more_than("diagonal of word maps, last third: dominates", 0.5, last, last_error),
            less_than(
                "diagonal of word maps, middle third, beside the smaller of both",
                min(first, last),
                middle_mean,
                middle_error,
            ),
            more_than(
                "mass in the own shot, middle third, beside nearness alone", _thirds(near[0])[1], own_mass, own_error
            ),
        )
    )


def _borders(finding: Finding) -> Evidence | None:
    """Mass across shots against nearness alone, and mass from a clue to its word.

    Both are means over the layers.
    """
    parts = [_depths(finding, quantity, column) for quantity in ("inside_share", "target")
             for column in ("value", "nearness")]  # fmt: skip
    if any(part is None for part in parts):
        return None
    (inside, inside_error), (near, _), (target, target_error), (other_words, _) = (
        (float(part[0].mean()), float(part[1].mean())) for part in parts if part is not None
    )
    return Evidence(
        (
            more_than("mass between words that stays in the own shot, beside nearness alone", near, inside,
                      inside_error),
            more_than("mass from a clue to its word, beside other words as far away", other_words, target,
                      target_error),
        ),
        # A softmax has no zeros, so that some mass crosses could not fail.
        (more_than("mass between words that crosses the borders of shots, beside half of what nearness alone gives",
                   (1 - near) / 2, 1 - inside, inside_error),),
    )  # fmt: skip


def _small(finding: Finding) -> Evidence | None:
    """The largest weight of a pair in averaged maps and in single heads.

    Flat heads would keep both small.
    """
    average, single = _depths(finding, "largest_average"), _depths(finding, "largest_head")
    if average is None or single is None:
        return None
    at, where = (int(series[0].argmax()) for series in (average, single))
    return Evidence(
        (
            less_than("largest weight of a pair in a map averaged over heads", 0.1, average[0][at], average[1][at]),
            less_than("largest weight in a single head, as flat weights would be", 0.1, single[0][where],
                      single[1][where]),
        ),
        (more_than("largest weight in a single head: more than all others together", 0.5, single[0][where],
                   single[1][where]),),
    )  # fmt: skip


CHAPTER.of_a_model(
    "W-8.1c",
    section="8.1",
    statement="Quality and precision of the generated clues increase with the number of shots.",
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
    correction="Words attend across the boundaries of shots too, at least half as much as their distance alone would "
    "make them.",
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
    correction="Single heads are far from flat: some put more than half of a query's weight on one key.",
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
    """Correlations of embedding cosines within rows, in the median head.

    They explain less than a hundredth.
    """
    stated, corrected = [], []
    for quantity, words in (("embedding_score", "score"), ("embedding_rank", "rank of the weight")):
        rows = rows_of(finding, "heads", ("value", "null", "low", "high"), quantity=quantity)
        if rows is None:
            return None
        size, chance = (float(np.median(np.abs(numbers(rows, name)))) for name in ("value", "null"))
        spread = float(np.median(errors(rows)))
        correlation_name = (
            f"size of the correlation of embedding cosines with the {words}, in a row, median of {rows.height} heads"
        )
        # A correlation of a tenth explains a hundredth of the variance.
        stated.append(less_than(f"{correlation_name}: explains less than a hundredth", 0.1, size, spread))
        corrected.append(more_than(f"{correlation_name}, beside tokens shuffled", chance, size, spread))
    return Evidence(tuple(stated), tuple(corrected))


CHAPTER.of_a_model(
    "W-8.3",
    section="8.3",
    statement="Cosine similarity of input embeddings and attention scores are almost unrelated (the conclusion says: "
    "slightly preserved).",
    lesson="Queries and keys are different maps of the stream, so similar tokens need not attend to each other. The "
    "rank correlation between cosine and score, per head and layer, beside the same with permuted tokens, says how "
    "much is left; both wordings of the thesis can be true of different layers.",
    correction="They are related beyond chance: the correlation is larger than for shuffled tokens.",
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
    models = 3
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
        trend=trend_of("nats below log n, single heads of 3 models of width 256", "layers", layers,
                       [float(gaps[:, layer - 1].mean()) for layer in layers], 0.0,
                       [float(spreads[layer - 1]) for layer in layers]),
        figures=(runs[0][1],),
    )  # fmt: skip


def _normals(lab: Lab, rows: int, columns: int, name: str) -> torch.Tensor:
    return torch.randn(rows, columns, generator=lab.generator(name), dtype=torch.float32) * 0.02


def _depth(lab: Lab, model: int) -> tuple[list[float], Curves]:
    """A small random model of the same kind.

    It has RMS norms, skips, a gated feed-forward part, and σ²d as at full size.
    """
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
    """Mass on the token itself and copied text at α = 2, and tests of language.

    All are means over prompts.
    """
    effects = rows_of(finding, "effects", ("self", "self_low", "self_high"), which="change", change="scale 2")
    texts = {
        change: rows_of(finding, "texts", ("prompt", "surprise", "ordinary", "shuffled"), change=change, which=variant)
        for change, variant in (("original", "original"), ("scale 2", "change"), ("scale 1/2", "change"))
    }
    if effects is None or any(rows is None or rows.height < 2 for rows in texts.values()):
        return None  # a model that writes nothing
    before, doubled, halved = (rows for rows in texts.values() if rows is not None)
    # Midway between how much ordinary and shuffled text surprise the unchanged model lies the border of language.
    beyond = [numbers(t, "surprise") - (numbers(t, "ordinary") + numbers(t, "shuffled")) / 2 for t in (doubled, halved)]
    copied = _paired(doubled, before, "copied")
    if copied is None:
        return None
    return Evidence(
        (
            more_than("α = 2: mass on the token itself, beside all others", 0.5, float(numbers(effects, "self").mean()),
                      float(errors(effects, "self").mean())),
            more_than("α = 2: share of the text copied from the prompt, less that of the unchanged model", 0.0,
                      *_mean(copied)),
            less_than("α = 2: surprise of the text beyond midway from ordinary to shuffled text, nats per token", 0.0,
                      *_mean(beyond[0])),
            more_than("α = 1/2: surprise of the text beyond midway from ordinary to shuffled text, nats per token", 0.0,
                      *_mean(beyond[1])),
        )
    )  # fmt: skip


def _paired(changed: pl.DataFrame, unchanged: pl.DataFrame, column: str) -> np.ndarray | None:
    """Differences of a column, prompt by prompt.

    None where the prompts differ, or where fewer than two have both numbers.
    """
    if changed["prompt"].to_list() != unchanged["prompt"].to_list():
        return None
    pairs = changed.select(column).with_columns(unchanged[column].alias("before")).drop_nulls()
    return None if pairs.height < 2 else numbers(pairs, column) - numbers(pairs, "before")


def _mean(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard error, widened as Student's interval is.

    A few prompts say less than their spread.
    """
    widened = student_quantile(len(values)) / HALF_WIDTH
    return float(values.mean()), widened * float(values.std(ddof=1)) / math.sqrt(len(values))


CHAPTER.of_a_model(
    "W-8.5c",
    section="8.5",
    statement="With the spectra of W_q and W_k scaled up, tokens attend predominantly to themselves and the text stays "
    "English but repeats the prompt; with half the spectra the output is noise.",
    lesson="Scaling up sends attention to the key with the largest score, and that is the token itself only if the "
    "head prefers it: for unrelated W_q and W_k the winner is any key with equal chance. What the text does has to be "
    "tried, by changing the weights and generating.",
    lens="intervene",
    reason="generation and attention maps with the spectra of W_q and W_k multiplied by 2 and by 1/2",
    checkpoint=_MISTRAL,
    judge=_scaled_spectra,
)
