"""The runs of all saved steps: each is measured once and kept in a run folder of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headscope.comparison.head_differences import shape
from headscope.core import Finding, HeadQuantity, Run
from headscope.errors import CheckpointError
from headscope.pipeline import Progress, measure
from headscope.progress import Stage, announce
from headscope.trajectories.quantity_choice import chosen_quantities


@dataclass(frozen=True)
class StepProgress:
    """Progress of one saved step: every task begins with its name, and the stages are the steps themselves."""

    listener: Progress
    name: str

    def step(self, task: str, done: int, total: int) -> None:
        """Show that `done` of `total` parts of `task` are finished."""
        self.listener.step(f"{self.name}: {task}", done, total)


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """The saved steps that have an answer, in order; of all others the reason why they have none.

    `last` is the run of the last step with an answer, or of the last step that opens where none has one.
    """

    lens: str
    quantities: tuple[HeadQuantity, ...]
    runs: Mapping[int, Run]
    reasons: Mapping[int, str]
    last: Run

    def findings(self) -> dict[int, Finding]:
        """The finding of each step that has an answer."""
        return {step: run.findings[self.lens] for step, run in self.runs.items()}


@dataclass(frozen=True, eq=False)
class Question:
    """A lens with its name and the keys of its quantities, and the other arguments of `measure`."""

    lens: Any
    name: str
    keys: Sequence[str] | None
    options: Mapping[str, Any]

    def run(self, folder: Path, out: Path | None, progress: Progress) -> Run:
        """The run of one step.

        Raises:
            CheckpointError: It does not open.
        """
        return measure(folder, lenses=[self.lens], out=out, progress=progress, **self.options)


def measured_steps(
    folders: Mapping[int, Path], question: Question, *, out: Path | None, progress: Progress
) -> MeasuredSteps:
    """Measure each saved step, or read what an earlier call has kept below `out`.

    Raises:
        CheckpointError: No step can be opened.
        UsageError: The lens has no such quantity; the first step tells.
    """
    announce(progress, [Stage(f"step {step}") for step in folders])
    runs: dict[int, Run] = {}
    reasons: dict[int, str] = {}
    quantities: tuple[HeadQuantity, ...] = ()
    last: Run | None = None
    for step, folder in folders.items():
        progress.step(f"step {step}", 0, 1)
        place = None if out is None else run_folder(out, question.name, step)
        try:
            run = question.run(folder, place, StepProgress(progress, f"step {step}"))
        except CheckpointError as error:
            reasons[step] = f"it does not open: {error.message}"
            continue
        if reason := _obstacle(run, question.name, runs):
            reasons[step] = reason
            last = last or run
        else:
            quantities = quantities or chosen_quantities(run.findings[question.name], question.keys)
            runs[step] = last = _numbers_alone(run, question.name)
        progress.step(f"step {step}", 1, 1)
    if last is None:
        step, reason = next(iter(reasons.items()))
        raise CheckpointError(f"none of {len(folders)} saved steps can be measured; step {step}: {reason}")
    return MeasuredSteps(question.name, quantities, runs, reasons, last)


def _numbers_alone(run: Run, lens: str) -> Run:
    """The run without arrays, figures and maps, which would fill the memory with every step."""
    finding = replace(run.findings[lens], arrays={}, figures=(), curves=(), patterns=None)
    return replace(run, findings={lens: finding})


def run_folder(out: Path, lens: str, step: int) -> Path:
    """Where the run of a step is kept; other lenses have folders of their own."""
    return out / "steps" / lens / f"{step:08d}"


def _obstacle(run: Run, lens: str, runs: Mapping[int, Run]) -> str:
    """Why a step is no part of the trajectory; empty where it is."""
    finding = run.findings[lens]
    if finding.status != "ok":
        return f"{finding.status}: {finding.reason}"
    first = next(iter(runs.values()), run)
    return "" if shape(run) == shape(first) else "its layers or heads are not those of the steps before it"
