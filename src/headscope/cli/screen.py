"""Errors, notes and progress for people, on standard error; data goes to standard output."""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from headscope.cli.streams import TERMINATED, Terminated

INTERRUPTED = 130

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def err() -> Console:
    """Standard error as it is now (tests replace it)."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def note(message: str) -> None:
    """A line for people, beside the data."""
    _say(Text(_printable(message)))


def complain(message: str, hint: str = "") -> None:
    """What was wrong, then what to do about it."""
    _say(Text.assemble(("error: ", "bold red"), _printable(message)))
    if hint:
        _say(Text.assemble((" hint: ", "bold"), _printable(hint)))


def _say(text: Text) -> None:
    # Where standard error itself is full there is nobody left to tell; the exit code still says it.
    with suppress(OSError):
        err().print(text)


def _printable(text: str) -> str:
    """The text without characters that steer a terminal: names in it may come from a stranger."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


@contextmanager
def noted_warnings(noted: type[Warning]) -> Iterator[None]:
    """Warnings of one category as notes for as long as the context lasts; the others as they were."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", noted)
        show_other = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, noted):
                note(f"left out: {message}")
            else:
                show_other(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


class Bars:
    """Draws one bar per label; where standard error is no terminal, one line per label."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def step(self, what: str, done: int, total: int) -> None:
        """`done` of `total` parts of `what` are finished; total 0 is unknown."""
        new = what not in self._tasks
        if self._progress is None:
            self._tasks.setdefault(what, TaskID(0))
            if new:
                sys.stderr.write(f"{what} …\n")
            return
        if new:
            self._tasks[what] = self._progress.add_task(what, total=total or None)
        self._progress.update(self._tasks[what], completed=done, total=total or None)


@contextmanager
def resumable(folder: Path | None) -> Iterator[None]:
    """On Ctrl-C or SIGTERM say in one line what is kept and end with the code that shells expect."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        advice = f"; finished findings are in {folder}/, the same command goes on from there" if folder else ""
        err().print(Text(f"\nstopped{advice}"))
        sys.exit(TERMINATED if isinstance(stop, Terminated) else INTERRUPTED)


@contextmanager
def bars() -> Iterator[Bars]:
    """Progress for as long as the context lasts."""
    console = err()
    if not console.is_terminal:
        yield Bars(None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bars(progress)
