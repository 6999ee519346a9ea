"""Long tables made wide: one row per head or layer, one column per quantity, the null in the header.

A stored table has a row for each number. It begins with the place (stack, kind, layer, head), then come the columns
that tell rows of one place apart, then the numbers, of which `value` is the main one. In a table about heads everything
that tells rows apart becomes a column; in other tables only `quantity` does, unless a single row would be left.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from headscope.core import HeadQuantity
from headscope.core.numbers import cell, decimals, visible

PLACE = ("stack", "kind", "layer", "head")
_QUANTITY, _VALUE, _NULL = "quantity", "value", "null"
_SAME = 1e-9  # nulls that differ by less are one


@dataclass(frozen=True)
class WideColumn:
    """A column of texts or numbers; `low`, `high` and `nulls` belong to the rows, `null` to all of them."""

    label: str
    values: tuple[Any, ...]
    is_number: bool = True
    unit: str = ""
    null: float | None = None
    nulls: tuple[float | None, ...] | None = None
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    meaning: str = ""

    @property
    def digits(self) -> int | None:
        """The decimals that serve all values."""
        return decimals(value for value in self.values if value is not None) if self.is_number else None

    def cell_text(self, row: int) -> str:
        """The text of one cell."""
        value = self.values[row]
        if self.is_number:
            return cell(value, self.digits)
        return "–" if value is None else visible(str(value))


@dataclass(frozen=True)
class WideTable:
    """Rows with their labels, and the columns; `constants` are columns that say the same in every row."""

    name: str
    labels: tuple[str, ...]
    of_heads: bool
    columns: tuple[WideColumn, ...]
    constants: tuple[tuple[str, str], ...] = ()


def wide_table(
    name: str, frame: pl.DataFrame, glossary: Mapping[str, str], quantities: Sequence[HeadQuantity] = ()
) -> WideTable:
    """The wide form of a stored table; `quantities` name some of its columns."""
    of_heads = "head" in frame.columns and frame["head"].null_count() < frame.height
    keys = _keys(frame)
    constants = tuple((column, str(frame[column][0])) for column in keys if _is_constant(frame[column]))
    varying = [column for column in keys if not _is_constant(frame[column])]
    across = varying if of_heads else [column for column in varying if column == _QUANTITY]
    down = [column for column in varying if column not in across]
    if len(set(_identities(frame, down))) == 1:
        across, down = [], varying
    rows = list(dict.fromkeys(_identities(frame, down)))
    wide = _Widened(frame, rows, down, across, _meanings(glossary), [q for q in quantities if q.table == name])
    columns = [*wide.row_columns(), *(wide.measure_columns() if across else wide.plain_columns(keys))]
    return WideTable(name, tuple(map(_label, rows)), of_heads, tuple(columns), constants)


def _keys(frame: pl.DataFrame) -> list[str]:
    """The columns that tell rows of one place apart.

    Those before the first number with a fraction; where they do not tell all rows apart, later ones that help.
    """
    columns = [name for name in frame.columns if name not in PLACE]
    first = next((i for i, name in enumerate(columns) if frame.schema[name].is_float()), len(columns))
    names, place = columns[:first], [name for name in PLACE if name in frame.columns]
    for name in (name for name in columns[first:] if not frame.schema[name].is_float()):
        n_distinct = frame.select(place + names).n_unique() if place + names else 1
        if n_distinct == frame.height:
            break
        names += [name] if frame.select([*place, *names, name]).n_unique() > n_distinct else []
    return names


def _is_constant(series: pl.Series) -> bool:
    return len(series) > 0 and series.n_unique() == 1


def _identities(frame: pl.DataFrame, down: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """What a row of the wide table is about: its place, and the keys that stay in the rows."""
    place = [pl.col(name) if name in frame.columns else pl.lit(None).alias(name) for name in PLACE]
    return frame.select(*place, *down).iter_rows()


def _label(identity: tuple[Any, ...]) -> str:
    """`L3.H7`, `dec.L3.cross`; empty where a row is about the whole model."""
    stack, kind, layer, head = identity[: len(PLACE)]
    parts = [
        "" if stack in (None, "only") else str(stack),
        "" if layer is None else f"L{layer}",
        "cross" if kind == "cross" else "",
        "" if head is None else f"H{head}",
    ]
    return ".".join(part for part in parts if part)


def _meanings(glossary: Mapping[str, str]) -> dict[str, str]:
    """The meaning of each column; one entry of the glossary may describe several: `layer, head`."""
    return {name.strip(): meaning for names, meaning in glossary.items() for name in names.split(",")}


@dataclass(frozen=True)
class _Widened:
    """A table on its way from long to wide."""

    frame: pl.DataFrame
    rows: list[tuple[Any, ...]]
    down: list[str]
    across: list[str]
    meanings: Mapping[str, str]
    quantities: Sequence[HeadQuantity]

    def row_columns(self) -> Iterator[WideColumn]:
        """The keys that stay in the rows, as columns."""
        for index, name in enumerate(self.down, start=len(PLACE)):
            values = tuple(row[index] for row in self.rows)
            is_number = self.frame[name].dtype.is_numeric()
            yield WideColumn(_plain(name), values, is_number, meaning=self.meanings.get(name, ""))

    def plain_columns(self, keys: Sequence[str]) -> Iterator[WideColumn]:
        """Every other column as it is, for a table with one row per place."""
        ends = {f"{name}{end}" for name in self.frame.columns for end in ("_low", "_high")} | {"low", "high"}
        for name, dtype in self.frame.schema.items():
            series = self.frame[name]
            is_said = name in (*PLACE, *keys, *ends) or (_is_constant(series) and not dtype.is_float())
            if is_said or series.null_count() == len(series):
                continue
            column = WideColumn(_plain(name), tuple(series.to_list()), dtype.is_numeric())
            low, high = self._ends(self.frame, name)
            yield replace(column, low=low, high=high, meaning=self.meanings.get(name, ""))

    def measure_columns(self) -> Iterator[WideColumn]:
        """One column for each combination of the keys, and one for each other number that a quantity names."""
        for combination, part in self.frame.group_by(self.across, maintain_order=True):
            entries = dict(zip(self.across, combination, strict=True))
            named = [quantity for quantity in self.quantities if _matches(quantity, entries)]
            measures = dict.fromkeys([_VALUE, *(quantity.column for quantity in named)])
            for measure in measures:
                if measure in part.columns and part[measure].null_count() < part.height:
                    quantity = next((quantity for quantity in named if quantity.column == measure), None)
                    yield self._measure(part, measure, entries, quantity)

    def _measure(
        self, part: pl.DataFrame, measure: str, entries: Mapping[str, Any], quantity: HeadQuantity | None
    ) -> WideColumn:
        by_row = part.with_columns(pl.Series("_row", list(_identities(part, self.down)), dtype=pl.Object))
        places = {identity: index for index, identity in enumerate(by_row["_row"].to_list())}
        order = [places.get(identity) for identity in self.rows]

        def in_order(name: str) -> tuple[Any, ...]:
            values = part[name].to_list()
            return tuple(None if index is None else values[index] for index in order)

        low, high = (name if name in part.columns else None for name in _end_names(measure))
        null_name = quantity.null if quantity is not None else self._null_name(part, measure)
        nulls = in_order(null_name) if null_name and null_name in part.columns else None
        null = _common(nulls)
        return WideColumn(
            label=quantity.label if quantity is not None else _combined(entries, measure),
            values=in_order(measure),
            unit=quantity.unit if quantity is not None else "",
            null=null,
            nulls=None if null is not None or nulls is None or not any(map(_is_known, nulls)) else nulls,
            low=in_order(low) if low and part[low].null_count() < part.height else None,
            high=in_order(high) if high and part[high].null_count() < part.height else None,
        )

    def _null_name(self, part: pl.DataFrame, measure: str) -> str:
        """The column of the null: the one that quantities of this table name, or `null`."""
        names = [quantity.null for quantity in self.quantities if quantity.column == measure and quantity.null]
        return next(iter(dict.fromkeys(names)), _NULL if measure == _VALUE else "")

    def _ends(self, frame: pl.DataFrame, measure: str) -> tuple[Any, Any]:
        low, high = _end_names(measure)
        if low not in frame.columns or high not in frame.columns:
            return None, None
        return tuple(frame[low].to_list()), tuple(frame[high].to_list())


def _end_names(measure: str) -> tuple[str, str]:
    """The columns of an interval: `low` and `high` of the value, `share_low` and `share_high` of a share."""
    return ("low", "high") if measure == _VALUE else (f"{measure}_low", f"{measure}_high")


def _matches(quantity: HeadQuantity, entries: Mapping[str, Any]) -> bool:
    return all(entries.get(name, entry) == entry for name, entry in quantity.where.items())


def _combined(entries: Mapping[str, Any], measure: str) -> str:
    """The entries of a combination in words: `QK stable rank`, `distance 4`."""
    words = [str(entry) if isinstance(entry, str) else f"{name} {entry}" for name, entry in entries.items()]
    return _plain(" ".join(words if measure == _VALUE else [*words, measure]))


def _plain(name: str) -> str:
    return name.replace("_", " ")


def _is_known(value: float | None) -> bool:
    return value is not None and bool(np.isfinite(value))


def _common(values: Sequence[float | None] | None) -> float | None:
    """The one number that all known values are; None where they differ or there is none."""
    finite_values = [value for value in values or () if value is not None and np.isfinite(value)]
    if not finite_values or max(finite_values) - min(finite_values) > _SAME * max(map(abs, finite_values)):
        return None
    return finite_values[0]
