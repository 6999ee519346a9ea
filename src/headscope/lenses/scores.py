r"""Scores: what law do the raw scores of a head follow, and does that law explain how sharply it attends?

A fold over text. Every window shows some rows of scores (equally spaced queries, all their keys) and the queries and
keys of every token. From the means and covariances of queries and keys follows what the scores of independent tokens
would be; from the variance of a row follows the entropy that Gaussian scores would have. Both stand beside what was
measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from math import inf, log, nan, sqrt

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from headscope.attention.maps import SAMPLED_ROWS, sampled_rows
from headscope.core import About, Finding, HeadWeights, ModelSpec, Site, WeightSource
from headscope.errors import LensError, UsageError
from headscope.lenses.figures.layout import label_of, place
from headscope.lenses.figures.scores import EDGES, figures
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.raw_weights import status_warnings
from headscope.maths.bilinear import GaussianPair, score_excess_kurtosis, score_mean, score_variance
from headscope.maths.moments import Moments
from headscope.maths.normality import FEWEST, omnibus_p
from headscope.maths.softmax import LARGEST_VARIANCE, GaussianRows, jacobian_operator_norm

ORDER = 6

ABOUT = About(
    title="Scores: the bilinear form and its softmax",
    question="What law do the raw scores of a head follow, and does that law explain how sharply the head attends?",
    definition=(
        "A score is scale · q·k, where q and k are linear images of the tokens (rotated, where positions are rotary). "
        "If tokens were independent draws from one Gaussian, the mean and covariance of q and of k would give mean, "
        "variance and kurtosis of the scores exactly; these are the same numbers that W_QK gives with the mean and "
        "covariance of the tokens. Within a row the query is fixed: there the scores of Gaussian keys are normal and "
        "the weights of the softmax log-normal, and the variance of the row alone gives its mean entropy. Measured: "
        f"at most {SAMPLED_ROWS} equally spaced rows of each window, with all the keys that they see; every row "
        "counts alike. The first token of each window is left out, as query and as key, where nothing else is said: "
        "many models give it a key unlike all others. Where positions are added to the tokens, the variance within "
        "rows of the first layer is split into what position and content of query and key contribute: the part of a "
        "vector that depends on its position is its mean over windows, without the noise of that mean."
    ),
    formulas=(
        r"E[s] = \alpha\,\mu_q^\top \mu_k, \qquad \mathrm{Var}(s) = \alpha^2 \left( \mathrm{Tr}(\Sigma_q \Sigma_k) + "
        r"\mu_k^\top \Sigma_q \mu_k + \mu_q^\top \Sigma_k \mu_q \right) \qquad (\alpha = \mathrm{scale})",
        r"\mathrm{row\ variance} = \alpha^2 \left( \mathrm{Tr}(\Sigma_q \Sigma_k) + \mu_q^\top \Sigma_k \mu_q \right), "
        r"\qquad \mathrm{pair\ kurtosis} = \kappa_4\,/\,\kappa_2^2",
        r"\ln \frac{1}{n} \sum_j e^{s_j} - \bar{s} \approx \frac{\sigma^2}{2}, \qquad "
        r"H \approx \ln n - \frac{\sigma^2}{2} \quad (\sigma < \sigma_c), \qquad \sigma_c = \sqrt{2 \ln n}",
        r"|s_{ij}| \leq \alpha\,\|q_i\|\,\|k_j\| \leq \alpha\,\|w_q\|\,\|w_k\|\,\|x_i\|\,\|x_j\|",
        r"J = \mathrm{diag}(p) - p\,p^\top, \qquad \|J\|_2 \leq \frac{1}{2}, \qquad \mathrm{uniform:}\ \frac{1}{n}",
        r"\Sigma = P + C, \qquad \mathrm{row\ variance} = \alpha^2 \sum \mathrm{Tr}(A_q B_k), \quad "
        r"A_q \in \{\mu_q \mu_q^\top, P_q, C_q\},\ B_k \in \{P_k, C_k\}",
    ),
    reading=(
        "Where the measured variance exceeds the predicted one, the head tells tokens of one text apart better than "
        "random tokens: scores depend on what the two tokens have to do with each other or on their distance. Where it "
        "falls short, the keys that one row sees are more alike than keys of the whole text. With rotary positions the "
        "prediction is that of tokens at random positions. An entropy below the predicted one "
        "means that a few keys stand out more than a normal law allows; above: that the large scores are fewer. The "
        "freezing number is the deviation within a row over √(2 ln n): below 1 many keys share the attention, above 1 "
        "it collapses onto a few. The norm of the Jacobian says how much a small change of scores can change the "
        "weights: near 0 the head learns nothing, be it because it is flat (1/n) or because it is saturated. Where "
        "the scale is 1/√d, as in most models, two of its three columns are the same number."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 5.1, 5.3, 6.2.1, 6.3.3 and 6.4. The column stated holds that text's own "
        "formula where it differs: the mean of e^X as e^((μ+σ²)/2), a score that is normal, and the bound with the "
        "cosine of the two tokens in it, which is none. Random energy model: Derrida (1981), Physical Review B 24, "
        "2613. Cumulants of the form: Mathai and Provost (1992), Quadratic Forms in Random Variables. D'Agostino and "
        "Pearson (1973), Biometrika 60, 613. Vaswani et al. (2017), Attention is all you need, section 3.2.1 (scale)."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self- or cross-attention",
        "layer": "counted from 0",
        "head": "counted from 0",
        "quantity": (
            "mean, variance, pair_kurtosis (excess): of the scores of all pairs; row_variance, row_skewness, "
            "row_kurtosis (excess): within a row; rejected_share: rows whose scores are not normal, or weights not "
            f"log-normal, at level 5 % (every fourth key, at least {FEWEST}); log_mean_exp: ln of the mean of e^s in a "
            "row, less the mean score; entropy_share: of the largest possible; entropy_share_all: with the first "
            "token; freezing; jacobian_trained, jacobian_root_d, jacobian_unscaled: norm of the softmax's derivative "
            "with the model's scale, with 1/√d and without scale, first token included, every fourth row. In the "
            "table of terms query_key: constant (the mean query), position, content"
        ),
        "value": "measured; in the table of bounds the largest |score|; in the table of terms the variance in a row",
        "low": "lower end of the 95 % interval; empty with fewer than two windows",
        "high": "upper end: jackknife over windows (Student t), since rows of one window depend on each other",
        "predicted": (
            "mean, variances, pair_kurtosis, freezing: from mean and covariance of q and k, tokens independent; "
            "row_skewness, row_kurtosis: a normal sample; log_mean_exp, entropy: Gaussian scores with the measured "
            "variance of each row"
        ),
        "stated": "the formula of the reference, where it is another one",
        "null": (
            "rejected_share: the level; entropy and Jacobian: attention uniform over the same keys; terms: shares "
            "that the sizes of the parts alone would give, with random matrices"
        ),
        "share": "the part of the row variance; all six sum to 1",
        "bound": "scale · |q| |k| of the pair with the largest |score|",
        "weights_bound": (
            "scale · |w_q| |w_k| |x| |y| of that pair, operator norms, the bias counted as one more input; empty where "
            "the weights are not known, q and k are normalised, or the site is cross-attention"
        ),
        "beyond": "share of windows whose largest |score| is above the stated bound",
        "rows": "rows measured",
        "samples": "tokens behind the means and covariances",
        "dimensions": "of q and k",
        "windows": "windows of text they came from",
    },
)

_PLACE = [("stack", pl.String), ("kind", pl.String), ("layer", pl.Int64), ("head", pl.Int64)]
_COUNTS = [(name, pl.Int64) for name in ("rows", "samples", "dimensions", "windows")]


_VALUES = [(name, pl.Float64) for name in ("value", "low", "high", "predicted", "stated", "null")]
_LIMITS = [(name, pl.Float64) for name in ("value", "bound", "weights_bound", "stated", "beyond")]
_SHARES = [(name, pl.Float64) for name in ("value", "share", "null")]
HEADS = pl.Schema([*_PLACE, ("quantity", pl.String), *_VALUES, *_COUNTS])
BOUNDS = pl.Schema([*_PLACE, *_LIMITS, ("windows", pl.Int64)])
TERMS = pl.Schema([*_PLACE, ("quantity", pl.String), *_SHARES, ("samples", pl.Int64), ("windows", pl.Int64)])

# Keys in a test of normality are so far apart: their correlation r then enters only as r³ and r⁴.
APART = 4
# The largest eigenvalue of a Jacobian costs more than all else: not every row.
JACOBIAN_ROWS = slice(2, None, 4)
# Samples per dimension below which a covariance is called poor.
PER_DIMENSION = 10
LEVEL = 0.05
# Positions that do not enter as a sum.
NOT_ADDED = ("rotary", "relative bias")
PARTS = ("constant", "position", "content")

# What is summed over the rows of a window, each with its own count.
_SUMMED = (
    "first", "second", "third", "fourth", "row_variance", "row_skewness", "row_kurtosis", "kurtosis_null", "rejected",
    "lifted", "lifted_predicted", "lifted_stated", "entropy", "entropy_predicted", "freezing", "melting", "wide",
    "entropy_all", "entropy_all_predicted", "jacobian_trained", "jacobian_root_d", "jacobian_unscaled", "uniform",
)  # fmt: skip
_AT = {name: index for index, name in enumerate(_SUMMED)}
_RANGE = {
    "variance": (0.0, inf), "row_variance": (0.0, inf), "log_mean_exp": (0.0, inf), "freezing": (0.0, inf),
    "entropy_share": (0.0, 1.0), "entropy_share_all": (0.0, 1.0), "rejected_share": (0.0, 1.0),
    "jacobian_trained": (0.0, 0.5), "jacobian_root_d": (0.0, 0.5), "jacobian_unscaled": (0.0, 0.5),
}  # fmt: skip

Row = dict[str, object]
PerRow = Float[Tensor, "heads rows"]


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})


@dataclass(frozen=True)
class Largest:
    """Of the pair with the largest |score| of each window: |s|, |q||k|, |x·y| and |x||y| (with a 1 behind x and y)."""

    pairs: Float[Tensor, "windows 4 heads"]


@dataclass(frozen=True)
class Positions:
    """Sums of q and of k at each position over windows, and how many windows reach it."""

    q: Float[Tensor, "n heads d"]
    k: Float[Tensor, "n kv_heads d"]
    count: Float[Tensor, " n"]

    def merge(self, other: "Positions") -> "Positions":
        """Of the windows of both."""
        long, short = (self, other) if len(self.count) >= len(other.count) else (other, self)
        n = len(short.count)

        def added(a: Tensor, b: Tensor) -> Tensor:
            return torch.cat((a[:n] + b, a[n:]))

        return Positions(added(long.q, short.q), added(long.k, short.k), added(long.count, short.count))


@dataclass(frozen=True)
class Seen:
    """What one site has shown; sums are kept apart by window, so that merging is exact."""

    scale: float
    sums: tuple[Float[Tensor, "_ summed heads"], ...]
    counts: tuple[Float[Tensor, "_ summed heads"], ...]
    largest: tuple[Largest, ...]
    q: Moments
    k: Moments
    histogram: Int[Tensor, " bins"]
    positions: Positions | None

    def merge(self, other: "Seen") -> "Seen":
        """What both have seen, this one's windows first."""
        joined = self.positions
        if joined is not None and other.positions is not None:
            joined = joined.merge(other.positions)
        return Seen(
            self.scale,
            (*self.sums, *other.sums),
            (*self.counts, *other.counts),
            (*self.largest, *other.largest),
            self.q.merge(other.q),
            self.k.merge(other.k),
            self.histogram + other.histogram,
            joined,
        )


@dataclass(frozen=True)
class State:
    """What has been seen so far, per site; `added` are the sites whose positions are split off."""

    params: Params
    sites: tuple[Site, ...]
    added: frozenset[Site]
    positions: str
    seen: Mapping[Site, Seen] = field(default_factory=dict)


def needs(params: Params, spec: ModelSpec) -> Needs:
    """Some rows of scores, all queries and keys, what the projections read, and the weights for their norms."""
    if params.skip < 0:
        raise UsageError(f"skip={params.skip}: no fewer than 0 tokens can be left out")
    return Needs(weights=True, captures=frozenset({"rows", "scale", "q", "k", "x"}))


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet. Positions are added before the first layer of a stack, if they are added at all."""
    own = [site for site in sites if site.kind == "self"] if spec.positions not in NOT_ADDED else []
    first = {stack: min(site.layer for site in own if site.stack == stack) for stack in {site.stack for site in own}}
    added = frozenset(site for site in own if site.layer == first[site.stack])
    return State(params, sites, added, spec.positions)


def update(state: State, batch: Batch) -> State:
    """Add the windows of one batch."""
    if batch.variant != AS_IS:
        return state
    seen = dict(state.seen)
    for site in state.sites:
        if site in batch.captures.get("rows", {}):
            new = _site_seen(state, site, batch)
            seen[site] = seen[site].merge(new) if site in seen else new
    return replace(state, seen=seen)


def merge(a: State, b: State) -> State:
    """What both have seen, a's windows first."""
    seen = dict(a.seen)
    for site, one in b.seen.items():
        seen[site] = seen[site].merge(one) if site in seen else one
    return replace(a, seen=seen)


@dataclass(frozen=True)
class Window:
    """One site in one window: what is summed comes from here."""

    site: Site
    scale: float
    skip: int
    q: Float[Tensor, "heads n d"]
    k: Float[Tensor, "kv_heads keys d"]
    rows: Float[Tensor, "heads rows keys"]
    real: Bool[Tensor, " n"]
    x: Float[Tensor, "n m"] | None

    @property
    def index(self) -> Int[Tensor, " rows"]:
        """The queries of the rows."""
        return torch.arange(self.q.shape[1])[sampled_rows(self.q.shape[1])]

    @property
    def seen_keys(self) -> Bool[Tensor, " keys"]:
        """Keys that are not padding; those of another stack are known by being looked at."""
        if self.site.kind == "self" and len(self.real) == self.k.shape[1]:
            return self.real
        return torch.isfinite(self.rows).any(0).any(0)

    def products(self) -> Float[Tensor, "heads rows keys"]:
        """scale · q·k, −∞ where masked: the rows themselves, unless a bias or a cap was put on them."""
        if not _bent(self.site):
            return self.rows
        k = self.k.double().repeat_interleave(self.site.n_heads // self.site.n_kv_heads, 0)
        raw = self.scale * self.q[:, self.index].double() @ k.mT
        return raw.masked_fill(~torch.isfinite(self.rows), -inf)


def _bent(site: Site) -> bool:
    """Whether something else than the product enters the scores."""
    return "bias" in site.extras or "softcap" in site.extras


def _site_seen(state: State, site: Site, batch: Batch) -> Seen:
    captured, skip = batch.captures, state.params.skip
    q, k, rows = captured["q"][site], captured["k"][site], captured["rows"][site].double()
    scale = float(captured["scale"][site])
    x = captured.get("x", {}).get(site) if site.kind == "self" else None
    whole = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool)
    real = batch.real if batch.real.shape == whole.shape else whole
    windows = [
        Window(site, scale, skip, q[b], k[b], rows[b], real[b], None if x is None else x[b]) for b in range(len(q))
    ]
    found = [_summed(window) for window in windows]
    kept_q = [window.q[:, skip:][:, window.real[skip:]] for window in windows]
    kept_k = [window.k[:, skip:][:, window.seen_keys[skip:]] for window in windows]
    return Seen(
        scale,
        (torch.stack([one.sums for one in found]),),
        (torch.stack([one.counts for one in found]),),
        (Largest(torch.stack([_largest(window) for window in windows])),),
        Moments.of(torch.cat(kept_q, 1)),
        Moments.of(torch.cat(kept_k, 1)),
        torch.stack([one.histogram for one in found]).sum(0),
        _position_sums(kept_q, kept_k, skip) if site in state.added else None,
    )


def _position_sums(q: Sequence[Tensor], k: Sequence[Tensor], skip: int) -> Positions:
    """Index 0 is the first position that is not left out; padding stands behind the text."""
    n = max(one.shape[1] for one in q)
    total_q = torch.zeros(n, q[0].shape[0], q[0].shape[2], dtype=torch.float64)
    total_k = torch.zeros(n, k[0].shape[0], k[0].shape[2], dtype=torch.float64)
    count = torch.zeros(n, dtype=torch.float64)
    for one, other in zip(q, k, strict=True):
        total_q[: one.shape[1]] += one.double().transpose(0, 1)
        total_k[: other.shape[1]] += other.double().transpose(0, 1)
        count[: one.shape[1]] += 1
    return Positions(total_q, total_k, count)


@dataclass(frozen=True)
class Summed:
    """The sums of one window over its rows, how many rows are in each, and the standardised scores in bins."""

    sums: Float[Tensor, "summed heads"]
    counts: Float[Tensor, "summed heads"]
    histogram: Int[Tensor, " bins"]


def _counted(window: Window) -> Bool[Tensor, "heads rows"]:
    """Rows that count: real, not left out, with two keys beside those left out."""
    visible = torch.isfinite(window.rows)
    visible[..., : window.skip] = False
    return (window.real[window.index] & (window.index >= window.skip)) & (visible.sum(-1) >= 2)


def _summed(window: Window) -> Summed:
    """Everything that is measured row by row."""
    counted, products = _counted(window), window.products().double()
    visible = torch.isfinite(products)
    kept = visible.clone()
    kept[..., : window.skip] = False
    columns: dict[str, tuple[PerRow, Bool[Tensor, "heads rows"]]] = {}
    n = kept.sum(-1).clamp_min(1)
    raw = products.masked_fill(~kept, 0.0)
    for power, name in enumerate(("first", "second", "third", "fourth"), start=1):
        columns[name] = (raw.pow(power).sum(-1) / n, counted)
    columns["row_variance"] = (_row_moments(products, kept)[1], counted)
    rest = _softmax_row(window.rows, kept)
    spread = rest.variance > 0
    shaped = counted & (n >= 4) & spread
    columns["row_skewness"], columns["row_kurtosis"] = (rest.skewness, shaped), (rest.kurtosis, shaped)
    columns["kurtosis_null"] = (-6 / (n + 1.0), shaped)
    columns["rejected"] = _rejected(window.rows, kept, counted)
    columns["lifted"] = (rest.lifted, counted)
    columns["lifted_predicted"] = (rest.lifted_predicted, counted)
    columns["lifted_stated"] = ((rest.variance - rest.mean) / 2, counted)
    columns["entropy"], columns["entropy_predicted"] = (rest.entropy, counted), (rest.entropy_predicted, counted)
    critical = (2 * n.clamp_min(2).double().log()).sqrt()
    columns["freezing"], columns["melting"] = (rest.variance.sqrt() / critical, counted), (1 / critical, counted)
    columns["wide"] = ((rest.variance > LARGEST_VARIANCE).double(), counted)
    everything = _softmax_row(window.rows, visible)
    columns["entropy_all"] = (everything.entropy, counted)
    columns["entropy_all_predicted"] = (everything.entropy_predicted, counted)
    columns |= _jacobians(window, visible, counted)
    sums = torch.stack([torch.where(mask, value, 0.0).sum(-1) for value, mask in map(columns.__getitem__, _SUMMED)])
    counts = torch.stack([columns[name][1].sum(-1) for name in _SUMMED]).double()
    return Summed(sums, counts, _binned(window.rows, kept, counted & (n >= FEWEST) & spread, rest))


def _row_moments(s: Float[Tensor, "heads rows keys"], kept: Bool[Tensor, "heads rows keys"]) -> tuple[PerRow, PerRow]:
    """Mean and unbiased variance of each row."""
    n = kept.sum(-1)
    mean = s.masked_fill(~kept, 0.0).sum(-1) / n.clamp_min(1)
    centred = (s - mean[..., None]).masked_fill(~kept, 0.0)
    return mean, centred.square().sum(-1) / (n - 1).clamp_min(1)


@dataclass(frozen=True)
class SoftmaxRow:
    """What the softmax makes of each row; entropies as shares of ln n."""

    mean: PerRow
    variance: PerRow
    skewness: PerRow
    kurtosis: PerRow
    lifted: PerRow
    lifted_predicted: PerRow
    entropy: PerRow
    entropy_predicted: PerRow


@lru_cache(maxsize=1)
def _gaussian_rows() -> GaussianRows:
    return GaussianRows()


def _softmax_row(s: Float[Tensor, "heads rows keys"], kept: Bool[Tensor, "heads rows keys"]) -> SoftmaxRow:
    n = kept.sum(-1)
    mean, variance = _row_moments(s, kept)
    centred = (s - mean[..., None]).masked_fill(~kept, 0.0)
    second = centred.square().sum(-1) / n.clamp_min(1)
    scale = torch.where(second > 0, second, 1.0)
    top = centred.masked_fill(~kept, -inf).amax(-1, keepdim=True).clamp_min(-1e300)
    weights = torch.exp(centred - top).masked_fill(~kept, 0.0)
    total = weights.sum(-1)
    lifted = top[..., 0] + (total / n.clamp_min(1)).clamp_min(1e-300).log()
    entropy = lifted + n.clamp_min(1).log() - (weights * centred).sum(-1) / total.clamp_min(1e-300)
    of_gaussians, lifted_of_gaussians = _gaussian_rows()(n.clamp_min(2), variance)
    most = n.clamp_min(2).double().log()
    return SoftmaxRow(
        mean,
        variance,
        centred.pow(3).sum(-1) / n.clamp_min(1) / scale**1.5,
        centred.pow(4).sum(-1) / n.clamp_min(1) / scale.square() - 3,
        lifted,
        lifted_of_gaussians,
        (entropy / most).clamp(0.0, 1.0),
        of_gaussians / most,
    )


def _rejected(
    s: Float[Tensor, "heads rows keys"], kept: Bool[Tensor, "heads rows keys"], counted: Bool[Tensor, "heads rows"]
) -> tuple[PerRow, Bool[Tensor, "heads rows"]]:
    """1 where a test on keys far enough apart rejects that the row is normal."""
    s, kept = s[..., ::APART], kept[..., ::APART]
    n = kept.sum(-1)
    mean, variance = _row_moments(s, kept)
    tested = counted & (n >= FEWEST) & (variance > 0)
    centred = (s - mean[..., None]).masked_fill(~kept, 0.0)
    second = torch.where(tested, centred.square().sum(-1) / n.clamp_min(1), 1.0)
    skewness = centred.pow(3).sum(-1) / n.clamp_min(1) / second**1.5
    kurtosis = centred.pow(4).sum(-1) / n.clamp_min(1) / second.square() - 3
    p = omnibus_p(skewness, kurtosis, n.clamp_min(FEWEST).double())
    return (p < LEVEL).double(), tested


def _jacobians(
    window: Window, visible: Bool[Tensor, "heads rows keys"], counted: Bool[Tensor, "heads rows"]
) -> dict[str, tuple[PerRow, Bool[Tensor, "heads rows"]]]:
    """Norms at three scales, for some of the rows; other scales only where the score is a product and nothing else."""
    chosen = torch.zeros_like(counted)
    chosen[:, JACOBIAN_ROWS] = True
    chosen &= counted
    rows = window.rows[chosen]
    found: dict[str, tuple[PerRow, Bool[Tensor, "heads rows"]]] = {}
    root = window.site.d_head**-0.5
    norms: dict[float, Tensor] = {}
    for name, scale in (("trained", window.scale), ("root_d", root), ("unscaled", 1.0)):
        known = name == "trained" or not _bent(window.site)
        value = torch.zeros(counted.shape, dtype=torch.float64)
        if known and len(rows):
            factor = round(scale / window.scale, 6) if window.scale else 1.0
            if factor not in norms:
                norms[factor] = jacobian_operator_norm(torch.softmax(rows * factor, -1))
            value[chosen] = norms[factor]
        found[f"jacobian_{name}"] = (value, chosen if known else torch.zeros_like(chosen))
    found["uniform"] = (1 / visible.sum(-1).clamp_min(1).double(), chosen)
    return found


def _binned(
    s: Float[Tensor, "heads rows keys"],
    kept: Bool[Tensor, "heads rows keys"],
    used: Bool[Tensor, "heads rows"],
    row: SoftmaxRow,
) -> Int[Tensor, " bins"]:
    """Scores less the mean of their row over its deviation, counted in bins; the last cell counts all of them."""
    standard = ((s - row.mean[..., None]) / row.variance.clamp_min(1e-300).sqrt()[..., None])[kept & used[..., None]]
    bins = torch.histc(standard, len(EDGES) - 1, float(EDGES[0]), float(EDGES[-1])).to(torch.int64)
    return torch.cat((bins, torch.tensor([len(standard)])))


def _largest(window: Window) -> Float[Tensor, "4 heads"]:
    """The pair with the largest |product| among the counted rows, first token included; NaN without one."""
    counted = _counted(window)
    size = window.products().double().abs().masked_fill(~torch.isfinite(window.rows), -1.0)
    size = size.masked_fill(~counted[..., None], -1.0)
    top, where = size.flatten(1).max(-1)
    keys = window.rows.shape[-1]
    query, key, heads = window.index[where // keys], where % keys, torch.arange(len(where))
    groups = window.site.n_heads // window.site.n_kv_heads
    lengths = window.q[heads, query].double().norm(dim=-1) * window.k[heads // groups, key].double().norm(dim=-1)
    inner = torch.full_like(lengths, nan)
    outer = inner
    if window.x is not None:
        x, y = window.x[query].double(), window.x[key].double()
        inner = ((x * y).sum(-1) + 1).abs()
        outer = ((x.square().sum(-1) + 1) * (y.square().sum(-1) + 1)).sqrt()
    return torch.stack((top, lengths, inner, outer)).masked_fill(top < 0, nan)


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Estimates, predictions and intervals of every site."""
    if weights is None:
        raise LensError("the lens scores reads the model's weights, and was given none")
    params = asdict(state.params)
    seen = {site: state.seen[site] for site in state.sites if site in state.seen and _has_rows(state.seen[site])}
    if not seen:
        reason = f"no row that sees two keys beside the first {state.params.skip} was shown to the lens"
        return Finding("scores", ABOUT, status="not applicable", reason=reason, params=params)
    norms = {site: _weight_norms(weights, site) for site in seen}
    tables = {
        "heads": pl.DataFrame([row for site, one in seen.items() for row in _head_rows(site, one)], schema=HEADS),
        "bounds": pl.DataFrame(
            [row for site, one in seen.items() for row in _bound_rows(site, one, norms[site])], schema=BOUNDS
        ),
        "terms": pl.DataFrame([row for site, one in seen.items() for row in _term_rows(site, one)], schema=TERMS),
    }
    histogram = torch.stack([one.histogram for one in seen.values()]).sum(0).numpy().astype(np.float64)
    finding = Finding(
        "scores",
        ABOUT,
        tables=tables,
        figures=figures(tables, list(seen), histogram),
        method=_method(state),
        warnings=_warnings(state, seen, weights),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def _has_rows(one: Seen) -> bool:
    return bool((torch.cat(one.counts)[:, _AT["first"]] > 0).any())


def _weight_norms(weights: WeightSource, site: Site) -> Float[Tensor, " heads"] | None:
    """Product of the operator norms of w_q and w_k, gains and biases included; None where they do not bound."""
    if weights.status(site).status != "exact":
        return None
    w = weights.weights(site)
    of_q: Tensor = torch.linalg.matrix_norm(_with_bias(w, "q"), ord=2)
    of_k: Tensor = torch.linalg.matrix_norm(_with_bias(w, "k"), ord=2)
    return of_q * of_k.repeat_interleave(site.n_heads // site.n_kv_heads)


def _with_bias(w: HeadWeights, part: str) -> Float[Tensor, "some_heads inputs d"]:
    matrix, bias, gain = (w.w_q, w.b_q, w.gain_q) if part == "q" else (w.w_k, w.b_k, w.gain_k)
    matrix, bias, gain = matrix.double(), bias.double(), gain.double()
    return torch.cat((matrix, bias[:, None]), 1) * gain[:, None]


def _method(state: State) -> str:
    how = (
        f"Scores of up to {SAMPLED_ROWS} equally spaced rows per window with all their keys, in the model's own "
        "precision, statistics in float64. Means and covariances of q and k from every token. Predictions are exact "
        "for Gaussian tokens; expected entropies of Gaussian rows by quadrature, interpolated to 1e-6."
    )
    if state.positions == "rotary":
        how += " Positions are rotary: q and k are taken after rotation, and predictions are for random positions."
    return how


def _warnings(state: State, seen: Mapping[Site, Seen], weights: WeightSource) -> tuple[str, ...]:
    found = list(status_warnings(weights.spec, {site: weights.status(site) for site in seen}, "no bound by weights"))
    found = [text.replace("Left out:", "No bound by weights:") for text in found]
    unseen = [site.label for site in state.sites if site not in seen]
    if unseen:
        found.append(f"No scores of {', '.join(unseen)} were seen.")
    bent = [site.label for site in seen if _bent(site)]
    if bent:
        found.append(
            f"{', '.join(bent)}: a bias or a cap is put on the scores. Mean, variance, kurtosis and bound are of the "
            "product before it, everything else of the scores behind it; the Jacobian only at the model's own scale."
        )
    poor = [site for site, one in seen.items() if min(one.q.count, one.k.count) < PER_DIMENSION * site.d_head]
    if poor:
        least = min(min(seen[site].q.count, seen[site].k.count) for site in poor)
        found.append(
            f"Predictions of {len(poor)} of {len(seen)} sites rest on {least} tokens or a little more for "
            f"{poor[0].d_head} dimensions: fewer than {PER_DIMENSION} per dimension."
        )
    wide, rows = (
        sum(float(x[:, _AT["wide"]].sum()) for one in seen.values() for x in getattr(one, name))
        for name in ("sums", "counts")
    )
    if wide:
        found.append(
            f"{100 * wide / rows:.2g} % of the rows have a variance above {LARGEST_VARIANCE:g}: their predicted "
            "entropy is that of this variance, an upper bound."
        )
    if not any(one.positions is not None for one in seen.values()):
        found.append(
            f"Positions are not added to the tokens of this model ({state.positions}): the scores have no terms of "
            "content and position."
            if state.positions in NOT_ADDED
            else "No self-attention was seen in a first layer: the terms of content and position are left out."
        )
    return tuple(found)


@dataclass(frozen=True)
class Predicted:
    """What independent Gaussian tokens would show, for each head."""

    mean: Float[Tensor, " heads"]
    variance: Float[Tensor, " heads"]
    row_variance: Float[Tensor, " heads"]
    kurtosis: Float[Tensor, " heads"]


def _predicted(site: Site, one: Seen) -> Predicted | None:
    """From means and covariances of q and k; None where there are too few tokens for any covariance."""
    if min(one.q.count, one.k.count) < 2:
        return None
    groups = site.n_heads // site.n_kv_heads
    mean_k, cov_k = (x.repeat_interleave(groups, 0) for x in (one.k.mean, one.k.covariance()))
    pair = GaussianPair.independent(one.q.mean, one.q.covariance(), mean_k, cov_k)
    form = one.scale * torch.eye(site.d_head, dtype=torch.float64).expand(site.n_heads, -1, -1)
    variance = score_variance(form, pair)
    between = one.scale**2 * torch.einsum("hi,hij,hj->h", mean_k, one.q.covariance(), mean_k)
    return Predicted(score_mean(form, pair), variance, variance - between, score_excess_kurtosis(form, pair))


def _estimates(
    sums: Float[Tensor, "*sets summed heads"], counts: Float[Tensor, "*sets summed heads"]
) -> dict[str, Float[Tensor, "*sets heads"]]:
    """Every quantity from the sums of some windows; NaN where nothing was counted."""
    mean = sums / torch.where(counts > 0, counts, nan)
    first, second, third, fourth = (mean[..., _AT[name], :] for name in ("first", "second", "third", "fourth"))
    variance = second - first.square()
    central = fourth - 4 * first * third + 6 * first.square() * second - 3 * first.pow(4)
    direct = {
        "row_variance": "row_variance", "row_skewness": "row_skewness", "row_kurtosis": "row_kurtosis",
        "rejected_share": "rejected", "log_mean_exp": "lifted", "entropy_share": "entropy",
        "entropy_share_all": "entropy_all", "freezing": "freezing", "jacobian_trained": "jacobian_trained",
        "jacobian_root_d": "jacobian_root_d", "jacobian_unscaled": "jacobian_unscaled",
    }  # fmt: skip
    return {
        "mean": first,
        "variance": variance,
        "pair_kurtosis": central / variance.square() - 3,
        **{name: mean[..., _AT[column], :] for name, column in direct.items()},
    }


def _head_rows(site: Site, one: Seen) -> Iterator[Row]:
    sums, counts = torch.cat(one.sums), torch.cat(one.counts)
    used = (counts[:, _AT["first"]] > 0).any(-1)
    sums, counts = sums[used], counts[used]
    windows = len(sums)
    total, number = sums.sum(0), counts.sum(0)
    values = _estimates(total, number)
    rest = _estimates(total - sums, number - counts) if windows > 1 else {}
    sides = _sides(site, one, total / torch.where(number > 0, number, nan))
    for head in range(site.n_heads):
        for quantity, value in values.items():
            low, high = _interval(quantity, float(value[head]), rest[quantity][:, head] if rest else torch.zeros(0))
            numbers = {"value": float(value[head]), "low": low, "high": high}
            numbers |= {name: float(column[head]) for name, column in sides.get(quantity, {}).items()}
            rows = number[_AT[_COUNT_OF.get(quantity, "first")], head]
            yield {
                **place(site, head),
                "quantity": quantity,
                **{name: _number(numbers.get(name, nan)) for name in ("value", "low", "high")},
                **{name: _number(numbers.get(name, nan)) for name in ("predicted", "stated", "null")},
                "rows": int(rows),
                "samples": one.q.count,
                "dimensions": site.d_head,
                "windows": windows,
            }


_COUNT_OF = {
    "row_skewness": "row_skewness", "row_kurtosis": "row_kurtosis", "rejected_share": "rejected",
    "jacobian_trained": "jacobian_trained", "jacobian_root_d": "jacobian_root_d",
    "jacobian_unscaled": "jacobian_unscaled",
}  # fmt: skip


def _sides(site: Site, one: Seen, mean: Float[Tensor, "summed heads"]) -> dict[str, dict[str, Tensor]]:
    """Predictions, stated formulas and nulls of the quantities that have them."""
    theory = _predicted(site, one)
    level, zero, full = (torch.full((site.n_heads,), x, dtype=torch.float64) for x in (LEVEL, 0.0, 1.0))
    sides: dict[str, dict[str, Tensor]] = {
        "row_skewness": {"predicted": zero},
        "row_kurtosis": {"predicted": mean[_AT["kurtosis_null"]]},
        "rejected_share": {"null": level},
        "log_mean_exp": {"predicted": mean[_AT["lifted_predicted"]], "stated": mean[_AT["lifted_stated"]]},
        "entropy_share": {"predicted": mean[_AT["entropy_predicted"]], "null": full},
        "entropy_share_all": {"predicted": mean[_AT["entropy_all_predicted"]], "null": full},
        **{f"jacobian_{name}": {"null": mean[_AT["uniform"]]} for name in ("trained", "root_d", "unscaled")},
    }
    if theory is not None:
        sides |= {
            "mean": {"predicted": theory.mean},
            "variance": {"predicted": theory.variance},
            "row_variance": {"predicted": theory.row_variance},
            "pair_kurtosis": {"predicted": theory.kurtosis, "stated": zero},
        }
        if not _bent(site):
            sides["freezing"] = {"predicted": theory.row_variance.clamp_min(0.0).sqrt() * mean[_AT["melting"]]}
    return sides


def _interval(quantity: str, value: float, rest: Float[Tensor, " windows"]) -> tuple[float, float]:
    """Jackknife over windows, Student t; within what the quantity can be."""
    w = len(rest)
    if w < 2 or not bool(torch.isfinite(rest).all()):
        return nan, nan
    error = sqrt((w - 1) / w * float((rest - rest.mean()).square().sum()))
    half = float(stats.t.ppf(0.975, w - 1)) * error
    least, most = _RANGE.get(quantity, (-inf, inf))
    return max(value - half, least), min(value + half, most)


def _number(value: float) -> float | None:
    return value if abs(value) < inf else None


def _bound_rows(site: Site, one: Seen, norms: Float[Tensor, " heads"] | None) -> Iterator[Row]:
    pairs = torch.cat([part.pairs for part in one.largest])
    for head in range(site.n_heads):
        mine = pairs[:, :, head]
        mine = mine[~mine[:, 0].isnan()]
        if not len(mine):
            continue
        size, lengths, inner, outer = mine[int(mine[:, 0].argmax())].tolist()
        norm = nan if norms is None else float(norms[head])
        allowed = abs(one.scale) * norm * mine[:, 2]
        beyond = float((mine[:, 0] > allowed).double().mean()) if bool(torch.isfinite(allowed).all()) else nan
        yield {
            **place(site, head),
            "value": size,
            "bound": abs(one.scale) * lengths,
            "weights_bound": _number(abs(one.scale) * norm * outer),
            "stated": _number(abs(one.scale) * norm * inner),
            "beyond": _number(beyond),
            "windows": len(mine),
        }


def _term_rows(site: Site, one: Seen) -> Iterator[Row]:
    """The row variance of independent tokens, split by what depends on position; needs two windows."""
    at = one.positions
    if at is None or float(at.count.max() if len(at.count) else 0.0) < 2 or min(one.q.count, one.k.count) < 2:
        return
    groups = site.n_heads // site.n_kv_heads
    of_q = dict(zip(PARTS[1:], _split(at.q, at.count, one.q), strict=True))
    of_q["constant"] = one.q.mean[:, :, None] * one.q.mean[:, None, :]
    of_k = dict(zip(PARTS[1:], (x.repeat_interleave(groups, 0) for x in _split(at.k, at.count, one.k)), strict=True))
    names = [(a, b) for a in PARTS for b in PARTS[1:]]
    values = {f"{a}_{b}": one.scale**2 * (of_q[a] * of_k[b]).sum((-2, -1)) for a, b in names}
    sizes = {f"{a}_{b}": _trace(of_q[a]) * _trace(of_k[b]) for a, b in names}
    total, lengths = (torch.stack(list(x.values())).sum(0) for x in (values, sizes))
    for head in range(site.n_heads):
        for name, value in values.items():
            yield {
                **place(site, head),
                "quantity": name,
                "value": float(value[head]),
                "share": _number(float(value[head] / total[head])),
                "null": _number(float(sizes[name][head] / lengths[head])),
                "samples": one.q.count,
                "windows": int(at.count.max()),
            }


def _split(
    total: Float[Tensor, "n some_heads d"], count: Float[Tensor, " n"], moments: Moments
) -> tuple[Float[Tensor, "some_heads d d"], Float[Tensor, "some_heads d d"]]:
    r"""Covariance of what the position tells, and of the rest.

    With $S_i$ the centred sum over the $c_i$ windows at position i, $\sum_i S_i S_i^\top$ less the scatter holds only
    products of different windows: over $\sum_i c_i (c_i - 1)$ it is free of the noise of the means.
    """
    centred = (total - count[:, None, None] * moments.mean).transpose(0, 1)
    position = (centred.mT @ centred - moments.scatter) / float((count * (count - 1)).sum())
    return position, moments.covariance() - position


def _trace(x: Float[Tensor, "some_heads d d"]) -> Float[Tensor, " some_heads"]:
    return x.diagonal(dim1=-2, dim2=-1).sum(-1)


def headline(finding: Finding) -> tuple[str, ...]:
    """Whether independent Gaussian tokens explain the variance, and whether the variance explains the entropy."""
    if finding.status != "ok":
        return ()
    table = finding.tables["heads"]
    sentences = (_variance_sentence(table), _entropy_sentence(table), _last_sentence(finding))
    return tuple(sentence for sentence in sentences if sentence)


def _rows_of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())


def _variance_sentence(table: pl.DataFrame) -> str:
    rows = _rows_of(table, "row_variance").filter(pl.col("predicted") > 0)
    if rows.is_empty():
        return f"Scores of {_rows_of(table, 'mean').height} heads were seen, too few tokens to predict them."
    ratio = (rows["value"] / rows["predicted"]).to_numpy()
    near = int(((ratio > 1 / 1.25) & (ratio < 1.25)).sum())
    top = rows.row(int(ratio.argmax()), named=True)
    holds = "explain" if near > 0.9 * len(ratio) else "explain in part" if near > 0.5 * len(ratio) else "do not explain"
    return (
        f"Independent Gaussian tokens {holds} how much scores differ within a row: the measured variance is "
        f"{np.median(ratio):.2f} times the predicted one in the median head, within 25 % of it in {near} of "
        f"{len(ratio)}; the most in {label_of(top)}, {ratio.max():.2g} times."
    )


def _entropy_sentence(table: pl.DataFrame) -> str:
    rows = _rows_of(table, "entropy_share").filter(pl.col("predicted").is_not_null())
    if rows.is_empty():
        return ""
    value, predicted = rows["value"].to_numpy(), rows["predicted"].to_numpy()
    gap = np.abs(value - predicted)
    frozen = _rows_of(table, "freezing")["value"].to_numpy()
    tested = _rows_of(table, "rejected_share")["value"].to_numpy()
    normal = ""
    if len(tested):
        normal = f"; normality of a row is rejected in {100 * np.median(tested):.0f} % of rows (chance: 5 %)"
    return (
        f"From the variance of a row alone Gaussian scores would have {100 * np.median(predicted):.0f} % of the "
        f"largest entropy in the median head, measured are {100 * np.median(value):.0f} %, and the two differ by "
        f"{100 * np.median(gap):.1f} points in the median; {int((frozen > 1).sum())} of {len(frozen)} heads are beyond "
        f"freezing{normal}."
    )


def _last_sentence(finding: Finding) -> str:
    trained, bare = (_rows_of(finding.tables["heads"], f"jacobian_{name}") for name in ("trained", "unscaled"))
    bounds, terms = finding.tables["bounds"], finding.tables["terms"]
    parts = []
    if not trained.is_empty():
        parts.append(f"the softmax's Jacobian has a median norm of {np.median(trained['value'].to_numpy()):.2g}")
        if not bare.is_empty():
            parts[-1] += f" as trained and {np.median(bare['value'].to_numpy()):.2g} without scale"
    if not bounds.is_empty():
        reached = 100 * float(np.median((bounds["value"] / bounds["bound"]).to_numpy()))
        parts.append(f"the largest score reaches {reached:.0f} % of its Cauchy–Schwarz bound in the median head")
        stated = bounds["beyond"].drop_nulls().to_numpy()
        if len(stated):
            parts[-1] += f" (with the cosine of the tokens in it the bound fails in {int((stated > 0).sum())} heads)"
    if not terms.is_empty():
        mixed = terms.filter(pl.col("quantity").is_in(["position_content", "content_position"]))
        sums = mixed.group_by("stack", "layer", "head").agg(pl.col("share", "null").sum())
        share, null = (100 * float(np.median(sums[name].to_numpy())) for name in ("share", "null"))
        parts.append(
            f"the mixed terms of content and position hold {share:.0f} % of the first layer's row variance (by the "
            f"sizes of the parts alone {null:.0f} %)"
        )
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "." if text else ""


Array = NDArray[np.float64]


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, row by row and key by key, in numpy."""
    kept = [batch for batch in batches if batch.variant == AS_IS]
    sites = list(kept[0].captures["rows"]) if kept else []
    first = {site.stack: min(s.layer for s in sites if s.stack == site.stack) for site in sites}
    heads: list[Row] = []
    bounds: list[Row] = []
    terms: list[Row] = []
    for site in sites:
        windows = [
            _DefinedWindow.of(params, site, batch, index) for batch in kept for index in range(len(batch.tokens))
        ]
        for head in range(site.n_heads):
            one = _DefinedHead(site, head, windows)
            heads += one.head_rows()
            bounds += one.bound_rows(weights)
            # The specifications of the models that this is compared on do not name their positions: they are split.
            if site.kind == "self" and site.layer == first[site.stack]:
                terms += one.term_rows()
    schemas = {"heads": HEADS, "bounds": BOUNDS, "terms": TERMS}
    return {
        name: pl.DataFrame(rows, schema=schemas[name])
        for name, rows in (("heads", heads), ("bounds", bounds), ("terms", terms))
    }


@dataclass(frozen=True)
class _DefinedWindow:
    """One window in numpy; `visible[h][i]` are the keys that row i of head h sees."""

    skip: int
    scale: float
    q: Array
    k: Array
    x: Array
    rows: Array
    indices: list[int]
    queries: list[int]
    keys: list[int]

    @classmethod
    def of(cls, params: Params, site: Site, batch: Batch, index: int) -> "_DefinedWindow":
        captured = {name: one[site].double().numpy() for name, one in batch.captures.items() if site in one}
        q, rows = captured["q"][index], captured["rows"][index]
        step = -(-q.shape[1] // SAMPLED_ROWS)
        queries = [i for i in range(q.shape[1]) if bool(batch.real[index, i])]
        looked_at = [j for j in range(rows.shape[-1]) if np.isfinite(rows[:, :, j]).any()]
        return cls(
            params.skip, float(captured["scale"]), q, captured["k"][index], captured["x"][index], rows,
            list(range(step // 2, q.shape[1], step)), queries, queries if site.kind == "self" else looked_at,
        )  # fmt: skip


class _DefinedHead:
    """Everything about one head, by the formulas."""

    def __init__(self, site: Site, head: int, windows: Sequence[_DefinedWindow]) -> None:
        self.site, self.head, self.windows = site, head, windows
        self.kv = head // (site.n_heads // site.n_kv_heads)
        self.where: Row = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head}
        # Rows that count, window by window, by the query that they belong to.
        self.rows = [{r: row for r, i in enumerate(one.indices) if (row := self.row(one, r, i))} for one in windows]
        self.measured = [list(rows.values()) for rows in self.rows if rows]
        self.scale = windows[0].scale
        self.q = np.concatenate([one.q[head, [i for i in one.queries if i >= one.skip]] for one in windows])
        self.k = np.concatenate([one.k[self.kv, [j for j in one.keys if j >= one.skip]] for one in windows])

    def row(self, one: _DefinedWindow, r: int, i: int) -> dict[str, float]:
        """The numbers of one row; none where it does not count."""
        seen = [j for j in range(one.rows.shape[-1]) if one.rows[self.head, r, j] > -inf]
        kept = [j for j in seen if j >= one.skip]
        if i not in one.queries or i < one.skip or len(kept) < 2:
            return {}
        s = np.array([one.scale * one.q[self.head, i] @ one.k[self.kv, j] for j in kept])
        t = one.rows[self.head, r, kept]
        n, mean, variance = len(kept), float(t.mean()), float(t.var(ddof=1))
        entropy, lifted = _defined_gaussian_row(n, variance)
        found = {
            "first": float(s.mean()), "second": float((s**2).mean()), "third": float((s**3).mean()),
            "fourth": float((s**4).mean()), "row_variance": float(s.var(ddof=1)),
            "lifted": log(float(np.exp(t).mean())) - mean, "lifted_predicted": lifted,
            "lifted_stated": (mean + variance) / 2 - mean,
            "entropy": _defined_entropy(t) / log(n), "entropy_predicted": entropy / log(n),
            "freezing": sqrt(variance) / sqrt(2 * log(n)), "melting": 1 / sqrt(2 * log(n)),
        }  # fmt: skip
        everything = one.rows[self.head, r, seen]
        predicted = _defined_gaussian_row(len(seen), float(everything.var(ddof=1)))[0]
        found |= {
            "entropy_all": _defined_entropy(everything) / log(len(seen)),
            "entropy_all_predicted": predicted / log(len(seen)),
        }
        if n >= 4 and variance > 0:
            y = (t - mean) / t.std()
            found |= {"row_skewness": (y**3).mean(), "row_kurtosis": (y**4).mean() - 3, "kurtosis_null": -6 / (n + 1)}
        spaced = one.rows[self.head, r, [j for j in kept if j % APART == 0]]
        if len(spaced) >= FEWEST:
            found["rejected"] = float(stats.normaltest(spaced).pvalue < LEVEL)
        if r % 4 == 2:
            root = self.site.d_head**-0.5
            for name, scale in (("trained", one.scale), ("root_d", root), ("unscaled", 1.0)):
                p = np.exp(everything * scale / one.scale)
                p /= p.sum()
                found[f"jacobian_{name}"] = float(np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)).max())
            found["uniform"] = 1 / len(seen)
        return found

    def estimates(self, windows: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
        rows = [row for window in windows for row in window]

        def mean(name: str) -> float:
            found = [row[name] for row in rows if name in row]
            return sum(found) / len(found) if found else nan

        m1, m2, m3, m4 = (mean(name) for name in ("first", "second", "third", "fourth"))
        variance = m2 - m1**2
        same = ("row_variance", "row_skewness", "row_kurtosis")
        same_end = ("freezing", "jacobian_trained", "jacobian_root_d", "jacobian_unscaled")
        return {
            "mean": m1,
            "variance": variance,
            "pair_kurtosis": (m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4) / variance**2 - 3,
            **{name: mean(name) for name in same},
            "rejected_share": mean("rejected"),
            "log_mean_exp": mean("lifted"),
            "entropy_share": mean("entropy"),
            "entropy_share_all": mean("entropy_all"),
            **{name: mean(name) for name in same_end},
            **{f"({name})": mean(name) for name in ("lifted_predicted", "lifted_stated", "entropy_predicted")},
            **{f"({name})": mean(name) for name in ("entropy_all_predicted", "melting", "uniform", "kurtosis_null")},
        }

    def theory(self) -> dict[str, float]:
        """Moments of scale · q·k for independent Gaussian q and k."""
        a, mu, nu = self.scale, self.q.mean(0), self.k.mean(0)
        d = len(mu)
        of_q, of_k = (np.cov(x.T, ddof=1).reshape(d, d) for x in (self.q, self.k))
        within = a**2 * (np.trace(of_q @ of_k) + mu @ of_k @ mu)
        variance = within + a**2 * (nu @ of_q @ nu)
        # κ₄ of gᵀMg, g = (q, k): 48 (Tr (MΣ)⁴ + 4 μᵀ M (ΣM)³ μ).
        nothing, half = np.zeros((d, d)), a / 2 * np.eye(d)
        m, sigma = np.block([[nothing, half], [half, nothing]]), np.block([[of_q, nothing], [nothing, of_k]])
        g, step = np.concatenate((mu, nu)), m @ sigma
        fourth = 48 * (np.trace(step @ step @ step @ step) + 4 * g @ step @ step @ step @ m @ g)
        return {"mean": a * mu @ nu, "variance": variance, "row_variance": within, "kurtosis": fourth / variance**2}

    def head_rows(self) -> Iterator[Row]:
        if not self.measured:
            return
        value, theory, w = self.estimates(self.measured), self.theory(), len(self.measured)
        rest = [self.estimates([*self.measured[:out], *self.measured[out + 1 :]]) for out in range(w)]
        sides: dict[str, dict[str, float]] = {
            "mean": {"predicted": theory["mean"]},
            "variance": {"predicted": theory["variance"]},
            "row_variance": {"predicted": theory["row_variance"]},
            "pair_kurtosis": {"predicted": theory["kurtosis"], "stated": 0.0},
            "row_skewness": {"predicted": 0.0},
            "row_kurtosis": {"predicted": value["(kurtosis_null)"]},
            "rejected_share": {"null": 0.05},
            "log_mean_exp": {"predicted": value["(lifted_predicted)"], "stated": value["(lifted_stated)"]},
            "entropy_share": {"predicted": value["(entropy_predicted)"], "null": 1.0},
            "entropy_share_all": {"predicted": value["(entropy_all_predicted)"], "null": 1.0},
            "freezing": {"predicted": sqrt(theory["row_variance"]) * value["(melting)"]},
            **{f"jacobian_{name}": {"null": value["(uniform)"]} for name in ("trained", "root_d", "unscaled")},
        }
        of_rows = {"rejected_share": "rejected", "row_skewness": "row_skewness", "row_kurtosis": "row_kurtosis"}
        for name, number in value.items():
            if name.startswith("("):
                continue
            others = np.array([one[name] for one in rest])
            low = high = nan
            if w > 1 and np.isfinite(others).all():
                half = float(stats.t.ppf(0.975, w - 1)) * sqrt((w - 1) / w * ((others - others.mean()) ** 2).sum())
                low, high = number - half, number + half
                if name not in ("mean", "pair_kurtosis", "row_skewness", "row_kurtosis"):
                    low = max(low, 0.0)
                high = min(high, 1.0) if "share" in name else min(high, 0.5) if "jacobian" in name else high
            counted = of_rows.get(name, name if "jacobian" in name else "first")
            cells = {"value": number, "low": low, "high": high, "predicted": nan, "stated": nan, "null": nan}
            cells |= sides[name]
            yield {
                **self.where,
                "quantity": name,
                **{key: cell if np.isfinite(cell) else None for key, cell in cells.items()},
                "rows": sum(counted in row for window in self.measured for row in window),
                "samples": len(self.q),
                "dimensions": self.site.d_head,
                "windows": w,
            }

    def bound_rows(self, weights: WeightSource | None) -> Iterator[Row]:
        tops = [self.top(one, rows) for one, rows in zip(self.windows, self.rows, strict=True) if rows]
        if not tops:
            return
        norm = nan
        if weights is not None and self.site.kind == "self":
            w = weights.weights(self.site)
            factors = ((w.w_q[self.head], w.b_q[self.head], w.gain_q[self.head]),
                       (w.w_k[self.kv], w.b_k[self.kv], w.gain_k[self.kv]))  # fmt: skip
            norm = 1.0
            for matrix, bias, gain in factors:
                stacked = np.vstack((matrix.double().numpy(), bias.double().numpy())) * gain.double().numpy()
                norm *= float(np.linalg.svd(stacked, compute_uv=False)[0])
        size, lengths, x, y = max(tops, key=lambda one: one[0])
        cosine = abs(float(x @ y)) / float(np.linalg.norm(x) * np.linalg.norm(y))
        limit = self.scale * norm * float(np.linalg.norm(x) * np.linalg.norm(y))
        beyond = [s > self.scale * norm * abs(float(a @ b)) for s, _, a, b in tops]
        cells: dict[str, float] = {
            "value": size, "bound": self.scale * lengths, "weights_bound": limit, "stated": limit * cosine,
            "beyond": sum(beyond) / len(tops) if norm == norm else nan,
        }  # fmt: skip
        numbers = {key: cell if abs(cell) < inf else None for key, cell in cells.items()}
        yield {**self.where, **numbers, "windows": len(tops)}

    def top(self, one: _DefinedWindow, rows: Mapping[int, object]) -> tuple[float, float, Array, Array]:
        """The largest |score| of a window, the two lengths, and the two tokens with a 1 behind them."""
        size, i, j = max(
            (abs(one.scale * float(one.q[self.head, one.indices[r]] @ one.k[self.kv, j])), one.indices[r], j)
            for r in rows
            for j in range(one.rows.shape[-1])
            if one.rows[self.head, r, j] > -inf
        )
        lengths = float(np.linalg.norm(one.q[self.head, i]) * np.linalg.norm(one.k[self.kv, j]))
        y = one.x[j] if self.site.kind == "self" else one.x[i]
        return size, lengths, np.append(one.x[i], 1.0), np.append(y, 1.0)

    def term_rows(self) -> Iterator[Row]:
        of_q = self.split([one.q[self.head, [i for i in one.queries if i >= one.skip]] for one in self.windows])
        of_k = self.split([one.k[self.kv, [j for j in one.keys if j >= one.skip]] for one in self.windows])
        values = {(a, b): self.scale**2 * np.trace(of_q[a] @ of_k[b]) for a in of_q for b in of_k if b != "constant"}
        sizes = {(a, b): np.trace(of_q[a]) * np.trace(of_k[b]) for a, b in values}
        longest = max(sum(len(one.queries) > i for one in self.windows) for i in range(self.windows[0].skip, 99))
        for (a, b), value in values.items():
            share, null = value / sum(values.values()), sizes[a, b] / sum(sizes.values())
            numbers = {"value": value, "share": share, "null": null, "samples": len(self.q), "windows": longest}
            yield {**self.where, "quantity": f"{a}_{b}", **numbers}

    def split(self, windows: Sequence[Array]) -> dict[str, Array]:
        """Products of different windows at one position, each pair once either way round."""
        everything = np.concatenate(windows)
        mean, d = everything.mean(0), everything.shape[1]
        total, pairs = np.zeros((d, d)), 0
        for a, one in enumerate(windows):
            for b, other in enumerate(windows):
                for x, y in zip(one, other, strict=False) if a != b else ():
                    total += np.outer(x - mean, y - mean)
                    pairs += 1
        position = total / pairs
        content = np.cov(everything.T, ddof=1).reshape(d, d) - position
        return {"constant": np.outer(mean, mean), "position": position, "content": content}


def _defined_entropy(t: Array) -> float:
    p = np.exp(t - t.max())
    p /= p.sum()
    return float(-sum(x * log(x) for x in p if x > 0))


def _defined_gaussian_row(n: int, variance: float) -> tuple[float, float]:
    """Mean entropy and log mean exponential of n Gaussian scores: n e^(s₁) ln(…) by Frullani's integral of ln."""
    sigma = sqrt(variance)
    g, u = np.arange(-9, 9.01, 0.12), np.exp(np.arange(-9 * sigma - log(n) - 40, 9 * sigma + 8, 0.15))
    weight = np.exp(-(g**2) / 2)
    weight /= weight.sum()
    e = np.exp(sigma * g)
    decay = np.exp(-np.outer(u, e))
    phi, tilted = decay @ weight, (decay * e) @ (weight * g * sigma)
    # E ln Σ = ∫ (e^(−u) − φⁿ) du/u, and E Σ p s = n ∫ E[s e^s e^(−u e^s)] φ^(n−1) du.
    mean_log = 0.15 * float((np.exp(-u) - phi**n).sum())
    mean_score = 0.15 * n * float((u * tilted * phi ** (n - 1)).sum())
    return mean_log - mean_score, mean_log - log(n)


LENS = Lens(
    name="scores",
    about=ABOUT,
    params=Params,
    needs=needs,
    start=start,
    update=update,
    merge=merge,
    finish=finish,
    definition=definition,
    headline=headline,
    invariant=frozenset({"qk:heads", "rotated qk", "vo", "heads"}),
)
