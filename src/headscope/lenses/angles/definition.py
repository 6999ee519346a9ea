"""The formulas of the lens `angles` as written, row by row and arc by arc, with numpy and scipy alone."""

import hashlib
from collections.abc import Iterator, Sequence
from math import acos, cos, isfinite, nan, pi, sin, sqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special, stats

from headscope.core import Site
from headscope.lenses.lens import Batch
from headscope.lenses.shared.table import Row

Array = NDArray[np.float64]
# As the lens has them.
KEYS, DRAWS, DECIMALS, POINTS, ARCS, NARROW, MOST_TOKENS, FEWEST_TOKENS = 4, 16, 9, 9, 12, 0.05, 21, 4
TIMES = [k / (POINTS - 1) for k in range(POINTS)]
QUANTITIES = [(v, t) for v in ("input", "embedding") for t in ("score", "weight", "rank")]


def defined(batches: Sequence[Batch], skip: int) -> dict[str, list[Row]]:
    """The rows of all tables."""
    tables: dict[str, list[Row]] = {"heads": [], "arcs": [], "drawn": []}
    sites = [site for site in (batches[0].captures["resid"] if batches else ()) if site.kind == "self"]
    for site in sites:
        first = next(other for other in sites if other.stack == site.stack)
        every = [(batch, index) for batch in batches for index in range(len(batch.real))]
        windows = [_Window(site, first, batch, index, skip) for batch, index in every]
        windows = [window for window in windows if any(window.keys)]
        if not windows:
            continue
        where = {"stack": site.stack, "kind": site.kind, "layer": site.layer}
        tables["heads"] += [where | row for row in _heads(site, windows)]
        tables["arcs"] += [where | row for row in _arcs(site, windows)]
        tables["drawn"] += [where | row for row in _picture_rows(site, first, every, skip)]
    for name in {row["quantity"] for row in tables["heads"]}:
        _adjust([row for row in tables["heads"] if row["quantity"] == name])
    return tables


def _adjust(rows: Sequence[Row]) -> None:
    """Write the p-values adjusted by Benjamini and Hochberg, from the largest p down."""
    tested = [row for row in rows if row.get("p") is not None]
    tested.sort(key=lambda row: float(str(row["p"])), reverse=True)
    least = 1.0
    for rank, row in zip(range(len(tested), 0, -1), tested, strict=True):
        least = min(least, float(str(row["p"])) * len(tested) / rank)
        row["adjusted"] = least


class _Window:
    """One window: the kept tokens, and for each row the keys that count."""

    def __init__(self, site: Site, first: Site, batch: Batch, index: int, skip: int) -> None:
        real = batch.real[index].tolist()
        real_columns, real_tokens = _sampled_tokens(real)
        self.at = [sum(real[:t]) for t in real_tokens]
        captured = {name: batch.captures[name][site][index].double().numpy() for name in ("resid", "q", "k", "pairs")}
        self.x = captured["resid"][real_tokens]
        self.e = batch.captures["resid"][first][index].double().numpy()[real_tokens]
        q, k, self.weight = (
            captured["q"][:, real_tokens],
            captured["k"][:, real_tokens],
            captured["pairs"][:, real_columns][:, :, real_columns],
        )
        scale = float(batch.captures["scale"][site])
        self.score = np.array([scale * q[h] @ k[site.kv_head(h)].T for h in range(site.n_heads)])
        self.inside = [i for i, position in enumerate(self.at) if position >= skip]
        self.visible = [
            [j for j in self.inside if i in self.inside and (self.weight[:, i, j] > 0).any()]
            for i in range(len(self.at))
        ]
        rows = [[j for j in keys if j != i] for i, keys in enumerate(self.visible)]
        self.keys = [keys if len(keys) >= KEYS else [] for keys in rows]
        text = batch.tokens[index][batch.real[index]].to(torch.int64).numpy()
        seed = int.from_bytes(hashlib.sha256(text.tobytes()).digest()[:8], "big") >> 8
        self.orders = self.shuffles(torch.Generator().manual_seed(seed))

    def shuffles(self, generator: torch.Generator) -> list[dict[int, int]]:
        """DRAWS times: which token takes the place of each; skipped tokens stay."""
        orders = []
        for _ in range(DRAWS):
            mixed = torch.randperm(len(self.inside), generator=generator).tolist()
            order = dict(enumerate(range(len(self.at)))) | {
                i: self.inside[other] for i, other in zip(self.inside, mixed, strict=True)
            }
            orders.append(order)
        return orders

    def rows(self, values: Array, ranked: bool) -> Array:
        """All rows, each less its mean or ranked, end to end."""
        return np.concatenate([_centred(values[i, keys], ranked) for i, keys in enumerate(self.keys)])

    def cosine(self, vectors: str, order: dict[int, int] | None = None) -> Array:
        x = self.x if vectors == "input" else self.e
        n = range(len(x))
        at = order or {i: i for i in n}
        return np.array(
            [[x[at[i]] @ x[at[j]] / np.linalg.norm(x[at[i]]) / np.linalg.norm(x[at[j]]) for j in n] for i in n]
        )


def _sampled_tokens(real: Sequence[bool]) -> tuple[list[int], list[int]]:
    """The sampled tokens that are no padding: their numbers within the sample, and within the window."""
    n = len(real)
    starts = [n - 8 * 2**octave for octave in range(24) if 8 * 2**octave <= n]
    sampled = [t for t in range(n) if n <= 56 or t < 8 or any(start <= t < start + 8 for start in starts)]
    real_columns = [number for number, t in enumerate(sampled) if real[t]]
    return real_columns, [sampled[number] for number in real_columns]


def _centred(row: Array, ranked: bool) -> Array:
    """A row less its mean; ranked, with standard deviation 1."""
    if not len(row):
        return row
    row = stats.rankdata(row) if ranked else row
    row = row - row.mean()
    spread = row.std()
    return row / spread if ranked and spread > 0 else row


def _correlation(a: Array, b: Array) -> float:
    size = float(a @ a) * float(b @ b)
    return float(a @ b) / sqrt(size) if size > 0 else nan


def _partial(a: Array, m: Array, d: Array) -> float:
    r, r_a, r_m = _correlation(a, m), _correlation(a, d), _correlation(m, d)
    if not (1 - r_a**2 > 1e-10 and 1 - r_m**2 > 1e-10):
        return nan
    return (r - r_a * r_m) / sqrt((1 - r_a**2) * (1 - r_m**2))


def _error(without: Sequence[float]) -> float:
    w = len(without)
    if w < 2:
        return nan
    mean = sum(without) / w
    return sqrt((w - 1) / w * sum((estimate - mean) ** 2 for estimate in without))


def _half(without: Sequence[float]) -> float:
    return _error(without) * float(stats.t.ppf(0.975, len(without) - 1)) if len(without) > 1 else nan


def _cell(value: float) -> float | None:
    return value if isfinite(value) else None


def _heads(site: Site, windows: Sequence[_Window]) -> Iterator[Row]:
    kinds = [(vectors, ranked) for vectors in ("input", "embedding") for ranked in (False, True)]
    cosines = {kind: _cosine_rows(windows, *kind) for kind in kinds}
    distances = {ranked: [_distance_rows(window, ranked) for window in windows] for ranked in (False, True)}
    samples = sum(len(keys) for window in windows for keys in window.keys)
    for head in range(site.n_heads):
        for vectors, target in QUANTITIES:
            ranked = target == "rank"
            maps = [(window.score if target == "score" else window.weight)[head] for window in windows]
            a = [window.rows(values, ranked) for window, values in zip(windows, maps, strict=True)]
            m, shuffled = cosines[vectors, ranked]
            numbers = _correlation_numbers(a, m, distances[ranked])
            numbers |= _null_numbers(a, shuffled) | {"slope": nan if ranked else _slope(_pooled(a), _pooled(m))}
            cells = {name: _cell(number) for name, number in numbers.items()}
            counts = {"samples": samples, "windows": len(windows)}
            yield {"head": head, "quantity": f"{vectors}_{target}", **cells, **counts}


def _cosine_rows(windows: Sequence[_Window], vectors: str, ranked: bool) -> tuple[list[Array], list[list[Array]]]:
    """The cosines of each window, and those of its shuffled tokens by draw."""
    cosines = [window.cosine(vectors) for window in windows]
    rounded = [cosine.round(DECIMALS) if ranked else cosine for cosine in cosines]
    plain = [window.rows(cosine, ranked) for window, cosine in zip(windows, rounded, strict=True)]
    shuffled = [
        [
            window.rows(_reordered(cosine, window.orders[draw]), ranked)
            for window, cosine in zip(windows, rounded, strict=True)
        ]
        for draw in range(DRAWS)
    ]
    return plain, shuffled


def _reordered(square: Array, order: dict[int, int]) -> Array:
    tokens = list(order.values())
    return square[np.ix_(tokens, tokens)]


def _distance_rows(window: _Window, ranked: bool) -> Array:
    """The distances of all pairs, ranked or as logarithms."""
    distance = np.abs(np.subtract.outer(window.at, window.at)).astype(float)
    return window.rows(distance if ranked else np.log(np.maximum(distance, 1)), ranked)


def _pooled(rows: Sequence[Array], out: int | None = None) -> Array:
    """The rows of all windows but `out`, end to end."""
    return np.concatenate([row for i, row in enumerate(rows) if i != out])


def _correlation_numbers(a: Sequence[Array], m: Sequence[Array], d: Sequence[Array]) -> dict[str, float]:
    """The correlation of a and m, plain and given d, with jackknife intervals over windows."""
    value, partial = _correlation(_pooled(a), _pooled(m)), _partial(_pooled(a), _pooled(m), _pooled(d))
    left_out = range(len(a) if len(a) > 1 else 0)
    values = [_correlation(_pooled(a, i), _pooled(m, i)) for i in left_out]
    partials = [_partial(_pooled(a, i), _pooled(m, i), _pooled(d, i)) for i in left_out]
    error = _error(partials)
    return {
        "value": value,
        "low": value - _half(values),
        "high": value + _half(values),
        "given_distance": partial,
        "given_low": partial - _half(partials),
        "given_high": partial + _half(partials),
        "p": 2 * float(stats.t.sf(abs(partial) / error, len(partials) - 1)) if error > 0 else nan,
    }


def _null_numbers(a: Sequence[Array], shuffled: Sequence[Sequence[Array]]) -> dict[str, float]:
    null = [_correlation(_pooled(a), _pooled(rows)) for rows in shuffled]
    return {"null": float(np.mean(null)), "null_sd": float(np.std(null, ddof=1))}


def _slope(a: Array, m: Array) -> float:
    square = float(m @ m)
    return float(a @ m) / square if square > 0 else nan


class Arc(NamedTuple):
    """Divergences and laws along one arc, what a sinusoid leaves of it and of a line, its angle and its length."""

    divergence: list[float]
    law: list[float]
    sinusoid: float
    line: float
    angle: float
    length: float


def _arc(target: Array, moving: Sequence[Array], angle: float, length: float) -> Arc:
    p = special.softmax(target)
    divergence = [float(special.rel_entr(p, special.softmax(scores)).sum()) for scores in moving]
    overlap = float(p @ (target - target.mean()))
    law = [overlap * (1 - cos((1 - t) * angle)) for t in TIMES]
    misfit, line = _sinusoid_misfit(divergence, angle), _sinusoid_misfit([1 - t for t in TIMES], angle)
    return Arc(divergence, law, misfit, line, angle, length)


def _sinusoid_misfit(curve: Sequence[float], angle: float) -> float:
    basis = np.array([[cos(angle * t), sin(angle * t), 1.0] for t in TIMES])
    y = np.array(curve)
    residual = y - basis @ np.linalg.lstsq(basis, y, rcond=None)[0]
    return float(np.abs(residual).max() / np.ptp(y)) if np.ptp(y) > 0 else 0.0


def _ends(at: Sequence[int]) -> list[tuple[int, int]]:
    half = len(at) // 2
    step = max(1, -(-half // ARCS))
    return [(at[i], at[i + half]) for i in range(0, half, step)]


def _between(v: Array, w: Array) -> float | None:
    size = float(np.linalg.norm(v) * np.linalg.norm(w))
    angle = acos(max(-1.0, min(1.0, float(v @ w) / size))) if size > 0 else 0.0
    return angle if NARROW < angle < pi - NARROW else None


def _mixed(v: Array, w: Array, angle: float) -> list[Array]:
    return [(sin((1 - t) * angle) * v + sin(t * angle) * w) / sin(angle) for t in TIMES]


def _stream(window: _Window, unit: bool) -> Iterator[Arc]:
    x = window.x - window.x.mean(1, keepdims=True)
    for i, j in _ends(window.inside):
        angle = _between(x[i], x[j])
        if angle is not None:
            sizes = np.linalg.norm(x[i]), np.linalg.norm(x[j])
            length = 1.0 if unit else sqrt(float(sizes[0] * sizes[1]))
            v, w = x[i] / sizes[0] * length, x[j] / sizes[1] * length
            yield _arc(w, _mixed(v, w, angle), angle, length)


def _rows(window: _Window, head: int) -> Iterator[Arc]:
    x = window.x - window.x.mean(1, keepdims=True)
    for i, j in _ends(window.inside[len(window.inside) // 2 :]):
        angle = _between(x[i], x[j])
        keys = [key for key in window.visible[i] if key in window.visible[j]]
        if angle is not None and len(keys) >= KEYS:
            v, w = window.score[head, i, keys], window.score[head, j, keys]
            yield _arc(w, _mixed(v, w, angle), angle, float(np.linalg.norm(w - w.mean())))


def _arcs(site: Site, windows: Sequence[_Window]) -> Iterator[Row]:
    yield from _arc_row(None, "input", [list(_stream(window, unit=False)) for window in windows])
    yield from _arc_row(None, "unit", [list(_stream(window, unit=True)) for window in windows])
    for head in range(site.n_heads):
        yield from _arc_row(head, "row", [list(_rows(window, head)) for window in windows])


def _arc_row(head: int | None, name: str, arcs_by_window: Sequence[list[Arc]]) -> Iterator[Row]:
    windows = [window_arcs for window_arcs in arcs_by_window if window_arcs]
    if not windows:
        return
    arcs = [arc for window_arcs in windows for arc in window_arcs]
    numbers = _start_numbers(windows) | {
        "law_misfit": _law_misfit(arcs),
        "sinusoid": float(np.mean([arc.sinusoid for arc in arcs])),
        "line": float(np.mean([arc.line for arc in arcs])),
        "angle": float(np.mean([arc.angle for arc in arcs])) * 180 / pi,
        "length": float(np.mean([arc.length for arc in arcs])),
    }
    cells = {key: _cell(number) for key, number in numbers.items()}
    yield {"head": head, "quantity": name, **cells, "samples": len(arcs), "windows": len(windows)}


def _start_numbers(windows: Sequence[list[Arc]]) -> dict[str, float]:
    """The mean divergence at the start of the arcs, the law, and their ratio, with jackknife intervals."""
    value, predicted = _mean_start(windows)
    without = [_mean_start(windows, out) for out in range(len(windows))] if len(windows) > 1 else []
    half, margin = _half([start for start, _ in without]), _half([start / law for start, law in without])
    ratio = value / predicted
    return {
        "value": value,
        "low": max(value - half, 0.0) if half == half else nan,
        "high": value + half,
        "predicted": predicted,
        "ratio": ratio,
        "ratio_low": max(ratio - margin, 0.0) if margin == margin else nan,
        "ratio_high": ratio + margin,
    }


def _mean_start(windows: Sequence[list[Arc]], out: int | None = None) -> tuple[float, float]:
    """The mean divergence and the mean law at the start of the arcs of all windows but `out`."""
    arcs = [arc for i, window_arcs in enumerate(windows) if i != out for arc in window_arcs]
    return sum(arc.divergence[0] for arc in arcs) / len(arcs), sum(arc.law[0] for arc in arcs) / len(arcs)


def _law_misfit(arcs: Sequence[Arc]) -> float:
    curve, law = np.mean([arc.divergence for arc in arcs], axis=0), np.mean([arc.law for arc in arcs], axis=0)
    return float(np.abs(curve - law).max() / law[0])


def _picture_rows(site: Site, first: Site, every: Sequence[tuple[Batch, int]], skip: int) -> Iterator[Row]:
    """Of the first window that is long enough."""
    for batch, index in every:
        at = [i for i, is_real in enumerate(batch.real[index].tolist()) if is_real][skip:MOST_TOKENS]
        if len(at) < FEWEST_TOKENS:
            continue
        maps = batch.captures["pattern"][site][index].double().numpy()[:, at][:, :, at]
        for name, of in (("input", site), ("embedding", first)):
            x = batch.captures["resid"][of][index].double().numpy()[at]
            unit = x / np.linalg.norm(x, axis=1, keepdims=True)
            yield {"head": None, "quantity": name, **_picture_cells(maps, unit @ unit.T), "windows": 1}
        return


def _picture_cells(maps: Array, cosine: Array) -> Row:
    """The correlation of the averaged map with the cosines, plain and of ranks, and the slope."""
    tokens = range(len(cosine))
    keys = [[j for j in tokens if j != i and (maps[:, i, j] > 0).any()] for i in tokens]
    weights = [maps[:, i, keys[i]].mean(0) for i in tokens]
    cosines = [cosine[i, keys[i]] for i in tokens]
    a, m = (np.concatenate([_centred(row, ranked=False) for row in rows]) for rows in (weights, cosines))
    rounded = [row.round(DECIMALS) for row in cosines]
    ranks = (np.concatenate([_centred(row, ranked=True) for row in rows]) for rows in (weights, rounded))
    numbers = {"value": _correlation(a, m), "rank": _correlation(*ranks), "slope": float(a @ m) / float(m @ m)}
    return {**{key: _cell(number) for key, number in numbers.items()}, "samples": sum(len(row) for row in keys)}
