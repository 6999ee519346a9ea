r"""The numbers of heads in two runs: both values, their difference, its interval, its effect.

Definition:
    The difference is the other run's value minus the base's. Its interval treats the two estimates as independent
    (`maths.resampling.interval_difference`). On the same windows they vary together, and where that correlation is
    positive the interval is wider than it has to be. A head moved in a quantity where the interval leaves 0 out and the
    p-value stays below 5 % after adjustment for all heads and quantities of the pair. Numbers that come from weights
    alone have no sampling error: every difference beyond rounding (effects above 10⁻⁶) counts.

    The effect is $|y - x| / (\max - \min)$ over all heads of both runs, from 0 to 1; logarithms take the place of the
    numbers where the quantity has a logarithmic scale. The movement of a head is the mean over lenses of its largest
    effect in a quantity in which it moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from headscope.core import Finding, HeadQuantity, Run
from headscope.maths.resampling.interval_difference import adjusted_p, difference_interval, difference_p
from headscope.report.head_grid import Array, Head, HeadGrid, head_grid, matching_rows, numbers_by_head

FALSE_DISCOVERIES = 0.05
ROUNDING = 1e-6  # effects up to this come from the rounding of single precision
Certainty = Literal["interval", "exact", "unknown"]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Estimates:
    """One quantity of all heads in one run; `low` and `high` are NaN where no interval is stored."""

    values: Array
    low: Array
    high: Array
    windows: NDArray[np.int64]
    is_exact: bool  # from weights alone

    @property
    def has_interval(self) -> bool:
        """Whether any head has an interval."""
        return bool(np.isfinite(self.low).any())


@dataclass(frozen=True, eq=False)
class QuantityDifference:
    """One quantity of all heads, in the order of the grid, in both runs."""

    lens: str
    lens_title: str
    question: str
    quantity: HeadQuantity
    base: Array
    other: Array
    low: Array
    high: Array
    p: Array
    adjusted: Array
    effect: Array
    certainty: Certainty

    @property
    def key(self) -> str:
        """A name that no other quantity of the pair has."""
        return f"{self.lens}.{self.quantity.key}"

    @property
    def difference(self) -> Array:
        """The other run's value minus the base's."""
        return self.other - self.base

    @property
    def moved(self) -> Flags:
        """The heads whose difference is more than the error allows; none where no error is known."""
        is_real = np.nan_to_num(self.effect) > ROUNDING
        if self.certainty == "exact":
            return is_real
        # A p-value below 5 % after adjustment was so before: the interval leaves 0 out.
        return is_real & (np.nan_to_num(self.adjusted, nan=1.0) <= FALSE_DISCOVERIES)

    @property
    def beyond_rounding(self) -> Array:
        """The difference, 0 where it is no more than rounding."""
        return np.where(self.effect <= ROUNDING, 0.0, self.difference)

    @property
    def counted_effect(self) -> Array:
        """The effect where the head moved, 0 elsewhere."""
        return np.where(self.moved, self.effect, 0.0)


@dataclass(frozen=True, eq=False)
class HeadDifferences:
    """All heads of two runs of the same shape; `skipped` says which quantities are not compared, and why."""

    grid: HeadGrid
    quantities: tuple[QuantityDifference, ...]
    skipped: tuple[str, ...] = ()

    @property
    def lenses(self) -> tuple[str, ...]:
        """The lenses that compare heads."""
        return tuple(dict.fromkeys(quantity.lens for quantity in self.quantities))

    def of_lens(self, lens: str) -> tuple[QuantityDifference, ...]:
        """The quantities of one lens."""
        return tuple(quantity for quantity in self.quantities if quantity.lens == lens)

    @property
    def movement(self) -> Array:
        """How far each head moved, from 0 to 1: each lens counts with its largest effect."""
        if not self.quantities:
            return np.zeros(len(self.grid.heads))
        largest = [np.max([quantity.counted_effect for quantity in self.of_lens(lens)], axis=0) for lens in self.lenses]
        return np.asarray(np.mean(largest, axis=0), dtype=np.float64)

    def moved_by(self, certainty: Certainty) -> Flags:
        """The heads that moved in a quantity of this certainty."""
        flags = [quantity.moved for quantity in self.quantities if quantity.certainty == certainty]
        return np.any(flags, axis=0) if flags else np.zeros(len(self.grid.heads), dtype=bool)

    def ranking(self) -> list[int]:
        """The heads that moved, the farthest first."""
        movement = self.movement
        return [int(head) for head in np.argsort(-movement, kind="stable") if movement[head] > 0]


def shape(run: Run) -> tuple[tuple[str, str, int, int], ...]:
    """What two runs must share so that their heads correspond: sites in order, and heads at each."""
    return tuple((site.stack, site.kind, site.layer, site.n_heads) for site in run.sites)


def head_differences(base: Run, other: Run, lenses: Sequence[str]) -> HeadDifferences:
    """Every quantity that both runs have, for every head; the runs have the same shape."""
    grid = head_grid(base)
    skipped: list[str] = []
    raw: list[QuantityDifference] = []
    for lens in lenses:
        quantities, reasons = _of_lens(base.findings[lens], other.findings[lens], grid.heads)
        raw += quantities
        skipped += reasons
    return HeadDifferences(grid, tuple(_adjusted(raw)), tuple(skipped))


def _of_lens(base: Finding, other: Finding, heads: Sequence[Head]) -> tuple[list[QuantityDifference], list[str]]:
    counterparts = {quantity.key: quantity for quantity in other.quantities}
    quantities: list[QuantityDifference] = []
    skipped: list[str] = []
    for quantity in base.quantities:
        if reason := _obstacle(quantity, counterparts.get(quantity.key)):
            skipped.append(f"{base.lens}, {quantity.label}: {reason}")
            continue
        try:
            pair = estimates(base, quantity, heads), estimates(other, counterparts[quantity.key], heads)
        except Exception as error:  # noqa: BLE001 - a run may come from a stranger: one broken quantity costs no other
            skipped.append(f"{base.lens}, {quantity.label}: {type(error).__name__}: {error}".partition("\n")[0])
            continue
        if np.isfinite(pair[0].values + pair[1].values).any():
            quantities.append(_difference(base, quantity, *pair))
    return quantities, skipped


def _obstacle(base: HeadQuantity, other: HeadQuantity | None) -> str:
    if other is None:
        return "the other run does not have it"
    if dict(base.where) != dict(other.where):
        choices = (", ".join(f"{key} {entry}" for key, entry in quantity.where.items()) for quantity in (base, other))
        return f"it is another number in each run ({' and '.join(choices)})"
    if (base.column, base.unit, base.scale) != (other.column, other.unit, other.scale):
        return "it is read from another column, or has another unit"
    return ""


def estimates(finding: Finding, quantity: HeadQuantity, heads: Sequence[Head]) -> Estimates:
    """The numbers of one quantity with what is stored about their error."""
    rows = matching_rows(finding.tables[quantity.table], quantity)
    low, high = interval_columns(quantity.column)
    has_ends = low in rows.columns and high in rows.columns
    missing = np.full(len(heads), np.nan)
    return Estimates(
        values=numbers_by_head(rows, quantity.column, heads),
        low=numbers_by_head(rows, low, heads) if has_ends else missing,
        high=numbers_by_head(rows, high, heads) if has_ends else missing,
        windows=_windows(rows, heads),
        is_exact="windows" not in rows.columns,
    )


def interval_columns(column: str) -> tuple[str, str]:
    """The columns that hold the ends of a column's interval."""
    return ("low", "high") if column == "value" else (f"{column}_low", f"{column}_high")


def _windows(rows: pl.DataFrame, heads: Sequence[Head]) -> NDArray[np.int64]:
    if "windows" not in rows.columns:
        return np.zeros(len(heads), dtype=np.int64)
    return np.nan_to_num(numbers_by_head(rows, "windows", heads)).astype(np.int64)


def _difference(finding: Finding, quantity: HeadQuantity, base: Estimates, other: Estimates) -> QuantityDifference:
    values, low, high = (
        [torch.from_numpy(getattr(part, name)) for part in (base, other)] for name in ("values", "low", "high")
    )
    ends = difference_interval(values[0], (low[0], high[0]), values[1], (low[1], high[1]))
    windows = torch.from_numpy(np.minimum(base.windows, other.windows))
    p = difference_p(values[1] - values[0], ends, windows).numpy()
    certainty: Certainty = (
        "interval"
        if base.has_interval and other.has_interval
        else "exact" if base.is_exact and other.is_exact else "unknown"
    )  # fmt: skip
    return QuantityDifference(
        lens=finding.lens,
        lens_title=finding.about.title,
        question=finding.about.question,
        quantity=quantity,
        base=base.values,
        other=other.values,
        low=ends[0].numpy(),
        high=ends[1].numpy(),
        p=p,
        adjusted=np.full_like(p, np.nan),
        effect=effects(base.values, other.values, is_log=quantity.scale == "log"),
        certainty=certainty,
    )


def effects(base: Array, other: Array, *, is_log: bool = False) -> Array:
    """The difference as a share of the range over all heads of both runs, from 0 to 1; NaN without a number."""
    pooled = np.concatenate((base, other))
    pooled = pooled[np.isfinite(pooled)]
    if is_log and pooled.size and pooled.min() > 0:
        return effects(np.log(base), np.log(other))
    span = float(np.ptp(pooled)) if pooled.size else 0.0
    size = np.abs(other - base)
    return np.asarray(size / span if span > 0 else np.where(np.isfinite(size), 0.0, np.nan), dtype=np.float64)


def _adjusted(quantities: Sequence[QuantityDifference]) -> list[QuantityDifference]:
    """The quantities with p-values adjusted for all of them together."""
    if not quantities:
        return []
    together = adjusted_p(torch.from_numpy(np.stack([quantity.p for quantity in quantities]))).numpy()
    return [replace(quantity, adjusted=row) for quantity, row in zip(quantities, together, strict=True)]
