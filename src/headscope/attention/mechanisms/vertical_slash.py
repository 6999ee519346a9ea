r"""Vertical–slash attention: a band, and the columns and diagonals with the most mass.

The mass is estimated from a few rows of the map, for each head and each block of queries.

Definition:
    Positions go in blocks of `near`. A query sees the keys at distance $|i - j| \le \text{near}$ (the band), and what
    was chosen for its block by the rows R: the last `rows` queries of the block before, so that no later token
    chooses; on a call without a limit to what comes after a query, `rows` queries spread evenly over the block itself
    (of m queries those at $\lfloor (2r + 1) m / (2 \,\text{rows}) \rfloor$). Queries at padding choose nothing.
    With $p$ the map of the call without sinks,

    - columns: the `columns` keys with the largest $\sum_{r \in R} p_{rj}$ over the pairs with $2 |r - j| >
      \text{near}$: nearer keys are in the band of the block's queries as well, farther ones may be in that of R alone;
    - diagonals: with these columns and the band set to 0 in $p$, the `diagonals` runs with the largest $\sum p_{rj}$
      over their pairs. Run t behind the query holds the distances from $\text{near} + 1 + t\,\text{width}$ to
      $\text{near} + (t + 1)\,\text{width}$; runs ahead of it mirror those.

    Sums are taken in float64 from the numbers of the call and compared as float32; what is 0 is not chosen, and of
    equal sums the earlier key wins, the nearer run, the one behind. So fast path and definition choose the same pairs.
    The choice is a constant: gradients flow through the chosen pairs alone.
How:
    The rows of the estimate cost O(n²) with a factor of $\text{rows} / \text{near}$. The band goes in tiles for all
    heads; head by head the columns of a block are gathered, and the keys that the runs of diagonals cross; the parts
    merge by log-sum-exp. A short or wide band, a call with bias, softcap, stray mask, gaps in its positions or padding
    between the real keys are exact through dense attention under the mask.
    A decode step needs the queries of the block before: sessions remember them.
Reference:
    Jiang et al. (2024), MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via Dynamic Sparse Attention,
    section 3 (there the last rows of the prompt choose for all queries, which lets later tokens choose).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.mechanism import Cost
from headscope.attention.mechanisms.dense import Dense, with_sinks
from headscope.attention.sparse.band import Banded, narrow_band
from headscope.attention.sparse.band_and_rest import band_and_rest_bytes
from headscope.attention.sparse.blocks import origin, real_runs
from headscope.attention.sparse.choice import Choice
from headscope.attention.sparse.columns_and_diagonals import (
    Sizes,
    chosen_pairs,
    column_and_diagonal_plans,
    estimate_bytes,
    plan_bytes,
)
from headscope.attention.sparse.explicit_softmax import explicit_attention
from headscope.attention.sparse.head_plans import HeadPlans
from headscope.attention.sparse.parts import attention_over
from headscope.attention.sparse.query_blocks import sequences
from headscope.attention.sparse.working_memory import band_is_narrow
from headscope.errors import UsageError


@dataclass(frozen=True)
class VerticalSlash(Choice):
    """A band, and the key columns and diagonals with the most mass, chosen by a few rows.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - no later token chooses for an earlier query  (tested: test_nothing_leaks_from_the_future)
        - planted columns and diagonals are found  (tested: test_planted_columns_and_diagonals)
        - band, columns and diagonals hold every pair once  (tested: test_plans_hold_every_chosen_pair_once)
    """

    columns: int = 64
    diagonals: int = 4
    width: int = 64
    near: int = 256
    rows: int = 8
    name: ClassVar[str] = "vertical_slash"

    def __post_init__(self) -> None:
        for name, least in (("columns", 0), ("diagonals", 0), ("width", 1), ("near", 1), ("rows", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"vertical_slash: {name} must be at least {least}, got {getattr(self, name)}")
        if self.rows > self.near:
            raise UsageError(
                f"vertical_slash: rows must be at most near={self.near}, the queries of a block, got {self.rows}"
            )

    @classmethod
    def examples(cls, n: int) -> tuple["VerticalSlash", ...]:
        """Columns and diagonals, many single diagonals, and columns alone.

        The band is a thirty-second of the positions.
        """
        near = max(2, n // 32)
        return (
            cls(max(2, n // 64), 4, max(1, near // 4), near, min(8, near)),
            cls(3, 6, 1, near + 1, 2),
            cls(near, 0, 1, near, 2),
        )

    @classmethod
    def as_dense(cls, n: int) -> "VerticalSlash":
        """A band that reaches over all positions."""
        return cls(columns=0, diagonals=0, near=max(1, n), rows=1)

    @property
    def sizes(self) -> Sizes:
        """The parameters, for the functions that choose."""
        return Sizes(self.columns, self.diagonals, self.width, self.near, self.rows)

    @property
    def positions_per_choice(self) -> int | None:
        """The width of the band, which covers what comes after the choice."""
        return self.near if self.columns or self.diagonals else None

    def chosen(self, call: Call) -> Bool[Tensor, "1 heads queries keys"]:
        """The pairs of band, columns and diagonals."""
        return chosen_pairs(call, self.sizes)

    def parts(self, call: Call) -> dict[str, Bool[Tensor, "mask_batch mask_heads queries keys"]]:
        """The band alone, and all chosen pairs."""
        band = call.within(self.near, self.near).visible()
        return {"band": band, "chosen": self.seen(call).visible()}

    def attend(self, call: Call, *, lse: bool) -> Output:
        """The band, and the choice of each head; the mask where the band does not pay."""
        band, runs = narrow_band(call.within(self.near, self.near)), real_runs(call)
        if band is None or runs is None or origin(call) is None:
            return Dense().attend(self.seen(call), lse=lse)
        plans = [column_and_diagonal_plans(part, self.sizes) for part in sequences(call)]
        out, rows = attention_over([Banded(band, runs), HeadPlans(plans)], call.q, call.k, call.v)
        return Output(with_sinks(out, rows, call.sinks), rows if lse else None)

    def definition(self, call: Call) -> Output:
        """The whole map, and from it the choice, head by head and block by block, in float64."""
        pairs = torch.stack([self._defined_pairs(call, sequence) for sequence in range(call.q.shape[0])])
        return explicit_attention(call, call.visible() & pairs)

    def cost(self, n: int, d: int) -> Cost:
        """Two products over the band and at most all columns and diagonals, and the rows of the estimate."""
        keys_beyond = self.columns + self.diagonals * self.width
        band = [min(i, self.near) + 1 + min(n - 1 - i, self.near) for i in range(n)]
        pairs = sum(min(n, keys + keys_beyond) for keys in band)
        sizes = [min(self.near, n - start) for start in range(0, n, self.near)]
        rows = sum(min(self.rows, size) for size in sizes) if keys_beyond else 0
        return Cost(flops=4.0 * d * pairs + 2.0 * d * n * rows, bytes=self._bytes(n, d))

    def _bytes(self, n: int, d: int) -> float:
        """What the estimate holds, or the plans with what is computed by them where that is more."""
        band = band_and_rest_bytes(n, d, self.near, self.near, 0)
        if not band_is_narrow(n, 2 * min(self.near, n - 1)):
            return band
        plans, group = plan_bytes(n, d, self.sizes)
        return max(estimate_bytes(n, d, self.sizes), plans + max(band, group))

    def _defined_pairs(self, call: Call, sequence: int) -> Bool[Tensor, "heads queries keys"]:
        queries, keys = (x.expand(call.q.shape[0], -1)[sequence] for x in (call.query_positions, call.key_positions))
        visible = call.visible().expand(call.q.shape[0], call.q.shape[1], -1, -1)[sequence]
        padded = set() if call.key_padding is None else set(keys[~call.key_padding[sequence]].tolist())
        maps = _maps(call, sequence).masked_fill(~visible, -torch.inf).softmax(dim=-1).nan_to_num(nan=0.0)
        distance = queries[:, None] - keys
        pairs = (distance.abs() <= self.near).repeat(call.q.shape[1], 1, 1)
        blocks = [position // self.near for position in queries.tolist()]
        for block in sorted(set(blocks)):
            members = [i for i, number in enumerate(blocks) if number == block]
            source = block if call.right is None else block - 1
            choosers = [i for i, number in enumerate(blocks) if number == source and int(queries[i]) not in padded]
            rows = self._rows(sorted(choosers, key=lambda i: int(queries[i])), call.right is None)
            for head in range(call.q.shape[1]):
                far = maps[head, rows].masked_fill(2 * distance[rows].abs() <= self.near, 0.0)
                columns = _heaviest(far.sum(dim=0), self.columns)
                far[:, columns] = 0.0
                far[distance[rows].abs() <= self.near] = 0.0
                run = ((distance.abs() - self.near - 1).clamp(min=0) // self.width) * 2 + (distance < 0)
                sums = torch.bincount(run[rows].flatten(), weights=far.flatten())
                pairs[head, members] |= torch.isin(run[members], _heaviest(sums, self.diagonals))
                pairs[head][torch.tensor(members)[:, None], columns] = True
        return pairs

    def _rows(self, choosers: list[int], spread: bool) -> list[int]:
        count = min(self.rows, len(choosers)) if self.columns or self.diagonals else 0
        if not spread:
            return choosers[len(choosers) - count :]
        return [choosers[(2 * r + 1) * len(choosers) // (2 * count)] for r in range(count)]


MECHANISM = VerticalSlash


@torch.no_grad()
def _maps(call: Call, sequence: int) -> Tensor:
    """The scores of a sequence before the mask, in float64."""
    k = call.k[sequence].double().repeat_interleave(call.groups, dim=0)
    scores = torch.einsum("hqd,hkd->hqk", call.q[sequence].double(), k) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    bias = None if call.bias is None else call.bias.double().expand(call.q.shape[0], -1, -1, -1)[sequence]
    return scores if bias is None else scores + bias


def _heaviest(sums: Tensor, count: int) -> Tensor:
    """The places of the largest positive sums, by size; the earlier one where they are equal in float32."""
    order = torch.sort(sums.float(), descending=True, stable=True).indices[:count]
    return order[sums.float()[order] > 0]
