"""Finding: the result of one lens on one model.

It is complete enough to be drawn without the lens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from headscope.about import About
from headscope.core.card import Card, Point, Shown, listed
from headscope.core.figure import Figure
from headscope.core.head_curve import HeadCurve
from headscope.core.head_patterns import HeadPatterns
from headscope.core.numbers import counted
from headscope.core.ports import render_html
from headscope.errors import UsageError


@dataclass(frozen=True)
class HeadQuantity:
    """A column of a table that holds one number per head.

    Grids and tables of heads read it. A row counts where it equals `where`, e.g. {"quantity": "entropy_share"}. `null`
    names the column of the null value; `notable` says which end of the scale stands out. `highest` and `lowest` name
    the head at an end ("flattest", "sharpest"). `habit` says what heads with more than `habit_above` do, in the plural
    ("look mostly at the first token"). `role` is a noun for the heads of which the column `role_column` is true
    ("induction head"); these heads have the habit then, whatever their number.
    """

    key: str
    label: str
    table: str
    column: str = "value"
    where: Mapping[str, str | int] = field(default_factory=dict)
    null: str = ""
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"
    notable: Literal["high", "low", "both"] = "high"
    highest: str = ""
    lowest: str = ""
    habit: str = ""
    habit_above: float = 0.5
    role: str = ""
    role_column: str = "has_role"


@dataclass(frozen=True)
class Headline:
    """One statement of a finding, in full and in short, and how large its effect is.

    `full` gives effect, interval, null and the number of windows. `short` has at most 20 words, one number and one
    comparison. `effect` runs from 0 (the null or the prediction itself) to 1 (as far from it as the measure can get),
    so that statements of different lenses can be ranked; it is None where the statement compares nothing. `answer` says
    the same in a few words, `value` and `null` are its number and what that is compared with, `figure` names the figure
    that shows it.
    """

    full: str
    short: str
    effect: float | None = None
    answer: str = ""
    value: str = ""
    null: str = ""
    figure: str = ""

    def __str__(self) -> str:
        return self.full


@dataclass(frozen=True, repr=False)
class Finding(Shown):
    """The result of a lens: tidy tables with a null or a prediction for each value.

    Tables always have the columns stack, kind, layer, head where the row is about a head (head is null where
    the row is about a whole site). `method` says how the numbers were obtained: exact, sampled, approximated.
    `quantities` and `curves` are numbers and curves of each head, `patterns` attention maps of each head: grids, tables
    and pages of heads read them.
    """

    lens: str
    about: About
    status: Literal["ok", "not applicable", "failed"] = "ok"
    reason: str = ""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    headlines: tuple[Headline, ...] = ()
    quantities: tuple[HeadQuantity, ...] = ()
    method: str = ""
    warnings: tuple[str, ...] = ()
    params: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    curves: tuple[HeadCurve, ...] = ()
    patterns: HeadPatterns | None = None

    @property
    def table(self) -> pl.DataFrame:
        """The first table, which is the lens's main one."""
        if not self.tables:
            raise UsageError(f"the finding of {self.lens!r} has no table: {self.status} ({self.reason})")
        return next(iter(self.tables.values()))

    def points(self) -> tuple[Point, ...]:
        """Its conclusions in short; where there are none, why not."""
        if self.status != "ok":
            return (Point(self.lens, f"{self.status}: {self.reason or 'no reason was given'}"),)
        return tuple(Point(self.lens, headline.short, headline.effect) for headline in self.headlines)

    def _card(self) -> Card:
        return Card(
            f"finding {self.lens}: {self.about.question}",
            points=tuple(replace(point, name="") for point in self.points()),
            facts=contents(self.tables, self.figures, self.warnings),
        )

    def _repr_html_(self) -> str:
        return render_html(self)


def contents(
    tables: Mapping[str, pl.DataFrame], figures: Sequence[Figure], warnings: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """What a finding or a measurement holds: its tables and figures by name, and its warnings."""
    table_names = [f"{name} ({counted(table.height, 'row')})" for name, table in tables.items()]
    facts = (
        ("tables", listed(table_names) if tables else ""),
        ("figures", listed([figure.name for figure in figures]) if figures else ""),
        ("warnings", " ".join(warnings)),
    )
    return tuple((name, text) for name, text in facts if text)
