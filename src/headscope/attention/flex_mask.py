"""Masks of mechanisms as expressions for torch's FlexAttention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

_FEW = 8  # positions that are compared one by one; more of them are looked up in a table


@dataclass(frozen=True)
class FlexMask:
    """The pairs that a mechanism lets see each other, as Python that imports nothing.

    `expression` is True where a query at position `q` may see a key at position `k`; both are tensors of whole numbers.
    It may read `tables`, by name. They have one axis, since torch cannot compile a look-up by two. `positions` is the
    number of positions that the tables cover; None is no limit.

    Properties:
        - it is the mask of the mechanism  (tested: test_expressions_are_the_masks)
    """

    expression: str
    tables: Mapping[str, Tensor] = field(default_factory=dict)
    positions: int | None = None


def band_expression(left: int | None, right: int | None) -> str:
    """The pairs of a band from `left` before to `right` after a query."""
    limits = [] if left is None else [f"(q - k <= {left})"]
    if right is not None:
        limits.append("(k <= q)" if right == 0 else f"(k - q <= {right})")
    return _joined(limits, "&") if limits else "(q >= 0)"


def membership(letter: str, positions: Sequence[int], name: str) -> tuple[list[str], dict[str, Tensor]]:
    """Expressions of which one holds at these positions, and their table.

    `letter` is `q` or `k`.
    """
    if len(positions) <= _FEW:
        return [f"({letter} == {position})" for position in positions], {}
    import torch

    last = max(positions) + 1  # holds for no position: what is beyond is looked up there
    table = torch.zeros(last + 1, dtype=torch.bool)
    table[list(positions)] = True
    return [f"{name}[{letter}.clamp(max={last})]"], {name: table}


def any_of(expressions: Sequence[str]) -> str:
    """An expression that holds where one of these does."""
    return _joined(expressions, "|")


def _joined(expressions: Sequence[str], operator: str) -> str:
    joined = f" {operator} ".join(expressions)
    return joined if len(expressions) == 1 else f"({joined})"
