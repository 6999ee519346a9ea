"""What stands out among the heads: the ends of quantities, roles, and how many heads have a habit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headscope.core.numbers import count, counted, number
from headscope.report.head_grid import HeadColumn, HeadGrid

MOST_CARDS = 8
_FEW_CARDS = 4  # fewer named ones are filled up
_MOST_HABITS = 5


@dataclass(frozen=True)
class Extreme:
    """A head at an end of a quantity: what it is called, and its number there."""

    name: str
    column: HeadColumn
    head: int  # its place in the grid

    @property
    def value(self) -> str:
        """The number with its unit."""
        return with_unit(float(self.column.values[self.head]), self.column.quantity.unit)


def extremes(grid: HeadGrid, most: int = MOST_CARDS) -> dict[int, list[Extreme]]:
    """The heads at the ends of quantities, by their place in the grid.

    Ends that have a name come first; the main quantities of other lenses fill what is left. A head at several ends
    appears once.
    """
    extremes_by_head: dict[int, list[Extreme]] = {}
    for extreme in _named_ends(grid.columns):
        if extreme.head in extremes_by_head or len(extremes_by_head) < most:
            extremes_by_head.setdefault(extreme.head, []).append(extreme)
    for extreme in _other_ends(grid):
        if extreme.head not in extremes_by_head and len(extremes_by_head) < _FEW_CARDS:
            extremes_by_head[extreme.head] = [extreme]
    return extremes_by_head


def _named_ends(columns: Sequence[HeadColumn]) -> Iterator[Extreme]:
    for column in columns:
        for name, position in ((column.quantity.lowest, np.nanargmin), (column.quantity.highest, np.nanargmax)):
            if name:
                yield Extreme(name, column, int(position(column.values)))


def _other_ends(grid: HeadGrid) -> Iterator[Extreme]:
    """The notable end of the first quantity of each lens that names none."""
    for lens in dict.fromkeys(column.lens for column in grid.columns):
        column = grid.of_lens(lens)[0]
        quantity = column.quantity
        if not any(other.quantity.highest or other.quantity.lowest for other in grid.of_lens(lens)):
            low = quantity.notable == "low"
            position = np.nanargmin if low else np.nanargmax
            yield Extreme(f"{'lowest' if low else 'highest'} {quantity.label}", column, int(position(column.values)))


@dataclass(frozen=True)
class RoleGroup:
    """The heads that have a role, by their places in the grid, those with the most first."""

    column: HeadColumn
    heads: tuple[int, ...]

    @property
    def name(self) -> str:
        """`16 induction heads`."""
        return counted(len(self.heads), self.column.quantity.role)


def role_groups(grid: HeadGrid) -> tuple[RoleGroup, ...]:
    """The roles that some head has, in the order of the lenses and their quantities."""
    groups = []
    for column in grid.columns:
        if column.has_role is not None and column.has_role.any():
            order = np.argsort(-column.values, kind="stable")
            groups.append(RoleGroup(column, tuple(int(head) for head in order if column.has_role[head])))
    return tuple(groups)


def habits(grid: HeadGrid) -> tuple[str, ...]:
    """How many heads do what: `10 heads look mostly within 8 tokens`, the most frequent habits first."""
    counts = [(int(column.has_habit.sum()), column.quantity.habit) for column in grid.columns if column.quantity.habit]
    frequent = sorted((entry for entry in counts if entry[0]), key=lambda entry: -entry[0])[:_MOST_HABITS]
    return tuple(
        f"{count(times)} {_singular(habit) if times == 1 else habit}" if place else _first_habit(times, habit)
        for place, (times, habit) in enumerate(frequent)
    )


def _first_habit(times: int, habit: str) -> str:
    return f"1 head {_singular(habit)}" if times == 1 else f"{count(times)} heads {habit}"


def _singular(habit: str) -> str:
    """A verb and what follows it, for one head: `look at` becomes `looks at`."""
    verb, blank, object_words = habit.partition(" ")
    return f"{verb}{'es' if verb.endswith(('s', 'x', 'ch', 'sh')) else 's'}{blank}{object_words}"


def with_unit(value: float, unit: str) -> str:
    """A number with its unit; shares in percent."""
    if unit == "share":
        return f"{number(100 * value)} %"
    return f"{number(value)} {unit}".strip()
