"""The axes of a tensor of attention: batch, heads, positions and channels, in the order of a family.

Families keep queries, keys, values and outputs in many forms: batch and heads in one axis or in two, positions before
or after them, a key head once for all queries or copied for each. A `HeadLayout` turns such a tensor into
[batch, heads, positions, channels] and back. Both ways are views and copies: no number changes.
"""

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class HeadLayout:
    """Where a tensor holds what.

    `axes` are its axes in the order batch, heads, positions, channels; three of them where batch and heads are one
    axis, which then counts `n_heads` heads for each batch. `copies` is how often each head is repeated in a row.
    """

    axes: tuple[int, ...]
    n_heads: int
    copies: int = 1

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor can have this layout."""
        if tensor.ndim != len(self.axes):
            return False
        return tensor.ndim == 4 or tensor.shape[self.axes[0]] % self.n_heads == 0

    def read(self, tensor: Tensor) -> Float[Tensor, "batch some_heads positions width"]:
        """The tensor by heads; each of them once."""
        ordered = tensor.permute(self.axes)
        by_head = ordered if ordered.ndim == 4 else ordered.reshape(-1, self.n_heads, *ordered.shape[1:])
        return by_head[:, :: self.copies] if self.copies > 1 else by_head

    def write(self, states: Float[Tensor, "batch some_heads positions width"]) -> Tensor:
        """A tensor in this layout; also from states that hold a head for each query head."""
        is_repeated = self.copies == 1 or states.shape[1] == self.n_heads
        repeated = states if is_repeated else states.repeat_interleave(self.copies, dim=1)
        ordered = repeated if len(self.axes) == 4 else repeated.flatten(0, 1)
        places = [self.axes.index(axis) for axis in range(len(self.axes))]
        return ordered.permute(places)

    def with_copies(self, copies: int) -> "HeadLayout":
        """The same axes, where each head stands `copies` times."""
        return replace(self, copies=copies)


def layout(letters: str, order: str, n_heads: int) -> HeadLayout:
    """The layout of a tensor whose axes have these letters; `order` is that of batch, heads, positions, channels."""
    return HeadLayout(tuple(letters.index(letter) for letter in order), n_heads)
