"""The curves of all heads over the steps."""

from collections.abc import Sequence

import numpy as np

from headscope.core import Curves, HeadCurve, Series
from headscope.trajectories.quantity_curves import Array, QuantityCurves
from headscope.trajectories.step_axis import drawn_steps

MOST_BANDS = 8  # curves whose intervals are drawn: more of them would cover each other


def trajectory_figure(curves: QuantityCurves) -> Curves:
    """The curve of every head, with intervals where heads are few, and the mean null."""
    steps = drawn_steps(curves.steps)
    has_bands = curves.certainty == "interval" and len(curves.places) <= MOST_BANDS
    values, low, high = (curves.unscaled(array) for array in (curves.values, curves.low, curves.high))
    series = [
        Series(place.label, steps, values[index], *((low[index], high[index]) if has_bands else (None, None)))
        for index, place in enumerate(curves.places)
    ]
    if curves.null is not None:
        series.append(Series("null, mean over heads", steps, curves.null, role="null"))
    quantity = curves.quantity
    return Curves(
        quantity.key,
        f"{quantity.label}, over training",
        _caption(curves, has_bands=has_bands),
        "step",
        quantity.unit or quantity.label,
        tuple(series),
        log_x=True,
        log_y=curves.is_log,
    )


def _caption(curves: QuantityCurves, *, has_bands: bool) -> str:
    parts = [f"Lines: heads at {len(curves.steps)} saved steps."]
    if has_bands:
        parts.append("Bands: 95 % intervals.")
    if curves.null is not None:
        parts.append("Dotted: the mean null.")
    if curves.steps[0] == 0:
        parts.append(f"Step 0 is drawn one doubling before step {curves.steps[1]}.")
    return " ".join(parts)


def head_curves(all_curves: Sequence[QuantityCurves]) -> tuple[HeadCurve, ...]:
    """The curve of each head with its null, for the page of a head."""
    return tuple(
        HeadCurve(
            curves.quantity.key,
            f"{curves.quantity.label}, over training",
            "step",
            curves.quantity.unit or curves.quantity.label,
            tuple(place.label for place in curves.places),
            drawn_steps(curves.steps),
            curves.unscaled(curves.values),
            law=_law(curves.null),
            law_label="" if curves.null is None else "null, mean over heads",
            log_x=True,
            log_y=curves.is_log,
        )
        for curves in all_curves
    )


def _law(null: Array | None) -> Array | None:
    return None if null is None else np.asarray(null[None])
