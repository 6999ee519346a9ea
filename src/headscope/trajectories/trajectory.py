"""Trajectory: the heads of a network over the saved steps of its training."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from headscope.comparison.source_check import check_place
from headscope.core import Finding, Run
from headscope.core.card import Card, Shown
from headscope.core.numbers import counted
from headscope.lenses import lens_named
from headscope.progress import Progress, Silent
from headscope.report.files import write_bytes
from headscope.report.page import write
from headscope.training.saved_steps import check_trajectory, saved_steps
from headscope.trajectories.finding import NAME, answer
from headscope.trajectories.measured_steps import MeasuredSteps, Question, measured_steps
from headscope.trajectories.tables import CHANGES, VALUES, changes_table

PAGE = "trajectory.html"


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory(Shown):
    """Numbers of heads over steps, and the steepest change of each.

    `run` holds the finding; `values` has a row for each head, quantity and step. `reasons` says of each step that is
    left out why it is.
    """

    run: Run
    lens: str
    steps: tuple[int, ...]
    values: pl.DataFrame
    reasons: Mapping[int, str]

    @property
    def finding(self) -> Finding:
        """The curves, the changes and what follows from them."""
        return self.run.findings[NAME]

    @property
    def changes(self) -> pl.DataFrame:
        """A row for each head and quantity, then for each mean over heads: the steepest change and its step."""
        tables = list(self.finding.tables.values())
        return pl.concat(tables) if tables else changes_table(())

    def save(self, folder: str | Path) -> Path:
        """Write `trajectory.html`, `changes.parquet` and `values.parquet`; returns the page's path."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in ((CHANGES, self.changes), (VALUES, self.values)):
            buffer = io.BytesIO()
            table.write_parquet(buffer)
            write_bytes(folder / f"{name}.parquet", buffer.getvalue())
        return write(self.run, folder / PAGE)

    def sentences(self) -> tuple[str, ...]:
        """Where each quantity changes most steeply."""
        return tuple(headline.full for headline in self.finding.headlines)

    def _card(self) -> Card:
        return Card(
            f"trajectory of {self.run.model.name}, lens {self.lens}, {counted(len(self.steps), 'saved step')}",
            points=tuple(replace(point, name="") for point in self.finding.points()),
            facts=(("tables", "changes, values"),),
            end=("`trajectory.save(folder)` writes the page.",),
        )


def trajectory(
    training: str | Path,
    lens: Any,
    *,
    quantities: Sequence[str] | None = None,
    params: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Trajectory:
    """Measure the saved steps of a training with a lens, and find where its heads change; `api` has the arguments."""
    folder = Path(training)
    check_trajectory(folder)
    name = lens_named(lens).name if isinstance(lens, str) else lens.name
    place = None if out is None else Path(out)
    if place is not None:
        check_place(place)
    named_params = None if params is None else {name: params}
    question = Question(lens, name, quantities, {"params": named_params, **options})
    steps = measured_steps(saved_steps(folder), question, out=place, progress=progress or Silent())
    measured = answer(steps)
    run = _run(steps, folder, measured.finding)
    followed = Trajectory(run, name, tuple(steps.runs), measured.values, steps.reasons)
    if place is not None:
        followed.save(place)
    return followed


def _run(steps: MeasuredSteps, folder: Path, finding: Finding) -> Run:
    """The run of the last step with the finding of all, under the name of the training."""
    last = max(steps.runs, default=None)
    note = () if last is None else (f"size and hash are those of the weights of step {last}",)
    spec = replace(steps.last.model, name=folder.resolve().name, notes=(*steps.last.model.notes, *note))
    return replace(steps.last, model=spec, findings={NAME: finding})
