r"""Uniform attention over the visible keys: the null of every statistic.

$p_{ij} = 1/c_i$ with $c_i$ the number of visible keys: entropy $\ln c_i$, participation $1/c_i$, and every mass a
count over $c_i$. Sinks take nothing: the null spreads all of its mass over the keys.
"""

import torch
from jaxtyping import Bool
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.devices import exact_device
from headscope.attention.statistics.records import Request, RowStatistics
from headscope.attention.statistics.visibility import visible_sums


def uniform_statistics(
    call: Call,
    request: Request,
    *,
    real_queries: Bool[Tensor, "batch queries"] | None = None,
    positional: bool = True,
) -> RowStatistics:
    """Exact statistics of uniform attention over the visible keys.

    They follow from the positions alone.

    The heads axis has size 1 unless the call's mask differs between heads.

    Properties:
        - the statistics of queries that are zero  (tested: test_uniform_is_attention_of_queries_that_are_zero)
    """
    device = exact_device(call.q.device)
    call, real_queries = call.to(device), None if real_queries is None else real_queries.to(device)
    batch, queries = call.q.shape[0], call.q.shape[2]
    sums = visible_sums(call, request.bands)
    counted = sums.count > 0
    if real_queries is not None:
        counted = counted & real_queries[:, None, :]
    n_visible = (sums.count * counted).expand(batch, -1, queries)
    count = sums.count.double().masked_fill(~counted, torch.nan)
    distance = sums.distance / count
    nowhere = torch.full_like(count, torch.nan)

    def share(part: Tensor, placed: bool = True) -> Tensor:
        return (part / count if placed else nowhere).expand(batch, -1, queries)

    return RowStatistics(
        entropy_nats=count.log().expand(batch, -1, queries),
        participation=share(torch.ones_like(count)),
        distance=share(sums.distance, positional),
        distance_sd=share((sums.square - distance * sums.distance).clamp(min=0.0), positional).sqrt(),
        diagonal=share(sums.diagonal, positional),
        first=share(sums.first),
        bands={width: share(part, positional) for width, part in sums.bands.items()},
        n_visible=n_visible,
        method="exact",
    )
