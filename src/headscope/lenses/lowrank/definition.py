"""The formulas of the lens `lowrank` as written, on stored patterns, with numpy and scipy alone."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil, inf, log, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, stats

from headscope.core import Site
from headscope.lenses.lens import Batch
from headscope.lenses.shared.table import Row

Array = NDArray[np.float64]
# As the lens has them: the smallest block, and what is measured; of the laws only some.
FIRST = 8
NULL_WINDOWS = 8  # windows behind the nulls
SHARES = {"components_90": (0.9, 2), "components_99": (0.99, 2), "nuclear_90": (0.9, 1)}
FITTED = ("components_90", "components_99", "stable_rank")


def defined(batches: Sequence[Batch], tokens: int, windows: int) -> dict[str, list[Row]]:
    """The rows of both tables."""
    tables: dict[str, list[Row]] = {"components": [], "growth": []}
    for site in batches[0].captures["pattern"] if batches else ():
        measured_windows = [
            _measured(site, batch.captures["pattern"][site][index].double().numpy(), batch, index, tokens)
            for batch in batches
            for index in range(len(batch.real))
        ]
        measured_windows = [window for window in measured_windows if window][:windows]
        if measured_windows:
            where = {"stack": site.stack, "kind": site.kind, "layer": site.layer}
            tables["components"] += [where | row for row in _components(site, measured_windows)]
            tables["growth"] += [where | row for row in _growth(site, measured_windows)]
    adjusted(tables["components"], ("tokens", "quantity"))
    adjusted(tables["growth"], ("quantity",))
    for row in tables["growth"]:
        row["law"] = _law(row)
    return tables


# By n: for each head, what was measured, with popular keys alone, with shuffled rows, and with uniform attention.
Measured = dict[int, list[tuple[dict[str, float], ...]]]


def _measured(site: Site, pattern: Array, batch: Batch, index: int, tokens: int) -> Measured:
    real = batch.real[index]
    rows = [i for i, is_real in enumerate(real.tolist()) if is_real][:tokens]
    columns = range(pattern.shape[2])
    keys = rows if site.kind == "self" else [j for j in columns if (pattern[:, :, j] > 0).any()][:tokens]
    text = batch.tokens[index][real].to(torch.int64).numpy()
    seed = int.from_bytes(hashlib.sha256(text.tobytes()).digest()[:7], "big")
    most = min(len(rows), len(keys))
    places = torch.rand(most, most, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
    numbers_by_size: Measured = {}
    n = FIRST
    while n <= most:
        block = pattern[np.ix_(range(len(pattern)), rows[:n], keys[:n])]
        if not (site.causal and site.kind == "self"):
            block = np.array([[row / row.sum() for row in head] for head in block])
        numbers_by_size[n] = list(_block_numbers(block, places[:n, :n]))
        n *= 2
    return numbers_by_size


def _block_numbers(block: Array, places: Array) -> Iterator[tuple[dict[str, float], ...]]:
    """For each head the numbers of its pattern, of popular keys alone, of shuffled rows and of uniform attention."""
    visible = np.array((block > 0).any(0), dtype=np.float64)
    uniform = visible / visible.sum(1, keepdims=True)
    for head in block:
        popular, shuffled = _popular(head, visible, places), _shuffled(head, visible, places)
        yield _numbers(head), _numbers(popular), _numbers(shuffled), _numbers(uniform)


def _shuffled(pattern: Array, visible: Array, places: Array) -> Array:
    """The weights of each row in a random order of the keys that it sees."""
    shuffled = np.zeros_like(pattern)
    for i in range(len(pattern)):
        keys = np.flatnonzero(visible[i]).tolist()
        shuffled[i, keys] = pattern[i, sorted(keys, key=lambda j: places[i, j])]
    return shuffled


def _popular(pattern: Array, visible: Array, places: Array) -> Array:
    """Weights dealt out in a random order that prefers popular keys, then scaled to the sums of the pattern."""
    n = len(pattern)
    columns = pattern.sum(0)
    most = np.array([sum(pattern[i].max() for i in range(n) if visible[i, j]) for j in range(n)])
    strength = [log(max(columns[j] / max(visible[:, j].sum(), 1), 1e-9)) for j in range(n)]
    best, nearest = np.zeros((n, n)), inf
    for _ in range(8):
        x = _dealt(pattern, visible, places, strength)
        distance = float(np.abs(x.sum(0) - columns).sum())
        if distance < (1 - 1e-9) * nearest:
            best, nearest = x, distance
        for j in range(n):
            target_logit, dealt_logit = (_logit(c, most[j]) for c in (columns[j], x[:, j].sum()))
            strength[j] += min(max(target_logit - dealt_logit, -4.0), 4.0)
    return _scaled(best + 1e-9 * visible, pattern.sum(1), columns)


def _dealt(pattern: Array, visible: Array, places: Array, strength: Sequence[float]) -> Array:
    """The weights of each row, the largest to the key with the most strength and luck."""
    x = np.zeros_like(pattern)
    for i in range(len(pattern)):
        keys = np.flatnonzero(visible[i]).tolist()
        order = sorted(keys, key=lambda j: -(strength[j] - log(-log(places[i, j]))))
        x[i, order] = sorted((float(pattern[i, j]) for j in keys), reverse=True)
    return x


def _logit(mass: float, most: float) -> float:
    """ln(mass / (most − mass)), kept finite."""
    return log(max(mass, 1e-9) / max(most - mass, 1e-9))


def _scaled(x: Array, rows: Array, columns: Array) -> Array:
    """Columns and rows scaled by turns until the column sums are right to a thousandth."""
    for _ in range(200):
        for j, total in enumerate(columns):
            x[:, j] *= total / x[:, j].sum() if x[:, j].sum() > 0 else 0.0
        for i, total in enumerate(rows):
            x[i] *= total / x[i].sum() if x[i].sum() > 0 else 0.0
        if np.abs(x.sum(0) - columns).sum() / 2 <= 1e-3 * columns.sum():
            break
    return x


def _numbers(p: Array) -> dict[str, float]:
    sigma = np.linalg.svd(p, compute_uv=False)
    n = len(p)
    numbers = {}
    for name, (share, power) in SHARES.items():
        parts = sigma**power
        counts = (k for k in range(n + 1) if parts[:k].sum() >= (share - 1e-9) * parts.sum())
        numbers[name] = float(next(counts))
    energy = float((p * p).sum())
    return numbers | {
        "stable_rank": energy / float(sigma[0]) ** 2,
        "beyond_log": float((sigma[ceil(log(n)) :] ** 2).sum()) / energy,
        "largest": float(sigma[0]),
    }


def _interval(value: float, without: Sequence[float]) -> tuple[float | None, float | None]:
    w = len(without)
    if w < 2:
        return None, None
    mean = sum(without) / w
    error = sqrt((w - 1) / w * sum((estimate - mean) ** 2 for estimate in without))
    half = float(stats.t.ppf(0.975, w - 1)) * error
    return value - half, value + half


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _components(site: Site, windows: Sequence[Measured]) -> Iterator[Row]:
    for n in sorted({n for window in windows for n in window}):
        long = [window[n] for window in windows if n in window]
        itself = _numbers(np.eye(n))
        for head in range(site.n_heads):
            for name in itself:
                values, popular, mixed, flat = ([window[head][kind][name] for window in long] for kind in range(4))
                low, high = _interval(_mean(values), _left_out(values))
                popular, mixed = popular[:NULL_WINDOWS], mixed[:NULL_WINDOWS]
                gaps = [a - b for a, b in zip(values, popular, strict=False)]
                gap_low, gap_high = _interval(_mean(gaps), _left_out(gaps))
                yield {
                    "head": head, "tokens": n, "quantity": name, "value": _mean(values),
                    "low": None if low is None else max(low, 0.0), "high": high, "popular": _mean(popular),
                    "difference": _mean(gaps), "difference_low": gap_low, "difference_high": gap_high,
                    "p": _chance(_mean(gaps), _left_out(gaps)), "shuffled": _mean(mixed),
                    "uniform": _mean(flat), "most": itself[name], "windows": len(long),
                    "null_windows": len(mixed),
                }  # fmt: skip


def _left_out(values: Sequence[float]) -> list[float]:
    """The mean without each window in turn."""
    return [_mean([*values[:i], *values[i + 1 :]]) for i in range(len(values))] if len(values) > 1 else []


def _chance(value: float, without: Sequence[float]) -> float | None:
    """How likely the jackknife's t is to be as far from 0; equal windows are tested by their signs."""
    w = len(without)
    if w < 2:
        return None
    mean = sum(without) / w
    error = sqrt((w - 1) / w * sum((estimate - mean) ** 2 for estimate in without))
    if all(abs(estimate - without[0]) <= 1e-12 * abs(without[0]) for estimate in without):
        return 1.0 if value == 0 else 2 * 0.5**w
    return float(2 * stats.t.sf(abs(value) / error, w - 1))


def adjusted(rows: Sequence[Row], family: Sequence[str]) -> None:
    """Adjust p by Benjamini and Hochberg: the least m p / rank among all p at least as large."""
    for row in rows:
        family_p = sorted(
            float(str(other["p"]))
            for other in rows
            if other["p"] is not None and all(other[name] == row[name] for name in family)
        )
        if row["p"] is None:
            row["adjusted"] = None
            continue
        m = len(family_p)
        larger = [m * p / (rank + 1) for rank, p in enumerate(family_p) if p >= float(str(row["p"]))]
        row["adjusted"] = min([1.0, *larger])


def _law(row: Row) -> str:
    power, logarithm, p = (
        None if row[name] is None else float(str(row[name])) for name in ("power_misfit", "log_misfit", "adjusted")
    )
    if power is None or logarithm is None:
        raise ValueError("a row of growth has no misfit")
    if power < 1e-9 and abs(float(str(row["value"]))) < 1e-9:
        return "none"
    if power > 0.1 and logarithm > 0.1:
        return "neither"
    if p is None or p >= 0.05:
        return "undecided"
    return "power" if power < logarithm else "logarithm"


def _course(
    long: Sequence[Measured], sizes: Sequence[int], head: int, name: str, kind: int, out: int | None = None
) -> list[float]:
    """A quantity at each size, mean over windows but the one left out."""
    used_windows = [window for i, window in enumerate(long) if i != out]
    used_windows = used_windows[:NULL_WINDOWS] if kind in (1, 2) else used_windows
    return [_mean([window[n][head][kind][name] for window in used_windows]) for n in sizes]


def _growth(site: Site, windows: Sequence[Measured]) -> Iterator[Row]:
    most = max(len(window) for window in windows)
    long = [window for window in windows if len(window) == most]
    sizes = sorted(long[0])
    if len(sizes) < 3:
        return
    itself = _power([float(n) for n in sizes], [log(n) for n in sizes])[0]
    for head in range(site.n_heads):
        for name in FITTED:
            course = partial(_course, long, sizes, head, name)
            n = [float(size) for size in sizes]
            power, left = _power(n, course(0))
            logarithm = _logarithm(n, course(0))
            left_out_courses = [course(0, out) for out in range(len(long))] if len(long) > 1 else []
            low, high = _interval(power, [_power(n, numbers)[0] for numbers in left_out_courses])
            gains = [_logarithm(n, numbers) - _power(n, numbers)[1] for numbers in left_out_courses]
            gain_low, gain_high = _interval(logarithm - left, gains)
            yield {
                "head": head, "quantity": name, "value": power, "low": low, "high": high,
                "popular": _power(n, course(1))[0], "shuffled": _power(n, course(2))[0],
                "uniform": _power(n, course(3))[0], "logarithm": itself,
                "power_misfit": left, "log_misfit": logarithm, "gain": logarithm - left, "gain_low": gain_low,
                "gain_high": gain_high, "p": _chance(logarithm - left, gains),
                "sizes": len(sizes), "windows": len(long),
                "null_windows": min(len(long), NULL_WINDOWS),
            }  # fmt: skip


def _power(n: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The power with the smallest relative deviations, and their size."""
    x, r = np.log(n), np.array(values)
    start = stats.linregress(x, np.log(r))
    solved = optimize.least_squares(
        lambda numbers: np.exp(numbers[0] + numbers[1] * x) / r - 1,
        (start.intercept, start.slope),
        xtol=1e-15, ftol=1e-15, gtol=1e-15,
    )  # fmt: skip
    return float(solved.x[1]), float(np.sqrt(np.mean(solved.fun**2)))


def _logarithm(n: Sequence[float], values: Sequence[float]) -> float:
    design = np.stack([1 / np.array(values), np.log(n) / np.array(values)], 1)
    solved = optimize.lsq_linear(design, np.ones(len(n)), bounds=(-inf, inf), method="bvls", tol=1e-15)
    return float(np.sqrt(np.mean((design @ solved.x - 1) ** 2)))
