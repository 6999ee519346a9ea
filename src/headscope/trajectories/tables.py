"""The tables of a trajectory: the steepest changes of heads and of their mean, and all values over the steps."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from headscope.core import HeadQuantity
from headscope.trajectories.curve_changes import CurveChanges
from headscope.trajectories.quantity_curves import Place, QuantityCurves

CHANGES, VALUES = "changes", "values"
_PLACE = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "quantity": pl.String}
CHANGES_SCHEMA = pl.Schema(
    _PLACE
    | dict.fromkeys(("value", "null", "detectable"), pl.Float64)
    | dict.fromkeys(("step", "step_low", "step_high", "before", "after"), pl.Int64)
    | dict.fromkeys(("value_before", "value_after", "value_first", "value_last", "effect", "p", "adjusted"), pl.Float64)
    | {"detected": pl.Boolean, "certainty": pl.String, "windows": pl.Int64}
)
VALUES_SCHEMA = pl.Schema(
    _PLACE | {"step": pl.Int64} | dict.fromkeys(("value", "low", "high"), pl.Float64) | {"windows": pl.Int64}
)


def changes_table(changes: Iterable[CurveChanges]) -> pl.DataFrame:
    """A row for each curve: its steepest change, the step, and how sure both are."""
    rows = [row for entry in changes for row in _change_rows(entry)]
    return pl.DataFrame(rows, schema=CHANGES_SCHEMA, orient="row")


def _change_rows(entry: CurveChanges) -> Iterator[tuple[Any, ...]]:
    curves, change = entry.curves, entry.change
    effect, tested, detected = entry.effect, entry.tested, entry.detected
    for index, place in enumerate(curves.places):
        pair = int(change.pair[index])
        if pair < 0:
            continue
        values = curves.unscaled(curves.values[index])
        is_undetected = tested[index] and not detected[index]
        yield (
            *_cells(place, curves.quantity),
            float(change.rate[index]),
            0.0,
            _number(float(change.detectable[index])),
            *((None, None, None) if is_undetected else _steps(entry, index)),
            *entry.saved_steps(index),
            *(_number(values[place_of_step]) for place_of_step in (pair, pair + 1, 0, -1)),
            float(effect[index]),
            _number(float(change.p[index])),
            _number(entry.adjusted[index]),
            bool(detected[index]) if tested[index] else None,
            curves.certainty,
            int(curves.windows[index]),
        )


def _steps(entry: CurveChanges, index: int) -> tuple[int, int | None, int | None]:
    """The step with its interval, which takes a known error."""
    low, high = entry.step_interval(index) if entry.tested[index] else (None, None)
    return entry.step(index), low, high


def values_table(all_curves: Iterable[QuantityCurves]) -> pl.DataFrame:
    """A row for each head, quantity and step, with the interval that the lens stores."""
    rows = [row for curves in all_curves for row in _value_rows(curves)]
    return pl.DataFrame(rows, schema=VALUES_SCHEMA, orient="row")


def _value_rows(curves: QuantityCurves) -> Iterator[tuple[Any, ...]]:
    is_interval = curves.certainty == "interval"
    values, low, high = (curves.unscaled(array) for array in (curves.values, curves.low, curves.high))
    for index, place in enumerate(curves.places):
        for column, step in enumerate(curves.steps):
            ends = (low[index, column], high[index, column]) if is_interval else (np.nan, np.nan)
            numbers = map(_number, (values[index, column], *ends))
            yield (*_cells(place, curves.quantity), step, *numbers, int(curves.windows[index]))


def _cells(place: Place, quantity: HeadQuantity) -> tuple[Any, ...]:
    return place.stack, place.kind, place.layer, place.head, quantity.key


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def head_quantities(changes: Sequence[CurveChanges]) -> tuple[HeadQuantity, ...]:
    """What a grid of heads shows: how steep the change is, and at which step it happens."""
    return tuple(quantity for entry in changes for quantity in _pair(entry.curves))


def _pair(curves: QuantityCurves) -> tuple[HeadQuantity, HeadQuantity]:
    quantity, where = curves.quantity, {"quantity": curves.quantity.key}
    return (
        HeadQuantity(
            f"{quantity.key}_change",
            f"{quantity.label}: steepest change per doubling",
            "heads",
            where=where,
            null="null",
            unit="doublings" if curves.is_log else quantity.unit,
            notable="both",
        ),
        HeadQuantity(
            f"{quantity.key}_step",
            f"{quantity.label}: step of steepest change",
            "heads",
            column="step",
            where=where,
            scale="log",
            notable="low",
            lowest=f"first to change: {quantity.label}",
        ),
    )
