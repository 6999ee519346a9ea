r"""Longformer attention: a window around every query, and a few global positions.

Global positions see all others, and all others see them.

Definition:
    Key j is visible to query i when the call lets it be and $-\text{right} \le i - j \le \text{left}$, or i is a global
    position, or j is. (i and j are positions; None is no limit.) One projection serves both kinds of pairs here: the
    call brings q, k and v.
How:
    The band goes in tiles, the columns of the global keys and the rows of the global queries are gathered,
    and the parts merge by log-sum-exp. A short or wide window, a call with bias, softcap, stray mask, gaps in
    its positions or padding between the real keys, and a few queries at the end of a cache are exact through dense
    attention under the mask.
Reference:
    Beltagy, Peters, Cohan (2020), Longformer: The Long-Document Transformer, section 3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.fitting import heaviest_keys
from headscope.attention.flex_mask import FlexMask, any_of, band_expression, membership
from headscope.attention.mechanism import Cost
from headscope.attention.mechanisms.dense import Dense, with_sinks
from headscope.attention.sparse.band_and_rest import (
    Outside,
    band_and_rest_attention,
    band_and_rest_bytes,
    columns,
    full_rows,
)
from headscope.attention.sparse.explicit_softmax import explicit_attention
from headscope.attention.sparse.gathered import Group
from headscope.attention.sparse.pair_counts import band_pairs, column_pairs, row_pairs
from headscope.attention.sparse.pattern import Pattern
from headscope.attention.sparse.working_memory import masked_bytes
from headscope.errors import UsageError


@dataclass(frozen=True)
class Longformer(Pattern):
    """A window around every query, and global positions that all see and that see all.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - global positions see all and are seen by all  (tested: test_global_positions_are_symmetric)
        - no pair counts twice where window and global positions meet  (tested: test_parts_equal_the_dense_mask)
        - without global positions it is the window  (tested: test_no_global_position_is_the_window)
    """

    left: int | None = 256
    right: int | None = 256
    global_positions: tuple[int, ...] = (0,)
    name: ClassVar[str] = "longformer"

    def __post_init__(self) -> None:
        for side, reach in (("left", self.left), ("right", self.right)):
            if reach is not None and reach < 0:
                raise UsageError(f"longformer: {side} must be None (no limit) or at least 0, got {reach}")
        if any(position < 0 for position in self.global_positions):
            raise UsageError(f"longformer: global positions must be at least 0, got {min(self.global_positions)}")
        object.__setattr__(self, "global_positions", tuple(sorted(set(self.global_positions))))

    @classmethod
    def examples(cls, n: int) -> tuple["Longformer", ...]:
        """Examples with a window of a thirty-second of the positions on both sides.

        The first has a few global positions; others are lopsided, or reach back without end.
        """
        near = max(2, n // 32)
        return (
            cls(near, near, (0, n // 2)),
            cls(near, 0, (0, 1, 2, n // 3, n - 1)),
            cls(3 * near, near, ()),
            cls(None, near, (n // 2,)),
        )

    @classmethod
    def as_dense(cls, n: int) -> "Longformer":
        """A window that reaches over all positions."""
        return cls(n, n, ())

    def fit(self, calls: Sequence[Call]) -> "Longformer":
        """As many global positions as there are, where keys have the most mass outside of the window."""
        if not self.global_positions:
            return self
        alone = replace(self, global_positions=())
        return replace(self, global_positions=heaviest_keys(calls, alone, len(self.global_positions)))

    def allows(
        self, queries: Int[Tensor, "rows queries 1"], keys: Int[Tensor, "rows 1 keys"]
    ) -> Bool[Tensor, "rows queries keys"]:
        """The band, the global rows and the global columns."""
        global_positions = torch.tensor(self.global_positions, dtype=torch.long, device=queries.device)
        allowed = torch.isin(queries, global_positions) | torch.isin(keys, global_positions)
        ahead = queries - keys
        near = torch.ones_like(ahead, dtype=torch.bool) if self.left is None else ahead <= self.left
        return allowed | (near if self.right is None else near & (ahead >= -self.right))

    def still_read(self, keys: Int[Tensor, " keys"], query: int) -> Bool[Tensor, " keys"] | None:
        """The last `left` keys and the global ones; all of them until the last global query has asked."""
        if self.left is None or query <= max(self.global_positions, default=-1):
            return None
        global_positions = torch.tensor(self.global_positions, dtype=torch.long, device=keys.device)
        return (query - keys <= self.left) | torch.isin(keys, global_positions)

    def flex_mask(self, n: int, *, causal: bool) -> FlexMask:
        """The band, the global rows and the global columns."""
        del n, causal
        queries, tables = membership("q", self.global_positions, "is_global")
        keys, _ = membership("k", self.global_positions, "is_global")
        return FlexMask(any_of([band_expression(self.left, self.right), *queries, *keys]), tables)

    def parts(self, call: Call) -> dict[str, Bool[Tensor, "mask_batch mask_heads queries keys"]]:
        """The window, and the window with the global rows and columns."""
        return {"window": replace(self, global_positions=()).seen(call).visible(), "global": self.seen(call).visible()}

    def attend(self, call: Call, *, lse: bool) -> Output:
        """The band and the pairs outside of it; the mask where the band does not pay."""
        # With very many global rows the map is dense.
        few = 4 * len(self.global_positions) <= call.k.shape[2]
        output = band_and_rest_attention(call, self.left, self.right, self._groups_outside) if few else None
        if output is None or output.lse is None:
            return Dense().attend(self.seen(call), lse=lse)
        return Output(with_sinks(output.out, output.lse, call.sinks), output.lse if lse else None)

    def _groups_outside(self, outside: Outside) -> Sequence[Sequence[Group]]:
        return columns(outside, self.global_positions), full_rows(outside, self.global_positions)

    def definition(self, call: Call) -> Output:
        """The dense mask, position by position, in float64."""
        queries, keys = call.query_positions[:, None, :, None], call.key_positions[:, None, None, :]
        distance = queries - keys
        near = torch.ones_like(distance, dtype=torch.bool)
        if self.left is not None:
            near &= distance <= self.left
        if self.right is not None:
            near &= distance >= -self.right
        for position in self.global_positions:
            near |= (queries == position) | (keys == position)
        return explicit_attention(call, call.visible() & near)

    def cost(self, n: int, d: int) -> Cost:
        """Two products over the band, the global rows and the global columns."""
        band = n, self.left, self.right
        pairs = band_pairs(*band) + column_pairs(*band, self.global_positions) + row_pairs(*band, self.global_positions)
        few = 4 * len(self.global_positions) <= n
        memory = (
            band_and_rest_bytes(n, d, self.left, self.right, len(self.global_positions)) if few else masked_bytes(n, d)
        )
        return Cost(flops=4.0 * d * pairs, bytes=memory)


MECHANISM = Longformer
