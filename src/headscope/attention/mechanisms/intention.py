r"""Intention: a ridge regression of the values on the keys answers every query.

Definition:
    $\text{out}_i = q_i\,(K_i^\top K_i + \alpha 1)^{-1} K_i^\top V_i$, with the rows of $K_i$ and $V_i$ the
    keys and values that query i sees (Garnelo and Czarnecki, Exploring the Space of Key-Value-Query Models
    with Intention). The call's scale is not used: a factor of the queries is a factor of the output, one of
    the keys is a change of the ridge.
How:
    Where all see all, one system: d × d, or, with fewer keys than d, the dual
    $q_i K^\top (K K^\top + \alpha 1)^{-1} V$. Causal calls go in chunks. With $P = (G + \alpha 1)^{-1}$ of the
    Gram matrix G of all keys before the chunk, W the regression on them and $L L^\top = 1 + K P K^\top$ of the
    chunk's own keys,
    $\text{out} = Q W + \mathrm{tril}(Q P K^\top L^{-\top})\, L^{-1} (V - K W)$,
    since the factor of a leading block is the leading block of the factor: recursive least squares, a chunk at a time.
    Every P is factored anew from the sum of all keys, so no rounding is carried on. All systems are float64.
    Windows, stray masks and gaps in the positions take one system for each row.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headscope.attention.call import Call, Output
from headscope.attention.mechanism import Cost, Mechanism
from headscope.attention.sparse.blocks import allowed_mask
from headscope.attention.sparse.grouped_heads import grouped_mix
from headscope.attention.sparse.recompute import by_rows
from headscope.attention.sparse.visibility_shape import is_causal_tail, sees_all
from headscope.attention.sparse.working_memory import DOUBLE, FLOAT
from headscope.errors import UsageError

CHUNK = 64
ROWS = 8 * CHUNK  # whose systems are in memory at a time

Square = Float[Tensor, "batch kv_heads d_head d_head"]
Cross = Float[Tensor, "batch kv_heads d_head d_value"]
State = tuple[Square, Cross]


@dataclass(frozen=True)
class Intention(Mechanism):
    """Ridge least squares of values on keys, evaluated at the queries.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - a small ridge returns the value of the key that equals the query  (tested: test_a_small_ridge_interpolates)
        - a large one is linear attention over the ridge  (tested: test_a_large_ridge_is_linear_attention)
        - step by step it is the same  (tested: test_steps_equal_the_parallel_form_of_intention)
        - primal and dual agree  (tested: test_primal_and_dual_agree)
    """

    ridge: float = 1.0
    name: ClassVar[str] = "intention"
    uses_float64: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.ridge < float("inf"):
            raise UsageError(f"intention: ridge must be positive and finite, got {self.ridge}")

    @classmethod
    def examples(cls, n: int) -> tuple["Intention", ...]:
        """Two sizes of the ridge."""
        del n
        return (cls(), cls(ridge=0.1), cls(ridge=30.0))

    def supports(self, call: Call) -> str | None:
        """Refuses what belongs to the exponential of a score."""
        for part in ("bias", "softcap", "sinks"):
            if getattr(call, part) is not None:
                return f"a regression has no scores inside an exponential, so a {part.rstrip('s')} means nothing"
        return None

    def conditioning(self, call: Call) -> float:
        """Largest over smallest eigenvalue of KᵀK + ridge.

        Where rows differ, the largest is that of all keys and the smallest that of none.
        """
        k = _real(call).k.detach().double()
        values = torch.linalg.eigvalsh(k.transpose(-1, -2) @ k)
        smallest = float(values.amin()) if call.mask is None and sees_all(call) else 0.0
        return (float(values.amax()) + self.ridge) / (max(smallest, 0.0) + self.ridge)

    def attend(self, call: Call, *, lse: bool) -> Output:
        """One system, a chain of chunks, or one system for each row."""
        del lse  # no softmax, no log-sum-exp
        dtype = call.q.dtype
        if call.mask is None and sees_all(call):
            return Output(self._at_once(_real(call)))
        if call.mask is None and is_causal_tail(call):
            before = call.k.shape[2] - call.q.shape[2]
            cached = _real(call.take(slice(0, 0), slice(0, before)))
            return Output(self._chained(_moments(cached), call.take(slice(0, None), slice(before, None)))[1].to(dtype))
        # Each row holds its own keys and its own system.
        per_pair = call.k.shape[-1] + call.v.shape[-1]
        (out,) = by_rows(call, self._row_by_row, per_pair=2 * per_pair)
        return Output(out.to(dtype))

    def step(self, state: State | None, call: Call) -> tuple[State, Output]:
        """The next tokens after `state` (None: the first), in time that does not grow.

        The call holds the new tokens alone: as many queries as keys, causal, without windows.
        """
        refusal = self.supports(call)
        if refusal is None and not (call.mask is None and is_causal_tail(call) and call.offset == 0):
            refusal = "a step takes new tokens only: a causal call with one query for each key and no other limits"
        if refusal is not None:
            raise UsageError(f"{self!r} cannot take this step: {refusal}")
        start = _moments(_real(call.take(slice(0, 0), slice(0, 0)))) if state is None else state
        after, out = self._chained(start, call)
        return after, Output(out.to(call.q.dtype))

    def definition(self, call: Call) -> Output:
        """The normal equations of every row, in float64."""
        q, k, v = (x.double() for x in (call.q, call.k, call.v))
        k, v = (x.repeat_interleave(call.groups, dim=1) for x in (k, v))
        visible = call.visible().double().expand(*q.shape[:3], k.shape[2])
        grams = torch.einsum("bhqk,bhkde->bhqde", visible, k[..., :, None] * k[..., None, :])
        crosses = torch.einsum("bhqk,bhkde->bhqde", visible, k[..., :, None] * v[..., None, :])
        ridge = self.ridge * torch.eye(k.shape[-1], dtype=torch.float64)
        solved_queries = torch.cholesky_solve(q[..., None], torch.linalg.cholesky(grams + ridge))
        return Output((solved_queries * crosses).sum(dim=-2))

    def cost(self, n: int, d: int) -> Cost:
        """One factor and its system, and the products with keys and queries, in float64.

        The system is on the smaller of both sides.
        """
        size = min(n, d)
        moments = 4.0 * n * d * d if d <= n else 2.0 * n * n * d + 2.0 * n * d * d
        solved = size**3 / 3 + 2.0 * size * size * d
        # Blocks of rows in float64, the system, and the rows a second time when they are put together.
        memory = DOUBLE * (1.5 * min(n, ROWS) * d + 4.0 * d * d) + (FLOAT * n * d if n > ROWS else 0.0)
        return Cost(flops=moments + solved + 2.0 * n * d * d, bytes=memory)

    def _at_once(self, call: Call) -> Tensor:
        """One system, with keys and queries in blocks.

        Their float64 copies then stay in the cache.
        """
        width, keys = call.k.shape[-1], call.k.shape[-2]
        if keys < width:
            k, v = call.k.double(), call.v.double()
            gram = k @ k.transpose(-1, -2) + self._ridge(keys, k)
            fitted = k.transpose(-1, -2) @ torch.cholesky_solve(v, torch.linalg.cholesky(gram))
        else:
            gram, cross = _moments(call)
            fitted = torch.cholesky_solve(cross, torch.linalg.cholesky(gram + self._ridge(width, gram)))
        rows = [grouped_mix(queries.double(), fitted).to(call.q.dtype) for queries in torch.split(call.q, ROWS, dim=2)]
        return torch.cat(rows, dim=2)

    def _chained(self, state: State, call: Call) -> tuple[State, Tensor]:
        """Runs of chunks, each from the moments of all keys before it.

        The backward computes a run again.
        """
        parts = []
        for start in range(0, call.q.shape[2], ROWS):
            positions = slice(start, start + ROWS)
            run = _real(call.take(positions, positions))
            if torch.is_grad_enabled():
                *state_, out = checkpoint(self._run, *state, run, use_reentrant=False, preserve_rng_state=False)
            else:
                *state_, out = self._run(*state, run)
            state = (state_[0], state_[1])
            parts.append(out)
        return state, torch.cat(parts, dim=2)

    def _run(self, gram: Tensor, cross: Tensor, call: Call) -> tuple[Tensor, Tensor, Tensor]:
        """The moments after a run of at most ROWS positions, and its output."""
        groups, n = call.groups, call.q.shape[2]
        q, k, v = (_chunks(x.double()) for x in (call.q, call.k, call.v))
        size = k.shape[-2]
        # [batch, kv_heads, chunks, group · chunk, d]: the queries of a group are asked of one system.
        q = q.reshape(q.shape[0], -1, groups, *q.shape[2:]).transpose(2, 3).flatten(3, 4)
        grams, crosses = k.transpose(-1, -2) @ k, k.transpose(-1, -2) @ v
        grams, crosses = (
            torch.cat([x[:, :, None], y], dim=2).cumsum(dim=2) for x, y in ((gram, grams), (cross, crosses))
        )
        factor = torch.linalg.cholesky(grams[:, :, :-1] + self._ridge(k.shape[-1], k))
        fitted = torch.cholesky_solve(crosses[:, :, :-1], factor)
        whitened_q, whitened_k = (
            torch.linalg.solve_triangular(factor, x.transpose(-1, -2), upper=False) for x in (q, k)
        )
        inner = whitened_k.transpose(-1, -2) @ whitened_k + torch.eye(size, dtype=k.dtype, device=k.device)
        lower = torch.linalg.cholesky(inner)
        news = torch.linalg.solve_triangular(lower, v - k @ fitted, upper=False)
        gains = torch.linalg.solve_triangular(lower, whitened_k.transpose(-1, -2) @ whitened_q, upper=False).transpose(
            -1, -2
        )
        gains = gains.reshape(*gains.shape[:3], groups, size, size).tril().reshape(gains.shape)
        mixed = q @ fitted + gains @ news
        out = mixed.reshape(*mixed.shape[:3], groups, size, -1).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return grams[:, :, -1], crosses[:, :, -1], out[:, :, :n]

    def _row_by_row(self, call: Call) -> tuple[Tensor]:
        q, k, v = (x.double() for x in (call.q, call.k, call.v))
        k, v = (x.repeat_interleave(call.groups, dim=1)[:, :, None] for x in (k, v))
        allowed = allowed_mask(call)
        visible_keys = k.expand(-1, -1, q.shape[2], -1, -1) if allowed is None else k * allowed[..., None]
        factor = torch.linalg.cholesky(visible_keys.transpose(-1, -2) @ visible_keys + self._ridge(k.shape[-1], k))
        weights = visible_keys @ torch.cholesky_solve(q[..., None], factor)
        return ((weights.transpose(-1, -2) @ v)[..., 0, :],)

    def _ridge(self, size: int, like: Tensor) -> Tensor:
        return self.ridge * torch.eye(size, dtype=like.dtype, device=like.device)


MECHANISM = Intention


def _real(call: Call) -> Call:
    """The call with zeros for padded keys, which add nothing to any moment."""
    if call.key_padding is None:
        return call
    k, v = (x.masked_fill(~call.key_padding[:, None, :, None], 0.0) for x in (call.k, call.v))
    return replace(call, k=k, v=v, key_padding=None)


def _moments(call: Call) -> State:
    blocks = zip(torch.split(call.k, ROWS, dim=2), torch.split(call.v, ROWS, dim=2), strict=True)
    grams, crosses = [], []
    for k, v in ((k.double(), v.double()) for k, v in blocks):
        grams.append(k.transpose(-1, -2) @ k)
        crosses.append(k.transpose(-1, -2) @ v)
    return torch.stack(grams).sum(dim=0), torch.stack(crosses).sum(dim=0)


def _chunks(x: Tensor) -> Tensor:
    """[batch, heads, n, width] as [batch, heads, chunks, CHUNK, width].

    Zeros fill the end.
    """
    n = x.shape[2]
    if n <= CHUNK:
        return x[:, :, None]
    padded = torch.nn.functional.pad(x, (0, 0, 0, -n % CHUNK))
    return padded.reshape(*x.shape[:2], -1, CHUNK, x.shape[-1])
