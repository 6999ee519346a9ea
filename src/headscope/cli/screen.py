"""Errors and notes for people, on standard error; data goes to standard output."""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from headscope.cli.streams import TERMINATED, Terminated

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LINE_START = "\r\x1b[2K"  # back to the beginning of the line, which is then empty


def err() -> "Console":
    """Standard error as it is now (tests replace it)."""
    from rich.console import Console  # takes as long to load as all commands together

    return Console(stderr=True, highlight=False, soft_wrap=True)


def is_terminal() -> bool:
    """Whether a person reads standard error."""
    return sys.stderr.isatty()


def note(message: str) -> None:
    """A line for people, beside the data."""
    _say(("", _printable(message)))


def complain(message: str, hint: str = "") -> None:
    """What was wrong, then what to do about it."""
    _say(("bold red", "error: "), ("", _printable(message)))
    if hint:
        _say(("bold", " hint: "), ("", _printable(hint)))


def _say(*parts: tuple[str, str]) -> None:
    # Where standard error itself is full there is nobody left to tell; the exit code still says it.
    with suppress(OSError):
        if not is_terminal():
            sys.stderr.write("".join(text for _, text in parts) + "\n")
            return
        from rich.text import Text

        err().print(Text.assemble(*((text, style) for style, text in parts)))


def _printable(text: str) -> str:
    """The text without characters that steer a terminal: names in it may come from a stranger."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


@contextmanager
def starting_line() -> Iterator[None]:
    """A line on a terminal while the program starts; it is gone before anything else is written."""
    if not is_terminal():
        yield
        return
    with suppress(OSError):
        sys.stderr.write("headscope is starting …")
        sys.stderr.flush()
    try:
        yield
    finally:
        with suppress(OSError):
            sys.stderr.write(_LINE_START)
            sys.stderr.flush()


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


@contextmanager
def resumable(folder: Path | None) -> Iterator[None]:
    """On Ctrl-C or SIGTERM say in one line what is kept and end with the code that shells expect."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        advice = f"; finished findings are in {folder}/, the same command goes on from there" if folder else ""
        note(f"\nstopped{advice}")
        sys.exit(TERMINATED if isinstance(stop, Terminated) else INTERRUPTED)
