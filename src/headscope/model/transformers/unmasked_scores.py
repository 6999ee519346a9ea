r"""Recovers the scores of families that mask them before their softmax.

Such a family computes $s_{ij}$ and then hides some keys: it adds a mask of 0 and very negative numbers, fills them in,
or selects between score and constant. The hidden scores never reach the softmax. So this module follows the operations
between: where one applies a mask, the tensor before it is kept, and every later operation on the masked tensor is
applied to the kept one too. At the softmax both must be equal, bit for bit, wherever nothing is hidden.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

# A number below this hides a key; scores, and biases that grow with distance, stay far above.
HIDING = -9_000.0

_ADDED = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__}
_SUBTRACTED = {torch.sub, Tensor.sub, Tensor.__sub__, Tensor.sub_, Tensor.__isub__}
_FILLED = {torch.masked_fill, Tensor.masked_fill, Tensor.masked_fill_}
_SELECTED = {torch.where, Tensor.where}
_RAISED = {torch.max, Tensor.max, torch.maximum, Tensor.maximum}
_IN_PLACE = {Tensor.add_, Tensor.__iadd__, Tensor.sub_, Tensor.__isub__, Tensor.masked_fill_, Tensor.mul_, Tensor.div_}
# Operations on masked scores that are repeated on the scores without the mask.
_FOLLOWED = _ADDED | _SUBTRACTED | {
    torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.mul_,
    torch.div, Tensor.div, Tensor.__truediv__, Tensor.div_,
    Tensor.view, Tensor.reshape, torch.reshape, Tensor.to, Tensor.float, Tensor.type, Tensor.type_as,
    Tensor.contiguous, Tensor.clone, Tensor.transpose, torch.transpose, Tensor.permute, torch.permute,
    Tensor.squeeze, Tensor.unsqueeze, Tensor.expand, Tensor.__getitem__,
}  # fmt: skip


class MaskWatch:
    """Follows tensors from the mask to the softmax."""

    def __init__(self) -> None:
        # Keyed by the masked tensor, as long as the model holds it: a mask that carries a bias is made once and
        # used by every layer, while scores are dropped after their softmax.
        self._before = WeakIdKeyDictionary()

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation of the model, and keep the scores that it hides."""
        masked = _masked(func, args, kwargs)
        if masked is not None:
            return self._mask(func, args, kwargs, masked)
        if func in _FOLLOWED and any(self._is_masked(value) for value in args):
            return self._follow(func, args, kwargs)
        return func(*args, **kwargs)

    def scores(self, softmax_input: Tensor) -> Tensor | None:
        """The unmasked scores of a softmax; None where a hidden score is unknown."""
        hidden = softmax_input <= HIDING
        if softmax_input not in self._before:
            return None if bool(hidden.any()) else softmax_input
        before: Tensor = self._before[softmax_input]
        return before if torch.equal(before.masked_fill(hidden, 0.0), softmax_input.masked_fill(hidden, 0.0)) else None

    def _is_masked(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value in self._before

    def _unmasked(self, value: Any) -> Any:
        return self._before[value] if self._is_masked(value) else value

    def _mask(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], masked: Tensor) -> Any:
        before = self._unmasked(masked)
        if before is masked and func in _IN_PLACE:
            before = masked.clone()
        result = func(*args, **kwargs)
        self._before[result] = before.expand(result.shape)
        return result

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = [self._unmasked(value) for value in args]
        if func in _IN_PLACE:
            before[0] = before[0].clone()
        unmasked = func(*before, **kwargs)
        result = func(*args, **kwargs)
        self._before[result] = unmasked
        return result


def _masked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The tensor in which an operation hides entries; None where it hides none."""
    if func in _FILLED and len(args) == 3 and not kwargs:
        scores: Tensor = args[0]
        return scores if _is_low(args[2]) else None
    if func in _SELECTED and len(args) == 3 and not kwargs:
        # Tensor.where has the tensor first, torch.where the condition.
        first, second = (args[0], args[2]) if func is Tensor.where else args[1:]
        return first if _is_low(second) else second if _is_low(first) else None
    if len(args) != 2 or kwargs or not all(isinstance(value, Tensor) and value.is_floating_point() for value in args):
        return None
    x: Tensor = args[0]
    mask: Tensor = args[1]
    if func in _RAISED:
        return x if _is_low(mask) else None
    if func in _SUBTRACTED:
        return x if _hides(-mask) else None
    if func not in _ADDED or _hides(x) == _hides(mask):
        return None  # the sum of two masks is a mask
    return x if _hides(mask) else mask


def _is_low(value: Any) -> bool:
    """Whether a constant hides keys: all its numbers are very negative."""
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.numel() > 0 and bool((value <= HIDING).all())
    return isinstance(value, int | float) and value <= HIDING


def _hides(mask: Tensor) -> bool:
    """Whether a tensor is an additive mask: 0 or very negative."""
    low = mask <= HIDING
    return bool(low.any()) and bool((low | (mask == 0)).all())
