"""One bar on a terminal: the share of the whole, the present task, the time left."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn
from rich.text import Text

from headscope.cli.progress_display import Tracker
from headscope.cli.screen import err
from headscope.progress import Stage, duration

WORTH_A_LINE = 1.0  # seconds that a finished task took at least to leave a line


class TerminalBar:
    """Draws the bar; a finished task that took long enough leaves a line above it."""

    def __init__(self, tracker: Tracker, bar: Progress) -> None:
        self._tracker, self._bar = tracker, bar
        self._row = bar.add_task("", total=None)

    def plan(self, stages: Sequence[Stage]) -> None:
        """Expect these stages next."""
        self._tracker.plan(stages)

    def step(self, task: str, done: int, total: int) -> None:
        """Move the bar."""
        if task != self._tracker.task:
            self.finish_task()
        is_new = self._tracker.step(task, done, total)
        share = self._tracker.share
        self._bar.update(self._row, completed=share or 0.0, total=None if share is None else 1.0, refresh=is_new)

    def remark(self, words: str) -> None:
        """Show a few words about the present task."""
        self._tracker.remark(words)

    def finish_task(self) -> None:
        """Leave a line about the present task."""
        if self._tracker.task and self._tracker.task_seconds >= WORTH_A_LINE:
            seconds = duration(self._tracker.task_seconds)
            self._bar.console.print(Text(f"done: {self._tracker.text} ({seconds})", style="dim"))


class Words(ProgressColumn):
    """A text that is asked for whenever the bar is drawn."""

    def __init__(self, words: Callable[[], str]) -> None:
        super().__init__()
        self._words = words

    def render(self, task: Task) -> Text:
        """The text as it is now."""
        return Text(self._words(), no_wrap=True, overflow="ellipsis")


@contextmanager
def terminal_bar(tracker: Tracker) -> Iterator[TerminalBar]:
    """A bar for as long as the context lasts."""
    columns = (BarColumn(), TaskProgressColumn(), Words(lambda: tracker.text), Words(lambda: tracker.time_left))
    with Progress(*columns, console=err(), transient=True, refresh_per_second=4) as bar:
        display = TerminalBar(tracker, bar)
        yield display
        display.finish_task()
