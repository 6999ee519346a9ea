"""Standard output and signals: what goes wrong with them becomes an error with an exit code, never a traceback."""

import contextlib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from headscope.errors import ResourceError

TERMINATED = 143


class Terminated(BaseException):
    """Somebody asked this process to end (SIGTERM); everything on the way out is done as after Ctrl-C."""


class ReaderGone(Exception):
    """Whoever read standard output (`head`, `less`) has seen enough."""


class Output:
    """Standard output, or what takes its place, whose failures are `ReaderGone` or a `ResourceError`.

    An OSError would not do: the library of the command line takes a broken pipe for an error of its own.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write some text."""
        with output_errors():
            if self._stream is None:
                raise OSError(errno.EBADF, "it is closed")
            return int(self._stream.write(text))

    def flush(self) -> None:
        """Write what is still held back."""
        with output_errors():
            if self._stream is not None:
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(io.StringIO() if self._stream is None else self._stream, name)


@contextlib.contextmanager
def output_errors() -> Iterator[None]:
    """Turn what the system says about standard output into an error that tells what to do."""
    try:
        yield
    except OSError as error:
        _discard_rest()
        if error.errno == errno.EPIPE:
            raise ReaderGone from error
        raise ResourceError(
            f"standard output cannot be written: {error.strerror}",
            hint="free some space, or send the output to another place",
        ) from error


@contextlib.contextmanager
def guarded_streams() -> Iterator[None]:
    """Standard output as `Output`, standard error always there, until the context ends."""
    before = sys.stdout, sys.stderr
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without "≤" is no reason to fail
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  for the rest of the process
    sys.stdout = Output(sys.stdout)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def termination() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, so that locks and half-written files are cleared away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


def _discard_rest() -> None:
    """Let what is still held back go nowhere: Python would complain again when it ends."""
    stream = sys.stdout
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
