r"""Softmax attention over pairs that queries and keys choose, block by block of queries.

Definition:
    Query i attends to key j when the call lets it (`Call.visible`) and the pair is chosen. What is chosen for a block
    of queries depends on the queries of the block before it (of its own on a call without a limit to what comes after a
    query, see `query_blocks`) and on keys that these may see.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism
from headscope.attention.mechanisms.dense import Dense
from headscope.attention.sparse.query_blocks import missing_query, sequences
from headscope.errors import UsageError


class Choice(Mechanism):
    """A mechanism that is dense attention under a mask that the call itself decides.

    Subclasses say which pairs they choose, and for how many positions at a time. From that follow the map, the
    statistics, an exact way for calls that the fast one does not know, and decode steps. The definition of a choice
    chooses anew.
    """

    needs_all_queries: ClassVar[bool] = True
    chooses_pairs: ClassVar[bool] = True
    uses_float64: ClassVar[bool] = True

    @property
    @abstractmethod
    def positions_per_choice(self) -> int | None:
        """How many positions share a choice; None where parameters leave nothing to choose."""

    @abstractmethod
    def chosen(self, call: Call) -> Bool[Tensor, "1 heads queries keys"]:
        """True for the chosen pairs of a call of one sequence."""

    def supports(self, call: Call) -> str | None:
        """Refuses calls without the queries that choose."""
        size = self.positions_per_choice
        return None if size is None else missing_query(call, size)

    def seen(self, call: Call) -> Call:
        """The call under the mask of the chosen pairs."""
        refusal = self.supports(call)
        if refusal is not None:
            raise UsageError(f"{self!r} cannot honour this call: {refusal}")
        return self._masked(call)

    def last_rows(self, call: Call, count: int) -> Tensor:
        """The output of the last queries; the others are read where they choose, and attend to nothing.

        Properties:
            - that of all queries  (tested: test_decode_step_equals_prefill_row)
        """
        size, queries = self.positions_per_choice or 1, call.q.shape[2]
        positions = call.query_positions
        first = (int(positions[:, -count:].min()) // size - 1) * size
        # Only queries at the end are known to be newer: of others in any order all are kept.
        start = int((positions < first).all(dim=0).int().cumprod(dim=0).sum())
        if count >= queries - start or self.supports(call) is not None:
            return super().last_rows(call, count)
        choosing = self._masked(call.take(slice(start, queries), slice(0, call.k.shape[2])))
        rows = slice(choosing.q.shape[2] - count, choosing.q.shape[2])
        return Dense()(choosing.take(rows, slice(0, call.k.shape[2]))).out

    def _masked(self, call: Call) -> Call:
        pairs = torch.cat([self.chosen(part) for part in sequences(call)])
        return replace(call, mask=pairs if call.mask is None else pairs & call.mask)
