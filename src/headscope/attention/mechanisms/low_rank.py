r"""Attention through a map of low rank: Nyström's from landmarks, or the best one.

Definition:
    `nystrom`: $\text{out} = F A^{+} (B v)$ with $F = \mathrm{softmax}(q \tilde k^\top)$,
    $A = \mathrm{softmax}(\tilde q \tilde k^\top)$, $B = \mathrm{softmax}(\tilde q k^\top)$, all scaled as the
    call says, and
    $\tilde q, \tilde k$ the means of runs of `segment` queries and (real) keys (Xiong et al., Nyströmformer).
    In a causal call the first run is the first token alone, a run counts when it is complete, a landmark has
    the position of the last token of its run, and each factor is masked by positions: A is lower triangular,
    so no later key comes in, and a query sees the keys up to the last landmark before it. A run without a real
    key is no landmark. Without limits, $A^{+}$ leaves out singular values below 1e-6 of the largest: less than
    float32 can tell.
    `svd`: the whole map cut to its `rank` largest singular values, nearest of all maps of that rank (Eckart and
    Young, The Approximation of One Matrix by Another of Lower Rank). A reference in O(n³), not a fast way.
How:
    F and B are dense attention with landmarks for keys and for queries, O(n · n / segment); A is small, and is
    formed and solved in float64. The causal A is a triangle whose diagonal falls with the number of landmarks:
    `conditioning` tells how much of the precision it costs.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.mechanism import Cost, Mechanism
from headscope.attention.mechanisms.dense import Dense
from headscope.attention.sparse.grouped_heads import grouped_mix, grouped_products
from headscope.attention.sparse.working_memory import DOUBLE
from headscope.errors import UsageError

METHODS = ("nystrom", "svd")
SVD_FLOPS = 20.0  # per n³: the usual count for all singular values and vectors of a square matrix
RCOND = 1e-6


@dataclass(frozen=True)
class LowRank(Mechanism):
    """A map of low rank: the number of runs of `segment` tokens, or `rank`.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - runs of one token are dense attention  (tested: test_as_dense_is_dense)
        - no map of its rank is nearer than that of `svd`  (tested: test_the_svd_is_the_best_of_its_rank)
    """

    method: str = "nystrom"
    segment: int = 16
    rank: int = 16
    name: ClassVar[str] = "low_rank"
    uses_float64: ClassVar[bool] = True
    needs_all_queries: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"low_rank: method must be one of {', '.join(METHODS)}, got {self.method!r}")
        for name in ("segment", "rank"):
            if getattr(self, name) < 1:
                raise UsageError(f"low_rank: {name} must be at least 1, got {getattr(self, name)}")

    @classmethod
    def examples(cls, n: int) -> tuple["LowRank", ...]:
        """A few landmarks, more of them, and the reference."""
        return cls(segment=max(2, n // 4)), cls(segment=max(2, n // 8)), cls("svd", rank=max(1, n // 8))

    @classmethod
    def as_dense(cls, n: int) -> "LowRank":
        """Every token is a landmark."""
        del n
        return cls(segment=1)

    def supports(self, call: Call) -> str | None:
        """Refuses what acts on single pairs: it cannot reach a landmark."""
        for part in ("mask", "bias", "sinks"):
            if getattr(call, part) is not None:
                return f"a landmark stands for many tokens, so {part} of single ones does not apply to it"
        if call.left is not None or call.right not in (None, 0):
            return "a landmark stands for many tokens, so a window cannot leave some of them out"
        if self.method == "svd":
            if call.right is not None:
                return "the singular vectors of a causal map mix later rows into earlier ones"
            return None if call.key_padding is None else "the reference takes whole maps, without padding"
        if call.causal:
            same = call.query_positions.shape == call.key_positions.shape
            if not same or not torch.equal(call.query_positions, call.key_positions):
                return "causal landmarks are means of queries and keys, so there must be a query for every key"
            if not bool((call.key_positions.diff(dim=-1) > 0).all()):
                return "causal landmarks need positions that grow"
        return None

    def conditioning(self, call: Call) -> float:
        """The condition number of A, in float64; 1 where there is no system to solve."""
        if self.method == "svd" or self.segment == 1:
            return 1.0
        marks = _landmarks(call, self.segment)
        values = torch.linalg.svdvals(_between(marks).detach())
        if call.causal:
            return float((values[..., 0] / values[..., -1]).amax())
        nonzero_values = values.masked_fill(values < RCOND * values[..., :1], torch.inf)
        return float((values[..., 0] / nonzero_values.amin(dim=-1)).amax())

    def attend(self, call: Call, *, lse: bool) -> Output:
        """Two dense attentions and a small system between them, or the whole map."""
        del lse  # its rows are no softmax
        if self.method == "svd":
            weights = torch.softmax(_capped(call, grouped_products(call.q.double(), call.k.double())), dim=-1)
            cut = _Cut.apply(weights, self.rank)  # type: ignore[no-untyped-call]
            return Output(grouped_mix(cut, call.v.double()).to(call.q.dtype))
        if self.segment == 1:
            return Output(Dense().attend(call, lse=False).out)  # F = A = B, and A A⁺ A = A
        marks = _landmarks(call, self.segment)
        wide = torch.promote_types(call.q.dtype, torch.float32)
        k, v = call.k.to(wide), call.v.to(wide)
        landmark_query_call = replace(call, q=marks.q.to(wide), k=k, v=v, query_positions=marks.query_positions)
        mixed = Dense().attend(landmark_query_call, lse=False).out.double()
        between = _between(marks)
        if call.causal:
            # The inverse of a triangle may grow beyond what float32 can hold.
            wide = torch.float64
            solved = torch.linalg.solve_triangular(between, mixed, upper=False)
        else:
            solved = torch.linalg.pinv(between, rtol=RCOND) @ mixed
        landmark_keys = marks.k.to(wide).repeat_interleave(call.groups, dim=1)
        landmark_key_call = replace(
            call,
            q=call.q.to(wide),
            k=landmark_keys,
            v=solved.to(wide),
            key_positions=marks.key_positions,
            key_padding=marks.key_padding,
        )
        return Output(Dense().attend(landmark_key_call, lse=False).out.to(call.q.dtype))

    def definition(self, call: Call) -> Output:
        """The factors of the map one after the other, in float64."""
        q, k, v = (x.double() for x in (call.q, call.k, call.v))
        k, v = (x.repeat_interleave(call.groups, dim=1) for x in (k, v))
        if self.method == "svd":
            u, s, vt = torch.linalg.svd(_explicit(call, q, k, None), full_matrices=False)
            u, s, vt = u[..., : self.rank], s[..., : self.rank], vt[..., : self.rank, :]
            return Output((u * s[..., None, :]) @ (vt @ v))
        n, m = q.shape[2], k.shape[2]
        real = torch.ones(q.shape[0], m, dtype=torch.bool) if call.key_padding is None else call.key_padding
        runs_q, runs_k = _runs(n, self.segment, call.causal), _runs(m, self.segment, call.causal)
        counted = real if n == m else torch.ones(q.shape[0], n, dtype=torch.bool)
        mean_q, alive_q = _means(q, runs_q, counted)
        mean_k, alive_k = _means(k, runs_k, real)
        last_q, last_k = (torch.tensor([run[-1] for run in runs]) for runs in (runs_q, runs_k))
        at = torch.arange(n) if call.causal else None

        def seen(rows: Tensor, columns: Tensor, alive: Tensor) -> Tensor:
            order = (
                columns <= rows[:, None] if at is not None else torch.ones(len(rows), len(columns), dtype=torch.bool)
            )
            return (order & alive[:, None])[:, None]

        f = _explicit(call, q, mean_k, seen(torch.arange(n), last_k, alive_k))
        a = _explicit(call, mean_q, mean_k, seen(last_q, last_k, alive_k))
        b = _explicit(call, mean_q, k, seen(last_q, torch.arange(m), real)) * alive_q[:, None, :, None]
        a = a * alive_q[:, None, :, None]
        if call.causal:
            a = a + torch.diag_embed((~alive_q).double())[:, None]
            return Output(f @ torch.linalg.solve(a, b @ v))
        return Output(f @ torch.linalg.pinv(a, rtol=RCOND) @ (b @ v))

    def cost(self, n: int, d: int) -> Cost:
        """Two attentions of n × landmarks and the system.

        `svd` needs the whole map and its decomposition.
        """
        if self.method == "svd":
            cut = 2.0 * n * n * min(self.rank, n)
            return Cost(flops=SVD_FLOPS * n**3 + 4.0 * n * n * d + cut, bytes=DOUBLE * 4.0 * n * n)
        if self.segment == 1:
            return Dense().cost(n, d)
        marks = -(-n // self.segment)
        system = (SVD_FLOPS + 2.0) * marks**3 + 4.0 * marks * marks * d
        # The means of the queries are added up from a float64 copy of all of them.
        memory = DOUBLE * (1.5 * n * d + 4.0 * marks * marks + 3.0 * marks * d)
        return Cost(flops=8.0 * n * marks * d + system, bytes=memory)


MECHANISM = LowRank


class _Cut(torch.autograd.Function):
    r"""A matrix cut to its largest singular values, with a stable gradient.

    The gradient needs no gap but the one at the cut.

    In the singular basis, with i kept and j left out, entries (i, j) and (j, i) of a change mix by
    $\sigma_i^2 / (\sigma_i^2 - \sigma_j^2)$ and $\sigma_i \sigma_j / (\sigma_i^2 - \sigma_j^2)$; those among
    the kept stay, the rest vanish. The map is its own transpose.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rank: int) -> Tensor:
        u, s, vt = torch.linalg.svd(x, full_matrices=True)
        ctx.save_for_backward(u, s, vt)
        ctx.rank = rank
        keep = min(rank, s.shape[-1])
        cut: Tensor = (u[..., :keep] * s[..., None, :keep]) @ vt[..., :keep, :]
        return cut

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        u, s, vt = ctx.saved_tensors
        keep = min(ctx.rank, s.shape[-1])
        turned = u.mT @ grad @ vt.mT
        rows, columns = turned.shape[-2:]
        size = max(rows, columns)
        square = torch.nn.functional.pad(turned, (0, size - columns, 0, size - rows))
        sigma = torch.nn.functional.pad(s, (0, size - s.shape[-1]))
        top_sigma, tail_sigma = sigma[..., :keep, None], sigma[..., None, keep:]
        gap = top_sigma.square() - tail_sigma.square()
        same, other = top_sigma.square() / gap, top_sigma * tail_sigma / gap
        upper, lower = square[..., :keep, keep:], square[..., keep:, :keep].mT
        out = torch.zeros_like(square)
        out[..., :keep, :keep] = square[..., :keep, :keep]
        out[..., :keep, keep:] = same * upper + other * lower
        out[..., keep:, :keep] = (same * lower + other * upper).mT
        return u @ out[..., :rows, :columns] @ vt, None


def _landmarks(call: Call, segment: int) -> Call:
    """The call with landmarks as queries and keys, in float64.

    Its padding marks the landmarks with a real key.
    """
    real = call.key_padding
    k, positions_k, alive = _averaged(call.k, call.key_positions, segment, call.causal, real)
    query_padding = real if call.q.shape[2] == call.k.shape[2] else None
    q, positions_q, _ = _averaged(call.q, call.query_positions, segment, call.causal, query_padding)
    return replace(
        call,
        q=q,
        k=k,
        v=k[..., :0],
        query_positions=positions_q,
        key_positions=positions_k,
        key_padding=None if real is None else alive,
    )


def _averaged(
    x: Tensor, positions: Tensor, segment: int, causal: bool, real: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Means and last positions of the runs, and whether a run has a real key."""
    n = x.shape[2]
    index = torch.arange(n, device=x.device)
    labels = (index + segment - 1) // segment if causal else index // segment
    count = 1 + (n - 1) // segment if causal else -(-n // segment)
    weight = torch.ones(1, n, dtype=torch.float64, device=x.device) if real is None else real.double()
    inside = labels < count  # in a causal call the last run may be incomplete
    labels = labels.clamp_max(count - 1)
    weight = weight * inside
    sums = x.new_zeros(*x.shape[:2], count, x.shape[-1], dtype=torch.float64)
    sums = sums.index_add(2, labels, x.double() * weight[:, None, :, None])
    total = weight.new_zeros(weight.shape[0], count).index_add(1, labels, weight)
    last = index[inside] if segment == 1 else torch.arange(count, device=x.device) * segment
    if not causal:
        last = ((torch.arange(count, device=x.device) + 1) * segment - 1).clamp_max(n - 1)
    return sums / total.clamp_min(1.0)[:, None, :, None], positions[:, last], total > 0


def _between(marks: Call) -> Float[Tensor, "batch heads rows columns"]:
    """A: the landmarks' attention to each other.

    The diagonal is 1 for landmarks without a real key.
    """
    scores = _capped(marks, grouped_products(marks.q, marks.k))
    dead = None if marks.key_padding is None else ~marks.key_padding
    if marks.causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(ones.triu(1), -torch.inf)
    if dead is None:
        return torch.softmax(scores, dim=-1)
    scores = scores.masked_fill(dead[:, None, None, :], -torch.inf)
    dead_rows = dead[:, None, :, None] if scores.shape[-1] == scores.shape[-2] else dead.new_zeros(1, 1, 1, 1)
    blind = (scores == -torch.inf).all(dim=-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(blind, 0.0), dim=-1).masked_fill(blind | dead_rows, 0.0)
    if not marks.causal:
        return weights
    return weights + torch.diag_embed(dead.double())[:, None]


def _capped(call: Call, products: Tensor) -> Tensor:
    scores = products * call.scale
    return scores if call.softcap is None else call.softcap * torch.tanh(scores / call.softcap)


def _runs(n: int, segment: int, causal: bool) -> list[list[int]]:
    """The indices of each run, by the definition."""
    if not causal:
        return [list(range(start, min(start + segment, n))) for start in range(0, n, segment)]
    return [[0]] + [list(range(end - segment + 1, end + 1)) for end in range(segment, n, segment)]


def _means(x: Tensor, runs: list[list[int]], real: Tensor) -> tuple[Tensor, Tensor]:
    weights = real.double()
    sums = [(x[:, :, run] * weights[:, None, run, None]).sum(dim=2) for run in runs]
    totals = torch.stack([weights[:, run].sum(dim=-1) for run in runs], dim=-1)
    return torch.stack(sums, dim=2) / totals.clamp_min(1)[:, None, :, None], totals > 0


def _explicit(call: Call, q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if visible is None:
        return torch.softmax(scores, dim=-1)
    blind = ~visible.any(dim=-1, keepdim=True)
    weights = torch.softmax(torch.where(visible | blind, scores, -torch.inf), dim=-1)
    return torch.where(visible, weights, 0.0)
