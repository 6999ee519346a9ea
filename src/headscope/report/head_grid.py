"""Every head of a run with its numbers, whichever lenses they come from.

The atlas, the cards, the tables of heads and the first sentence of the report read it. It knows no lens by name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from headscope.core import Finding, HeadQuantity, Run, Site
from headscope.core.numbers import visible

Array = NDArray[np.float64]
_STACKS = {"enc": "Encoder", "dec": "Decoder", "only": "", "text": "Text", "image": "Image", "sound": "Sound"}


@dataclass(frozen=True)
class Panel:
    """The heads of one stack and kind of attention: a grid of layers and heads."""

    title: str
    layers: tuple[int, ...]
    columns: int
    causal: bool


@dataclass(frozen=True)
class Head:
    """One head, with the place of its panel."""

    label: str
    site: Site
    head: int
    panel: int


@dataclass(frozen=True, eq=False)
class HeadColumn:
    """One number for each head, NaN where there is none; `nulls` has the same form, or is None.

    `has_role` says which heads have the role of the quantity, where it names one.
    """

    lens: str
    lens_title: str
    question: str
    quantity: HeadQuantity
    values: Array
    nulls: Array | None
    has_role: NDArray[np.bool_] | None = None

    @property
    def key(self) -> str:
        """A name that no other column of the run has."""
        return f"{self.lens}.{self.quantity.key}"

    @property
    def has_habit(self) -> NDArray[np.bool_]:
        """The heads that do what the habit of the quantity says."""
        if self.has_role is not None:
            return self.has_role
        return np.asarray(self.values > self.quantity.habit_above)

    @property
    def common_null(self) -> float | None:
        """The null of all heads; None where heads have different ones, or none."""
        if self.nulls is None:
            return None
        finite_nulls = self.nulls[np.isfinite(self.nulls)]
        spread = float(np.ptp(finite_nulls)) if finite_nulls.size else np.inf
        return (
            float(finite_nulls[0])
            if spread <= 1e-9 * max(1e-300, float(np.abs(finite_nulls).max(initial=0.0)))
            else None
        )


@dataclass(frozen=True, eq=False)
class HeadGrid:
    """All heads of a run and all numbers that lenses offer about them.

    `problems` says of which quantities the numbers could not be read, and why.
    """

    panels: tuple[Panel, ...]
    heads: tuple[Head, ...]
    columns: tuple[HeadColumn, ...]
    problems: tuple[str, ...] = ()

    def of_lens(self, lens: str) -> tuple[HeadColumn, ...]:
        """The numbers that one lens offers."""
        return tuple(column for column in self.columns if column.lens == lens)


def head_grid(run: Run) -> HeadGrid:
    """The heads of a run in the order of its sites, with the numbers of all findings."""
    panels, places = panels_of(run.sites)
    heads = tuple(
        Head(site.head_label(head), site, head, places.index((site.stack, site.kind)))
        for site in run.sites
        for head in range(site.n_heads)
    )
    columns: list[HeadColumn] = []
    problems: list[str] = []
    for finding in run.findings.values():
        for quantity in finding.quantities:
            try:
                columns.append(_column(finding, quantity, heads))
            except Exception as error:  # noqa: BLE001 - one broken quantity must not cost the reader the others
                problems.append(f"{finding.lens}, {quantity.key}: {visible(str(error).partition(chr(10))[0])}")
    return HeadGrid(
        panels, heads, tuple(column for column in columns if np.isfinite(column.values).any()), (*problems,)
    )


def panels_of(sites: Sequence[Site]) -> tuple[tuple[Panel, ...], list[tuple[str, str]]]:
    """The panels of sites, and the stack and kind of each."""
    places = list(dict.fromkeys((site.stack, site.kind) for site in sites))
    groups = ([site for site in sites if (site.stack, site.kind) == place] for place in places)
    return tuple(_panel(group) for group in groups), [(stack, kind) for stack, kind in places]


def _panel(sites: Sequence[Site]) -> Panel:
    first = sites[0]
    title = "Cross-attention" if first.kind == "cross" else _STACKS[first.stack]
    layers = tuple(dict.fromkeys(site.layer for site in sites))
    return Panel(title, layers, max(site.n_heads for site in sites), all(site.causal for site in sites))


def _column(finding: Finding, quantity: HeadQuantity, heads: Sequence[Head]) -> HeadColumn:
    rows = matching_rows(finding.tables[quantity.table], quantity)
    values = numbers_by_head(rows, quantity.column, heads)
    nulls = numbers_by_head(rows, quantity.null, heads) if quantity.null else None
    has_role = numbers_by_head(rows, quantity.role_column, heads) == 1 if quantity.role else None
    about = finding.about
    return HeadColumn(finding.lens, about.title, about.question, quantity, values, nulls, has_role)


def matching_rows(table: pl.DataFrame, quantity: HeadQuantity) -> pl.DataFrame:
    """The rows of a table that hold a quantity, one for each head."""
    return table.filter(
        pl.col("head").is_not_null(), *(pl.col(name) == entry for name, entry in quantity.where.items())
    )


def numbers_by_head(rows: pl.DataFrame, column: str, heads: Sequence[Head]) -> Array:
    """The numbers of a column in the order of the heads, NaN for a head without a row."""
    numbers = dict(_numbers(rows, column))
    places = ((head.site.stack, head.site.kind, head.site.layer, head.head) for head in heads)
    return np.array([numbers.get(place, np.nan) for place in places], dtype=np.float64)


def _numbers(rows: pl.DataFrame, column: str) -> Iterator[tuple[tuple[str, str, int, int], float]]:
    for *place, number in rows.select("stack", "kind", "layer", "head", pl.col(column).cast(pl.Float64)).iter_rows():
        stack, kind, layer, head = place
        yield (stack, kind, layer, head), np.nan if number is None else number
