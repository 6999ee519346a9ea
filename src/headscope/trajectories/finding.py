"""The finding of a trajectory: curves, steepest changes and sentences, from the runs of all steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from headscope.core import Finding, read_about
from headscope.report.head_grid import head_grid
from headscope.training.saved_steps import FEWEST
from headscope.trajectories.curve_changes import CurveChanges, curve_changes
from headscope.trajectories.figures import head_curves, trajectory_figure
from headscope.trajectories.measured_steps import MeasuredSteps
from headscope.trajectories.quantity_curves import QuantityCurves, mean_curves, quantity_curves
from headscope.trajectories.sentences import headline
from headscope.trajectories.tables import changes_table, head_quantities, values_table

NAME = "trajectory"
_METHOD = (
    "Every saved step was measured alike. The steepest change is judged by the intervals of neighbouring steps as if "
    "they were independent. The lens at the last step: "
)


@dataclass(frozen=True, eq=False)
class Answer:
    """The finding, and the values of all heads at all steps."""

    finding: Finding
    values: pl.DataFrame


def answer(steps: MeasuredSteps) -> Answer:
    """The finding from the steps that have an answer; two of them at least make curves."""
    findings = steps.findings()
    if len(findings) < FEWEST:
        return Answer(_no_answer(steps), values_table(()))
    heads = head_grid(steps.last).heads
    curves = [quantity_curves(quantity, findings, heads) for quantity in steps.quantities]
    changes = curve_changes([*curves, *map(mean_curves, curves)])
    return Answer(_finding(steps, curves, changes[: len(curves)], changes[len(curves) :]), values_table(curves))


def _finding(
    steps: MeasuredSteps,
    curves: Sequence[QuantityCurves],
    heads: Sequence[CurveChanges],
    means: Sequence[CurveChanges],
) -> Finding:
    last = steps.last.findings[steps.lens]
    about = read_about(Path(__file__).with_name("about.md"))
    headlines = [headline(*pair) for pair in zip(heads, means, strict=True)]
    return Finding(
        NAME,
        replace(about, title=f"{about.title}: {last.about.title.lower()}"),
        tables={"heads": changes_table(heads), "means": changes_table(means)},
        figures=tuple(map(trajectory_figure, curves)),
        headlines=tuple(sorted(headlines, key=lambda entry: -1.0 if entry.effect is None else -entry.effect)),
        quantities=head_quantities(heads),
        curves=head_curves(curves),
        method=_METHOD + last.method,
        warnings=(*_missing(steps), *last.warnings),
        params={"lens": steps.lens, **last.params},
    )


def _missing(steps: MeasuredSteps) -> tuple[str, ...]:
    return tuple(f"Step {step} is left out: {reason}" for step, reason in steps.reasons.items())


def _no_answer(steps: MeasuredSteps) -> Finding:
    """Why there are no curves: the lens does not apply, or it failed, or too few steps open."""
    about = read_about(Path(__file__).with_name("about.md"))
    finding = steps.last.findings[steps.lens]
    if not steps.runs and finding.status != "ok":
        return Finding(NAME, about, finding.status, finding.reason, params={"lens": steps.lens})
    total = len(steps.runs) + len(steps.reasons)
    reason = f"{len(steps.runs)} of {total} saved steps can be measured, expected {FEWEST} at least"
    return Finding(NAME, about, "failed", f"{reason}. {' '.join(_missing(steps))}", params={"lens": steps.lens})
