"""The lens `composition` by its formulas, in float64; the fast path shares none of it."""

from collections.abc import Callable
from math import sqrt

import numpy as np
import polars as pl
import torch
from torch import Tensor

from headscope.core import Rotary, Selection, Site, StreamNorm, WeightSource
from headscope.errors import WeightsRefused
from headscope.lenses.composition.settings import Params
from headscope.lenses.composition.tables import HEADS, PAIRS

Heads = list[tuple[Site, int]]
# The squared size of the map of a reader behind a matrix, which is the identity or what a writer writes.
SquaredSize = Callable[[Tensor], float]
_QUANTITIES = ("q at 0", "q at 1", "q average", "k at 0", "k at 1", "k average", "v")


def definition(params: Params, weights: WeightSource) -> dict[str, pl.DataFrame]:
    """Products of whole maps of d × d."""
    reading = weights.stream_reading()
    sites = [
        site
        for site in weights.sites
        if site.kind == "self"
        and weights.status(site).status != "refused"
        and site in reading.before
        and site.stack not in reading.not_a_sum
    ]
    heads: Heads = [(site, head) for site in sites for head in range(site.n_heads)]
    writers = [_written(weights, site, head) for site, head in heads]
    sizes: dict[str, dict[int, float]] = {name: {} for name in _QUANTITIES}
    tables: dict[str, np.ndarray] = {name: np.full((len(heads), len(heads)), np.nan) for name in _QUANTITIES}
    for reader, (site, head) in enumerate(heads):
        for name, size in _readers(weights, site, head).items():
            sizes[name][reader] = sqrt(size(torch.eye(writers[0].shape[1], dtype=torch.float64)))
            for writer, matrix in enumerate(writers):
                size_product = sizes[name][reader] * float(matrix.norm())
                tables[name][reader, writer] = sqrt(size(matrix)) / size_product if size_product else np.nan
    return _tables(params, weights, heads, {name: tables[name] for name in _QUANTITIES if sizes[name]}, sizes)


def _matrix(norm: StreamNorm | None, d: int) -> Tensor:
    if norm is None:
        return torch.eye(d, dtype=torch.float64)
    mean = torch.full((d, d), 1 / d, dtype=torch.float64)
    return (torch.eye(d, dtype=torch.float64) - (mean if norm.centred else 0 * mean)) @ torch.diag(norm.gain.double())


def _written(weights: WeightSource, site: Site, head: int) -> Tensor:
    w, kv = weights.weights(site), site.kv_head(head)
    w_ov = w.w_v[kv].double() @ torch.diag(w.gain_v[kv].double()) @ w.w_o[head].double()
    return w_ov @ _matrix(weights.stream_reading().after.get(site), w_ov.shape[1])


def _readers(weights: WeightSource, site: Site, head: int) -> dict[str, SquaredSize]:
    """The squared size of (matrix · map of the reader) for each quantity."""
    w, kv = weights.weights(site), site.kv_head(head)
    norm = _matrix(weights.stream_reading().before[site], w.w_q.shape[1])
    v, q, k = (
        norm @ matrix.double() @ torch.diag(gain.double())
        for matrix, gain in ((w.w_v[kv], w.gain_v[kv]), (w.w_q[head], w.gain_q[head]), (w.w_k[kv], w.gain_k[kv]))
    )
    maps = {"v": _size_of(v @ w.w_o[head].double())}
    if weights.status(site).status == "normed":
        return maps
    maps |= {"q at 0": _size_of(q @ k.T), "k at 0": _size_of(k @ q.T)}
    try:
        rotary = weights.rotary(site)
    except WeightsRefused:
        rotary = None
    if rotary is not None:
        turned = q @ rotary.turn(1) @ k.T
        maps |= {"q at 1": _size_of(turned), "k at 1": _size_of(turned.T)}
        maps |= {"q average": _mean_size(q, k, rotary), "k average": _mean_size(k, q, rotary)}
    return maps


def _size_of(reader: Tensor) -> SquaredSize:
    return lambda matrix: float(((matrix @ reader) ** 2).sum())


def _mean_size(near: Tensor, far: Tensor, rotary: Rotary) -> SquaredSize:
    """Half the product of the squared sizes of both sides, plane by plane; channels that are not turned as they are."""
    planes = list(zip(rotary.first.tolist(), rotary.second.tolist(), strict=True))
    still = [channel for channel in range(rotary.width) if not any(channel in plane for plane in planes)]

    def size(matrix: Tensor) -> float:
        read = matrix @ near
        turned = sum(float((read[:, p] ** 2).sum() * (far[:, p] ** 2).sum()) / 2 for p in map(list, planes))
        return turned + float(((read[:, still] @ far[:, still].T) ** 2).sum())

    return size


def _tables(
    params: Params,
    weights: WeightSource,
    heads: Heads,
    tables: dict[str, np.ndarray],
    sizes: dict[str, dict[int, float]],
) -> dict[str, pl.DataFrame]:
    rows: list[dict[str, object]] = []
    pairs: list[dict[str, object]] = []
    expanded = weights.spec.dequantised
    for name, table in tables.items():
        ranked: list[tuple[float, int, int]] = []
        nulls: dict[int, tuple[float | None, float | None, int]] = {}
        for reader, size in sizes[name].items():
            site, head = heads[reader]
            null, spread, count = nulls[reader] = _null(heads, table, reader)
            earlier = [
                w for w, (other, _) in enumerate(heads) if other.stack == site.stack and other.layer < site.layer
            ]
            value = max((float(table[reader, writer]) for writer in earlier), default=None)
            largest = max((float(table[reader, writer]) for writer in _late(heads, reader)), default=None)
            first: dict[str, object] = {
                "stack": site.stack,
                "kind": site.kind,
                "layer": site.layer,
                "head": head,
                "quantity": name,
            }
            numbers: dict[str, object] = {
                "value": value,
                "null": null,
                "null_spread": spread,
                "null_largest": largest,
                "z": _z(value, null, spread),
                "random": 1 / sqrt(weights.weights(site).w_q.shape[1]),
                "size": size,
                "writers": len(earlier),
                "late": len(_late(heads, reader)),
                "impossible": count,
                "status": weights.status(site).status,
                "weights": f"expanded from {expanded}" if expanded else "as stored",
            }
            rows.append(first | numbers)
            if not params.at or head in Selection.parse(params.at).heads_of(site):
                ranked += [((null or 0.0) - float(table[reader, writer]), reader, writer) for writer in earlier]
        pairs += _listed(params, heads, table, name, sorted(ranked), nulls)
    return {"heads": pl.DataFrame(rows, schema=HEADS), "pairs": pl.DataFrame(pairs, schema=PAIRS)}


def _listed(
    params: Params,
    heads: Heads,
    table: np.ndarray,
    name: str,
    ranked: list[tuple[float, int, int]],
    nulls: dict[int, tuple[float | None, float | None, int]],
) -> list[dict[str, object]]:
    """The pairs with the largest excess; of readers that share their keys and values only the first."""
    pairs: dict[tuple[object, ...], dict[str, object]] = {}
    for _, reader, writer in ranked:
        site, head = heads[reader]
        group = head if name[0] == "q" else site.kv_head(head)
        pair: dict[str, object] = {
            "stack": site.stack,
            "kind": site.kind,
            "layer": site.layer,
            "head": head,
            "quantity": name,
        }
        null, spread, _ = nulls[reader]
        score = float(table[reader, writer])
        label = heads[writer][0].head_label(heads[writer][1])
        row = pair | {"writer": label, "value": score, "null": null, "z": _z(score, null, spread)}
        pairs.setdefault((site, group, writer), row)
    return [row | {"rank": rank} for rank, row in enumerate(list(pairs.values())[: params.top], 1)]


def _late(heads: Heads, reader: int) -> list[int]:
    """The writers that come too late for a reader."""
    site = heads[reader][0]
    return [
        writer
        for writer, (other, _) in enumerate(heads)
        if other.stack == site.stack and other.layer >= site.layer and writer != reader
    ]


def _null(heads: Heads, table: np.ndarray, reader: int) -> tuple[float | None, float | None, int]:
    """Median and scaled median absolute deviation over impossible pairs, and their number."""
    site = heads[reader][0]
    pools = (
        [reader],
        [other for other, (place, _) in enumerate(heads) if place == site],
        [other for other, (place, _) in enumerate(heads) if place.stack == site.stack],
    )
    pool: list[float] = []
    for readers in pools:
        pool = [float(table[other, writer]) for other in readers for writer in _late(heads, other)]
        if len(pool) >= 20:
            median = float(np.median(pool))
            return median, 1.482602218505602 * float(np.median([abs(score - median) for score in pool])), len(pool)
    return None, None, len(pool)


def _z(score: float | None, null: float | None, spread: float | None) -> float | None:
    return None if score is None or null is None or not spread else (score - null) / spread
