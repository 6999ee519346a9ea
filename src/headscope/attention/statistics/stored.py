r"""The statistics by their definition, from a stored map in plain float64.

The oracle of the streaming path in the tests and in `headscope verify`, and the way for families of which only
the map can be had. It shares no code with the streaming path.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.devices import exact_device
from headscope.attention.statistics.records import Request, RowStatistics


def pattern_statistics(
    pattern: Float[Tensor, "batch heads queries keys"],
    call: Call,
    request: Request,
    *,
    real_queries: Bool[Tensor, "batch queries"] | None = None,
    positional: bool = True,
) -> RowStatistics:
    """The statistics of a stored pattern.

    The call gives positions and visibility; its scores are not read.
    """
    device = exact_device(pattern.device)
    call, real_queries = call.to(device), None if real_queries is None else real_queries.to(device)
    p = pattern.to(device).double()
    mass = p.sum(dim=-1)
    visible = call.visible().expand_as(p)
    gap = (call.query_positions[:, None, :, None] - call.key_positions[:, None, None, :]).abs()
    distance = (p * gap).sum(dim=-1) / mass
    variance = (p * (gap - distance[..., None]) ** 2).sum(dim=-1) / mass

    counted = visible.any(dim=-1)
    if real_queries is not None:
        counted = counted & real_queries[:, None, :]

    def kept(values: Tensor, always: bool = True) -> Tensor:
        return values.masked_fill(~(counted if always or positional else torch.zeros_like(counted)), torch.nan)

    return RowStatistics(
        entropy_nats=kept(-torch.xlogy(p, p).sum(dim=-1).clamp(max=0.0)),
        participation=kept((p**2).sum(dim=-1)),
        distance=kept(distance, always=False),
        distance_sd=kept(variance.sqrt(), always=False),
        diagonal=kept((p * (gap == 0)).sum(dim=-1), always=False),
        first=kept((p * _first_real_key(call)[:, None, None, :]).sum(dim=-1)),
        bands={w: kept((p * (gap <= w)).sum(dim=-1), always=False) for w in request.bands},
        n_visible=visible.sum(dim=-1) * counted,
        sink=None if call.sinks is None else kept(1.0 - mass),
        method="stored map, float64",
    )


def _first_real_key(call: Call) -> Bool[Tensor, "batch keys"]:
    """One-hot: the first real key with the smallest position."""
    batch, _, keys, _ = call.k.shape
    positions = call.key_positions.expand(batch, keys)
    real = torch.ones_like(positions, dtype=torch.bool) if call.key_padding is None else call.key_padding
    index = positions.masked_fill(~real, torch.iinfo(positions.dtype).max).argmin(dim=-1)
    return torch.nn.functional.one_hot(index, keys).bool() & real
