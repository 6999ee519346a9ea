"""The progress of a command on standard error: one bar on a terminal, elsewhere a line every 30 seconds.

On a terminal the bar has the share of the whole, the present task and the time left, and a task that took a second or
longer leaves a line when it is over. In a pipe or a log a line every half minute says the same. The clock decides what
is shown, and nothing else.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING

from headscope.cli.screen import is_terminal
from headscope.progress import Course, Stage, duration

if TYPE_CHECKING:
    from headscope.cli.terminal_bar import TerminalBar

LOADING = "loading torch"
LINE_SECONDS = 30.0  # between two lines in a pipe
_BYTES = 2**16  # parts from which on they are bytes: nothing else is counted so far

Clock = Callable[[], float]


class Tracker:
    """The present task, how far it and the whole are, and since when."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock, self._course = clock, Course()
        self.task, self._done, self._total = "", 0, 0
        self._remark = ""
        self._task_start = self._course_start = clock()

    def plan(self, stages: Sequence[Stage]) -> None:
        """Expect these stages next."""
        if not self._course.has_begun:
            self._course_start = self._clock()
        self._course.plan(stages)

    def step(self, task: str, done: int, total: int) -> bool:
        """Take note of a step; whether the task is a new one."""
        is_new = task != self.task
        if is_new:
            self._task_start, self._remark = self._clock(), ""
        if not self._course.has_begun:
            self._course_start = self._clock()
        self.task, self._done, self._total = task, done, total
        self._course.step(task, done, total)
        return is_new

    def remark(self, words: str) -> None:
        """Take note of a few words about the present task."""
        self._remark = words

    @property
    def task_seconds(self) -> float:
        """How long the present task has taken."""
        return self._clock() - self._task_start

    @property
    def share(self) -> float | None:
        """The finished share of the whole, or of the present task where no stages are known; None where unknown."""
        if self._course.has_begun:
            return self._course.share
        return self._done / self._total if self._total > 0 and not self._course.stages else None

    @property
    def text(self) -> str:
        """The present task, the part of it that is in progress, and a remark: `running the text, window 4/11`."""
        return ", ".join(filter(None, (self._part, self._remark)))

    @property
    def _part(self) -> str:
        if self._total >= _BYTES:
            return f"{self.task}, {self._done / 1e6:.0f} of {self._total / 1e6:.0f} MB"
        return f"{self.task} {min(self._done + 1, self._total)}/{self._total}" if self._total > 1 else self.task

    @property
    def time_left(self) -> str:
        """How long it will take: `2 min left`; empty where nothing is known."""
        share = self.share
        if self._course.has_begun:
            return f"{duration(self._course.seconds_left(self._clock() - self._course_start))} left"
        return f"{duration(self.task_seconds * (1 - share) / share)} left" if share else ""

    def line(self) -> str:
        """All of it in one line: `43 %, running the text, window 4/11, 2 min left`."""
        share = "" if self.share is None else f"{100 * self.share:.0f} %"
        return ", ".join(filter(None, (share, self.text, self.time_left)))


class LineDisplay:
    """Writes where nobody looks: the first task at once, then a line at every tick."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def plan(self, stages: Sequence[Stage]) -> None:
        """Expect these stages next."""
        self._tracker.plan(stages)

    def step(self, task: str, done: int, total: int) -> None:
        """Take note of a step; the first one is written at once, as a sign of life."""
        is_first = not self._tracker.task
        self._tracker.step(task, done, total)
        if is_first:
            self._write(f"{task} …")

    def remark(self, words: str) -> None:
        """Take note of a few words, which the next line will hold."""
        self._tracker.remark(words)

    def tick(self) -> None:
        """Write how far the work is."""
        if self._tracker.task:
            self._write(self._tracker.line())

    def _write(self, line: str) -> None:
        with suppress(OSError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


@contextmanager
def shown_progress(*, loads_torch: bool = True, clock: Clock = time.monotonic) -> "Iterator[LineDisplay | TerminalBar]":
    """Progress for as long as the context lasts; it begins with the loading of torch, where that is to come."""
    with _display(clock) as display:
        if loads_torch and "torch" not in sys.modules:
            display.step(LOADING, 0, 0)
        yield display


def _display(clock: Clock) -> "AbstractContextManager[LineDisplay | TerminalBar]":
    if not is_terminal():
        return _in_lines(clock)
    from headscope.cli.terminal_bar import terminal_bar  # loads rich's bars, which nothing else needs

    return terminal_bar(Tracker(clock))


@contextmanager
def _in_lines(clock: Clock) -> Iterator[LineDisplay]:
    display, is_over = LineDisplay(Tracker(clock)), threading.Event()

    def write_lines() -> None:
        while not is_over.wait(LINE_SECONDS):
            display.tick()

    writer = threading.Thread(target=write_lines, name="progress", daemon=True)
    writer.start()
    try:
        yield display
    finally:
        is_over.set()
        writer.join()
