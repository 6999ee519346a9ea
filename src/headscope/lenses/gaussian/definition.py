"""The formulas of the lens `gaussian` as written, on all rows of all windows, in float64 and with numpy alone.

Nothing here is shared with the fold but the names of the columns: the fold samples where rows are many and takes its
numbers from merged moments; both must give the same tables where every row is kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import log, nan, pi, sqrt
from typing import TypeVar

import numpy as np
import polars as pl
from scipy import stats

from headscope.core import Site
from headscope.lenses.gaussian.tables import SCHEMAS
from headscope.lenses.lens import Batch
from headscope.lenses.shared.table import Row

# Samples per dimension, spacing of the tested rows, fewest rows to test, shuffles: as the lens has them.
PER_DIMENSION, ROW_SPACING, FEWEST, SHUFFLES = 10, 8, 20, 16


def defined(
    batches: Sequence[Batch], components: int, distances: Sequence[int], skip: int, tokens: int
) -> dict[str, pl.DataFrame]:
    """The tables of the lens."""
    streams = _streams(batches)
    tables: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    curve_streams: dict[str, tuple[int, ...]] = {}
    for stack in {site.stack for site, _ in streams}:
        numbers = [number for number, (site, _) in enumerate(streams) if site.stack == stack]
        curve_streams[stack] = (numbers[0], numbers[len(numbers) // 2], numbers[-1])
    for number, ((site, windows), successor) in enumerate(zip(streams, [*streams[1:], None], strict=True)):
        following = successor[1] if successor is not None and successor[0].stack == site.stack else None
        stream = _Stream(components, skip, windows, following)
        where = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": None}
        rows_by_table = {
            "layers": stream.layer_rows(),
            "positions": stream.position_rows(),
            "normality": stream.normality_rows(),
            "components": stream.component_rows(distances, number in curve_streams.get(site.stack, ())),
            "information": stream.information_rows(distances),
            "joint": stream.joint_rows(tokens),
        }
        for name, rows in rows_by_table.items():
            tables[name] += [where | row for row in rows]
    return {name: pl.DataFrame(rows, schema=SCHEMAS[name]) for name, rows in tables.items()}


def _streams(batches: Sequence[Batch]) -> list[tuple[Site, list["Array"]]]:
    """The stream that enters each layer, and after each stack the one that leaves it."""
    streams: list[tuple[Site, list[Array]]] = []
    for site in batches[0].captures["resid"] if batches else ():
        if site.kind == "self":
            streams.append((site, _windows(batches, "resid", site)))
        if site in batches[0].captures.get("final", {}):
            streams.append((replace(site, layer=site.layer + 1), _windows(batches, "final", site)))
    return streams


def _windows(batches: Sequence[Batch], name: str, site: Site) -> list["Array"]:
    return [
        batch.captures[name][site][index].double().numpy()[real.numpy()]
        for batch in batches
        for index, real in enumerate(batch.real)
    ]


Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Measured = TypeVar("Measured", float, tuple[float, ...])


class _Stream:
    """One residual stream by the formulas, from complete windows."""

    def __init__(self, components: int, skip: int, windows: Sequence[Array], following: Sequence[Array] | None) -> None:
        self.components, self.skip = components, skip
        self.full = np.concatenate(windows)
        self.lengths = [len(window) for window in windows if len(window) > skip]
        self.windows = [window[skip:] for window in windows if len(window) > skip]
        self.left = [window[:skip] for window in windows if len(window) > skip]
        self.following = None if following is None else [window[skip:] for window in following if len(window) > skip]
        self.x = np.concatenate(self.windows)
        self.n, self.d = self.x.shape
        self.mean = self.x.mean(0)
        values, vectors = np.linalg.eigh(np.cov(self.x.T, ddof=1).reshape(self.d, self.d))
        vectors *= np.sign([column[np.abs(column).argmax()] for column in vectors.T])  # their largest entries positive
        self.values, self.axes = values[::-1], vectors[:, ::-1]
        self.rank = int((self.values > 1e-13 * self.d * self.values[0]).sum())

    def scores(self, windows: Sequence[Array], k: int) -> list[Array]:
        return [(window - self.mean) @ self.axes[:, :k] for window in windows]

    def half(self, influence: Sequence[Array]) -> float:
        """Ratio estimator over windows, as for the mean of clusters of unequal size."""
        w, mean = len(influence), np.concatenate(influence).mean()
        if w < 2:
            return nan
        squares = sum(float((pulls - mean).sum()) ** 2 for pulls in influence)
        variance = w / (w - 1) * squares / self.n**2
        return float(stats.t.ppf(0.975, w - 1)) * sqrt(variance)

    def jackknife(self, estimates: Sequence[float]) -> float:
        w = len(estimates)
        if w < 2:
            return nan
        mean = sum(estimates) / w
        variance = (w - 1) / w * sum((estimate - mean) ** 2 for estimate in estimates)
        return float(stats.t.ppf(0.975, w - 1)) * sqrt(variance)

    def row(self, quantity: str, numbers: Sequence[float], k: int, n: int) -> Row:
        names = ("value", "low", "high", "null")
        cells = _finite(dict(zip(names, numbers, strict=True)))
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
        gaps = [window - self.mean for window in self.windows]
        half = ratio * self.half([2 * (g**2).sum(1) / t1 - 2 * ((g @ sigma) * g).sum(1) / t2 for g in gaps])
        low, high = (max(ratio - half, 1.0), min(ratio + half, float(d))) if half == half else (nan, nan)
        yield self.row("effective_dimension", (ratio, low, high, d * (n - 1) / (n + d)), d, n)
        yield self.mean_row()
        yield self.shrinkage_row(s, weight)
        yield self.first_row()
        if self.following is not None:
            k = min(self.components, n // PER_DIMENSION)
            yield self.kl_row("kl_next_nats", self.scores(self.windows, k), self.scores(self.following, k), k, n)
        is_late = [
            2 * (np.arange(len(window)) + self.skip) >= length
            for window, length in zip(self.windows, self.lengths, strict=True)
        ]
        fewer = int(min(sum(late.sum() for late in is_late), sum((~late).sum() for late in is_late)))
        k = min(self.components, self.rank, fewer // PER_DIMENSION)
        y = self.scores(self.windows, k)
        early_rows, late_rows = _selected(y, [~late for late in is_late]), _selected(y, is_late)
        yield self.kl_row("kl_late_nats", early_rows, late_rows, k, fewer)

    def mean_row(self) -> Row:
        squared_mean, trace = float((self.mean**2).sum()), float(self.x.var(0).sum())
        share = squared_mean / (squared_mean + trace)

        def pulls(x: Array) -> Array:
            c = x - self.mean
            moved: Array = (2 * trace * (c @ self.mean) - squared_mean * (c**2).sum(1)) / (squared_mean + trace) ** 2
            return moved

        ends = self.ends(share, self.half([pulls(window) for window in self.windows]))
        w, chance = len(self.windows), trace / self.n
        if w > 1:
            sums = [(window - self.mean).sum(0) for window in self.windows]
            chance = w / (w - 1) * sum(float((total**2).sum()) for total in sums) / self.n**2
        return self.row("mean_share", (share, *ends, chance / (chance + trace)), self.d, self.n)

    def shrinkage_row(self, s: Array, weight: float) -> Row:
        n, d, c = self.n, self.d, self.x - self.mean
        trace, energy = float(np.trace(s)), float((s**2).sum())
        distance = energy - trace**2 / d
        skew = ((c**2).sum(1)[:, None] * c).mean(0)
        raw = (float(((c**2).sum(1) ** 2).mean()) - energy) / (n * distance)

        def pulls(x: Array) -> Array:
            gap = x - self.mean
            length = (gap**2).sum(1)
            turned = np.einsum("ni,ij,nj->n", gap, s, gap)
            top = length**2 - 4 * gap @ skew - 2 * turned
            moved: Array = top / (n * distance) - raw * (2 * turned - 2 * trace / d * length) / distance
            return moved

        ends = self.ends(raw, self.half([pulls(window) for window in self.windows]))
        return self.row("shrinkage", (weight, *ends, min(1.0, (trace**2 + energy) / (n * distance))), d, n)

    def first_row(self) -> Row:
        centre, w = self.full.mean(0), len(self.windows)
        share = 1 - _scatter(self.x) / _scatter(self.full)
        later_scatter = np.array([((window - self.mean) ** 2).sum() for window in self.windows])
        pairs = zip(self.windows, self.left, strict=True)
        full_scatter = np.array([((a - centre) ** 2).sum() + ((b - centre) ** 2).sum() for a, b in pairs])
        gap = later_scatter - (1 - share) * full_scatter
        half = nan
        if w > 1:
            error = sqrt(w / (w - 1) * float(((gap - gap.mean()) ** 2).sum())) / float(full_scatter.sum())
            half = float(stats.t.ppf(0.975, w - 1)) * error
        numbers = (share, *self.ends(share, half), 1 - self.n / len(self.full))
        return self.row("first_share", numbers, self.d, len(self.full))

    def ends(self, value: float, half: float) -> tuple[float, float]:
        """Of an interval between 0 and 1."""
        low, high = (min(max(value + sign * half, 0.0), 1.0) for sign in (-1, 1))
        return (low, high) if half == half else (nan, nan)

    def position_rows(self) -> Iterator[Row]:
        """Groups of positions, from a power of two to the next."""
        positions = [np.arange(len(window)) + self.skip for window in self.windows]
        furthest = max(int(places[-1]) for places in positions)
        for bottom in [2**i for i in range(furthest.bit_length())] or [1]:
            in_octave, in_next = ([_octave(places, b) for places in positions] for b in (bottom, 2 * bottom))
            n, n_next = (int(sum(mask.sum() for mask in masks)) for masks in (in_octave, in_next))
            if n < PER_DIMENSION:
                continue
            k = min(self.components, self.rank, n // PER_DIMENSION)
            y = self.scores(self.windows, k)
            in_group = np.concatenate([places[mask] for places, mask in zip(positions, in_octave, strict=True)])
            where = {"position": int(in_group.min()), "until": int(in_group.max())}
            rows = _selected(y, in_octave)
            yield where | self.entropy_row(rows, _entropy(np.concatenate(y)), k, n)
            fewer = min(n, n_next)
            if n_next >= PER_DIMENSION:
                k = min(k, fewer // PER_DIMENSION)
                y = [window[:, :k] for window in y]
                a, b = _selected(y, in_octave), _selected(y, in_next)
                yield where | self.kl_row("kl_next_nats", a, b, k, fewer)

    def entropy_row(self, rows: Sequence[Array], null: float, k: int, n: int) -> Row:
        """The entropy of rows, their bias removed by the jackknife over windows."""
        value, w = _entropy(np.concatenate(rows)), len(rows)
        left_out = _left_out(rows, _entropy)
        half = self.jackknife(left_out)
        value = w * value - (w - 1) * float(np.mean(left_out)) if left_out else value
        return self.row("entropy_nats", (value, value - half, value + half, null), k, n)

    def kl_row(self, quantity: str, a: Sequence[Array], b: Sequence[Array], k: int, n: int) -> Row:
        w = len(a)
        if not k:
            return self.row(quantity, (nan,) * 4, 0, n)
        value = self.kl(np.concatenate(a), np.concatenate(b))
        left_out = [self.kl(_without(a, out), _without(b, out)) for out in range(w)] if w > 1 else []
        half, mixed, run = self.jackknife(left_out), [], 1
        while w // (2 * run):
            used = range(w // (2 * run) * 2 * run)
            exchanged_a = [b[i] if i // run % 2 else a[i] for i in used]
            exchanged_b = [a[i] if i // run % 2 else b[i] for i in used]
            mixed.append(self.kl(np.concatenate(exchanged_a), np.concatenate(exchanged_b)))
            run *= 2
        null = float(np.mean(mixed)) if mixed else nan
        low = max(value - null - half, 0.0) if half == half else nan
        return self.row(quantity, (value, low, value + half, null), k, n)

    def kl(self, a: Array, b: Array) -> float:
        k = a.shape[1]
        p, q = (np.cov(x.T, ddof=1).reshape(k, k) for x in (a, b))
        gap, inverse = a.mean(0) - b.mean(0), np.linalg.inv(q)
        volume = np.linalg.slogdet(p)[1] - np.linalg.slogdet(q)[1]
        return float(0.5 * (np.trace(inverse @ p) - k - volume + gap @ inverse @ gap))

    def normality_rows(self) -> Iterator[Row]:
        rows = np.concatenate([window[::ROW_SPACING] for window in self.windows])
        n = len(rows)
        k = min(self.components, self.rank, n // PER_DIMENSION) if n >= FEWEST else 0
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

    def information_rows(self, distances: Sequence[int]) -> Iterator[Row]:
        sizes = {t: sum(max(len(window) - t, 0) for window in self.windows) for t in distances}
        k = min(self.components, self.rank, max(sizes.values()) // (2 * PER_DIMENSION))

        def measure(pairs: Array) -> tuple[float, ...]:
            parts = (pairs[:, :k], pairs[:, k:])
            return (sum(map(_entropy, parts)) - _entropy(pairs),)

        for t in distances:
            for row in self.shared((0, t), k, measure, (k * k,)):
                yield {"distance": t} | row

    def component_rows(self, distances: Sequence[int], curve: bool) -> Iterator[Row]:
        """Kurtosis over that of Gaussian rows for several numbers of components, and information at one distance."""
        w = len(self.windows)
        for k in self.sizes(self.n // PER_DIMENSION if self.n >= 2 * PER_DIMENSION else 0):
            y = self.scores(self.windows, k)
            c = np.concatenate(y)
            c = c - c.mean(0)
            inverse = np.linalg.inv(c.T @ c / self.n)
            length = np.array([float(row @ inverse @ row) for row in c])
            gaussian = k * (k + 2) * (self.n - 1) / (self.n + 1)
            value = float((length**2).mean()) / gaussian - 1
            turned = inverse @ (c.T @ (length[:, None] * c) / self.n) @ inverse
            pull = inverse @ (length[:, None] * c).mean(0)
            moved = length**2 - 2 * np.array([float(row @ turned @ row) for row in c]) - 4 * c @ pull
            ends = np.cumsum([len(window) for window in y])[:-1]
            half = self.half(np.split(moved / gaussian, ends))
            row = self.row("relative_kurtosis", (value, value - half, value + half, 0.0), k, self.n)
            yield row | {"held": self.variance_share(k)}
        t = min(distances)
        n = sum(max(len(window) - t, 0) for window in self.windows)
        for k in self.sizes(min(n // (2 * PER_DIMENSION), max(32, self.components))) if curve else ():

            def measure(pairs: Array, k: int = k) -> tuple[float, ...]:
                return (_entropy(pairs[:, :k]) + _entropy(pairs[:, k:]) - _entropy(pairs),)

            for cells in self.shared((0, t), k, measure, (k * k,)):
                named = {name: cells[name] for name in ("value", "low", "high", "null", "raw")}
                counts = {"dimensions": k, "samples": n, "windows": w}
                yield {"quantity": "information_nats", "distance": t, **named, "held": self.variance_share(k), **counts}

    def sizes(self, most: int) -> list[int]:
        limit = min(self.rank, most)
        return sorted({k for k in (4, 8, 16, 32, 64, 128, min(self.components, limit)) if 0 < k <= limit})

    def variance_share(self, k: int) -> float:
        return float(self.values[:k].sum() / self.values.sum())

    def joint_rows(self, tokens: int) -> Iterator[Row]:
        n = sum(max(len(window) - tokens + 1, 0) for window in self.windows)
        k = min(self.components, self.rank, n // (tokens * PER_DIMENSION))

        def measure(runs: Array) -> tuple[float, ...]:
            single = [_entropy(runs[:, i * k : (i + 1) * k]) for i in range(tokens)]
            joint, before = _entropy(runs), _entropy(runs[:, :-k])
            return joint, sum(single) - joint, before + single[-1] - joint

        pairs = len(list(combinations(range(tokens), 2)))
        names = ("joint_entropy_nats", "total_correlation_nats", "last_token_nats")
        rows = self.shared(tuple(range(tokens)), k, measure, (0, pairs * k * k, (tokens - 1) * k * k))
        for name, row in zip(names, rows, strict=False):
            yield {"quantity": name, "tokens": tokens} | row

    def shared(
        self, offsets: Sequence[int], k: int, measure: Callable[[Array], tuple[float, ...]], freedom: Sequence[int]
    ) -> Iterator[Row]:
        """Tokens at these offsets as one vector: all windows, all but each, and members from other windows."""
        w, enough = len(self.windows), len(offsets) * PER_DIMENSION * k
        y = self.scores(self.windows, k)
        tuples = [_token_tuples([window] * len(offsets), offsets) for window in y]
        n = sum(map(len, tuples))
        if not k or n < enough:
            return
        raws = measure(np.concatenate(tuples))
        left_out = _left_out(tuples, measure)
        shuffled = [measure(rows) for rows in _shuffles(y, offsets) if len(rows) >= enough]
        analytic = [f / (2 * n) for f in freedom]
        nulls = [float(np.mean(numbers)) for numbers in zip(*shuffled, strict=True)] or [nan] * len(raws)
        for i, raw in enumerate(raws):
            half = self.jackknife([numbers[i] for numbers in left_out])
            # An entropy is that of single tokens less the total correlation, which is the next quantity.
            sign, term = (1, i) if freedom[i] else (-1, i + 1)
            ends = [sign * x for x in _corrected(sign * raw, half, nulls[term], analytic[term])][::sign]
            cells = dict(zip(("low", "value", "high"), ends, strict=True)) | {"null": nulls[i], "raw": raw}
            cells["analytic"] = analytic[i] if freedom[i] else nan
            yield {**_finite(cells), "dimensions": k, "samples": n, "windows": w}


def _finite(cells: Mapping[str, float]) -> dict[str, float | None]:
    """The cells of a row; what is not a number stays empty."""
    return {name: x if x == x else None for name, x in cells.items()}


def _shuffles(y: Sequence[Array], offsets: Sequence[int]) -> Iterator[Array]:
    """Tuples whose members come from different windows, each window paired with others in up to 16 ways."""
    w, members = len(y), range(len(offsets))
    shifts = [s for s in range(1, w) if len({s * m % w for m in members}) == len(offsets)]
    for s in shifts[:SHUFFLES]:
        yield np.concatenate([_token_tuples([y[(i + m * s) % w] for m in members], offsets) for i in range(w)])


def _corrected(raw: float, half: float, null: float, analytic: float) -> tuple[float, float, float]:
    """Low, value and high of an information less its bias.

    The bias is what shuffled windows give, or that of independent rows where nothing can be shuffled. It can be
    smaller, down to that of independent rows: the interval reaches up by the difference.
    """
    bias = null if null == null else analytic
    value = raw - bias
    return value - half, value, value + half + max(bias - analytic, 0.0)


def _token_tuples(members: Sequence[Array], offsets: Sequence[int]) -> Array:
    """Row i + offset of each member, joined to one row, as far as all of them reach."""
    n = max(0, min(len(member) - offset for member, offset in zip(members, offsets, strict=True)))
    return np.hstack([member[offset : offset + n] for member, offset in zip(members, offsets, strict=True)])


def _entropy(rows: Array) -> float:
    k = rows.shape[1]
    return 0.5 * float(np.linalg.slogdet(2 * pi * np.e * np.cov(rows.T, ddof=1).reshape(k, k))[1])


def _selected(windows: Sequence[Array], masks: Sequence[Mask]) -> list[Array]:
    """The rows of each window that its mask selects."""
    return [window[mask] for window, mask in zip(windows, masks, strict=True)]


def _octave(places: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", bottom: int) -> Mask:
    """Whether positions lie between a power of two and the next; 0 counts as 1."""
    return (np.maximum(places, 1) >= bottom) & (np.maximum(places, 1) < 2 * bottom)


def _scatter(rows: Array) -> float:
    """The sum of squared deviations from the mean."""
    return float(((rows - rows.mean(0)) ** 2).sum())


def _left_out(parts: Sequence[Array], measure: Callable[[Array], Measured]) -> list[Measured]:
    """A measure of the rows of all windows but each; nothing for a single window."""
    return [measure(_without(parts, out)) for out in range(len(parts))] if len(parts) > 1 else []


def _without(parts: Sequence[Array], out: int) -> Array:
    """The rows of all windows but one."""
    return np.concatenate([part for index, part in enumerate(parts) if index != out])


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
