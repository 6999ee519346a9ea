"""Measures of dependence that rank keys: maps of queries and keys, each with its null."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.lenses.dependence.pooled import PairPools
from headscope.lenses.dependence.windows import SiteSample

MEASURES = ("pointwise", "cosine", "nearness", "information", "trace")

MeasureMaps = tuple[Tensor, list[Tensor]]


def measures(sampled: SiteSample, pooled: PairPools | None) -> Iterator[tuple[str, MeasureMaps]]:
    """Each measure as maps [windows, 1 or heads, queries, keys], and its null maps."""
    if pooled is not None:
        y = pooled.y
        other_streams = [y.roll(-shift, 0) for shift in sampled.shifts]
        both_directions = bool(torch.triu(sampled.counted).any())
        later = [(y, y), *((other, y) for other in other_streams)]
        pointwise, *queries = pooled.pointwise([*later, *((y, other) for other in other_streams if both_directions)])
        swapped = zip(queries, queries[len(other_streams) :] if both_directions else queries, strict=False)
        yield (
            "pointwise",
            (
                _square(sampled, pooled, pointwise)[:, None],
                [_square(sampled, pooled, lower, upper)[:, None] for lower, upper in swapped],
            ),
        )
    unit = sampled.x / sampled.x.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    yield (
        "cosine",
        ((unit @ unit.mT)[:, None], [(unit.roll(-shift, 0) @ unit.mT)[:, None] for shift in sampled.shifts]),
    )
    yield "nearness", (-sampled.distance.to(torch.float64).expand(sampled.windows, 1, -1, -1), [])
    if pooled is not None:
        shuffled = list(pooled.shuffled)
        # Less its bias, which is not the same at every distance; a shuffled one is corrected by the others.
        corrected = [
            _excess(information, [other for other in shuffled if other is not information])
            for information in (pooled.information, *shuffled)
        ]
        maps = [excess[pooled.pool, : sampled.windows].T for excess in corrected if excess is not None]
        information_map, *nulls = [_square(sampled, pooled, pair_values)[:, None] for pair_values in maps]
        yield "information", (information_map, nulls)
    if pooled is not None and sampled.windows > 2:
        yield "trace", (_traces(sampled, pooled, shuffled=False), [_traces(sampled, pooled, shuffled=True)])


def _square(sampled: SiteSample, pooled: PairPools, lower: Tensor, upper: Tensor | None = None) -> Tensor:
    """Values of pairs as a map, queries down: `lower` where the query is the later token, else `upper`."""
    pair_map = torch.zeros(*lower.shape[:-1], *sampled.counted.shape, dtype=torch.float64)
    pair_map[..., pooled.late, pooled.early] = lower
    pair_map[..., pooled.early, pooled.late] = lower if upper is None else upper
    return pair_map


def _excess(information: Tensor, nulls: Sequence[Tensor]) -> Tensor | None:
    return information - torch.stack(list(nulls)).mean(0) if nulls else None


def _traces(sampled: SiteSample, pooled: PairPools, shuffled: bool) -> Float[Tensor, "windows heads kept kept"]:
    """Tr Cov(q_i, k_j) over the other windows, at fixed positions, then pooled by distance and direction.

    Shuffled: with the query of the next window, less the mean with that of the one behind it, which is 0 but for noise.
    """
    q, k, w = sampled.q, sampled.k, sampled.windows

    def others(shift: int) -> Tensor:
        scores = q.roll(-shift, 0) @ k.mT
        return (scores.sum(0) - scores) / (w - 1)

    if shuffled:
        trace = others(1) - others(2)
    else:
        paired = others(0)
        trace = paired - ((q.sum(0) - q) @ (k.sum(0) - k).mT / (w - 1) - paired) / (w - 2)
    label = torch.full(sampled.counted.shape, -1)
    label[pooled.late, pooled.early] = pooled.pool
    label[pooled.early, pooled.late] = pooled.pool + len(pooled.spans)
    label[~sampled.counted] = -1
    means = torch.zeros(*trace.shape[:2], 2 * len(pooled.spans) + 1, dtype=torch.float64)
    for number in sorted(set(label[label >= 0].tolist())):
        means[..., number] = trace[..., label == number].mean(-1)
    return means[..., label]
