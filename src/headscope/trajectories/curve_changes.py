"""The steepest change of every curve of a quantity, with its step and interval."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headscope.comparison.head_differences import FALSE_DISCOVERIES, ROUNDING
from headscope.maths.resampling.interval_difference import adjusted_p
from headscope.maths.resampling.steepest_change import SteepestChange, steepest_change
from headscope.trajectories.quantity_curves import Array, QuantityCurves
from headscope.trajectories.step_axis import doublings, middle_step

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CurveChanges:
    """Curves with the steepest change of each; `adjusted` allows for all curves of the trajectory."""

    curves: QuantityCurves
    change: SteepestChange
    adjusted: Array

    @property
    def effect(self) -> Array:
        """The steepest change as a share of the range over all curves and steps; NaN where no pair has both values."""
        pairs = self.change.pair.numpy()
        rows = np.arange(len(pairs))
        sizes = np.abs(self.curves.values[rows, pairs + 1] - self.curves.values[rows, pairs])
        span = self.curves.span
        shares = sizes / span if span > 0 else np.zeros_like(sizes)
        return np.where(pairs < 0, np.nan, shares)

    @property
    def tested(self) -> Flags:
        """The curves of whose steepest change the error is known."""
        return np.asarray(np.isfinite(self.change.p.numpy()))

    @property
    def detected(self) -> Flags:
        """The curves whose steepest change is more than its error allows, and more than rounding."""
        is_real = np.nan_to_num(self.effect) > ROUNDING
        return np.asarray(is_real & (np.nan_to_num(self.adjusted, nan=1.0) <= FALSE_DISCOVERIES))

    def saved_steps(self, index: int) -> tuple[int, int]:
        """The two neighbouring steps between which a curve changes most."""
        pair = int(self.change.pair[index])
        return self.curves.steps[pair], self.curves.steps[pair + 1]

    def step(self, index: int) -> int:
        """The step of steepest change of a curve."""
        return middle_step(self.curves.steps, int(self.change.pair[index]))

    def step_interval(self, index: int) -> tuple[int, int]:
        """The steps from the earliest to the latest pair that may be the steepest."""
        steps = self.curves.steps
        return steps[int(self.change.first[index])], steps[int(self.change.last[index]) + 1]


def curve_changes(all_curves: Sequence[QuantityCurves]) -> list[CurveChanges]:
    """The changes of curves of several quantities, with p-values adjusted for all of them together."""
    changes = [CurveChanges(curves, _steepest(curves), np.empty(0)) for curves in all_curves]
    p = torch.cat([entry.change.p for entry in changes])
    ends = np.cumsum([len(entry.change.p) for entry in changes])[:-1]
    parts = np.split(adjusted_p(p).numpy(), ends)
    return [replace(entry, adjusted=part) for entry, part in zip(changes, parts, strict=True)]


def _steepest(curves: QuantityCurves) -> SteepestChange:
    values, low, high = (_doubles(array) for array in (curves.values, curves.low, curves.high))
    # Numbers from weights alone have no sampling error and need no units; two let the test take its course.
    units = np.full(len(curves.places), 2) if curves.certainty == "exact" else curves.windows
    return steepest_change(_doubles(doublings(curves.steps)), values, (low, high), torch.from_numpy(units))


def _doubles(array: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))
