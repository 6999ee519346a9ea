"""One quantity of all heads over the saved steps, with its intervals, and the mean over heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headscope.comparison.head_differences import Certainty, Estimates, estimates
from headscope.core import Finding, HeadQuantity
from headscope.report.head_grid import Head, matching_rows, numbers_by_head

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Place:
    """What a curve is about: a head, or the mean over the heads of a stack and kind."""

    label: str
    stack: str
    kind: str
    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True, eq=False)
class QuantityCurves:
    """A quantity over steps: a row for each place, a column for each step.

    Numbers are base-2 logarithms where `is_log`; `unscaled` takes them back. `null` is the mean null of the heads.
    """

    quantity: HeadQuantity
    places: tuple[Place, ...]
    steps: tuple[int, ...]
    values: Array
    low: Array
    high: Array
    windows: NDArray[np.int64]
    certainty: Certainty
    is_log: bool
    null: Array | None

    @property
    def span(self) -> float:
        """The range over all places and steps."""
        numbers = self.values[np.isfinite(self.values)]
        return float(np.ptp(numbers)) if numbers.size else 0.0

    def unscaled(self, numbers: Array) -> Array:
        """Numbers in the unit of the quantity."""
        return np.asarray(2.0**numbers if self.is_log else numbers)


def quantity_curves(quantity: HeadQuantity, findings: Mapping[int, Finding], heads: Sequence[Head]) -> QuantityCurves:
    """A quantity of all heads at every step; NaN at steps whose finding does not offer it."""
    columns = [_estimates(finding, quantity, heads) for finding in findings.values()]
    values, low, high = (
        np.stack([getattr(column, name) for column in columns], axis=1) for name in ("values", "low", "high")
    )
    certainty: Certainty = "unknown"
    if all(column.is_exact for column in columns):
        certainty, low, high = "exact", values, values
    elif any(column.has_interval for column in columns):
        certainty = "interval"
    curves = QuantityCurves(
        quantity,
        tuple(Place(head.label, head.site.stack, head.site.kind, head.site.layer, head.head) for head in heads),
        tuple(findings),
        values,
        low,
        high,
        _least_windows(columns),
        certainty,
        is_log=False,
        null=_null(quantity, findings, heads),
    )
    return _logarithmic(curves) if quantity.scale == "log" else curves


def _estimates(finding: Finding, quantity: HeadQuantity, heads: Sequence[Head]) -> Estimates:
    if any(other.key == quantity.key for other in finding.quantities):
        return estimates(finding, quantity, heads)
    missing = np.full(len(heads), np.nan)
    return Estimates(missing, missing, missing, np.zeros(len(heads), dtype=np.int64), is_exact=False)


def _least_windows(columns: Sequence[Estimates]) -> NDArray[np.int64]:
    """The least number of windows behind the numbers of each head, over the steps that have one."""
    most = np.iinfo(np.int64).max
    windows = np.stack([np.where(np.isfinite(column.values), column.windows, most) for column in columns]).min(0)
    return np.where(windows == most, 0, windows)


def _null(quantity: HeadQuantity, findings: Mapping[int, Finding], heads: Sequence[Head]) -> Array | None:
    """The mean null of the heads at each step; None where the quantity has none."""
    if not quantity.null:
        return None
    nulls = np.full(len(findings), np.nan)
    for index, finding in enumerate(findings.values()):
        if quantity.table in finding.tables:
            numbers = numbers_by_head(matching_rows(finding.tables[quantity.table], quantity), quantity.null, heads)
            nulls[index] = numbers[np.isfinite(numbers)].mean() if np.isfinite(numbers).any() else np.nan
    return nulls if np.isfinite(nulls).any() else None


def _logarithmic(curves: QuantityCurves) -> QuantityCurves:
    """The curves on a logarithmic scale where no number is 0; an interval that reaches 0 has no lower end there."""
    numbers = curves.values[np.isfinite(curves.values)]
    if not numbers.size or numbers.min() <= 0:
        return curves
    scaled: dict[str, Any] = {
        name: np.log2(np.where(array > 0, array, np.nan))
        for name, array in (("values", curves.values), ("low", curves.low), ("high", curves.high))
    }
    return replace(curves, **scaled, is_log=True)


def mean_curves(curves: QuantityCurves) -> QuantityCurves:
    r"""The mean over the heads of each stack and kind.

    Definition:
        The distance from the mean to an end of its interval is the mean of the heads' distances. No dependence between
        heads gives a larger error, since a standard deviation of a sum is at most the sum of standard deviations.
    """
    groups = dict.fromkeys((place.stack, place.kind) for place in curves.places)
    rows = [_members(curves, group) for group in groups]
    named = len(groups) > 1
    return replace(
        curves,
        places=tuple(Place(_mean_label(*group, named=named), *group) for group in groups),
        values=np.stack([curves.values[members].mean(0) for members in rows]),
        low=np.stack([curves.low[members].mean(0) for members in rows]),
        high=np.stack([curves.high[members].mean(0) for members in rows]),
        windows=np.array([curves.windows[members].min() for members in rows]),
    )


def _members(curves: QuantityCurves, group: tuple[str, str]) -> list[int]:
    """The heads of a stack and kind that have a number at every step, so that the mean is of the same heads at all."""
    members = [index for index, place in enumerate(curves.places) if (place.stack, place.kind) == group]
    return [index for index in members if np.isfinite(curves.values[index]).all()] or members


def _mean_label(stack: str, kind: str, *, named: bool) -> str:
    return f"mean over heads of {stack}{' cross' if kind == 'cross' else ''}" if named else "mean over heads"
