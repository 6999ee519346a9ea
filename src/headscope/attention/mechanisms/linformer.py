r"""Linformer attention: a softmax over a few projected keys instead of all keys.

Definition:
    $\text{out} = \mathrm{softmax}(\text{scale}\; q\,(E k)^\top)\, F v$ with E and F of rank × keys (Wang et
    al., Linformer: Self-Attention with Linear Complexity), learnt or random signs. A padded key adds nothing
    to $E k$ and $F v$. A projection over all keys mixes the future in. With `segment=s` it goes over runs of s
    positions instead: a query attends, in one softmax, to the keys of its own run as they are and to the
    projected keys of the others (in a causal call: of the earlier ones). Column j of E then belongs to place j
    of a run; a run without a real key is not seen.
How:
    Dense attention over the projected keys, O(n · rank). With segments, dense attention inside each run and
    over the projected keys, merged by log-sum-exp: O(n · s + n² · rank / s).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.fitting import SEEDS, nearest_to_dense
from headscope.attention.mechanism import Cost, Mechanism
from headscope.attention.mechanisms.dense import Dense, with_sinks
from headscope.attention.sparse.explicit_softmax import explicit_attention
from headscope.attention.sparse.key_projections import sign_projection
from headscope.attention.sparse.merge import merge
from headscope.attention.sparse.working_memory import FLOAT, flash_bytes, limited_mask_bytes
from headscope.errors import UsageError

_PER_MERGED_ROW = 8  # numbers for each row: the log-sum-exps of three parts, and what merges them
_MASK_OF_A_RUN = 5.0  # bytes per pair of a run that is filled up: a mask of booleans and its float copy

Projection = Float[Tensor, "*some_heads rank keys"]


@dataclass(frozen=True, eq=False)
class Linformer(Mechanism):
    """Softmax over `rank` projected keys, of all keys or of each `segment`.

    `keys` and `values` are E and F where they are learnt: one for all heads, or one for each key/value head. Without
    `values`, F = E. Without both they are random signs by `seed`, and differ unless `shared`.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - the identity for E is dense attention  (tested: test_the_identity_projects_nothing)
        - a segment that holds all positions is dense attention  (tested: test_as_dense_is_dense)
        - gradients reach the projections  (tested: test_gradients_reach_the_projections)
    """

    rank: int = 32
    segment: int | None = None
    shared: bool = True
    seed: int = 0
    keys: Projection | None = field(default=None, repr=False)
    values: Projection | None = field(default=None, repr=False)
    name: ClassVar[str] = "linformer"
    uses_float64: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UsageError(f"linformer: rank must be at least 1, got {self.rank}")
        if self.segment is not None and self.segment < 1:
            raise UsageError(f"linformer: segment must be None or at least 1, got {self.segment}")
        if self.keys is None and self.values is not None:
            raise UsageError("linformer: values are given and keys are not", hint="keys alone serve both")
        for name, matrix in (("keys", self.keys), ("values", self.values)):
            if matrix is None:
                continue
            if matrix.ndim not in (2, 3) or matrix.shape[-2] != self.rank:
                raise UsageError(
                    f"linformer: {name} must be rank × keys with rank={self.rank}, for all heads or for each; "
                    f"got {tuple(matrix.shape)}"
                )
            if self.segment is not None and matrix.shape[-1] < self.segment:
                raise UsageError(f"linformer: {name} has {matrix.shape[-1]} columns, fewer than segment={self.segment}")

    @classmethod
    def examples(cls, n: int) -> tuple["Linformer", ...]:
        """Random projections of all keys and of runs, with E = F and not."""
        few = max(2, n // 8)
        return (
            cls(rank=few),
            cls(rank=few, shared=False, seed=1),
            cls(rank=2, segment=max(4, n // 4)),
            cls(rank=1, segment=5, shared=False),
        )

    @classmethod
    def as_dense(cls, n: int) -> "Linformer":
        """One segment that holds every position."""
        return cls(rank=1, segment=max(1, n))

    def fit(self, calls: Sequence[Call]) -> "Linformer":
        """The seed of the projections whose output is nearest to that of dense attention; learnt ones stay."""
        if self.keys is not None:
            return self
        return nearest_to_dense([replace(self, seed=self.seed + step) for step in range(SEEDS)], calls)

    def supports(self, call: Call) -> str | None:
        """Refuses what acts on single pairs: it cannot reach a projected key."""
        for part in ("mask", "bias"):
            if getattr(call, part) is not None:
                return f"a projected key is a mixture of keys, so a {part} of single keys does not apply to it"
        if call.left is not None or call.right not in (None, 0):
            return "a projected key is a mixture of keys, so a window cannot leave some of them out"
        for name, matrix in (("keys", self.keys), ("values", self.values)):
            if matrix is not None and matrix.ndim == 3 and matrix.shape[0] != call.k.shape[1]:
                return f"{name} is for {matrix.shape[0]} key/value heads, and the call has {call.k.shape[1]}"
            if matrix is not None and self.segment is None and matrix.shape[-1] < call.k.shape[2]:
                return f"{name} is for at most {matrix.shape[-1]} keys, and the call has {call.k.shape[2]}"
        if self.segment is None:
            causal = "a projection over all keys mixes the future in; segment=… makes it causal"
            return None if call.right is None else causal
        starts = call.key_positions[:, 0]
        if call.offset is None or not bool((starts == starts[0]).all()):
            return "segments are runs of positions without gaps, alike in the batch"
        return None

    def conditioning(self, call: Call) -> float:
        """Growth of the rounding: by up to a row of |E|.

        A projected key is a sum of keys, so that its scores are larger.
        """
        size = call.k.shape[2]
        if self.segment is not None:
            size = self.segment
            if int(call.key_positions.amin()) // size == int(call.key_positions.amax()) // size:
                return 1.0
        return max(1.0, float(self._projections(size, call, torch.float64)[0].abs().sum(dim=-1).amax()))

    def attend(self, call: Call, *, lse: bool) -> Output:
        """Dense attention over projected keys.

        It is merged with the query's own segment where there are segments.
        """
        bare = replace(call, sinks=None)
        output = (
            self._over_all_keys(bare, lse=lse or call.sinks is not None)
            if self.segment is None
            else self._segments(bare)
        )
        out = output.out if output.lse is None else with_sinks(output.out, output.lse, call.sinks)
        return Output(out.to(call.q.dtype), output.lse if lse else None)

    def definition(self, call: Call) -> Output:
        """One explicit softmax over projected keys and keys, under a mask, in float64."""
        k, v = call.k.double(), call.v.double()
        real = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool) if call.key_padding is None else call.key_padding
        positions = call.key_positions[0]
        size = k.shape[2] if self.segment is None else self.segment
        places, owners = (torch.arange(k.shape[2]), torch.zeros(k.shape[2], dtype=torch.long))
        if self.segment is not None:
            places, owners = positions % size, positions // size
        e, f = self._projections(size, call, torch.float64)
        runs = torch.arange(int(owners[0]), int(owners[-1]) + 1)
        belongs = (owners == runs[:, None]).double()  # runs × keys
        weights = [
            torch.einsum("hrj,tj,bj->bhtrj", x[..., places].double(), belongs, real.double()).flatten(2, 3)
            for x in (e, f)
        ]
        k, v = (torch.cat([w @ x, x], dim=2) for w, x in zip(weights, (k, v), strict=True))
        alive = (real[:, None] & (belongs > 0)).any(dim=-1).repeat_interleave(self.rank, dim=-1)
        if self.segment is None:
            far, near = torch.ones(call.q.shape[2], self.rank, dtype=torch.bool), torch.zeros_like(call.visible())
        else:
            query_runs = (call.query_positions[0] // size)[:, None]
            projected_runs = runs.repeat_interleave(self.rank)
            far = projected_runs < query_runs if call.causal else projected_runs != query_runs
            near = call.visible() & (owners == query_runs)
        far = (far & alive[:, None]).unsqueeze(1)
        allowed = torch.cat([far, near.expand(far.shape[0], 1, -1, -1)], dim=-1)
        numbered = torch.arange(k.shape[2])[None]
        return explicit_attention(replace(call, k=k, v=v, key_positions=numbered, key_padding=None), allowed)

    def cost(self, n: int, d: int) -> Cost:
        """Projections, and attention to projected keys and to the own segment."""
        if self.segment is None:
            flops = 8.0 * n * self.rank * d
            return Cost(flops=flops, bytes=FLOAT * 2.0 * self.rank * d + flash_bytes(n, self.rank, d))
        runs = -(-n // self.segment)
        sizes = [min(self.segment, n - start) for start in range(0, n, self.segment)]
        pairs = sum(size * size for size in sizes) + n * (runs - 1) * self.rank
        return Cost(flops=4.0 * d * (pairs + n * self.rank), bytes=self._segment_bytes(n, d, runs, self.segment))

    def _segment_bytes(self, n: int, d: int, runs: int, size: int) -> float:
        """The parts before, inside and after the own segment, and their merge.

        Zeros fill a short last run.
        """
        filled = n % size != 0
        rows = FLOAT * float(n * ((8 if filled else 5) * d + _PER_MERGED_ROW) + 2 * runs * self.rank * d)
        masks = limited_mask_bytes(n, runs * self.rank) + (
            _MASK_OF_A_RUN * float(runs * size * size) if filled else 0.0
        )
        return rows + masks + flash_bytes(size, size, d)

    def _projections(self, length: int, call: Call, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """E and F for this many keys: [heads or 1, rank, length]."""
        if self.keys is None:
            e = sign_projection(self.rank, length, self.seed, dtype)
            f = e if self.shared else sign_projection(self.rank, length, self.seed + 1, dtype)
        else:
            e = self.keys[..., :length]
            f = e if self.values is None else self.values[..., :length]
        e, f = (x.to(call.k.device, dtype).reshape(-1, self.rank, length) for x in (e, f))
        return e, f

    def _over_all_keys(self, call: Call, *, lse: bool) -> Output:
        real = _real(call)
        e, f = self._projections(call.k.shape[2], call, call.k.dtype)
        padding = None if call.key_padding is None else call.key_padding.any(dim=-1, keepdim=True).expand(-1, self.rank)
        places = torch.arange(self.rank, device=call.q.device)[None]
        projected = replace(call, k=e @ real.k, v=f @ real.v, key_positions=places, key_padding=padding)
        return Dense().attend(_alone(projected), lse=lse)

    def _segments(self, call: Call) -> Output:
        size = self.segment or 1
        first = int(call.key_positions[0, 0])
        front = first % size
        real = _real(call)
        k, v = (_runs(x, front, size) for x in (real.k, real.v))  # [batch, kv_heads, runs, size, width]
        e, f = (x[:, None] for x in self._projections(size, call, k.dtype))
        labels = torch.arange(k.shape[2], device=k.device) + first // size
        filled = torch.ones_like(call.k[:, 0, :, 0], dtype=torch.bool) if call.key_padding is None else call.key_padding
        filled = _runs(filled[:, None, :, None], front, size)[:, 0, :, :, 0]  # [batch, runs, size]
        alive = filled.any(dim=-1).repeat_interleave(self.rank, dim=-1)
        far = replace(
            call,
            k=(e @ k).flatten(2, 3),
            v=(f @ v).flatten(2, 3),
            query_positions=call.query_positions[:1] // size,
            key_positions=labels.repeat_interleave(self.rank)[None],
            key_padding=None if bool(alive.all()) else alive,
        )
        parts = [self._within_segments(call, k, v, filled), Dense().attend(replace(far, right=-1), lse=True)]
        if not call.causal:
            parts.append(Dense().attend(replace(far, left=-1, right=None), lse=True))
        return merge(parts)

    def _within_segments(self, call: Call, k: Tensor, v: Tensor, filled: Tensor) -> Output:
        """Each segment of queries attends to its own segment, as a batch of short calls."""
        size, batch = k.shape[3], k.shape[0]
        first_query, first_key = int(call.query_positions[0, 0]), int(call.key_positions[0, 0])
        front, queries = first_query % size, call.q.shape[2]
        q = _runs(call.q, front, size)
        skipped = first_query // size - first_key // size
        k, v, filled = (_shifted(x, dim, skipped, q.shape[2]) for x, dim in ((k, 2), (v, 2), (filled, 1)))
        places = torch.arange(size, device=q.device)[None]
        # In a causal call the empty places after the last key come later than every query.
        needed = not bool(filled.all()) and not (
            call.causal and call.key_padding is None and front == 0 and first_key == first_query
        )
        short = Call(
            q=q.transpose(1, 2).flatten(0, 1),
            k=k.transpose(1, 2).flatten(0, 1),
            v=v.transpose(1, 2).flatten(0, 1),
            scale=call.scale,
            query_positions=places,
            key_positions=places,
            right=call.right,
            key_padding=filled.flatten(0, 1) if needed else None,
            softcap=call.softcap,
        )
        output = Dense().attend(short, lse=True)
        rows = output.lse if output.lse is not None else output.out[..., 0]
        positions = slice(front, front + queries)
        out, rows = (x.reshape(batch, -1, *x.shape[1:]).transpose(1, 2).flatten(2, 3) for x in (output.out, rows))
        return Output(out[:, :, positions], rows[:, :, positions])


MECHANISM = Linformer


def _alone(call: Call) -> Call:
    """The call without limits, for keys whose positions are mere numbers."""
    return replace(call, left=None, right=None)


def _real(call: Call) -> Call:
    if call.key_padding is None:
        return call
    k, v = (x.masked_fill(~call.key_padding[:, None, :, None], 0.0) for x in (call.k, call.v))
    return replace(call, k=k, v=v)


def _runs(x: Tensor, front: int, size: int) -> Tensor:
    """[batch, heads, n, width] as [batch, heads, runs, size, width].

    Zeros come before the first and after the last position.
    """
    back = -(front + x.shape[2]) % size
    padded = F.pad(x, (0, 0, front, back)) if front or back else x
    return padded.reshape(*x.shape[:2], -1, size, x.shape[-1])


def _shifted(x: Tensor, dim: int, start: int, count: int) -> Tensor:
    """`count` runs from `start` on; runs beyond the end are empty."""
    have = x.shape[dim]
    if start == 0 and count == have:
        return x
    before, after = min(max(0, -start), count), max(0, min(count, start + count - have))
    inner = x.narrow(dim, min(max(0, start), have), max(0, count - before - after))
    blank = list(x.shape)
    blank[dim] = before
    parts = [x.new_zeros(blank), inner]
    blank[dim] = count - before - inner.shape[dim]
    return torch.cat([*parts, x.new_zeros(blank)], dim=dim)
