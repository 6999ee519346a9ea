"""The lens `focus` by its formulas, in float64; the fast path shares none of it."""

from collections.abc import Iterator, Mapping, Sequence
from math import log, sqrt

import polars as pl
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from headscope.core import Site, WeightSource
from headscope.lenses.focus.settings import Params
from headscope.lenses.focus.tables import SCHEMA
from headscope.lenses.lens import AS_IS, Batch


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, row by row on the stored maps, in float64."""
    rows: list[dict[str, object]] = []
    batches_as_is = [batch for batch in batches if batch.variant == AS_IS]
    for site in batches_as_is[0].captures["pattern"] if batches_as_is else ():
        maps = [
            (window_maps.double(), real)
            for batch in batches_as_is
            for window_maps, real in zip(batch.captures["pattern"][site], batch.real, strict=True)
        ]
        for head in range(site.n_heads):
            windows = [list(_defined_window(params, site, window_maps, real, head)) for window_maps, real in maps]
            rows += _defined_rows(site, head, [window for window in windows if window])
    return {"heads": pl.DataFrame(rows, schema=SCHEMA)}


def _defined_window(
    params: Params, site: Site, maps: Float[Tensor, "heads queries keys"], real: Tensor, head: int
) -> Iterator[dict[str, tuple[float, float]]]:
    """Each quantity of each counted row of one window: measured, and uniform over the same keys."""
    for i in range(maps.shape[1]):
        keys = _defined_keys(site, maps, real, i)
        if bool(real[i]) and len(keys) > 1:
            first = next(iter(torch.nonzero(real).flatten().tolist())) if site.kind == "self" else keys[0]
            p = maps[head, i, keys].tolist()
            sunk = "sinks" in site.extras
            measured = _defined_row(params, i, first, dict(zip(keys, p, strict=True)), sunk)
            uniform = _defined_row(params, i, first, dict.fromkeys(keys, 1 / len(keys)), sunk)
            yield {name: (measured[name], uniform[name]) for name in measured}


def _defined_keys(site: Site, maps: Tensor, real: Tensor, i: int) -> list[int]:
    """The keys that query i may see. Where the site alone does not say, the keys that get any mass."""
    if site.kind == "cross" or (site.window is not None and not site.causal):
        return torch.nonzero((maps[:, i] > 0).any(0)).flatten().tolist()
    ahead = [(j, i - j) for j in range(maps.shape[2]) if bool(real[j])]
    return [
        j
        for j, distance in ahead
        if (distance >= 0 or not site.causal) and (site.window is None or distance < site.window)
    ]


def _defined_row(params: Params, i: int, first: int, p: Mapping[int, float], sunk: bool) -> dict[str, float]:
    total = sum(p.values())
    r = {j: x / total for j, x in p.items()} if sunk else p
    entropy = -sum(x * log(x) for x in r.values() if x > 0)
    distance = sum(x * abs(i - j) for j, x in r.items()) / sum(r.values())
    variance = sum(x * (abs(i - j) - distance) ** 2 for j, x in r.items()) / sum(r.values())
    row = {
        "entropy_nats": entropy,
        "entropy_share": entropy / log(len(p)),
        "effective_keys": 1 / sum(x * x for x in r.values()),
        "distance": distance,
        "distance_sd": sqrt(variance),
        "diagonal": p.get(i, 0.0),
        "first": p.get(first, 0.0),
    }
    for width in sorted({int(part) for part in params.bands.split(",")}):
        row[f"band_{width}"] = sum(x for j, x in p.items() if abs(i - j) <= width)
    return row | ({"sink": 1 - total} if sunk else {})


def _defined_rows(
    site: Site, head: int, windows: Sequence[Sequence[Mapping[str, tuple[float, float]]]]
) -> Iterator[dict[str, object]]:
    n = sum(len(window) for window in windows)
    for name in windows[0][0] if windows else ():
        mean, uniform = (sum(row[name][k] for window in windows for row in window) / n for k in (0, 1))
        low = high = None
        if len(windows) > 1:
            residuals = [sum(row[name][0] - mean for row in window) for window in windows]
            variance = len(windows) / (len(windows) - 1) * sum(e * e for e in residuals) / n**2
            half = float(stats.t.ppf(0.975, len(windows) - 1)) * sqrt(variance)
            bounded = name.startswith(("entropy_share", "diagonal", "first", "band", "sink"))
            low, high = max(mean - half, 0.0), min(mean + half, 1.0) if bounded else mean + half
        numbers: dict[str, float | None] = {"value": mean, "low": low, "high": high, "uniform": uniform}
        if site.kind == "cross" and name.startswith(("distance", "diagonal", "band")):
            numbers = dict.fromkeys(numbers)
        where = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head, "quantity": name}
        yield {**where, **numbers, "rows": n, "windows": len(windows)}
