r"""Band-sparse attention: a window around every query, and s more keys.

The positions of these keys are fixed before attention is computed.

Definition:
    Key j is visible to query i when the call lets it be and $-\text{right} \le i - j \le \text{left}$, or j is one of
    `columns` (the same for every query), or j is in `rows[i]` (a list for each query). i and j are positions.
    All queries see the columns, but these see no more than the others: not symmetric.
How:
    The band goes in tiles, the columns or lists are gathered, and the parts merge by log-sum-exp: time
    O(n(w + s)) for a band of w keys. Other calls are exact through dense attention under the mask, as for
    `longformer`.
Example:
    >>> import torch
    >>> rare_columns(torch.tensor([5, 7, 5, 9]), {5: 1000, 7: 3, 9: 40}, 2)
    (1, 3)
"""

from collections.abc import Iterable, Mapping, Sequence
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
    single_pairs,
)
from headscope.attention.sparse.explicit_softmax import explicit_attention
from headscope.attention.sparse.gathered import Group
from headscope.attention.sparse.neighbour_lists import Lists
from headscope.attention.sparse.pair_counts import band_pairs, column_pairs
from headscope.attention.sparse.pattern import Pattern
from headscope.attention.sparse.working_memory import FLOAT, gathered_bytes
from headscope.errors import UsageError


@dataclass(frozen=True)
class BandSparse(Pattern):
    """A window around every query, and more keys: common columns, or a list for each.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - all see the columns, which see no more than others  (tested: test_columns_are_not_symmetric)
        - lists for each query, however ragged  (tested: test_rows_of_their_own)
        - no pair counts twice where band and columns meet  (tested: test_parts_equal_the_dense_mask)
    """

    left: int | None = 128
    right: int | None = 128
    columns: tuple[int, ...] = ()
    rows: Lists | Iterable[Iterable[int]] | None = None
    name: ClassVar[str] = "band_sparse"

    def __post_init__(self) -> None:
        for side, reach in (("left", self.left), ("right", self.right)):
            if reach is not None and reach < 0:
                raise UsageError(f"band_sparse: {side} must be None (no limit) or at least 0, got {reach}")
        if any(position < 0 for position in self.columns):
            raise UsageError(f"band_sparse: columns must be positions from 0 on, got {min(self.columns)}")
        if self.columns and self.rows is not None:
            raise UsageError("band_sparse: expected columns or rows, got both", hint="put the columns into every row")
        object.__setattr__(self, "columns", tuple(sorted(set(self.columns))))
        if self.rows is not None and not isinstance(self.rows, Lists):
            object.__setattr__(self, "rows", Lists.of(self.rows, "band_sparse: rows"))

    @classmethod
    def examples(cls, n: int) -> tuple["BandSparse", ...]:
        """Examples with columns, with a list for each query, and with neither.

        The band is a thirty-second of the positions, on one side or on both.
        """
        near = max(2, n // 32)
        far = tuple((p // 2, (7 * p + 3) % (p + 1)) if p % 3 else () for p in range(n))
        return (cls(near, near, (0, 1, n // 2)), cls(near, 0, (n // 4,)), cls(near, near, rows=far), cls(near, near))

    @classmethod
    def as_dense(cls, n: int) -> "BandSparse":
        """A band that reaches over all positions."""
        return cls(n, n)

    def fit(self, calls: Sequence[Call]) -> "BandSparse":
        """As many columns as there are, at the positions with the most mass outside of the band."""
        if not self.columns:
            return self
        return replace(self, columns=heaviest_keys(calls, replace(self, columns=()), len(self.columns)))

    def allows(
        self, queries: Int[Tensor, "rows queries 1"], keys: Int[Tensor, "rows 1 keys"]
    ) -> Bool[Tensor, "rows queries keys"]:
        """The band, the columns and the lists."""
        ahead = queries - keys
        near = torch.ones_like(ahead, dtype=torch.bool) if self.left is None else ahead <= self.left
        near = near if self.right is None else near & (ahead >= -self.right)
        if isinstance(self.rows, Lists):
            return near | self.rows.hold(queries, keys)
        return near | torch.isin(keys, torch.tensor(self.columns, dtype=torch.long, device=keys.device))

    def still_read(self, keys: Int[Tensor, " keys"], query: int) -> Bool[Tensor, " keys"] | None:
        """The last `left` keys and the columns; lists may name any key."""
        if self.left is None or self.rows is not None:
            return None
        columns = torch.tensor(self.columns, dtype=torch.long, device=keys.device)
        return (query - keys <= self.left) | torch.isin(keys, columns)

    def flex_mask(self, n: int, *, causal: bool) -> FlexMask:
        """The band, the columns and the lists."""
        del n, causal
        band = band_expression(self.left, self.right)
        if isinstance(self.rows, Lists):
            listed, tables = self.rows.flex_terms("listed")
        else:
            listed, tables = membership("k", self.columns, "is_column")
        return FlexMask(any_of([band, *listed]), tables)

    def parts(self, call: Call) -> dict[str, Bool[Tensor, "mask_batch mask_heads queries keys"]]:
        """The band alone, and the band with the pairs outside of it."""
        band = replace(self, columns=(), rows=None)
        return {"band": band.seen(call).visible(), "beside": self.seen(call).visible()}

    def attend(self, call: Call, *, lse: bool) -> Output:
        """The band and the pairs outside of it; the mask where the band does not pay."""
        output = band_and_rest_attention(call, self.left, self.right, self._groups_outside)
        if output is None or output.lse is None:
            return Dense().attend(self.seen(call), lse=lse)
        return Output(with_sinks(output.out, output.lse, call.sinks), output.lse if lse else None)

    def _groups_outside(self, outside: Outside) -> Sequence[Sequence[Group]]:
        if isinstance(self.rows, Lists):
            return (single_pairs(outside, self.rows),)
        return (columns(outside, self.columns),)

    def definition(self, call: Call) -> Output:
        """The dense mask, position by position, in float64."""
        queries, keys = call.query_positions[:, None, :, None], call.key_positions[:, None, None, :]
        distance = queries - keys
        near = torch.ones_like(distance, dtype=torch.bool)
        if self.left is not None:
            near &= distance <= self.left
        if self.right is not None:
            near &= distance >= -self.right
        for position in self.columns:
            near |= keys == position
        if isinstance(self.rows, Lists):
            near = near.clone()
            for position in range(len(self.rows)):
                rows, _, at, _ = (queries == position).nonzero(as_tuple=True)
                more = torch.tensor(self.rows[position], dtype=torch.long)
                near[rows, 0, at] |= torch.isin(call.key_positions[rows], more)
        return explicit_attention(call, call.visible() & near)

    def cost(self, n: int, d: int) -> Cost:
        """Two products over the band and the pairs outside of it."""
        band = n, self.left, self.right
        if isinstance(self.rows, Lists):
            outside = self.rows.count_outside(*band)
            listed = gathered_bytes(outside * d) + FLOAT * n * (d + 4.0)  # and what is merged into the rows
        else:
            outside, listed = column_pairs(*band, self.columns), 0.0
        memory = max(listed, band_and_rest_bytes(n, d, self.left, self.right, len(self.columns)))
        return Cost(flops=4.0 * d * (band_pairs(*band) + outside), bytes=memory)


MECHANISM = BandSparse


def rare_columns(
    token_ids: Int[Tensor, " positions"], counts: Mapping[int, int] | Int[Tensor, " vocabulary"], s: int
) -> tuple[int, ...]:
    """The s positions with the rarest tokens of a corpus, in order.

    Of equally rare ones the earlier counts.

    `counts` says how often each token occurs; a token that it does not know has occurred never.

    Properties:
        - the rarest come, however the counts are given  (tested: test_rare_columns)
    """
    if s < 0:
        raise UsageError(f"rare_columns: s must be at least 0, got {s}")
    count_by_token = counts if isinstance(counts, Mapping) else dict(enumerate(counts.tolist()))
    often = [count_by_token.get(token, 0) for token in token_ids.tolist()]
    return tuple(sorted(sorted(range(len(often)), key=lambda position: often[position])[:s]))
