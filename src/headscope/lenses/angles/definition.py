"""The formulas of the lens `angles` as written, row by row and arc by arc, with numpy and scipy alone."""

import hashlib
from collections.abc import Iterator, Sequence
from math import acos, cos, isfinite, nan, pi, sin, sqrt

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
        tested = [row for row in tables["heads"] if row["quantity"] == name and row["p"] is not None]
        tested.sort(key=lambda row: float(str(row["p"])), reverse=True)
        least = 1.0
        for rank, row in zip(range(len(tested), 0, -1), tested, strict=True):
            least = min(least, float(str(row["p"])) * len(tested) / rank)
            row["adjusted"] = least
    return tables


class _Window:
    """One window: the kept tokens, and for each row the keys that count."""

    def __init__(self, site: Site, first: Site, batch: Batch, index: int, skip: int) -> None:
        real = batch.real[index].tolist()
        n = len(real)
        starts = [n - 8 * 2**octave for octave in range(24) if 8 * 2**octave <= n]
        sampled = [t for t in range(n) if n <= 56 or t < 8 or any(start <= t < start + 8 for start in starts)]
        real_columns = [number for number, t in enumerate(sampled) if real[t]]
        real_tokens = [sampled[number] for number in real_columns]
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
        generator = torch.Generator().manual_seed(seed)
        self.orders = []
        for _ in range(DRAWS):
            mixed = torch.randperm(len(self.inside), generator=generator).tolist()
            order = dict(enumerate(range(len(self.at)))) | {
                i: self.inside[other] for i, other in zip(self.inside, mixed, strict=True)
            }
            self.orders.append(order)

    def rows(self, values: Array, ranked: bool) -> Array:
        """All rows, each less its mean or ranked, end to end."""
        centred_rows = []
        for i, keys in enumerate(self.keys):
            row = values[i, keys]
            row = stats.rankdata(row) if ranked else row
            row = row - row.mean() if len(row) else row
            spread = row.std() if len(row) else 0.0
            centred_rows.append(row / spread if ranked and spread > 0 else row)
        return np.concatenate(centred_rows)

    def cosine(self, vectors: str, order: dict[int, int] | None = None) -> Array:
        x = self.x if vectors == "input" else self.e
        n = range(len(x))
        at = order or {i: i for i in n}
        return np.array(
            [[x[at[i]] @ x[at[j]] / np.linalg.norm(x[at[i]]) / np.linalg.norm(x[at[j]]) for j in n] for i in n]
        )


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
    every = range(len(windows))
    cosine_rows: dict[tuple[str, bool], list[Array]] = {}
    mixed: dict[tuple[str, bool], list[list[Array]]] = {}
    for vectors in ("input", "embedding"):
        for ranked in (False, True):
            cosines = [window.cosine(vectors) for window in windows]
            rounded = [c.round(DECIMALS) if ranked else c for c in cosines]
            cosine_rows[vectors, ranked] = [window.rows(c, ranked) for window, c in zip(windows, rounded, strict=True)]
            mixed[vectors, ranked] = [
                [
                    window.rows(c[np.ix_(list(order.values()), list(order.values()))], ranked)
                    for window, c, order in (
                        (window, c, window.orders[draw]) for window, c in zip(windows, rounded, strict=True)
                    )
                ]
                for draw in range(DRAWS)
            ]
    distances = [np.abs(np.subtract.outer(window.at, window.at)).astype(float) for window in windows]
    far = {
        ranked: [
            window.rows(d if ranked else np.log(np.maximum(d, 1)), ranked)
            for window, d in zip(windows, distances, strict=True)
        ]
        for ranked in (False, True)
    }
    for head in range(site.n_heads):
        for vectors, target in QUANTITIES:
            ranked = target == "rank"
            a = [
                window.rows((window.score if target == "score" else window.weight)[head], ranked) for window in windows
            ]
            m, d = cosine_rows[vectors, ranked], far[ranked]

            def pooled(rows: Sequence[Array], out: int | None = None) -> Array:
                return np.concatenate([row for i, row in enumerate(rows) if i != out])

            value, partial = _correlation(pooled(a), pooled(m)), _partial(pooled(a), pooled(m), pooled(d))
            left_out = [i for i in every if len(windows) > 1]
            values = [_correlation(pooled(a, i), pooled(m, i)) for i in left_out]
            partials = [_partial(pooled(a, i), pooled(m, i), pooled(d, i)) for i in left_out]
            error = _error(partials)
            p = 2 * float(stats.t.sf(abs(partial) / error, len(partials) - 1)) if error > 0 else nan
            null = [_correlation(pooled(a), pooled(rows)) for rows in mixed[vectors, ranked]]
            square = float(pooled(m) @ pooled(m))
            slope = float(pooled(a) @ pooled(m)) / square if square > 0 and not ranked else nan
            numbers = {
                "value": value, "low": value - _half(values), "high": value + _half(values),
                "null": float(np.mean(null)), "null_sd": float(np.std(null, ddof=1)), "given_distance": partial,
                "given_low": partial - _half(partials), "given_high": partial + _half(partials), "p": p, "slope": slope,
            }  # fmt: skip
            yield {
                "head": head, "quantity": f"{vectors}_{target}",
                **{name: _cell(number) for name, number in numbers.items()},
                "samples": sum(len(keys) for window in windows for keys in window.keys), "windows": len(windows),
            }  # fmt: skip


# An arc: divergences, laws, what a sinusoid leaves of it and of a line, angle, length.
Arc = tuple[list[float], list[float], float, float, float, float]


def _arc(target: Array, moving: Sequence[Array], angle: float, length: float) -> Arc:
    p = special.softmax(target)
    divergence = [float(special.rel_entr(p, special.softmax(scores)).sum()) for scores in moving]
    overlap = float(p @ (target - target.mean()))
    law = [overlap * (1 - cos((1 - t) * angle)) for t in TIMES]
    return (
        divergence,
        law,
        _sinusoid_misfit(divergence, angle),
        _sinusoid_misfit([1 - t for t in TIMES], angle),
        angle,
        length,
    )


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
    every = [arc for window_arcs in windows for arc in window_arcs]

    def start(out: int | None = None) -> tuple[float, float]:
        arcs = [arc for i, window_arcs in enumerate(windows) if i != out for arc in window_arcs]
        return sum(arc[0][0] for arc in arcs) / len(arcs), sum(arc[1][0] for arc in arcs) / len(arcs)

    curve, law = (np.mean([arc[k] for arc in every], axis=0) for k in (0, 1))
    starts_without = [start(i) for i in range(len(windows))] if len(windows) > 1 else []
    value, predicted = start()
    half, margin = _half([k for k, _ in starts_without]), _half([k / b for k, b in starts_without])
    ratio = value / predicted
    numbers = {
        "value": value, "low": max(value - half, 0.0) if half == half else nan, "high": value + half,
        "predicted": predicted, "ratio": ratio, "ratio_low": max(ratio - margin, 0.0) if margin == margin else nan,
        "ratio_high": ratio + margin, "law_misfit": float(np.abs(curve - law).max() / law[0]),
        "sinusoid": float(np.mean([arc[2] for arc in every])), "line": float(np.mean([arc[3] for arc in every])),
        "angle": float(np.mean([arc[4] for arc in every])) * 180 / pi,
        "length": float(np.mean([arc[5] for arc in every])),
    }  # fmt: skip
    cells = {key: _cell(number) for key, number in numbers.items()}
    yield {"head": head, "quantity": name, **cells, "samples": len(every), "windows": len(windows)}


def _picture_rows(site: Site, first: Site, every: Sequence[tuple[Batch, int]], skip: int) -> Iterator[Row]:
    for batch, index in every:
        at = [i for i, is_real in enumerate(batch.real[index].tolist()) if is_real][skip:MOST_TOKENS]
        if len(at) < FEWEST_TOKENS:
            continue
        maps = batch.captures["pattern"][site][index].double().numpy()[:, at][:, :, at]
        for name, of in (("input", site), ("embedding", first)):
            x = batch.captures["resid"][of][index].double().numpy()[at]
            unit = x / np.linalg.norm(x, axis=1, keepdims=True)
            cosine = unit @ unit.T
            parts: dict[bool, list[tuple[Array, Array]]] = {False: [], True: []}
            pairs = 0
            for i in range(len(at)):
                keys = [j for j in range(len(at)) if j != i and (maps[:, i, j] > 0).any()]
                pairs += len(keys)
                for ranked in (False, True):
                    rows = [maps[:, i, keys].mean(0), cosine[i, keys].round(DECIMALS) if ranked else cosine[i, keys]]
                    rows = [stats.rankdata(row) if ranked else row for row in rows]
                    rows = [row - row.mean() if len(row) else row for row in rows]
                    if ranked:
                        rows = [row / row.std() if len(row) and row.std() > 0 else row for row in rows]
                    parts[ranked].append((rows[0], rows[1]))
            a, m = (np.concatenate([part[k] for part in parts[False]]) for k in (0, 1))
            b, n = (np.concatenate([part[k] for part in parts[True]]) for k in (0, 1))
            numbers = {"value": _correlation(a, m), "rank": _correlation(b, n), "slope": float(a @ m) / float(m @ m)}
            cells = {key: _cell(number) for key, number in numbers.items()}
            yield {"head": None, "quantity": name, **cells, "samples": pairs, "windows": 1}
        return
