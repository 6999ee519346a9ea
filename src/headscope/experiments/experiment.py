"""The contract of an experiment: one folder, one thing to do with a model.

An experiment runs the model itself, which a lens never does: it changes weights, writes text, compares states of the
model. Its result is a `Finding` like a lens's, so that store, report and command line know nothing new.

    check(params)                  refuses settings that make no sense, before a model is opened: `Params.check`
    stages(model, params)          → the tasks that `run` will report, for the time left
    run(model, params, progress)   → Finding, TextSpec
    show(finding)                  → Display: what fits on a terminal

An experiment that makes its model has `train(params, folder, progress)` → Made instead of `run`, and `makes_model` in
its `COMMAND`.

`settings.py` holds `Params`, a frozen dataclass whose fields are the options of the command (`cli/member_commands.py`
reads their types, defaults and metadata), and `COMMAND`, where the command is found. It loads no torch.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import polars as pl

from headscope.core import About, Finding, ModelSpec, Site, TextSpec, read_about
from headscope.errors import UsageError
from headscope.members import check_settings
from headscope.model.model import Model
from headscope.progress import Progress, Stage, Step


@runtime_checkable
class Settings(Protocol):
    """What every `Params` has: the seed of everything that is drawn at random."""

    @property
    def seed(self) -> int:
        """The seed."""
        ...


P = TypeVar("P", bound=Settings)


@dataclass(frozen=True)
class Passage:
    """Texts under a title, each with a label: what a model wrote in its several states."""

    title: str
    texts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Display:
    """What a terminal shows of a finding below its sentences: a table with short names, and texts."""

    table: pl.DataFrame
    passages: tuple[Passage, ...] = ()


class Experiment(ABC, Generic[P]):
    """A thing to do with a model. `command` is the path of its command, e.g. ("study", "fewshot").

    `keeps_threads`: it runs on as many threads as torch has, because it times the model as its users run it; other
    experiments run narrow models on one thread (`pipeline.threads`).
    """

    name: str
    command: tuple[str, ...]
    params: type[P]
    keeps_threads: bool = False

    @cached_property
    def about(self) -> About:
        """The prose of `about.md`, which lies in the experiment's folder."""
        home = sys.modules[type(self).__module__].__file__
        return read_about(Path(str(home)).with_name("about.md"))

    def check(self, params: P) -> None:
        """Refuse settings that make no sense, before a model is opened: `Params.check`, unless it is overridden.

        Raises:
            UsageError: They make no sense.
        """
        check_settings(params)

    def stages(self, model: Model, params: P) -> Sequence[Stage]:
        """The tasks that `run` will report, in order, with their expected seconds; none where it does not know."""
        return ()

    @abstractmethod
    def run(self, model: Model, params: P, progress: Step) -> tuple[Finding, TextSpec]:
        """The whole experiment; the model is afterwards what it was, to the last bit.

        Raises:
            UsageError: The experiment cannot be done with this model.
        """

    def show(self, finding: Finding) -> Display:
        """What a terminal shows: the main table, unless the experiment knows better."""
        return Display(finding.table)


@dataclass(frozen=True)
class Made:
    """What an experiment made: its model as plain data, what was measured, and on which text.

    `lenses` are asked about `model` too, each with its parameters, and have sections in the same report.
    """

    spec: ModelSpec
    sites: tuple[Site, ...]
    findings: tuple[Finding, ...]
    text: TextSpec
    model: Model | None = None
    lenses: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


class TrainingExperiment(Experiment[P]):
    """An experiment that trains its own models in a folder, as long as its user lets it.

    `default_out` is the folder where none is named. What a stopped experiment left in its folder is taken up.
    """

    default_out: str

    @abstractmethod
    def train(self, params: P, folder: Path, progress: Progress) -> Made:
        """Train the models, or go on with them, and judge them.

        Raises:
            UsageError: The folder holds the models of other settings.
        """

    def run(self, model: Model, params: P, progress: Step) -> tuple[Finding, TextSpec]:
        """Refuse a model: the experiment makes its own."""
        raise UsageError(
            f"experiment {self.name!r} trains its own model, and was given {model.spec.name}",
            hint="leave the model out",
        )


AnyExperiment = Experiment[Any]


def short_table(frame: pl.DataFrame, short_names: dict[str, str]) -> pl.DataFrame:
    """The named columns that a table has, under short names, in this order."""
    present = {name: short for name, short in short_names.items() if name in frame.columns}
    return frame.select(present.keys()).rename(present)
