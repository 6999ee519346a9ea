r"""Statistics of every row of a call without its map, in O(n·d) memory.

The output comes from the same pass.

With $Z = \sum_j e_{ij}$, $e_{ij} = e^{s_{ij} - \max_j s_{ij}}$ and $Z' = Z + e^{\text{sink} - \max s}$:
$H = (Z \ln Z' + \sum_j e_{ij} (\max s - s_{ij})) / Z'$, $\sum_j p_{ij}^2 = \sum_j e_{ij}^2 / Z'^2$, and the mass on a
set of keys is their $\sum e_{ij} / Z'$. The sums come from `slabs`; here they become statistics, in float64.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.devices import exact_device
from headscope.attention.mechanisms.dense import Dense
from headscope.attention.statistics.records import Observed, Request, RowStatistics
from headscope.attention.statistics.slabs import Chunk, chunks
from headscope.attention.statistics.sums import PerRow, Sums
from headscope.attention.statistics.visibility import visible_sums

_POSITIONAL = ("distance", "distance_sd", "diagonal")


def row_statistics(
    call: Call,
    request: Request,
    *,
    real_queries: Bool[Tensor, "batch queries"] | None = None,
    positional: bool = True,
) -> RowStatistics:
    """The statistics of every row of a call.

    Rows of padding (False in `real_queries`) hold NaN.

    `positional=False` says that the keys have no position relative to the queries (cross-attention).

    Properties:
        - equal to the statistics of the stored map  (tested: test_streaming_equals_stored_map)
        - 0 ≤ entropy ≤ ln(n_visible)  (tested: test_entropy_bounds)
        - unchanged by a constant added to every key  (tested: test_common_offsets_do_not_matter)
        - the same for any cut into slabs  (tested: test_any_cut_gives_the_same)
        - no n × n map is ever in memory  (tested: test_no_map_is_ever_stored)
    """
    call, real_queries = _exact(call, real_queries)
    _, columns, method = _streamed(call, request, values=False)
    n_visible = visible_sums(call, ()).count.expand(call.q.shape[:3])
    return _statistics(request, columns, method, n_visible, real_queries, positional)


def observe(
    call: Call,
    request: Request,
    *,
    real_queries: Bool[Tensor, "batch queries"] | None = None,
    positional: bool = True,
) -> Observed:
    """The output of a call and the statistics of its rows, from one pass over keys.

    The pass keeps no gradients: where the call needs them, the output comes from `dense` instead. Both are on the
    device of the call where that has float64, else on the CPU.

    Properties:
        - the output is that of dense attention  (tested: test_observed_output_is_dense)
    """
    call, real_queries = _exact(call, real_queries)
    tensors = (call.q, call.k, call.v, call.bias, call.sinks)
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    out, columns, method = _streamed(call, request, values=not learns)
    n_visible = visible_sums(call, ()).count.expand(call.q.shape[:3])
    statistics = _statistics(request, columns, method, n_visible, real_queries, positional)
    if out is None:
        return Observed(Dense()(call, lse=True), statistics)
    lse = columns["lse"].masked_fill(n_visible == 0, -torch.inf)
    return Observed(Output(out.masked_fill((n_visible == 0)[..., None], 0.0), lse), statistics)


def _exact(call: Call, real_queries: Tensor | None) -> tuple[Call, Tensor | None]:
    """The call and its real queries, on a device with float64."""
    device = exact_device(call.q.device)
    return call.to(device), None if real_queries is None else real_queries.to(device)


def _streamed(call: Call, request: Request, *, values: bool) -> tuple[Tensor | None, dict[str, PerRow], str]:
    """The output (if requested), the statistics by name, and their method."""
    out = torch.zeros(*call.q.shape[:3], call.v.shape[-1], dtype=call.q.dtype, device=call.q.device)
    columns: dict[str, Tensor] = {}
    doubles = slabs = fused = 0
    with torch.no_grad(), torch.autocast(call.q.device.type, enabled=False):
        for batch, kv_heads in chunks(call):
            chunk = Chunk(call.part(batch, kv_heads), request.bands, values=values)
            sums = chunk.sums()
            heads = slice(kv_heads.start * call.groups, kv_heads.stop * call.groups)
            for name, column in _columns(chunk, sums).items():
                full_column = columns.setdefault(name, column.new_full(call.q.shape[:3], torch.nan))
                full_column[batch, heads] = column
            if sums.mixed is not None:
                weight = torch.exp(-_log_partition(chunk, sums))[..., None]
                out[batch, heads] = (sums.mixed * weight).to(out.dtype)
            doubles, slabs, fused = doubles + chunk.double_slabs, slabs + chunk.slabs, fused + chunk.fused_slabs
    return (out if values else None), columns, _method(slabs, doubles, fused)


def _method(slabs: int, doubles: int, fused: int) -> str:
    precision = (
        "float32" if doubles == 0 else "float64" if doubles == slabs else f"float32, float64 in {doubles} of {slabs}"
    )
    if fused == 0:
        return f"streamed in row blocks, scores in {precision}"
    return f"streamed by the compiled kernel{'' if fused == slabs else ' and in row blocks'}, scores in {precision}"


def _columns(chunk: Chunk, sums: Sums) -> dict[str, PerRow]:
    """Every statistic of the rows of a chunk, by name; a band w is called "band w"."""
    log_all = _log_partition(chunk, sums)
    inverse_partition = torch.exp(-log_all)
    distance, variance = _distance(chunk.call, sums)
    statistics = {
        "entropy_nats": ((sums.mass * log_all + sums.spread) * inverse_partition).clamp(min=0.0),
        "participation": sums.square * inverse_partition.square(),
        "distance": distance,
        "distance_sd": variance.sqrt(),
        "diagonal": sums.near[0] * inverse_partition,
        "first": sums.first * inverse_partition,
        "lse": sums.top + sums.mass.log() + chunk.shift,
        **{f"band {width}": band * inverse_partition for width, band in sums.near.items()},
    }
    if chunk.call.sinks is not None:
        statistics["sink"] = torch.exp(_relative_sink(chunk, sums) - log_all)
    return statistics


def _relative_sink(chunk: Chunk, sums: Sums) -> PerRow:
    """The sink's score relative to the row's largest."""
    sinks = torch.zeros(1, device=sums.top.device) if chunk.call.sinks is None else chunk.call.sinks
    return sinks.double()[:, None] - sums.top - chunk.shift


def _log_partition(chunk: Chunk, sums: Sums) -> PerRow:
    """ln Z′: the log-sum over keys and sink, relative to the row's largest score."""
    log_mass = sums.mass.log()
    return log_mass if chunk.call.sinks is None else torch.logaddexp(log_mass, _relative_sink(chunk, sums))


def _distance(call: Call, sums: Sums) -> tuple[PerRow, PerRow]:
    """Mean and variance of |i − j|.

    They are of the keys before, or of both sides by the law of total variance.
    """
    at = call.query_positions[:, None, :].double()
    if sums.after is None:
        return at - sums.before.mean, sums.before.variance
    sides = ((sums.before, at - sums.before.mean), (sums.after, sums.after.mean - at))
    masses = torch.stack([side.mass for side, _ in sides])
    share = masses / masses.sum(dim=0)
    # A side without mass has no mean; its share is 0, and 0 times anything is to be 0.
    means = torch.stack([mean for _, mean in sides]).masked_fill(masses == 0, 0.0)
    variances = torch.stack([side.variance for side, _ in sides]).masked_fill(masses == 0, 0.0)
    distance = (share * means).sum(dim=0)
    return distance, (share * (variances + (means - distance).square())).sum(dim=0)


def _statistics(
    request: Request,
    columns: dict[str, PerRow],
    method: str,
    n_visible: Int[Tensor, "batch heads queries"],
    real_queries: Bool[Tensor, "batch queries"] | None,
    positional: bool,
) -> RowStatistics:
    """The columns with NaN for rows that do not count and meaningless distances."""
    counted = n_visible > 0 if real_queries is None else (n_visible > 0) & real_queries[:, None, :]

    def kept(name: str) -> PerRow:
        placed = positional or not (name in _POSITIONAL or name.startswith("band "))
        return columns[name].masked_fill(~(counted & placed), torch.nan)

    return RowStatistics(
        **{name: kept(name) for name in columns if not name.startswith("band ")},
        bands={width: kept(f"band {width}") for width in request.bands},
        n_visible=n_visible * counted,
        method=method,
    )
