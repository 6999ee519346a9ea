r"""Products of two stacks of matrices, read off the functions of torch that compute them.

`matmul`, `@`, `bmm`, `baddbmm` and `einsum` are the same sum under several names, $r_{sij} = \sum_c a_{sic}\,b_{scj}$
for each matrix s of the stack. Here each of them is written with one letter per axis, as einsum does, so that who looks
for queries and keys need not know which function a family calls. A product with a single matrix (a linear module) is
none of these.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Where a function takes its two operands: position and name of each.
_OPERANDS: dict[Any, tuple[tuple[int, str], tuple[int, str]]] = {
    torch.matmul: ((0, "input"), (1, "other")),
    Tensor.matmul: ((0, "self"), (1, "other")),
    Tensor.__matmul__: ((0, "self"), (1, "other")),
    torch.bmm: ((0, "input"), (1, "mat2")),
    Tensor.bmm: ((0, "self"), (1, "mat2")),
    torch.baddbmm: ((1, "batch1"), (2, "batch2")),
    Tensor.baddbmm: ((1, "batch1"), (2, "batch2")),
}
_STACKS = {3: "s", 4: "bh"}  # letters of the stack: batch and heads in one axis, or in two


@dataclass(frozen=True)
class Product:
    """One product: its operands, one letter for each axis, and how to compute it.

    `letters` are those of left operand, right operand and result.
    """

    left: Tensor
    right: Tensor
    letters: tuple[str, str, str]
    compute: Callable[[Tensor, Tensor], Tensor]

    def run(self) -> Tensor:
        """The product as the model computes it."""
        return self.compute(self.left, self.right)


def read_product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product | None:
    """The product that a call of `func` computes; None where it is none of those above."""
    if func is torch.einsum:
        return _einsum(args, kwargs)
    if func not in _OPERANDS:
        return None
    places = _OPERANDS[func]
    left, right = (_argument(args, kwargs, place) for place in places)
    if not isinstance(left, Tensor) or not isinstance(right, Tensor) or left.ndim != right.ndim:
        return None
    if (stack := _STACKS.get(left.ndim)) is None:
        return None

    def compute(a: Tensor, b: Tensor) -> Tensor:
        new_args, new_kwargs = list(args), dict(kwargs)
        for (index, name), operand in zip(places, (a, b), strict=True):
            if index < len(args):
                new_args[index] = operand
            else:
                new_kwargs[name] = operand
        result: Tensor = func(*new_args, **new_kwargs)
        return result

    return Product(left, right, (f"{stack}ic", f"{stack}cj", f"{stack}ij"), compute)


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: tuple[int, str]) -> Any:
    index, name = place
    return args[index] if index < len(args) else kwargs.get(name)


def _einsum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product | None:
    """A sum over one axis of two operands with the same stack; None of any other."""
    if kwargs or not args or not isinstance(args[0], str):
        return None
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    inputs, arrow, output = args[0].replace(" ", "").partition("->")
    letters = inputs.split(",")
    if not arrow or len(operands) != 2 or len(letters) != 2 or "." in args[0]:
        return None
    left, right = letters
    stack = [letter for letter in output if letter in left and letter in right]
    contracted = [letter for letter in left if letter in right and letter not in output]
    sizes = {len(stack) + 2} == {len(left), len(right), len(output)} and len({*left, *right}) == len(stack) + 3
    if len(contracted) != 1 or not sizes or len(left) not in _STACKS:
        return None
    return Product(operands[0], operands[1], (left, right, output), lambda a, b: torch.einsum(args[0], a, b))
