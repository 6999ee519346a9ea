"""Changes: what a quantity is set to, at which heads and positions, and how it is put in place.

A tensor replaces the quantity of the whole text: it is as long as the text, or as the positions that change, or it
broadcasts. While a text grows (`generate`, with or without a cache), it touches the tokens of the prompt and no later
ones. A function is called on what is there, in every forward.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.core.site import Site
from headscope.errors import UsageError
from headscope.model.session.captures import Heads, MapQuantity, Quantity

Positions = tuple[int, ...]
NewValue = Tensor | Callable[[Tensor], Tensor] | Mapping[Site, Tensor]


@dataclass(frozen=True)
class Window:
    """The part of a text that a forward reads: the position of its first token, and how long the text was at first."""

    offset: int
    prompt: int


@dataclass(frozen=True)
class Change:
    """One change of a quantity; `value` by site where it is that of another run."""

    at: Mapping[Site, Heads]
    quantity: Quantity
    value: NewValue
    positions: Positions | None = None
    order: int | None = None

    def new_value(self, site: Site, before: Tensor, window: Window) -> Tensor:
        """The tensor of the changed heads, in the place of `before`."""
        value = self.value[site] if isinstance(self.value, Mapping) else self.value
        axis = self.quantity.token_axis
        if axis is None or (callable(value) and self.positions is None):
            return self._fitted(value(before) if callable(value) else value, before)
        return self._at_positions(value, before, axis, window)

    def _at_positions(
        self, value: Tensor | Callable[[Tensor], Tensor], before: Tensor, axis: int, window: Window
    ) -> Tensor:
        n_tokens = before.shape[axis]
        positions = range(window.prompt) if self.positions is None else resolved(self.positions, window, self.quantity)
        numbers_here = [number for number, p in enumerate(positions) if window.offset <= p < window.offset + n_tokens]
        if not numbers_here:
            return before
        index = torch.tensor([positions[number] - window.offset for number in numbers_here], device=before.device)
        part = before.index_select(axis, index)
        if callable(value):
            return before.index_copy(axis, index, self._fitted(value(part), part))
        value = self._of_positions(value, positions, before.ndim - axis, window)
        shape = list(part.shape)
        shape[axis] = len(positions)
        keys = self._keys(value, before, window)
        if keys is not None:
            shape[-1] = keys
        whole_tensor = self._expanded(value, shape).to(before.device, before.dtype)
        after = whole_tensor.index_select(axis, torch.tensor(numbers_here, device=before.device))
        if keys is not None:
            remainder = part[..., keys:] if self.quantity.name != "pattern" else torch.zeros_like(part[..., keys:])
            after = torch.cat([after, remainder], dim=-1)
        return before.index_copy(axis, index, after)

    def _of_positions(self, value: Tensor, positions: Sequence[int], from_end: int, window: Window) -> Tensor:
        """A tensor of the whole text at the positions that change; one of these positions alone as it is."""
        is_tensor = isinstance(value, Tensor) and value.ndim >= from_end
        if not is_tensor or self.positions is None or value.shape[-from_end] != window.prompt:
            return value
        return value.index_select(value.ndim - from_end, torch.tensor(list(positions), device=value.device))

    def _keys(self, value: Tensor, before: Tensor, window: Window) -> int | None:
        """How many keys a map of the prompt has, where the text has grown since; None where it has not."""
        is_map = isinstance(self.quantity, MapQuantity) and value.ndim > 0
        has_grown = is_map and value.shape[-1] == window.prompt < before.shape[-1]
        return window.prompt if has_grown else None

    def _fitted(self, value: Tensor, before: Tensor) -> Tensor:
        return self._expanded(value, before.shape).to(before.device, before.dtype)

    def _expanded(self, value: object, shape: Sequence[int]) -> Tensor:
        if not isinstance(value, Tensor):
            raise UsageError(f"a patch of {self.quantity.name} must give a tensor, got {type(value).__name__}")
        try:
            return value.expand(tuple(shape))
        except RuntimeError as error:
            raise UsageError(
                f"a patch of {self.quantity.name} has shape {tuple(value.shape)}, expected {tuple(shape)} or what "
                f"broadcasts to it ({', '.join(axis.name for axis in self.quantity.axes)})"
            ) from error


def resolved(positions: Positions, window: Window, quantity: Quantity) -> list[int]:
    """Positions counted from the start of the text; negative ones count from the end of what was first read.

    Raises:
        UsageError: A position is beyond the text.
    """
    beyond = [position for position in positions if not -window.prompt <= position < window.prompt]
    if beyond:
        raise UsageError(
            f"position {beyond[0]} of {quantity.name} is beyond the text, which has {window.prompt} tokens",
            hint=f"positions go from 0 to {window.prompt - 1}, or from -{window.prompt} to -1",
        )
    numbers = [position % window.prompt for position in positions]
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"positions {list(positions)} of {quantity.name} name a token twice")
    return numbers


def as_positions(positions: int | slice | Sequence[int] | None) -> Positions | None:
    """Positions as a tuple of numbers; None stands for all.

    Raises:
        UsageError: A slice has no end, or a position is not a number.
    """
    if positions is None:
        return None
    if isinstance(positions, slice):
        if positions.stop is None or min(positions.start or 0, positions.stop) < 0:
            raise UsageError("a slice of positions needs an end, and both ends from 0 on", hint="write slice(0, 5)")
        return tuple(range(*positions.indices(positions.stop)))
    numbers = (positions,) if isinstance(positions, int) else tuple(positions)
    if not numbers or any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
        raise UsageError(f"positions are numbers of tokens, got {positions!r}", hint="write positions=[0, 5], or -1")
    return numbers
