r"""Gaussian: how far does a Gaussian describe the residual stream, and what do tokens know of each other in it?

A fold over text. Per layer the mean and covariance of the residual stream, merged from batches; from them its entropy
and its effective dimension. A bounded sample of rows answers what needs single rows: tests of normality, divergence
between layers and between early and late positions, and mutual information against distance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import inf, log, nan, pi, sqrt

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor

from headscope.core import About, Finding, ModelSpec, Site, WeightSource
from headscope.errors import NumericsError, UsageError
from headscope.lenses.figures.gaussian import figures
from headscope.lenses.figures.layout import place
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.sample import Plan, Sample
from headscope.maths import normality
from headscope.maths.gaussian import Gaussian, eigen, shrinkage_weight
from headscope.maths.information import kl, mutual_information
from headscope.maths.moments import Moments

ORDER = 5

ABOUT = About(
    title="The Gaussian model of the residual stream",
    question="How far does a Gaussian describe the residual stream, and what do tokens tell of each other in it?",
    definition=(
        "The vectors that enter a layer, one per token, are taken as samples of one Gaussian per layer. Its "
        "covariance is shrunk (Ledoit and Wolf) and its entropy is computed in as many principal components as "
        "there are ten samples for. Two Gaussians are compared by their divergence: a layer with the next one, the "
        "first half of the windows with the second. Whether the samples are Gaussian at all is tested by skewness "
        "and kurtosis, along each principal component and in all of them together. The mutual information of two "
        "tokens at distance |i − j| is that of a joint Gaussian of their principal components: it counts linear "
        "dependence only. The first token of each window is left out: many models mark it by a huge vector that "
        "would be all of the covariance."
    ),
    formulas=(
        r"H = \frac{1}{2} \sum_{i \leq p} \ln(2 \pi e\,\lambda_i), \qquad "
        r"\mathrm{effective\ dimension} = (\sum_i \lambda_i)^2\,/\,\sum_i \lambda_i^2",
        r"D(p\,\|\,q) = \frac{1}{2} \left( \mathrm{Tr}(\Sigma_q^{-1} \Sigma_p) - k - \ln |\Sigma_q^{-1} \Sigma_p| + "
        r"\Delta^\top \Sigma_q^{-1} \Delta \right)",
        r"I(X_i; X_j) = \frac{1}{2} \ln \frac{|\Sigma_{ii}|\,|\Sigma_{jj}|}{|\Sigma|}, \qquad "
        r"\Sigma = \mathrm{Cov}(X_i, X_j)",
        r"b_1 = \frac{1}{n^2} \sum_{ij} (c_i^\top S^{-1} c_j)^3, \qquad "
        r"b_2 = \frac{1}{n} \sum_i (c_i^\top S^{-1} c_i)^2",
    ),
    reading=(
        "Entropy follows the size of the vectors: compare it with the isotropic Gaussian of the same variance, never "
        "with another number of dimensions. A small effective dimension means that a few directions hold the "
        "variance. Normality that is rejected does not make the other numbers wrong as statements about means and "
        "covariances, but the entropy is then only an upper bound, and the mutual information leaves out whatever is "
        "not linear. Mutual information above the shuffled one is what tokens of one text share beyond their "
        "positions. Values with different numbers of dimensions must not be compared."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 4.1 and 4.2 (joint Gaussians of token sequences). "
        "Ledoit and Wolf (2004), Journal of Multivariate Analysis 88, 365. Mardia (1974), Sankhyā B 36, 115. "
        "D'Agostino (1970), Biometrika 57, 679. Anscombe and Glynn (1983), Biometrika 70, 227. Sun et al. (2024), "
        "Massive activations in large language models (the first token)."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self: the stream is that which enters the layer, one per layer",
        "layer": "counted from 0; layer 0 is given the embeddings",
        "head": "empty: the stream belongs to the layer",
        "component": "principal component, counted from 0; empty where a number is about all of them together",
        "distance": "|i − j| in tokens",
        "quantity": (
            "entropy_nats; effective_dimension; shrinkage: the weight of the multiple of the identity, 0 to 1; "
            "first_share: the part of all variance that would be due to the first tokens that are left out; "
            "kl_next_nats: D(this layer ‖ next layer); kl_late_nats: D(first half ‖ second half of the windows); "
            "skewness, excess_kurtosis: of one component; mardia_skewness, mardia_kurtosis: of all of them"
        ),
        "value": (
            "the estimate; empty where there were too few samples. Mutual information: less its bias, which the "
            "jackknife over windows estimates"
        ),
        "raw": "mutual information as estimated, bias included; to be compared with the null",
        "low": "lower end of the 95 % interval; empty with fewer than two windows",
        "high": (
            "upper end. Jackknife over windows (Student t), since rows of one window depend on each other. Not the "
            "bootstrap: windows drawn twice would look like information"
        ),
        "null": (
            "what chance gives. Entropy, effective dimension: isotropic Gaussian samples with the same variance and "
            "number; first_share: the share of rows; divergences: the two sides exchanged in half of the windows; "
            "normality: Gaussian samples of the same number; mutual information: the tokens of one window with those "
            "of another, bias included; what positions alone tell is in it"
        ),
        "z": (
            "distance from the null in its standard deviations; mutual information: the deviation among shuffles, or "
            "that of independent pairs where it is larger"
        ),
        "p": "p-value of the test, two-sided but for mardia_skewness",
        "analytic": "k² / 2n: the bias that independent pairs would have",
        "dimensions": "principal components used, k or p in the formulas; never more than a tenth of the samples",
        "samples": "rows, or pairs of rows",
        "windows": "windows of text they came from",
    },
)

_PLACE = [("stack", pl.String), ("kind", pl.String), ("layer", pl.Int64), ("head", pl.Int64)]
_ESTIMATE = [(name, pl.Float64) for name in ("value", "low", "high", "null")]
_TEST = [(name, pl.Float64) for name in ("value", "null", "z", "p")]
_FURTHER = [(name, pl.Float64) for name in ("raw", "z", "analytic")]
_COUNTS = [(name, pl.Int64) for name in ("dimensions", "samples", "windows")]
LAYERS = pl.Schema([*_PLACE, ("quantity", pl.String), *_ESTIMATE, *_COUNTS])
NORMALITY = pl.Schema([*_PLACE, ("component", pl.Int64), ("quantity", pl.String), *_TEST, *_COUNTS])
INFORMATION = pl.Schema([*_PLACE, ("distance", pl.Int64), *_ESTIMATE, *_FURTHER, *_COUNTS])

# The rule of the lens: samples for each dimension in which something is estimated.
PER_DIMENSION = 10
# Rows for tests of normality are at least so far apart: their correlation r then enters only as r³ and r⁴.
APART = 8
# Windows that the sample keeps at most, rows per layer, and how often windows are exchanged for the null.
WINDOWS, ROWS, SHUFFLES = 64, 16384, 16
# What the sample of all layers and their covariances may take; beyond it fewer rows, and not every layer.
SAMPLE_BYTES, COVARIANCE_BYTES = 256 * 2**20, 2 * 2**30

Row = dict[str, object]
# Indices of the first and of the second rows of pairs; by distance, first those of the same window, then shuffled ones.
Pairs = tuple[Tensor, Tensor]
Pairings = Mapping[int, Sequence[Pairs]]


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    components: int = field(default=8, metadata={"help": "principal components for divergence, information and tests"})
    distances: str = field(default="1,2,4,8,16,32,64,128", metadata={"help": "distances |i − j| in tokens, by commas"})
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})

    def checked_distances(self) -> tuple[int, ...]:
        """The distances as numbers, ascending."""
        parts = [part.strip() for part in self.distances.split(",") if part.strip()]
        if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise UsageError(
                f"distances={self.distances!r} cannot be read: expected whole numbers ≥ 1 separated by commas",
                hint="write for example 1,8,64",
            )
        return tuple(sorted({int(part) for part in parts}))


@dataclass(frozen=True)
class First:
    """Count, mean and sum of squared deviations of the tokens that are left out."""

    count: int
    mean: Float[Tensor, "d"]
    spread: float

    @classmethod
    def of(cls, x: Float[Tensor, "rows d"]) -> "First":
        """Of rows."""
        x = x.to(torch.float64)
        mean = x.mean(0) if len(x) else torch.zeros(x.shape[1], dtype=torch.float64)
        return cls(len(x), mean, float((x - mean).square().sum()))

    def merge(self, other: "First") -> "First":
        """Of the rows of both."""
        if not self.count or not other.count:
            return self if self.count else other
        gap, count = other.mean - self.mean, self.count + other.count
        between = float(gap.square().sum()) * self.count * other.count / count
        return First(count, self.mean + gap * (other.count / count), self.spread + other.spread + between)


@dataclass(frozen=True)
class State:
    """Moments of each stream, and the sample of rows; its size does not depend on the length of the text."""

    params: Params
    sites: tuple[Site, ...]
    step: int
    sample: Sample
    moments: Mapping[Site, Moments] = field(default_factory=dict)
    first: Mapping[Site, First] = field(default_factory=dict)


def needs(params: Params, spec: ModelSpec) -> Needs:
    """The residual stream that enters each layer."""
    params.checked_distances()
    if params.components < 1 or params.skip < 0:
        raise UsageError(
            f"components={params.components} and skip={params.skip}: at least one component is needed, and no fewer "
            "than 0 tokens can be left out"
        )
    return Needs(captures=frozenset({"resid"}))


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet. Cross-attention is left out: it reads the stream of the same layer."""
    streams = [site for site in sites if site.kind == "self"]
    width = max(1, spec.d_model)
    step = max(1, -(-len(streams) * width * width * 8 // COVARIANCE_BYTES))
    chosen = tuple(streams[::step])
    rows = min(ROWS, SAMPLE_BYTES // (4 * width * max(1, len(chosen))))
    return State(params, chosen, step, Sample(Plan(rows, WINDOWS, params.checked_distances(), params.skip)))


def update(state: State, batch: Batch) -> State:
    """Add the windows of one batch."""
    if batch.variant != AS_IS:
        return state
    found = batch.captures.get("resid", {})
    streams = {site: _windows(found[site], batch) for site in state.sites if site in found}
    if not streams:
        return state
    skip, sample = state.params.skip, state.sample
    moments, first = dict(state.moments), dict(state.first)
    for site, windows in streams.items():
        new = Moments.of(torch.cat([window[skip:] for window in windows]))
        moments[site] = moments[site].merge(new) if site in moments else new
        left = First.of(torch.cat([window[:skip] for window in windows]))
        first[site] = first[site].merge(left) if site in first else left
    for index, tokens in enumerate(batch.tokens):
        here = {site: windows[index] for site, windows in streams.items() if len(windows[index]) > skip}
        sample = sample.add(tokens[batch.real[index]], here) if here else sample
    return replace(state, sample=sample, moments=moments, first=first)


def _windows(x: Float[Tensor, "batch n d"], batch: Batch) -> list[Float[Tensor, "_ d"]]:
    """The rows of each window without padding; a stream of other length (a picture's) has none."""
    if x.shape[:2] == batch.real.shape and not bool(batch.real.all()):
        return [rows[real] for rows, real in zip(x, batch.real, strict=True)]
    return list(x)


def merge(a: State, b: State) -> State:
    """What both have seen, a's windows first."""
    moments, first = dict(a.moments), dict(a.first)
    for site, one in b.moments.items():
        moments[site] = moments[site].merge(one) if site in moments else one
        first[site] = first[site].merge(b.first[site]) if site in first else b.first[site]
    return replace(a, moments=moments, first=first, sample=a.sample.merge(b.sample))


@dataclass(frozen=True)
class Layer:
    """One stream: its moments, its principal axes, and the sampled rows, window after window."""

    site: Site
    moments: Moments
    first: First
    rows: Float[Tensor, "rows d"]
    window: Int[Tensor, "rows"]
    position: Int[Tensor, "rows"]
    late: Int[Tensor, "rows"]
    n_windows: int
    seen: int
    components: int

    @classmethod
    def of(cls, state: State, site: Site) -> "Layer":
        """From the state; windows without rows of this stream are passed over."""
        streams = [window.streams[site] for window in state.sample.windows if site in window.streams]
        return cls(
            site,
            state.moments[site],
            state.first[site],
            torch.cat([one.rows for one in streams]),
            torch.cat([torch.full_like(one.positions, index) for index, one in enumerate(streams)]),
            torch.cat([one.positions for one in streams]),
            torch.cat([(2 * one.positions >= one.length).to(torch.int64) for one in streams]),
            len(streams),
            state.sample.seen,
            state.params.components,
        )

    @cached_property
    def spectrum(self) -> tuple[Float[Tensor, "d"], Float[Tensor, "d d"]]:
        """Eigenvalues of the unbiased covariance, largest first, and the principal axes in columns."""
        values, vectors = eigen(self.moments.covariance())
        return values.flip(0), vectors.flip(1)

    @cached_property
    def rank(self) -> int:
        """Directions with any variance."""
        return int((self.spectrum[0] > 0).sum())

    @cached_property
    def share_drawn(self) -> float:
        """Standard errors of a statistic over all windows are this part of those over the sampled ones."""
        return sqrt(self.n_windows / max(self.seen, self.n_windows))

    def scores(self, k: int) -> Float[Tensor, "rows k"]:
        """The first k principal components of the sampled rows."""
        return self._most_scores[:, :k]

    @cached_property
    def _most_scores(self) -> Float[Tensor, "rows k"]:
        return self.projected(self.rows, self.components)

    def projected(self, rows: Float[Tensor, "rows d"], k: int) -> Float[Tensor, "rows k"]:
        """Any rows on this layer's axes, from this layer's mean."""
        axes = self.spectrum[1][:, :k]
        return rows.to(torch.float64) @ axes - self.moments.mean @ axes

    def half_width(self, influence: Float[Tensor, "rows"]) -> float:
        """Half of the 95 % interval of a mean over rows that come in windows."""
        if self.n_windows < 2:
            return nan
        residual = (influence - influence.mean()).to(torch.float64)
        sums = torch.zeros(self.n_windows, dtype=torch.float64).index_add(0, self.window, residual)
        error = sqrt(self.n_windows / (self.n_windows - 1) * float(sums.square().sum())) / len(influence)
        return _student(self.n_windows) * error * self.share_drawn


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Everything from the moments and the sample."""
    params = asdict(state.params)
    seen = [site for site in state.sites if site in state.moments and state.moments[site].count >= PER_DIMENSION]
    if not seen:
        reason = (
            f"fewer than {PER_DIMENSION} rows of a residual stream were shown to the lens: nothing can be estimated"
        )
        return Finding("gaussian", ABOUT, status="not applicable", reason=reason, params=params)
    layers = [Layer.of(state, site) for site in seen]
    followers = {
        a.site: b for a, b in pairwise(layers) if a.site.stack == b.site.stack and a.rows.shape == b.rows.shape
    }
    k, distances = state.params.components, state.sample.plan.distances
    tables = {
        "layers": pl.DataFrame(
            [row for one in layers for row in _layer_rows(one, followers.get(one.site), k)], schema=LAYERS
        ),
        "normality": pl.DataFrame([row for one in layers for row in _normality_rows(one, k)], schema=NORMALITY),
        "information": pl.DataFrame(
            [row for one, pairs in _paired(layers, distances) for row in _information_rows(one, k, pairs)],
            schema=INFORMATION,
        ),
    }
    finding = Finding(
        "gaussian",
        ABOUT,
        tables=tables,
        figures=figures(tables, seen),
        method=_method(state, layers),
        warnings=_warnings(state, seen, tables),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def _paired(layers: Sequence[Layer], distances: Sequence[int]) -> Iterator[tuple[Layer, Pairings]]:
    """Each layer with its pairs of rows; layers that keep the same rows share them."""
    last: Layer | None = None
    pairs: Pairings = {}
    for layer in layers:
        same = (
            last is not None and torch.equal(last.position, layer.position) and torch.equal(last.window, layer.window)
        )
        if not same:
            last, pairs = layer, _pairings(layer, distances)
        yield layer, pairs


def _layer_rows(layer: Layer, follower: Layer | None, components: int) -> Iterator[Row]:
    n, d = layer.moments.count, layer.moments.d
    values, weight = layer.spectrum[0], float(shrinkage_weight(layer.moments, "ledoit-wolf"))
    counts = {"samples": n, "windows": layer.seen}
    # In the dtype of the rows: it is the largest product of this function and only widths come of it.
    centred = (layer.rows.to(torch.float64) - layer.moments.mean).to(layer.rows.dtype)
    squares = (centred @ layer.spectrum[1].to(layer.rows.dtype)).square()

    p = min(layer.rank, n // PER_DIMENSION)
    shrunk = ((1 - weight) * values + weight * float(values.mean()))[:p] * ((n - 1) / n)
    total, energy = float(values.sum()), float(values.square().sum())
    inverse = torch.zeros_like(values)
    inverse[:p] = 1 / shrunk
    # How much each row moves the entropy, the trace and the trace of the square.
    pulls = (squares @ torch.stack((inverse / 2, torch.ones_like(values), values), 1).to(squares.dtype)).T

    entropy = 0.5 * float((shrunk.log() + log(2 * pi) + 1).sum()) if p else nan
    isotropic = 0.5 * p * (log(2 * pi * float(shrunk.mean())) + 1) if p else nan
    half = layer.half_width(pulls[0])
    yield _row(layer, "entropy_nats", (entropy, entropy - half, entropy + half, isotropic), {"dimensions": p} | counts)

    ratio, half = (total**2 / energy, nan) if energy > 0 else (nan, nan)
    if energy > 0:
        half = ratio * layer.half_width(2 * pulls[1] / total - 2 * pulls[2] / energy)
    sphere = d * (n - 1) / (n + d)
    interval = (max(ratio - half, 1.0), min(ratio + half, float(d))) if half == half else (nan, nan)
    yield _row(layer, "effective_dimension", (ratio, *interval, sphere), {"dimensions": d} | counts)

    yield _row(layer, "shrinkage", (weight, nan, nan, nan), {"dimensions": d} | counts)
    everything = First(n, layer.moments.mean, float(layer.moments.scatter.diagonal().sum()))
    both = everything.merge(layer.first)
    share = 1 - everything.spread / both.spread if both.spread > 0 else nan
    rows_out = layer.first.count / both.count
    yield _row(
        layer,
        "first_share",
        (share, nan, nan, rows_out),
        {"dimensions": d, "samples": both.count, "windows": layer.seen},
    )
    if follower is not None:
        yield _kl_next(layer, follower, components)
    yield _kl_late(layer, components)


def _row(layer: Layer, quantity: str, numbers: Sequence[float], counts: Mapping[str, int]) -> Row:
    named = dict(zip(("value", "low", "high", "null"), map(_number, numbers), strict=True))
    return {**place(layer.site, None), "quantity": quantity, **named, **counts}


def _number(value: float) -> float | None:
    return value if abs(value) < inf else None


def _student(windows: int) -> float:
    return float(stats.t.ppf(0.975, windows - 1))


@dataclass(frozen=True)
class Sums:
    """Count, sum and sum of products of the rows of each window; differences and exchanges of windows stay sums."""

    count: Float[Tensor, "*set"]
    total: Float[Tensor, "*set k"]
    products: Float[Tensor, "*set k k"]

    @classmethod
    def of(cls, y: Float[Tensor, "rows k"], window: Int[Tensor, "rows"], windows: int) -> "Sums":
        """Of rows, by window."""
        counts = torch.bincount(window, minlength=windows)
        starts = counts.cumsum(0) - counts
        # Window by window in one padded block, so that the products are one batch.
        block = torch.zeros(windows, int(counts.max()) if windows else 0, y.shape[1], dtype=torch.float64)
        block[window, torch.arange(len(y)) - starts[window]] = y
        return cls(counts.to(torch.float64), block.sum(1), block.mT @ block)

    def pooled(self, of: Float[Tensor, "sets windows"]) -> "Sums":
        """One entry for each row of weights over the windows."""
        return Sums(of @ self.count, of @ self.total, torch.einsum("sw,wij->sij", of, self.products))

    def plus(self, other: "Sums") -> "Sums":
        """Of the rows of both."""
        return Sums(self.count + other.count, self.total + other.total, self.products + other.products)

    def gaussian(self) -> Gaussian:
        """Mean and unbiased covariance."""
        n = self.count[..., None]
        mean = self.total / n
        scatter = self.products - n[..., None] * mean[..., :, None] * mean[..., None, :]
        return Gaussian(mean, scatter / (n[..., None] - 1))


def _left_out(windows: int) -> Float[Tensor, "sets windows"]:
    """All windows, then all but each."""
    whole = torch.ones(1, windows, dtype=torch.float64)
    return torch.cat((whole, 1 - torch.eye(windows, dtype=torch.float64))) if windows > 1 else whole


def _jackknife(estimates: Float[Tensor, "sets"], layer: Layer) -> float:
    """Half of the 95 % interval of the first, from the others, which leave out one window each."""
    w = len(estimates) - 1
    if w < 2:
        return nan
    spread = float((estimates[1:] - estimates[1:].mean()).square().sum())
    return _student(w) * sqrt((w - 1) / w * spread) * layer.share_drawn


def _kl_next(layer: Layer, follower: Layer, components: int) -> Row:
    k = min(components, layer.rank, follower.rank, len(layer.rows) // PER_DIMENSION)
    own, other = (layer.projected(rows, k) for rows in (layer.rows, follower.rows))
    a, b = (Sums.of(y, layer.window, layer.n_windows) for y in (own, other))
    return _kl_row(layer, "kl_next_nats", a, b, k, len(layer.rows))


def _kl_late(layer: Layer, components: int) -> Row:
    late = layer.late.bool()
    fewer = min(int(late.sum()), int((~late).sum()))
    k = min(components, layer.rank, fewer // PER_DIMENSION)
    y = layer.scores(k)
    a, b = (Sums.of(y[half], layer.window[half], layer.n_windows) for half in (~late, late))
    return _kl_row(layer, "kl_late_nats", a, b, k, fewer)


def _kl_row(layer: Layer, quantity: str, a: Sums, b: Sums, k: int, samples: int) -> Row:
    counts = {"dimensions": k, "samples": samples, "windows": layer.n_windows}
    missing = (nan, nan, nan, nan)
    if not k:
        return _row(layer, quantity, missing, counts)
    sets = _left_out(layer.n_windows)
    try:
        estimates = kl(a.pooled(sets).gaussian(), b.pooled(sets).gaussian())
        kept, changed = _exchanged(layer.n_windows)
        mixed = [one.pooled(kept).plus(two.pooled(changed)).gaussian() for one, two in ((a, b), (b, a))]
        null = float(kl(*mixed).mean()) if len(kept) else nan
    except NumericsError:
        return _row(layer, quantity, missing, counts)
    value, half = float(estimates[0]), _jackknife(estimates, layer)
    return _row(layer, quantity, (value, max(value - half, 0.0) if half == half else nan, value + half, null), counts)


def _exchanged(windows: int) -> tuple[Float[Tensor, "sets windows"], Float[Tensor, "sets windows"]]:
    """Which windows keep their side and which change it: runs of 1, 2, 4, … by turns, as many of either."""
    keep, change, run = [], [], 1
    while 2 * run <= windows:
        number = torch.arange(windows)
        used = number < windows - windows % (2 * run)
        keep.append(used & (number // run % 2 == 0))
        change.append(used & (number // run % 2 == 1))
        run *= 2
    nothing = [torch.zeros(0, windows)]
    kept, changed = (torch.cat([*nothing, *(one[None] for one in rows)]).double() for rows in (keep, change))
    return kept, changed


def _normality_rows(layer: Layer, components: int) -> Iterator[Row]:
    chosen = torch.tensor(_apart(layer.window.tolist(), layer.position.tolist()), dtype=torch.int64)
    n = len(chosen)
    k = min(components, layer.rank, n // PER_DIMENSION) if n >= normality.FEWEST else 0
    y = layer.scores(k)[chosen]
    counts = {"samples": n, "windows": layer.n_windows}
    if k:
        pairs = zip(normality.skewness(y), normality.excess_kurtosis(y), strict=True)
        for component, (skew, tails) in enumerate(pairs):
            yield _test_row(layer, component, "skewness", skew, {"dimensions": 1} | counts)
            yield _test_row(layer, component, "excess_kurtosis", tails, {"dimensions": 1} | counts)
        for quantity, test in (
            ("mardia_skewness", normality.mardia_skewness),
            ("mardia_kurtosis", normality.mardia_kurtosis),
        ):
            yield _test_row(layer, None, quantity, test(y), {"dimensions": k} | counts)


def _test_row(
    layer: Layer, component: int | None, quantity: str, test: normality.NormalityTest, counts: Mapping[str, int]
) -> Row:
    numbers = {"value": test.value, "null": test.expected, "z": test.z, "p": test.p}
    named = {name: _number(value) for name, value in numbers.items()}
    return {**place(layer.site, None), "component": component, "quantity": quantity, **named, **counts}


def _apart(windows: Sequence[int], positions: Sequence[int]) -> list[int]:
    """Rows so far apart in their window that they count as independent: the first, then each one far enough on."""
    chosen: list[int] = []
    for index, (window, position) in enumerate(zip(windows, positions, strict=True)):
        last = chosen[-1] if chosen else None
        if last is None or windows[last] != window or position - positions[last] >= APART:
            chosen.append(index)
    return chosen


def _information_rows(layer: Layer, components: int, pairings: Pairings) -> Iterator[Row]:
    most = max(len(pairs[0][0]) for pairs in pairings.values())
    k = min(components, layer.rank, most // (2 * PER_DIMENSION))
    enough = 2 * PER_DIMENSION * k
    told = [distance for distance, pairs in pairings.items() if k and len(pairs[0][0]) >= enough]
    if not told:
        return
    y, sets = layer.scores(k), _left_out(layer.n_windows)
    for distance in told:
        (first, second), *shuffled = pairings[distance]
        rows = Sums.of(torch.cat((y[first], y[second]), 1), layer.window[first], layer.n_windows)
        others = [_summed(torch.cat((y[a], y[b]), 1)) for a, b in shuffled if len(a) >= enough]
        try:
            found = mutual_information(_stacked([rows.pooled(sets), *others]).gaussian(), range(k), range(k, 2 * k))
        except (NumericsError, UsageError):
            # In a text that repeats itself one token determines the other: the information is infinite.
            continue
        counts = {"dimensions": k, "samples": len(first), "windows": layer.n_windows}
        shared = _shared(layer, found[: len(sets)], found[len(sets) :], k, len(first))
        numbers = {name: _number(x) for name, x in shared.items()}
        yield {**place(layer.site, None), "distance": distance, **numbers, **counts}


def _shared(
    layer: Layer, estimates: Float[Tensor, "sets"], shuffled: Float[Tensor, "shifts"], k: int, n: int
) -> dict[str, float]:
    r"""The information with its bias taken off, its interval, and its distance from the shuffled one.

    The jackknife over windows knows the bias of dependent rows, which k² / 2n does not; that one is taken where there
    is a single window. Shifts are few and share windows, so their spread alone may be too small by chance. For
    independent pairs 2nI follows a χ² with k² degrees of freedom, whose deviation is √2/k of its mean: the larger of
    the two is taken.
    """
    raw, w = float(estimates[0]), len(estimates) - 1
    analytic, half = k * k / (2 * n), _jackknife(estimates, layer)
    value = w * raw - (w - 1) * float(estimates[1:].mean()) if w else raw - analytic
    null = float(shuffled.mean()) if len(shuffled) else nan
    spread = float(shuffled.std()) if len(shuffled) > 1 else 0.0
    z = (raw - null) / max(spread, analytic * sqrt(2) / k)
    interval = {"value": value, "low": value - half, "high": value + half}
    return {**interval, "null": null, "raw": raw, "z": z, "analytic": analytic}


def _summed(y: Float[Tensor, "rows k"]) -> Sums:
    """Of all rows, as a set of one."""
    return Sums(torch.tensor([float(len(y))], dtype=torch.float64), y.sum(0)[None], (y.mT @ y)[None])


def _stacked(parts: Sequence[Sums]) -> Sums:
    return Sums(
        torch.cat([one.count for one in parts]),
        torch.cat([one.total for one in parts]),
        torch.cat([one.products for one in parts]),
    )


def _pairings(layer: Layer, distances: Sequence[int]) -> Pairings:
    """For each distance the pairs of rows of the same window, then those of windows paired with another one."""
    places = torch.full((layer.n_windows, int(layer.position.max()) + 1), -1, dtype=torch.int64)
    places[layer.window, layer.position] = torch.arange(len(layer.position))
    shifts = range(min(SHUFFLES, layer.n_windows - 1) + 1)
    return {distance: [_pairs(layer, places, distance, shift) for shift in shifts] for distance in distances}


def _pairs(layer: Layer, places: Int[Tensor, "windows positions"], distance: int, shift: int) -> Pairs:
    """Rows i and the rows i + distance, of the window `shift` further on; `places` says which row is where."""
    position = layer.position + distance
    inside = position < places.shape[1]
    other = (layer.window + shift) % layer.n_windows
    second = torch.where(inside, places[other, position.clamp_max(places.shape[1] - 1)], -1)
    first = (second >= 0).nonzero().squeeze(-1)
    return first, second[first]


def _method(state: State, layers: Sequence[Layer]) -> str:
    drawn, seen = len(state.sample.windows), state.sample.seen
    rows = max(len(one.rows) for one in layers)
    kept = rows == max(one.moments.count for one in layers)
    sampled = (
        f"every row of all {seen} windows"
        if kept
        else f"a sample of {rows} rows per layer from {drawn} of {seen} windows, drawn by a hash of their tokens"
    )
    skipped = state.params.skip
    left = f" The first {f'{skipped} tokens' if skipped > 1 else 'token'} of each window left out." if skipped else ""
    layered = f" Every {state.step}th layer only: covariances of all would not fit." if state.step > 1 else ""
    return (
        f"Entropy and effective dimension: every row, moments in float64, Ledoit–Wolf shrinkage for the entropy. "
        f"Divergence, normality and information: {sampled}; for normality rows at least {APART} tokens apart. "
        f"At least {PER_DIMENSION} samples per dimension everywhere. Null of the information: up to {SHUFFLES} "
        f"pairings of each window with another.{left}{layered}"
    )


def _warnings(state: State, seen: Sequence[Site], tables: Mapping[str, pl.DataFrame]) -> tuple[str, ...]:
    found = []
    if unseen := [site.label for site in state.sites if site not in seen]:
        found.append(f"Too few rows of {', '.join(unseen)} were seen.")
    entropy = tables["layers"].filter(pl.col("quantity") == "entropy_nats")
    full = tables["layers"].filter(pl.col("quantity") == "effective_dimension")
    p, n, d = (min(column.to_list()) for column in (entropy["dimensions"], entropy["samples"], full["dimensions"]))
    if p < d:
        found.append(
            f"Entropy in the {p} largest of {d} principal components: {n} samples allow no more, or the others have "
            "no variance."
        )
    told = set(tables["information"]["distance"].to_list())
    if missing := [str(distance) for distance in state.params.checked_distances() if distance not in told]:
        found.append(
            f"No information of tokens at distance {', '.join(missing)}: too few pairs, or one determines the other."
        )
    if tables["normality"].is_empty():
        found.append(f"Normality was not tested: it needs {normality.FEWEST} rows {APART} tokens apart.")
    k = state.params.components
    used = min(tables["information"]["dimensions"].to_list(), default=k)
    if used < k:
        found.append(f"Information in {used} principal components, not {k}: there are too few pairs for more.")
    return tuple(found)


def headline(finding: Finding) -> tuple[str, ...]:
    """What stands out, in numbers."""
    if finding.status != "ok":
        return ()
    sentences = (
        _normality_sentence(finding.tables["normality"]),
        _dimension_sentence(finding.tables["layers"]),
        _information_sentence(finding.tables["information"]),
    )
    return tuple(sentence for sentence in sentences if sentence)


LEVEL = 0.01
# Skewness and excess kurtosis beyond which a distribution looks different, not only tests so.
FAR = (0.5, 1.0)
# Information is told apart from the shuffled one beyond so many standard deviations.
CLEAR = 3.0


def _normality_sentence(table: pl.DataFrame) -> str:
    single = table.filter(pl.col("component").is_not_null(), pl.col("p").is_not_null())
    if single.is_empty():
        return ""
    keys = ["stack", "kind", "layer", "component"]
    # Two tests per component: half the level each.
    least = single.group_by(keys).agg(pl.col("p").min())
    many, rejected = least.height, least.filter(pl.col("p") < LEVEL / 2).height
    chance = float(stats.binom.sf(rejected - 1, many, LEVEL)) if rejected else 1.0
    skew, tails = (
        float(np.median(np.abs(single.filter(pl.col("quantity") == name)["value"].to_numpy())))
        for name in ("skewness", "excess_kurtosis")
    )
    verdict = (
        "are far from Gaussian"
        if rejected > many / 2 and (skew > FAR[0] or tails > FAR[1])
        else "are not Gaussian, but not far from it either"
        if rejected > many / 2
        else "are not quite Gaussian"
        if chance < LEVEL
        else "show no sign of not being Gaussian"
    )
    together = table.filter(pl.col("quantity") == "mardia_kurtosis").sort("z", maintain_order=True)
    middle = together.row(together.height // 2, named=True)
    return (
        f"Residual streams {verdict}: {rejected} of {many} principal components reject it at the 1 % level (chance: "
        f"{LEVEL * many:.2g}), the median one has |skewness| {skew:.2g} and |excess kurtosis| {tails:.2g}; Mardia's "
        f"kurtosis in the median layer, {_where(middle)}, is {middle['value']:.3g} where "
        f"Gaussian samples have {middle['null']:.3g} (z = {middle['z']:.1f})."
    )


def _where(row: Mapping[str, object]) -> str:
    stack = "" if row["stack"] == "only" else f"{row['stack']}."
    return f"{stack}L{row['layer']}"


def _dimension_sentence(table: pl.DataFrame) -> str:
    rows = table.filter(pl.col("quantity") == "effective_dimension", pl.col("value").is_not_null())
    if rows.is_empty():
        return ""
    rows = rows.sort("value", maintain_order=True)
    least, most = rows.row(0, named=True), rows.row(-1, named=True)
    entropy = table.filter(pl.col("quantity") == "entropy_nats", pl.col("value").is_not_null())
    span = f"The effective dimension is {least['value']:.3g} in {_where(least)}"
    if rows.height > 1:
        span = (
            f"The effective dimension goes from {least['value']:.3g} in {_where(least)} to {most['value']:.3g} in "
            f"{_where(most)}"
        )
    lack = ""
    if not entropy.is_empty():
        gaps = (entropy["null"] - entropy["value"]).to_numpy() / entropy["dimensions"].to_numpy()
        lack = (
            f"; the entropy of the median layer lies {float(np.median(gaps)):.2g} nats per dimension below that of the "
            "isotropic Gaussian with its variance"
        )
    return f"{span} (of {least['dimensions']}; isotropic samples: {least['null']:.3g}){lack}{_first_clause(table)}."


def _first_clause(table: pl.DataFrame) -> str:
    """Told where the tokens that are left out would have been more than a tenth of all variance."""
    rows = table.filter(pl.col("quantity") == "first_share", pl.col("value").is_not_null())
    top = rows.sort("value", descending=True, maintain_order=True).row(0, named=True) if rows.height else None
    if top is None or top["value"] < max(0.1, 2 * top["null"]):
        return ""
    return (
        f"; the first tokens, which are left out, would be {100 * top['value']:.0f} % of the variance in {_where(top)} "
        f"({100 * top['null']:.1g} % of the rows)"
    )


def _information_sentence(table: pl.DataFrame) -> str:
    rows = table.filter(pl.col("value").is_not_null())
    if rows.is_empty():
        return ""
    layers = rows.select("stack", "kind", "layer").unique(maintain_order=True)
    middle = layers.row(layers.height // 2, named=True)
    here = rows.filter(*(pl.col(key) == value for key, value in middle.items())).sort("distance")
    near, judged = here.row(0, named=True), here.filter(pl.col("z").is_not_null())
    told = f"tokens at distance {near['distance']} share {near['value']:.2g} nats"
    if near["z"] is None:
        chance = "; there are too few windows to shuffle"
    else:
        far = judged.row(-1, named=True)
        clear = judged.filter(pl.col("z") > CLEAR)["distance"].to_list()
        reach = f"up to distance {clear[-1]}" if clear else "at no distance"
        chance = (
            f" where those of shuffled windows share {near['null']:.2g} (z = {near['z']:.1f}); they share clearly more "
            f"than shuffled ones {reach}"
        )
        if judged.height > 1:
            chance += f" (at {far['distance']}: {far['value']:.2g} and {far['null']:.2g} nats, z = {far['z']:.1f})"
    return f"In {near['dimensions']} principal components of {_where(middle)}, {told}{chance}."


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, on all rows of all windows, in float64; the fold samples where rows are many."""
    kept = [batch for batch in batches if batch.variant == AS_IS]
    sites = [site for site in (kept[0].captures["resid"] if kept else ()) if site.kind == "self"]
    texts = {
        site: [_defined_window(batch, site, i) for batch in kept for i in range(len(batch.real))] for site in sites
    }
    tables: dict[str, list[Row]] = {"layers": [], "normality": [], "information": []}
    for index, site in enumerate(sites):
        behind = sites[index + 1] if index + 1 < len(sites) and sites[index + 1].stack == site.stack else None
        one = _Defined(params, texts[site], texts[behind] if behind else None)
        where = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": None}
        tables["layers"] += [where | row for row in one.layer_rows()]
        tables["normality"] += [where | row for row in one.normality_rows()]
        tables["information"] += [where | row for row in one.information_rows()]
    schemas = {"layers": LAYERS, "normality": NORMALITY, "information": INFORMATION}
    return {name: pl.DataFrame(rows, schema=schemas[name]) for name, rows in tables.items()}


Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _defined_window(batch: Batch, site: Site, index: int) -> Array:
    x: Array = batch.captures["resid"][site][index].double().numpy()
    kept: Array = x[batch.real[index].numpy()]
    return kept


class _Defined:
    """One stream by the formulas: whole windows in, numbers out."""

    def __init__(self, params: Params, windows: Sequence[Array], following: Sequence[Array] | None) -> None:
        self.params, skip = params, params.skip
        self.full = np.concatenate(windows)
        self.lengths = [len(one) for one in windows if len(one) > skip]
        self.windows = [one[skip:] for one in windows if len(one) > skip]
        self.following = None if following is None else [one[skip:] for one in following if len(one) > skip]
        self.x = np.concatenate(self.windows)
        self.n, self.d = self.x.shape
        self.mean = self.x.mean(0)
        values, vectors = np.linalg.eigh(np.cov(self.x.T, ddof=1).reshape(self.d, self.d))
        self.values, self.axes = values[::-1], vectors[:, ::-1]
        self.rank = int((self.values > 1e-13 * self.d * self.values[0]).sum())

    def scores(self, windows: Sequence[Array], k: int) -> list[Array]:
        return [(one - self.mean) @ self.axes[:, :k] for one in windows]

    def half(self, influence: Sequence[Array]) -> float:
        """Ratio estimator over windows, as for the mean of clusters of unequal size."""
        w, mean = len(influence), np.concatenate(influence).mean()
        if w < 2:
            return nan
        variance = w / (w - 1) * sum(float((one - mean).sum()) ** 2 for one in influence) / self.n**2
        return float(stats.t.ppf(0.975, w - 1)) * sqrt(variance)

    def jackknife(self, estimates: Sequence[float]) -> float:
        w = len(estimates)
        if w < 2:
            return nan
        mean = sum(estimates) / w
        variance = (w - 1) / w * sum((one - mean) ** 2 for one in estimates)
        return float(stats.t.ppf(0.975, w - 1)) * sqrt(variance)

    def row(self, quantity: str, numbers: Sequence[float], k: int, n: int) -> Row:
        names = ("value", "low", "high", "null")
        cells = {name: x if x == x else None for name, x in zip(names, numbers, strict=True)}
        return {"quantity": quantity, **cells, "dimensions": k, "samples": n, "windows": len(self.windows)}

    def layer_rows(self) -> Iterator[Row]:
        n, d, c = self.n, self.d, self.x - self.mean
        s = c.T @ c / n
        level = np.trace(s) / d
        far = float(((s - level * np.eye(d)) ** 2).sum())
        noise = sum(float(((np.outer(row, row) - s) ** 2).sum()) for row in c) / n**2
        weight = min(noise, far) / far
        shrunk = (1 - weight) * s + weight * level * np.eye(d)
        p = min(self.rank, n // PER_DIMENSION)
        inner = self.axes[:, :p].T @ shrunk @ self.axes[:, :p]
        entropy = 0.5 * float(np.linalg.slogdet(2 * pi * np.e * inner)[1])
        isotropic = 0.5 * p * log(2 * pi * np.e * np.trace(inner) / p)
        inverse = np.linalg.inv(inner)
        half = self.half([np.einsum("ni,ij,nj->n", y, inverse, y) / 2 for y in self.scores(self.windows, p)])
        yield self.row("entropy_nats", (entropy, entropy - half, entropy + half, isotropic), p, n)
        sigma = c.T @ c / (n - 1)
        t1, t2 = float(np.trace(sigma)), float(np.trace(sigma @ sigma))
        ratio = t1**2 / t2
        gaps = [one - self.mean for one in self.windows]
        half = ratio * self.half([2 * (g**2).sum(1) / t1 - 2 * ((g @ sigma) * g).sum(1) / t2 for g in gaps])
        low, high = (max(ratio - half, 1.0), min(ratio + half, float(d))) if half == half else (nan, nan)
        yield self.row("effective_dimension", (ratio, low, high, d * (n - 1) / (n + d)), d, n)
        yield self.row("shrinkage", (weight, nan, nan, nan), d, n)
        share = 1 - n * self.x.var(0).sum() / (len(self.full) * self.full.var(0).sum())
        yield self.row("first_share", (share, nan, nan, 1 - n / len(self.full)), d, len(self.full))
        if self.following is not None:
            k = min(self.params.components, n // PER_DIMENSION)
            yield self.kl_row("kl_next_nats", self.scores(self.windows, k), self.scores(self.following, k), k, n)
        late = [
            2 * (np.arange(len(w)) + self.params.skip) >= m for w, m in zip(self.windows, self.lengths, strict=True)
        ]
        fewer = int(min(sum(one.sum() for one in late), sum((~one).sum() for one in late)))
        k = min(self.params.components, self.rank, fewer // PER_DIMENSION)
        y = self.scores(self.windows, k)
        early_rows = [one[~half] for one, half in zip(y, late, strict=True)]
        late_rows = [one[half] for one, half in zip(y, late, strict=True)]
        yield self.kl_row("kl_late_nats", early_rows, late_rows, k, fewer)

    def kl_row(self, quantity: str, a: Sequence[Array], b: Sequence[Array], k: int, n: int) -> Row:
        w = len(a)
        if not k:
            return self.row(quantity, (nan,) * 4, 0, n)
        value = self.kl(np.concatenate(a), np.concatenate(b))
        rest = [self.kl(_without(a, out), _without(b, out)) for out in range(w)] if w > 1 else []
        half, mixed, run = self.jackknife(rest), [], 1
        while w // (2 * run):
            used = range(w // (2 * run) * 2 * run)
            one = [b[i] if i // run % 2 else a[i] for i in used]
            two = [a[i] if i // run % 2 else b[i] for i in used]
            mixed.append(self.kl(np.concatenate(one), np.concatenate(two)))
            run *= 2
        low = max(value - half, 0.0) if half == half else nan
        return self.row(quantity, (value, low, value + half, float(np.mean(mixed)) if mixed else nan), k, n)

    def kl(self, a: Array, b: Array) -> float:
        k = a.shape[1]
        p, q = (np.cov(x.T, ddof=1).reshape(k, k) for x in (a, b))
        gap, inverse = a.mean(0) - b.mean(0), np.linalg.inv(q)
        volume = np.linalg.slogdet(p)[1] - np.linalg.slogdet(q)[1]
        return float(0.5 * (np.trace(inverse @ p) - k - volume + gap @ inverse @ gap))

    def normality_rows(self) -> Iterator[Row]:
        rows = np.concatenate([one[::APART] for one in self.windows])
        n = len(rows)
        k = min(self.params.components, self.rank, n // PER_DIMENSION) if n >= normality.FEWEST else 0
        c = (rows - rows.mean(0)) @ self.axes[:, :k]
        counts = {"samples": n, "windows": len(self.windows)}
        for component in range(k):
            y = c[:, component] / sqrt((c[:, component] ** 2).mean())
            skew, kurtosis = float((y**3).mean()), float((y**4).mean())
            for quantity, value, null, z in (
                ("skewness", skew, 0.0, _dagostino(skew, n)),
                ("excess_kurtosis", kurtosis - 3, -6 / (n + 1), _anscombe_glynn(kurtosis, n)),
            ):
                numbers = {"value": value, "null": null, "z": z, "p": 2 * float(stats.norm.sf(abs(z)))}
                yield {"component": component, "quantity": quantity, **numbers, "dimensions": 1, **counts}
        if not k:
            return
        g = c @ np.linalg.inv(c.T @ c / n) @ c.T
        b1, b2 = float((g**3).mean()), float((np.diag(g) ** 2).mean())
        freedom = k * (k + 1) * (k + 2) / 6
        scaled = n * b1 / 6 * (k + 1) * (n + 1) * (n + 3) / (n * ((n + 1) * (k + 1) - 6))
        z1 = ((scaled / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / sqrt(2 / (9 * freedom))
        tail = float(stats.chi2.sf(scaled, freedom))
        numbers = {"value": b1, "null": b1 * freedom / scaled, "z": z1, "p": tail}
        yield {"component": None, "quantity": "mardia_skewness", **numbers, "dimensions": k, **counts}
        null = k * (k + 2) * (n - 1) / (n + 1)
        spread = 8 * k * (k + 2) * (n - 3) * (n - k - 1) * (n - k + 1) / ((n + 1) ** 2 * (n + 3) * (n + 5))
        z2 = (b2 - null) / sqrt(spread)
        numbers = {"value": b2, "null": null, "z": z2, "p": 2 * float(stats.norm.sf(abs(z2)))}
        yield {"component": None, "quantity": "mardia_kurtosis", **numbers, "dimensions": k, **counts}

    def information_rows(self) -> Iterator[Row]:
        w, found = len(self.windows), self.params.checked_distances()
        sizes = {t: sum(max(len(one) - t, 0) for one in self.windows) for t in found}
        k = min(self.params.components, self.rank, max(sizes.values()) // (2 * PER_DIMENSION))
        y = self.scores(self.windows, k)
        for t, n in sizes.items():
            if not k or n < 2 * PER_DIMENSION * k:
                continue
            pairs = [np.hstack((one[: max(len(one) - t, 0)], one[t:])) for one in y]
            raw = self.information(np.concatenate(pairs), k)
            rest = [self.information(_without(pairs, out), k) for out in range(w)] if w > 1 else []
            shuffled = []
            for shift in range(1, min(SHUFFLES, w - 1) + 1):
                others = [y[(i + shift) % w][t:] for i in range(w)]
                m = [min(len(a), len(b)) for a, b in zip(y, others, strict=True)]
                rows = [np.hstack((y[i][: m[i]], others[i][: m[i]])) for i in range(w)]
                if sum(m) >= 2 * PER_DIMENSION * k:
                    shuffled.append(self.information(np.concatenate(rows), k))
            null = float(np.mean(shuffled)) if shuffled else nan
            spread = float(np.std(shuffled, ddof=1)) if len(shuffled) > 1 else 0.0
            half, bias = self.jackknife(rest), k * k / (2 * n)
            value = w * raw - (w - 1) / w * sum(rest) if rest else raw - bias
            z = (raw - null) / max(spread, bias * sqrt(2) / k)
            numbers = {"value": value, "low": value - half, "high": value + half, "null": null, "raw": raw, "z": z}
            cells = {name: x if x == x else None for name, x in numbers.items()}
            yield {"distance": t, **cells, "analytic": bias, "dimensions": k, "samples": n, "windows": w}

    def information(self, pairs: Array, k: int) -> float:
        joint = np.cov(pairs.T, ddof=1)
        parts = (joint[:k, :k], joint[k:, k:], joint)
        a, b, both = (float(np.linalg.slogdet(one)[1]) for one in parts)
        return 0.5 * (a + b - both)


def _without(parts: Sequence[Array], out: int) -> Array:
    return np.concatenate([one for index, one in enumerate(parts) if index != out])


def _dagostino(skew: float, n: int) -> float:
    y = skew * sqrt((n + 1) * (n + 3) / (6 * (n - 2)))
    b = 3 * (n * n + 27 * n - 70) * (n + 1) * (n + 3) / ((n - 2) * (n + 5) * (n + 7) * (n + 9))
    w2 = sqrt(2 * (b - 1)) - 1
    return float(np.arcsinh(y / sqrt(2 / (w2 - 1))) / sqrt(log(sqrt(w2))))


def _anscombe_glynn(kurtosis: float, n: int) -> float:
    variance = 24 * n * (n - 2) * (n - 3) / ((n + 1) ** 2 * (n + 3) * (n + 5))
    x = (kurtosis - 3 * (n - 1) / (n + 1)) / sqrt(variance)
    root = sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)))
    b = 6 * (n * n - 5 * n + 2) / ((n + 7) * (n + 9)) * root
    a = 6 + 8 / b * (2 / b + sqrt(1 + 4 / (b * b)))
    return float((1 - 2 / (9 * a) - np.cbrt((1 - 2 / a) / (1 + x * sqrt(2 / (a - 4))))) / sqrt(2 / (9 * a)))


LENS = Lens(
    name="gaussian",
    about=ABOUT,
    params=Params,
    needs=needs,
    start=start,
    update=update,
    merge=merge,
    finish=finish,
    definition=definition,
    headline=headline,
    invariant=frozenset({"qk", "vo", "heads"}),
)
