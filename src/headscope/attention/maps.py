r"""The n × n maps of a call, computed on demand: scores and pattern.

They agree with what transformers' eager attention computes, and cost O(n²) memory: `statistics` answers most
questions without them.
"""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.call import Call
from headscope.shapes import CORNER

# Rows of a map that `score_rows` gives at most.
SAMPLED_ROWS = 16
# Length of the runs of tokens of `pattern_pairs`; windows of at most SHORT tokens are kept whole.
RUN, SHORT = 8, 56
# Runs of neighbouring queries of `query_runs`, and the queries of each.
QUERY_RUNS, QUERIES_PER_RUN = 4, 16


def scores(call: Call) -> Float[Tensor, "batch heads queries keys"]:
    r"""Scores before the mask, at least float32.

    They are $\mathrm{softcap}(\text{scale}\; q_i \cdot k_j) + \text{bias}_{ij}$.
    """
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    k = call.k.to(dtype).repeat_interleave(call.groups, dim=1)
    raw = torch.matmul(call.q.to(dtype), k.transpose(-1, -2)).mul_(call.scale)
    if call.softcap is not None:
        raw = call.softcap * torch.tanh(raw / call.softcap)
    return raw if call.bias is None else raw + call.bias.to(dtype)


def pattern(call: Call) -> Float[Tensor, "batch heads queries keys"]:
    r"""$p_{ij}$ after the softmax (and the sink), 0 where masked; at least float32.

    Properties:
        - rows sum to 1 without sinks, to less with them  (tested: test_pattern_rows_sum)
        - a row that sees no key is 0, never NaN  (tested: test_pattern_of_a_masked_row_is_zero)
    """
    return pattern_of(scores(call), call)


def pattern_of(raw: Float[Tensor, "batch heads queries keys"], call: Call) -> Float[Tensor, "batch heads queries keys"]:
    """The pattern that these scores give under the mask and the sinks of a call."""
    masked = torch.where(call.visible(), raw, -torch.inf)  # two thirds of the time of masked_fill
    if call.sinks is not None:
        sink = call.sinks.to(masked.dtype)[None, :, None, None].expand(*masked.shape[:3], 1)
        masked = torch.cat([masked, sink], dim=-1)
    weights = torch.softmax(masked, dim=-1)[..., : call.k.shape[2]]
    if call.sinks is not None:
        return weights
    return weights.nan_to_num(nan=0.0) if weights.requires_grad else weights.nan_to_num_(nan=0.0)


def sampled_rows(queries: int) -> slice:
    """Query indices at equal steps: `SAMPLED_ROWS` of them, or all if fewer."""
    step = -(-queries // SAMPLED_ROWS)
    return slice(step // 2, queries, max(1, step))


def score_rows(call: Call) -> Float[Tensor, "batch heads sampled keys"]:
    """The scores of the sampled rows, −∞ where masked, in O(n) memory.

    Properties:
        - those rows of the whole map  (tested: test_score_rows_are_rows_of_the_map)
    """
    part = call.take(sampled_rows(call.q.shape[2]), slice(None))
    return torch.where(part.visible(), scores(part), -torch.inf)


def corner(call: Call, size: int = CORNER) -> Float[Tensor, "batch heads shown_queries shown_keys"]:
    """The pattern of the first `size` queries and keys, in bounded memory.

    Properties:
        - that part of the whole pattern  (tested: test_the_corner_is_part_of_the_pattern)
    """
    if _sees_itself_alone(call):
        return pattern(call.take(slice(0, size), slice(0, size)))
    # Rows of all keys are many numbers: some rows at a time.
    queries = range(0, min(size, call.q.shape[2]), CORNER)
    runs = [slice(start, min(start + CORNER, size)) for start in queries]
    return torch.cat([pattern(call.take(run, slice(None)))[..., :size] for run in runs], dim=2)


def early(call: Call) -> Float[Tensor, "batch heads shown_queries keys_seen"]:
    """The pattern of the first queries with all their visible keys, in O(n) memory.

    Properties:
        - those rows of the whole pattern, which are 0 after the last key  (tested: test_early_rows_are_whole)
    """
    first = slice(0, CORNER)
    return pattern(call.take(first, first if _sees_itself_alone(call) else slice(None)))


def _sees_itself_alone(call: Call) -> bool:
    """Whether the first queries see no later key.

    It holds in causal calls, unless there are keys older than the call.
    """
    return call.causal and call.offset is not None and call.offset <= 0


@lru_cache(maxsize=256)
def sampled_runs(length: int) -> tuple[slice, ...]:
    """The runs of a window: the last, the first, and some between.

    Each run between begins twice as far before the end as the one after it. So a token near the end has others at
    every distance before it, the same number in each octave, and all lie in runs of neighbours.
    """
    if length <= SHORT:
        return (slice(0, length),)
    starts, back = {0}, RUN
    while back <= length:
        starts.add(length - back)
        back *= 2
    runs = [slice(start, start + RUN) for start in sorted(starts)]
    # The first run may reach into the second.
    return tuple(slice(max(a.stop, b.start), b.stop) for a, b in zip([slice(0, 0), *runs], runs, strict=False))


@lru_cache(maxsize=256)
def sampled_tokens(length: int) -> tuple[int, ...]:
    """The indices in the sampled runs, ascending."""
    return tuple(index for run in sampled_runs(length) for index in range(run.start, run.stop))


def pattern_pairs(call: Call) -> Float[Tensor, "batch heads sampled_queries sampled_keys"]:
    """The pattern among the sampled tokens, run by run, in O(n) memory.

    Properties:
        - those rows and columns of the whole pattern  (tested: test_pattern_pairs_are_a_part_of_the_pattern)
    """
    keys = list(sampled_tokens(call.k.shape[2]))
    runs = [pattern(call.take(run, slice(None)))[..., keys] for run in sampled_runs(call.q.shape[2])]
    return torch.cat(runs, dim=2)


def pairs_of(attention_map: Float[Tensor, "*set queries keys"]) -> Float[Tensor, "*set sampled_queries sampled_keys"]:
    """The same part of a map that is already computed."""
    queries, keys = (list(sampled_tokens(size)) for size in attention_map.shape[-2:])
    return attention_map[..., queries, :][..., keys]


@lru_cache(maxsize=256)
def query_run_slices(queries: int) -> tuple[slice, ...]:
    """Runs of neighbouring queries, at most `QUERY_RUNS` of them.

    The window is cut into parts of equal length, a power of two; of each part the last 16 queries are read. So windows
    of about the same length have the same rows, and windows of at most 64 queries all of them.
    """
    part = QUERIES_PER_RUN
    while QUERY_RUNS * part < queries:
        part *= 2
    starts = range(part - QUERIES_PER_RUN, queries, part)
    return tuple(slice(start, min(start + QUERIES_PER_RUN, queries)) for start in starts)


@lru_cache(maxsize=256)
def query_run_rows(queries: int) -> tuple[int, ...]:
    """The indices in these runs, ascending."""
    return tuple(row for run in query_run_slices(queries) for row in range(run.start, run.stop))


def query_runs(call: Call) -> Float[Tensor, "batch heads run_queries keys"]:
    """The pattern of a few runs of neighbouring queries with all keys, in O(n) memory.

    Properties:
        - those rows of the whole pattern  (tested: test_query_runs_are_rows_of_the_pattern)
    """
    runs = [pattern(call.take(run, slice(None))) for run in query_run_slices(call.q.shape[2])]
    return torch.cat(runs, dim=2)


def query_runs_of(attention_map: Float[Tensor, "*set queries keys"]) -> Float[Tensor, "*set run_queries keys"]:
    """The same rows of a map that is already computed."""
    return attention_map[..., list(query_run_rows(attention_map.shape[-2])), :]
