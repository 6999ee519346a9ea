r"""Softmax attention over a set of keys that the positions alone decide.

All sparse patterns share this part.

Definition:
    Query i attends to key j when the call lets it (`Call.visible`) and the pattern allows the pair of positions.
"""

from abc import abstractmethod
from dataclasses import replace

from jaxtyping import Bool, Int
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism


class Pattern(Mechanism):
    """A mechanism that is dense attention under one more mask.

    Subclasses say which pairs of positions they allow. From that follow the map, the statistics and the picture,
    and an exact way for calls that the fast one does not know: `Dense().attend(self.seen(call), …)`, whose mask
    needs O(n²) bits. The definition of a pattern writes its mask anew.
    """

    @abstractmethod
    def allows(
        self, queries: Int[Tensor, "rows queries 1"], keys: Int[Tensor, "rows 1 keys"]
    ) -> Bool[Tensor, "rows queries keys"]:
        """True where the pattern lets a query at one position see a key at another."""

    def seen(self, call: Call) -> Call:
        """The call under one more mask."""
        allowed = self.allows(call.query_positions[:, :, None], call.key_positions[:, None, :])[:, None]
        return replace(call, mask=allowed if call.mask is None else call.mask & allowed)
