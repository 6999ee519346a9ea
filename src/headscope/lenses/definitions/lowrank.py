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

Array = NDArray[np.float64]
Row = dict[str, object]
# As the lens has them: the smallest block, and what is measured; of the laws only some.
FIRST = 8
SHARES = {"components_90": (0.9, 2), "components_99": (0.99, 2), "nuclear_90": (0.9, 1)}
FITTED = ("components_90", "components_99", "stable_rank")


def defined(batches: Sequence[Batch], tokens: int, windows: int) -> dict[str, list[Row]]:
    """The rows of both tables."""
    tables: dict[str, list[Row]] = {"components": [], "growth": []}
    for site in batches[0].captures["pattern"] if batches else ():
        seen = [
            _measured(site, batch.captures["pattern"][site][index].double().numpy(), batch, index, tokens)
            for batch in batches
            for index in range(len(batch.real))
        ]
        seen = [one for one in seen if one][:windows]
        if seen:
            where = {"stack": site.stack, "kind": site.kind, "layer": site.layer}
            tables["components"] += [where | row for row in _components(site, seen)]
            tables["growth"] += [where | row for row in _growth(site, seen)]
    return tables


# By n: for each head, what was measured, with shuffled rows, and with uniform attention.
Measured = dict[int, list[tuple[dict[str, float], dict[str, float], dict[str, float]]]]


def _measured(site: Site, pattern: Array, batch: Batch, index: int, tokens: int) -> Measured:
    real = batch.real[index]
    rows = [i for i, here in enumerate(real.tolist()) if here][:tokens]
    columns = range(pattern.shape[2])
    keys = rows if site.kind == "self" else [j for j in columns if (pattern[:, :, j] > 0).any()][:tokens]
    text = batch.tokens[index][real].to(torch.int64).numpy()
    seed = int.from_bytes(hashlib.sha256(text.tobytes()).digest()[:7], "big")
    most = min(len(rows), len(keys))
    places = torch.rand(most, most, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
    found: Measured = {}
    n = FIRST
    while n <= most:
        cut = pattern[np.ix_(range(len(pattern)), rows[:n], keys[:n])]
        if not (site.causal and site.kind == "self"):
            cut = np.array([[row / row.sum() for row in head] for head in cut])
        seen = [[j for j in range(n) if (cut[:, i, j] > 0).any()] for i in range(n)]
        uniform = np.zeros((n, n))
        for i, keys_seen in enumerate(seen):
            uniform[i, keys_seen] = 1 / len(keys_seen)
        found[n] = []
        for head in cut:
            mixed = np.zeros((n, n))
            for i, keys_seen in enumerate(seen):
                order = sorted(keys_seen, key=lambda j: places[i, j])
                mixed[i, keys_seen] = head[i, order]
            found[n].append((_numbers(head), _numbers(mixed), _numbers(uniform)))
        n *= 2
    return found


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


def _interval(all_of_them: float, without: Sequence[float]) -> tuple[float | None, float | None]:
    w = len(without)
    if w < 2:
        return None, None
    mean = sum(without) / w
    error = sqrt((w - 1) / w * sum((one - mean) ** 2 for one in without))
    half = float(stats.t.ppf(0.975, w - 1)) * error
    return all_of_them - half, all_of_them + half


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _components(site: Site, seen: Sequence[Measured]) -> Iterator[Row]:
    for n in sorted({n for one in seen for n in one}):
        long = [one[n] for one in seen if n in one]
        itself = _numbers(np.eye(n))
        for head in range(site.n_heads):
            for name in itself:
                values, mixed, flat = ([one[head][kind][name] for one in long] for kind in range(3))
                without = [_mean(values[:i] + values[i + 1 :]) for i in range(len(values))] if len(values) > 1 else []
                low, high = _interval(_mean(values), without)
                yield {
                    "head": head, "tokens": n, "quantity": name, "value": _mean(values),
                    "low": None if low is None else max(low, 0.0), "high": high, "shuffled": _mean(mixed),
                    "uniform": _mean(flat), "most": itself[name], "windows": len(long),
                }  # fmt: skip


def _course(
    long: Sequence[Measured], sizes: Sequence[int], head: int, name: str, kind: int, out: int | None = None
) -> list[float]:
    """A quantity at each size, mean over windows but the one left out."""
    kept = [one for i, one in enumerate(long) if i != out]
    return [_mean([one[n][head][kind][name] for one in kept]) for n in sizes]


def _growth(site: Site, seen: Sequence[Measured]) -> Iterator[Row]:
    most = max(len(one) for one in seen)
    long = [one for one in seen if len(one) == most]
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
            rest = [course(0, out) for out in range(len(long))] if len(long) > 1 else []
            low, high = _interval(power, [_power(n, one)[0] for one in rest])
            gains = [_logarithm(n, one) - _power(n, one)[1] for one in rest]
            gain_low, gain_high = _interval(logarithm - left, gains)
            yield {
                "head": head, "quantity": name, "value": power, "low": low, "high": high,
                "shuffled": _power(n, course(1))[0], "uniform": _power(n, course(2))[0], "logarithm": itself,
                "power_misfit": left, "log_misfit": logarithm, "gain": logarithm - left, "gain_low": gain_low,
                "gain_high": gain_high, "sizes": len(sizes), "windows": len(long),
            }  # fmt: skip


def _power(n: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The power, and the size of the relative deviations."""
    line = stats.linregress(np.log(n), np.log(values))
    fit = np.exp(line.intercept + line.slope * np.log(n))
    return float(line.slope), float(np.sqrt(np.mean((fit / np.array(values) - 1) ** 2)))


def _logarithm(n: Sequence[float], values: Sequence[float]) -> float:
    design = np.stack([1 / np.array(values), np.log(n) / np.array(values)], 1)
    solved = optimize.lsq_linear(design, np.ones(len(n)), bounds=(-inf, inf), method="bvls", tol=1e-15)
    return float(np.sqrt(np.mean((design @ solved.x - 1) ** 2)))
