"""The progress of long work, reported to a listener.

The front end decides how it looks. A listener has two forms. Work of many steps (`hs.measure`, `hs.intervene`,
`hs.fewshot`) takes a `Progress`, an object with the method `step`. Work of one step (`hs.open`, `hs.text`, `hs.look`)
takes a `Step`, any function with the signature of that method; the bound method `progress.step` is one.

Work that knows its stages beforehand announces them (`announce`) to a listener that has the method `plan`. A stage is
a task with its expected seconds; `Course` makes one share of the whole of all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class Step(Protocol):
    """A function that is called repeatedly with the current task and its progress."""

    def __call__(self, task: str, done: int, total: int, /) -> None:
        """Show that `done` of `total` parts of `task` are finished.

        Parts are bytes in a download; `total` is 0 where unknown.
        """
        ...


@runtime_checkable
class Progress(Protocol):
    """An object that receives every step.

    The command line draws a bar on standard error.
    """

    def step(self, task: str, done: int, total: int, /) -> None:
        """Show that `done` of `total` parts of `task` are finished."""
        ...


class Silent:
    """A listener that shows nothing, the default of the library."""

    def step(self, task: str, done: int, total: int) -> None:
        """Ignore the step."""


silent = Silent().step

WRITING = "writing the report"  # the last task of whoever writes one


@dataclass(frozen=True)
class Stage:
    """A task that will come, and the seconds that it is expected to take."""

    task: str
    seconds: float = 1.0


@runtime_checkable
class Planner(Progress, Protocol):
    """A listener that wants to know the stages beforehand."""

    def plan(self, stages: Sequence[Stage], /) -> None:
        """Expect these stages next; stages announced earlier follow them."""
        ...


def announce(progress: Progress, stages: Sequence[Stage]) -> None:
    """Tell a listener which stages come next, if it wants to know."""
    if isinstance(progress, Planner):
        progress.plan(stages)


@runtime_checkable
class Commented(Progress, Protocol):
    """A listener that shows a few words about the present task."""

    def remark(self, words: str, /) -> None:
        """Show these words until others come or the task is over."""
        ...


def remark(progress: Progress, words: str) -> None:
    """Say a few words about the present task, such as its loss, to a listener that shows them."""
    if isinstance(progress, Commented):
        progress.remark(words)


class Course:
    """How far a piece of work is that consists of stages.

    Stages run in their order: where one begins, those before it are over. A task that nobody announced, such as a
    download, has no part in the whole.

    Definition:
        The share of the whole is the sum of the expected seconds of finished stages and of the finished part of the
        present one, divided by the sum over all stages. With the expected sum T, the share s and e seconds since the
        first stage began, the seconds left are (1 − s) T (e + k) / (s T + k), where k = 5 s: the expected time, and
        with every finished second more and more what the observed speed makes of it.
    Properties:
        - the share never falls unless stages are added  (tested: test_the_share_grows_from_0_to_1)
        - the time left is the expected one at first, and exact for steady work  (tested: test_time_left)
    """

    PRIOR_SECONDS = 5.0

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._present = -1  # the index of the stage that runs, -1 before the first
        self._part = 0.0

    def plan(self, stages: Sequence[Stage]) -> None:
        """Insert stages after the present one; stages planned earlier follow them."""
        self.stages[self._present + 1 : self._present + 1] = stages

    def step(self, task: str, done: int, total: int) -> None:
        """Take note of a step."""
        ahead = range(max(self._present, 0), len(self.stages))
        index = next((index for index in ahead if self.stages[index].task == task), None)
        if index is None:
            return
        part = done / total if total > 0 else 0.0
        self._part = max(self._part, part) if index == self._present else part
        self._present = index

    @property
    def has_begun(self) -> bool:
        """Whether a stage has begun."""
        return self._present >= 0

    @property
    def share(self) -> float:
        """The finished share of the whole, from 0 to 1."""
        if not self.has_begun:
            return 0.0
        past = sum(stage.seconds for stage in self.stages[: self._present])
        expected = self.expected_seconds
        return (past + self._part * self.stages[self._present].seconds) / expected if expected > 0 else 0.0

    @property
    def expected_seconds(self) -> float:
        """What all stages together are expected to take."""
        return sum(stage.seconds for stage in self.stages)

    def seconds_left(self, elapsed: float) -> float:
        """How long the work will go on, `elapsed` seconds after its first stage began."""
        expected, share = self.expected_seconds, self.share
        slowness = (elapsed + self.PRIOR_SECONDS) / (share * expected + self.PRIOR_SECONDS)
        return (1 - share) * expected * slowness


def duration(seconds: float) -> str:
    """A time for people, in the unit that fits: 45 s, 12 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
