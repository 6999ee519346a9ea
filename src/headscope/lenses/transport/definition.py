"""The formulas of the lens `transport` as written, block by block, in float64 and with numpy and scipy alone.

Nothing here is shared with the fold but the names of the columns. The fold sends every window through constant weights
and takes moments of what comes out; here moments of the tokens are carried through the formulas instead.

Half a of the windows predicts the other half b. In `Laws`, "same half" is the law that the mean weights of half a give
on half a, "other half" the law that they give on half b.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, log, nan, pi, sqrt
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from scipy import stats

from headscope.core import Site, WeightSource
from headscope.errors import WeightsRefused
from headscope.lenses.lens import Batch
from headscope.lenses.shared.table import Row
from headscope.lenses.transport.tables import SCHEMAS

# As the lens has them: samples per dimension, first tokens, draws per position, and when a norm is recognised.
PER_DIMENSION, FIRST, DRAWS, RECOGNISED = 10, 64, 4, 1e-4
QUANTITIES = ("mean", "covariance", "entropy", "information", "vector")
# Their error is a length, relative to that of what is measured; the others are differences in nats.
LENGTHS = ("mean", "covariance", "vector")
HALVES = (0, 1)

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Places = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
# The parts of a quantity: for all windows, then for all but each.
Parts = dict[str, list[float]]


class Law(NamedTuple):
    """Mean by position, covariance of a token and of a pair; the covariances are means over positions."""

    mean: Array
    covariance: Array
    joint: Array


# By name (measured, before, same half, other half, uniform) and half.
Laws = dict[tuple[str, int], Law]
Fields = dict[tuple[str, int], Array]


def defined(
    batches: Sequence[Batch], source: WeightSource | None, components: int, distance: int, skip: int
) -> dict[str, pl.DataFrame]:
    """The tables of the lens, from the windows of the commonest shape."""
    tables: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    for site in batches[0].captures["resid"] if batches else ():
        if site.kind == "self" and source is not None:
            windows = _windows(site, batches, distance, skip)
            where = {"stack": site.stack, "kind": site.kind, "layer": site.layer}
            heads = [_estimates(_head_stage(windows, h), windows, components) for h in range(site.n_heads)]
            layer = {name: _estimates(stage, windows, components) for name, stage in _layer_stages(windows, source)}
            for head, by_quantity in enumerate(heads):
                tables["heads"] += [{**where, "head": head, **_row(name, x)} for name, x in by_quantity.items()]
            for stage, by_quantity in {"heads": _average(heads), **layer}.items():
                tables["layers"] += [{**where, "stage": stage, **_row(name, x)} for name, x in by_quantity.items()]
    return {name: pl.DataFrame(rows, schema=SCHEMAS[name]) for name, rows in tables.items()}


@dataclass
class _Windows:
    """The windows of one site: stream x, values v of every query head, outputs z, and the weights by which they mix."""

    site: Site
    x: Array
    v: Array
    z: Array
    # The mean weights of either half, and uniform ones over the visible keys.
    mean_weights: list[Array]
    uniform_weights: Array
    halves: list[list[int]]
    distance: int
    skip: int

    @property
    def positions(self) -> range:
        """The queries that are measured."""
        return range(self.skip, self.x.shape[1])

    def mixed(self, weights: Array) -> Array:
        """The outputs of all heads with constant weights, a matrix for each head."""
        return np.array([[p @ v for p, v in zip(weights, values, strict=True)] for values in self.v])


def _windows(site: Site, batches: Sequence[Batch], distance: int, skip: int) -> _Windows:
    captured = []
    for batch in batches:
        for index, real in enumerate(batch.real.numpy()):
            x, v, a, z = (
                batch.captures[name][site][index].double().numpy() for name in ("resid", "v", "early", "corner_z")
            )
            keys, first = int(real[: a.shape[-1]].sum()), min(int(real.sum()), FIRST)
            captured.append((x[:first], v[:, :keys], a[:, :first, :keys], z[:, :first]))
    shapes = [a.shape[1:] for _, _, a, _ in captured]
    commonest = max(shapes, key=lambda shape: (shapes.count(shape), shape))
    same_shape = [window for window in captured if window[2].shape[1:] == commonest]
    x, v, a, z = (np.array(tensors) for tensors in zip(*same_shape, strict=True))
    halves = [list(range(half, len(x), 2)) for half in HALVES]
    visible = (a > 0).any((0, 1)).astype(float)
    return _Windows(
        site,
        x,
        v[:, [site.kv_head(head) for head in range(site.n_heads)]],
        z,
        [a[half].mean(0) for half in halves],
        visible / np.maximum(visible.sum(-1, keepdims=True), 1),
        halves,
        distance,
        skip,
    )


@dataclass
class _Stage:
    """Vectors of a stage, and laws of one half (some of its windows) by the formulas where all is linear."""

    measured: Array
    fixed: tuple[Array, Array]
    uniform: Array | None
    before: Array
    fixed_law: Callable[[int, list[int]], Law] | None = None
    uniform_law: Callable[[list[int]], Law] | None = None
    # Per half: the position of a drawn pair's first token, and the vectors of the pair.
    draws: tuple[tuple[Places, Array], tuple[Places, Array]] | None = None


def _head_stage(windows: _Windows, head: int) -> _Stage:
    """z_i = Σ_j P_ij v_j: a linear map of all values of the window, P_i ⊗ 1."""
    values, skip, queries = windows.v[:, head], windows.skip, windows.x.shape[1]
    d = values.shape[-1]
    mean_weights = [weights[head] for weights in windows.mean_weights]

    def law(weights: Array, members: list[int]) -> Law:
        maps = [np.kron(weights[i], np.eye(d)) for i in windows.positions]
        return _mapped(maps, values[members].reshape(len(members), -1), np.zeros(d), windows.distance)

    def mixed(weights: Array) -> Array:
        return np.array([weights @ v for v in values])[:, skip:]

    return _Stage(
        windows.z[:, head, skip:],
        (mixed(mean_weights[0]), mixed(mean_weights[1])),
        mixed(windows.uniform_weights),
        values[:, skip:queries],
        lambda half, members: law(mean_weights[half], members),
        lambda members: law(windows.uniform_weights, members),
    )


def _layer_stages(windows: _Windows, source: WeightSource) -> Iterator[tuple[str, _Stage]]:
    """The stages behind the heads, as far as the weights are known."""
    if source.status(windows.site).status == "refused":
        return
    weights = source.weights(windows.site)
    w_o, b_o = weights.w_o.double().numpy(), weights.b_o.double().numpy()
    yield "output", _linear_stage(windows, w_o, b_o, skipped=False)
    with_skip = _linear_stage(windows, w_o, b_o, skipped=True)
    too_few = min(map(len, windows.halves)) < 2 or len(windows.positions) <= windows.distance
    try:
        later = None if too_few else _later_stages(windows, source, _written(windows.z, w_o, b_o) + windows.x)
    except WeightsRefused:
        later = None
    if later is None:
        yield "skip", with_skip
        return
    norm, layer = later
    if norm is not None:
        yield "skip", with_skip
        yield "norm", norm
    if layer is not None:
        yield "layer", layer


def _written(z: Array, w_o: Array, b_o: Array) -> Array:
    """Σ_h z_h W_O,h + b_O."""
    return np.array([sum(z_h @ w_h for z_h, w_h in zip(heads, w_o, strict=True)) + b_o for heads in z])


def _linear_stage(windows: _Windows, w_o: Array, b_o: Array, skipped: bool) -> _Stage:
    """What the heads write, and with `skipped` the stream x to which it is added."""
    uniform_weights = np.stack([windows.uniform_weights for _ in w_o])
    # All that enters: the stream of every token, and the values of every head and key.
    n = len(windows.x)
    sources = np.concatenate((windows.x.reshape(n, -1), windows.v.reshape(n, -1)), 1)

    def stage(z: Array) -> Array:
        return (_written(z, w_o, b_o) + (windows.x if skipped else 0.0))[:, windows.skip :]

    def law(maps: list[Array], members: list[int]) -> Law:
        return _mapped(maps, sources[members], b_o, windows.distance)

    mean_maps = [_layer_maps(windows, weights, w_o, skipped) for weights in windows.mean_weights]
    uniform_maps = _layer_maps(windows, uniform_weights, w_o, skipped)
    return _Stage(
        stage(windows.z),
        (stage(windows.mixed(windows.mean_weights[0])), stage(windows.mixed(windows.mean_weights[1]))),
        stage(windows.mixed(uniform_weights)),
        windows.x[:, windows.skip :],
        lambda half, members: law(mean_maps[half], members),
        lambda members: law(uniform_maps, members),
    )


def _layer_maps(windows: _Windows, weights: Array, w_o: Array, skipped: bool) -> list[Array]:
    """For each position the matrix from stream and values of the whole window to what leaves there."""
    (queries, d), out = windows.x.shape[1:], w_o.shape[-1]
    maps = []
    for i in windows.positions:
        stream = np.zeros((out, queries, d))
        if skipped:
            stream[:, i] = np.eye(out)
        values = [np.einsum("k,vo->okv", p[i], w_h).reshape(out, -1) for p, w_h in zip(weights, w_o, strict=True)]
        maps.append(np.concatenate((stream.reshape(out, -1), *values), 1))
    return maps


def _later_stages(windows: _Windows, source: WeightSource, summed: Array) -> tuple[_Stage | None, _Stage | None]:
    """Norm and layer: tokens, tokens with mean weights and Gaussian draws go through the model's own modules."""

    def run(x: Array, z: Array) -> tuple[Array | None, Array]:
        after = source.after_heads(windows.site, torch.from_numpy(x), torch.from_numpy(z))
        return None if after.normed is None else after.normed.double().numpy(), after.out.double().numpy()

    fixed_z = [windows.mixed(weights) for weights in windows.mean_weights]
    tokens = [run(windows.x, z) for z in (windows.z, *fixed_z)]
    draws = [_gaussian_draws(windows, fixed_z[half], half) for half in HALVES]
    drawn_tokens = [run(x, z) for _, x, z in draws]

    def stage(measured: Array, even: Array, odd: Array, drawn_even: Array, drawn_odd: Array) -> _Stage:
        measured, even, odd, before = (y[:, windows.skip :] for y in (measured, even, odd, windows.x))
        pairs = ((draws[0][0], drawn_even), (draws[1][0], drawn_odd))
        return _Stage(measured, (even, odd), None, before, draws=pairs)

    normed = [normed for normed, _ in (*tokens, *drawn_tokens) if normed is not None]
    complete = len(normed) == len(tokens) + len(drawn_tokens)
    norm = stage(*normed) if complete and _is_norm(normed[0], summed) else None
    return norm, stage(*(out for _, out in (*tokens, *drawn_tokens)))


def _gaussian_draws(windows: _Windows, z: Array, half: int) -> tuple[Places, Array, Array]:
    """Combinations of the pairs of a half, with orthonormal coefficients of either sign: positions, x and z."""
    t, skip, queries = windows.distance, windows.skip, windows.x.shape[1]
    entering = [
        np.concatenate((windows.x[w], z[w].swapaxes(0, 1).reshape(queries, -1)), 1) for w in windows.halves[half]
    ]
    mean = np.mean(entering, 0)
    places = [i for i in windows.positions if i - t >= skip]
    pairs = np.array([np.concatenate((y[i] - mean[i], y[i - t] - mean[i - t])) for y in entering for i in places])
    n_draws = max(DRAWS * len(places), len(pairs))
    generator = torch.Generator().manual_seed(half)
    noise = torch.randn(n_draws, len(pairs), generator=generator, dtype=torch.float64).numpy()
    columns, upper = np.linalg.qr(noise)
    columns = columns * np.sign(np.diag(upper))
    scale = sqrt(n_draws / ((len(entering) - 1) * len(places)))
    drawn_pairs, positions = [], []
    for sign in (1, -1):
        for r in range(n_draws):
            i = places[r % len(places)]
            gap = sign * scale * (columns[r] @ pairs)
            drawn_pairs.append((np.concatenate((mean[i], mean[i - t])) + gap).reshape(2, -1))
            positions.append(i - skip)
    d = windows.x.shape[-1]
    stacked = np.array(drawn_pairs)
    drawn_z = stacked[..., d:].reshape(len(stacked), 2, windows.site.n_heads, -1).swapaxes(1, 2)
    return np.array(positions), stacked[..., :d], np.ascontiguousarray(drawn_z)


def _is_norm(normed: Array, summed: Array) -> bool:
    """Whether each coordinate is a line in that of the sum over its length, with or without its mean."""
    d = summed.shape[-1]
    step = max(1, summed.shape[0] * summed.shape[1] // 256)
    y, r = normed.reshape(-1, d)[::step], summed.reshape(-1, d)[::step]
    for centred in (r - r.mean(-1, keepdims=True), r):
        unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True))
        left = sum(
            float(np.sum((y[:, i] - np.polyval(np.polyfit(unit[:, i], y[:, i], 1), unit[:, i])) ** 2)) for i in range(d)
        )
        if left <= RECOGNISED * float(((y - y.mean(0)) ** 2).sum()):
            return True
    return False


def _mapped(maps: Sequence[Array], sources: Array, shift: Array, t: int) -> Law:
    """Linear maps M_i, one per position, of sources: M_i μ + shift, M_i Σ M_iᵀ and M_i Σ M_(i−t)ᵀ."""
    mean = sources.mean(0)
    sigma = np.cov(sources.T, ddof=1)
    means = np.array([m @ mean + shift for m in maps])
    half = [m @ sigma for m in maps]
    cov = np.mean([h @ m.T for h, m in zip(half, maps, strict=True)], 0)
    blocks = [
        np.block(
            [[half[i] @ maps[i].T, half[i] @ maps[i - t].T], [half[i - t] @ maps[i].T, half[i - t] @ maps[i - t].T]]
        )
        for i in range(t, len(maps))
    ]
    return Law(means, cov, np.mean(blocks, 0) if blocks else np.zeros((2 * len(cov), 2 * len(cov))))


def _moments(x: Array, members: list[int], t: int) -> Law:
    """The moments of the vectors of these windows themselves."""
    vectors = x[members]
    positions, d = x.shape[1:]
    if len(members) < 2:
        return Law(vectors.mean(0), np.full((d, d), nan), np.full((2 * d, 2 * d), nan))
    cov = np.mean([np.cov(vectors[:, i].T, ddof=1).reshape(d, d) for i in range(positions)], 0)
    pairs = [np.concatenate((vectors[:, i], vectors[:, i - t]), 1) for i in range(t, positions)] if t else []
    joint = np.mean([np.cov(pair.T, ddof=1) for pair in pairs], 0) if pairs else np.zeros((2 * d, 2 * d))
    return Law(vectors.mean(0), cov, joint)


def _laws(stage: _Stage, halves: list[list[int]], members: list[int], t: int) -> Laws:
    """Every law of a stage, from these windows alone."""
    laws: Laws = {}
    for half in HALVES:
        same, other = ([w for w in halves[side] if w in members] for side in (half, 1 - half))
        laws["measured", half] = _moments(stage.measured, same, t)
        laws["before", half] = _moments(stage.before, same, t)
        for name, side in (("same half", same), ("other half", other)):
            by_formula = stage.fixed_law
            laws[name, half] = by_formula(half, side) if by_formula else _moments(stage.fixed[half], side, t)
        if stage.uniform is not None:
            uniform = stage.uniform_law
            laws["uniform", half] = uniform(same) if uniform else _moments(stage.uniform, same, t)
    return laws


@dataclass
class _Axes:
    """Principal axes in columns, of measured and predicted tokens together; `c` of them for pairs of tokens."""

    columns: Array
    c: int
    variance_share: float

    @property
    def k(self) -> int:
        """The number of axes."""
        return self.columns.shape[1]

    def covariance(self, law: Law) -> Array:
        """Of a token, along the axes."""
        return np.asarray(self.columns.T @ law.covariance @ self.columns)

    def joint(self, law: Law) -> Array:
        """Of a pair, along the first `c` axes."""
        both_tokens = np.kron(np.eye(2), self.columns[:, : self.c])
        return np.asarray(both_tokens.T @ law.joint @ both_tokens)


def _principal_axes(stage: _Stage, fixed: Array, halves: list[list[int]], components: int, t: int) -> _Axes:
    """As many axes as there are ten samples for in the smaller half."""
    n, (positions, d) = min(map(len, halves)), stage.measured.shape[1:]
    measured, predicted = (
        np.concatenate([(x[half] - x[half].mean(0)).reshape(-1, d) for half in halves]) for x in (stage.measured, fixed)
    )
    _, sigma, axes = np.linalg.svd(np.concatenate((measured, predicted)), full_matrices=False)
    rank = int((sigma**2 > 1e-13 * max(2 * len(measured), d) * max(sigma[0] ** 2, 1e-300)).sum())
    k = min(d, (n - 1) * positions // PER_DIMENSION, rank)
    columns = axes[:k].T
    pairs = (n - 1) * (positions - t) // (2 * PER_DIMENSION) if 0 < t < positions else 0
    variance_share = float(((measured @ columns) ** 2).sum() / (measured**2).sum()) if k else nan
    return _Axes(columns, min(components, k, pairs), variance_share)


class _Shape(NamedTuple):
    """What draws of the Gaussian of a half have more than its tokens, at the same positions."""

    mean: Array
    covariance: Array
    entropy: float
    information: float


def _shape(draws: tuple[Places, Array], tokens: Array, law: Law, axes: _Axes, t: int) -> _Shape:
    """Draws y of pairs at (i, i − t) against the tokens of a half, whose law is `law`."""
    at, y = draws
    positions, d = tokens.shape[1:]
    places = np.stack((at, at - t), 1)
    mean = np.array([y[places == position].mean(0) for position in range(positions)])
    centred = (y - mean[places]) @ axes.columns
    rows, pairs = centred.reshape(-1, axes.k), centred[..., : axes.c].reshape(len(y), -1)
    # Each drawn pair has one token at i ≥ t and one at i − t: tokens of these positions are compared with them.
    ends = [np.cov(tokens[:, i].T, ddof=1).reshape(d, d) for i in (*range(t, positions), *range(positions - t))]
    of_draws = rows.T @ rows / len(rows)
    of_tokens = axes.columns.T @ np.mean(ends, 0) @ axes.columns
    return _Shape(
        mean - law.mean,
        of_draws - of_tokens,
        _entropy(of_draws) - _entropy(of_tokens) if axes.k else nan,
        _information(pairs.T @ pairs / len(pairs)) - _information(axes.joint(law)) if axes.c else nan,
    )


def _entropy(cov: Array) -> float:
    """½ (ln 2πe + ln |Σ| / k) in nats per component; NaN where there is no density."""
    sign, value = np.linalg.slogdet(cov)
    low = np.linalg.eigvalsh(cov)[0] / max(float(np.diag(cov).max()), 1e-300)
    return float((log(2 * pi) + 1 + value / len(cov)) / 2) if sign > 0 and low > 1e-14 else nan


def _information(joint: Array) -> float:
    """H(first) + H(second) − H(both)."""
    c = len(joint) // 2
    return _entropy(joint[:c, :c]) * c + _entropy(joint[c:, c:]) * c - _entropy(joint) * 2 * c


@dataclass
class _Estimate:
    """One quantity: its parts for all windows and for all but each, and what it was estimated from."""

    parts: Parts
    dimensions: int | None
    variance_share: float
    samples: int
    windows: int


def _estimates(stage: _Stage, windows: _Windows, components: int) -> dict[str, _Estimate]:
    """Every quantity of a stage that can be estimated."""
    samples, n_windows = stage.measured.shape[0] * stage.measured.shape[1], len(windows.x)
    halves, t = windows.halves, windows.distance
    if min(map(len, halves)) < 2:
        # No mean of a position: every token counts as a window of its own.
        (stage, halves), t = _token_by_token(stage, halves), 0
    share = len(halves[0]) / len(stage.measured)
    fixed = share * stage.fixed[0] + (1 - share) * stage.fixed[1]
    axes = _principal_axes(stage, fixed, halves, components, t)
    sets = _window_sets(halves, jackknife=t > 0)
    laws = [_laws(stage, halves, members, t) for members in sets]
    shapes = None
    if stage.draws is not None:
        shapes = [
            _shape(stage.draws[half], stage.fixed[half][halves[half]], laws[0]["same half", half], axes, t)
            for half in HALVES
        ]
    parts_of: dict[str, tuple[Parts, int | None]] = {"mean": (_mean_parts(laws, shapes, halves), None)}
    if axes.k:
        parts_of["covariance"] = _covariance_parts(laws, shapes, halves, axes), axes.k
        entropy_shapes = None if shapes is None else [shape.entropy for shape in shapes]
        parts_of["entropy"] = _signed(laws, lambda law: _entropy(axes.covariance(law)), entropy_shapes), axes.k
    if axes.c:
        information_shapes = None if shapes is None else [shape.information for shape in shapes]
        parts_of["information"] = _signed(laws, lambda law: _information(axes.joint(law)), information_shapes), axes.c
    if stage.uniform is not None:
        parts_of["vector"] = _vector_parts(stage.measured, fixed, stage.uniform, sets), None
    return {
        name: _Estimate(parts, k, nan if k is None else axes.variance_share, samples, n_windows)
        for name, (parts, k) in parts_of.items()
    }


def _token_by_token(stage: _Stage, halves: list[list[int]]) -> tuple[_Stage, list[list[int]]]:
    """Every token as a window of its own."""
    positions = stage.measured.shape[1]

    def single(x: Array) -> Array:
        return x.reshape(-1, 1, x.shape[-1])

    uniform = None if stage.uniform is None else single(stage.uniform)
    fixed = (single(stage.fixed[0]), single(stage.fixed[1]))
    return (
        _Stage(single(stage.measured), fixed, uniform, single(stage.before)),
        [[w * positions + i for w in half for i in range(positions)] for half in halves],
    )


def _window_sets(halves: list[list[int]], jackknife: bool) -> list[list[int]]:
    """All windows, and where each half has three, all but each."""
    everyone = sorted(w for half in halves for w in half)
    leave_one_out = [[w for w in everyone if w != out] for out in everyone]
    return [everyone, *(leave_one_out if jackknife and min(map(len, halves)) > 2 else ())]


def _mean_parts(laws: Sequence[Laws], shapes: Sequence[_Shape] | None, halves: list[list[int]]) -> Parts:
    """Squared lengths of means, all positions together; measured and predicted per position."""
    added = None if shapes is None else [shape.mean.ravel() for shape in shapes]
    parts = _squares(laws, lambda law: law.mean.ravel(), added, halves)
    positions = len(laws[0]["measured", 0].mean)
    return {**parts, **{name: [x / positions for x in parts[name]] for name in ("measured", "predicted")}}


def _covariance_parts(
    laws: Sequence[Laws], shapes: Sequence[_Shape] | None, halves: list[list[int]], axes: _Axes
) -> Parts:
    """Squared Frobenius norms of covariances; measured and predicted are traces."""
    added = None if shapes is None else [shape.covariance.ravel() for shape in shapes]
    parts = _squares(laws, lambda law: axes.covariance(law).ravel(), added, halves)
    shape_trace = 0.0 if shapes is None else float(np.mean([np.trace(shape.covariance) for shape in shapes]))

    def traces(name: str) -> list[float]:
        return [float(np.mean([np.trace(axes.covariance(of_set[name, half])) for half in HALVES])) for of_set in laws]

    predicted = [trace + shape_trace for trace in traces("same half")]
    return {**parts, "measured": traces("measured"), "predicted": predicted}


def _squares(
    laws: Sequence[Laws], field: Callable[[Law], Array], shapes: Sequence[Array] | None, halves: list[list[int]]
) -> Parts:
    """Squared lengths of the error and of its parts, both halves together, in every set of windows."""
    fields = [{key: field(law) for key, law in of_set.items()} for of_set in laws]

    def target(f: Fields, half: int) -> Array:
        return f["measured", 1 - half]

    def predicted(f: Fields, half: int) -> Array:
        return f["same half", half] if shapes is None else f["same half", half] + shapes[half]

    def error(f: Fields, half: int) -> Array:
        return predicted(f, half) - target(f, half)

    def weights(f: Fields, half: int) -> Array:
        return f["other half", half] - target(f, half)

    def sampling(f: Fields, half: int) -> Array:
        return f["same half", half] - f["other half", half]

    def floor(f: Fields, half: int) -> Array:
        return f["measured", half] - target(f, half)

    def null(f: Fields, half: int) -> Array:
        return f["uniform", half] - target(f, half)

    def products(x: Callable[[Fields, int], Array], y: Callable[[Fields, int], Array]) -> list[float]:
        return [sum(float(x(f, half) @ y(f, half)) for half in HALVES) for f in fields]

    targets = products(target, target)
    parts = {
        "error": products(error, error),
        "sampling": products(sampling, sampling),
        "floor": products(floor, floor),
        "target": targets,
        "measured": [x / 2 for x in targets],
        "predicted": [x / 2 for x in products(predicted, predicted)],
    }
    if len(fields) > 1:
        for name, other in (("weights", weights), ("along", error)):
            chance = _chance(fields, weights, other, halves)
            parts[name] = [x - chance for x in products(weights, other)]
    if ("uniform", 0) in fields[0]:
        parts["null"] = products(null, null)
    if shapes is not None:
        parts["shape"] = [sum(float(x @ x) for x in shapes)] * len(fields)
    return parts


def _chance(
    fields: Sequence[Fields],
    x: Callable[[Fields, int], Array],
    y: Callable[[Fields, int], Array],
    halves: list[list[int]],
) -> float:
    """What differences between the predicted windows give by chance: the jackknife covariance of x and y."""
    total = 0.0
    for half in HALVES:
        left_out = [fields[1 + w] for w in halves[1 - half]]
        a, b = (np.array([quantity(f, half) for f in left_out]) for quantity in (x, y))
        total += (len(left_out) - 1) / len(left_out) * float(((a - a.mean(0)) * (b - b.mean(0))).sum())
    return total


def _signed(laws: Sequence[Laws], number: Callable[[Law], float], shapes: Sequence[float] | None) -> Parts:
    """A number instead of a field: the mean of both halves, and the parts of the error with their sign."""

    def means(name: str) -> Array:
        return np.array([(number(of_set[name, 0]) + number(of_set[name, 1])) / 2 for of_set in laws])

    measured, same_half, other_half = (means(name) for name in ("measured", "same half", "other half"))
    added = 0.0 if shapes is None else (shapes[0] + shapes[1]) / 2
    parts = {
        "measured": measured,
        "predicted": same_half + added,
        "weights": other_half - measured,
        "sampling": same_half - other_half,
        "before": means("before"),
    }
    if ("uniform", 0) in laws[0]:
        parts["null"] = means("uniform")
    if shapes is not None:
        parts["shape"] = np.full(len(laws), added)
    return {name: by_set.tolist() for name, by_set in parts.items()}


def _vector_parts(measured: Array, fixed: Array, uniform: Array, sets: Sequence[list[int]]) -> Parts:
    """The outputs themselves, token by token, against those with the mean weights of all windows."""
    rows = (len(measured) - 1) * measured.shape[1]
    # The spread of the windows of a set about their own mean.
    spreads = [float(((measured[members] - measured[members].mean(0)) ** 2).sum()) for members in sets]
    return {
        "error": [float(((measured - fixed)[members] ** 2).sum()) for members in sets],
        "null": [float(((measured - uniform)[members] ** 2).sum()) for members in sets],
        "target": spreads,
        "measured": [spread / rows for spread in spreads],
        "predicted": [float(((fixed - fixed.mean(0)) ** 2).sum()) / rows] * len(sets),
    }


def _average(heads: Sequence[dict[str, _Estimate]]) -> dict[str, _Estimate]:
    """The heads of a layer together: parts averaged over the heads that have them."""
    averages = {}
    for name in QUANTITIES:
        keys = ("error",) if name in LENGTHS else ("measured", "predicted")
        estimates = [by_quantity[name] for by_quantity in heads if name in by_quantity]
        finite = [estimate for estimate in estimates if np.isfinite([estimate.parts[key] for key in keys]).all()]
        if finite:
            first = finite[0]
            parts = {key: np.mean([estimate.parts[key] for estimate in finite], 0).tolist() for key in first.parts}
            sizes = [estimate.dimensions for estimate in finite if estimate.dimensions is not None]
            variance_share = float(np.mean([estimate.variance_share for estimate in finite]))
            averages[name] = _Estimate(parts, min(sizes, default=None), variance_share, first.samples, first.windows)
    return averages


def _row(name: str, estimate: _Estimate) -> Row:
    """The numbers of one quantity as they are in a table; what is not finite is left out."""
    value, share, numbers = (_length_numbers if name in LENGTHS else _signed_numbers)(name, estimate.parts)
    columns = {**numbers, "value": value[0], "share": share[0], "held": estimate.variance_share}
    columns |= dict(zip(("low", "high"), _jackknife(value), strict=True))
    columns |= dict(zip(("share_low", "share_high"), _jackknife(share), strict=True))
    if name in LENGTHS:
        columns["low"] = max(columns["low"], 0.0) if isfinite(columns["low"]) else nan
    elif not columns["low"] * columns["high"] > 0:
        # Parts with signs: their share of what may be 0 says nothing.
        columns |= dict.fromkeys(("share", "share_low", "share_high"), nan)
    counts: Row = {"dimensions": estimate.dimensions, "samples": estimate.samples, "windows": estimate.windows}
    return {"quantity": name, **{key: float(x) for key, x in columns.items() if isfinite(x)}, **counts}


def _length_numbers(name: str, parts: Parts) -> tuple[list[float], list[float], dict[str, float]]:
    """√(error / target), the share of the weights in the squared error, and the length of each part."""
    value = [sqrt(x / y) for x, y in zip(parts["error"], parts["target"], strict=True)]
    share = [a / b for a, b in zip(parts["along"], parts["error"], strict=True)] if "along" in parts else [nan]
    lengths: dict[str, float] = {
        key: sqrt(max(0.0, parts[key][0]) / parts["target"][0])
        for key in ("null", "floor", "weights", "sampling", "shape")
        if key in parts
    }
    power = 0.5 if name == "mean" else 1.0
    return value, share, {**lengths, **{key: parts[key][0] ** power for key in ("measured", "predicted")}}


def _signed_numbers(name: str, parts: Parts) -> tuple[list[float], list[float], dict[str, float]]:
    """Predicted − measured, the share of the weights in it, and each part."""
    value = [a - b for a, b in zip(parts["predicted"], parts["measured"], strict=True)]
    share = [w / v for w, v in zip(parts["weights"], value, strict=True)]
    numbers = {key: by_set[0] for key, by_set in parts.items()}
    if "null" in numbers:
        numbers["null"] -= numbers["measured"]
    return value, share, numbers


def _jackknife(by_set: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a number, from its values without each window; NaN where there are none."""
    left_out, n = np.array(by_set[1:]), len(by_set) - 1
    if n < 2:
        return nan, nan
    half = stats.t.ppf(0.975, n - 1) * sqrt((n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum()))
    return by_set[0] - half, by_set[0] + half
