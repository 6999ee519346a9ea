"""One writer per run folder: a lock file that the operating system itself gives up when its holder dies.

The file says who holds the lock, for the error that another writer gets; it is the system's lock on it that
counts, so what a killed process left behind is simply taken over. On a file system that knows no locks a run goes on
without one.
"""

import contextlib
import errno
import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headscope.errors import UsageError

NAME = ".headscope-lock"
_HELD = (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)

if sys.platform == "win32":
    import msvcrt

    def _take(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _take(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Lock:
    """The right to write into a folder, from `Lock(folder)` to `release`.

    Properties:
        - a second writer is refused  (tested: test_a_second_writer_is_refused)
        - the lock of a dead process is taken over  (tested: test_a_dead_writer_is_taken_over)
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._file: int | None = self._opened()
        os.ftruncate(self._file, 0)
        os.write(self._file, _holder())

    def release(self) -> None:
        """Let others write; harmless when done twice."""
        if self._file is not None:
            # Removed while it is still held: nobody can have taken it in between.
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None

    def _opened(self) -> int:
        while True:
            # A link is not followed: it could lead to a file of the user, which would be emptied.
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
            try:
                _take(file)
            except OSError as error:
                if error.errno in _HELD:
                    os.close(file)
                    raise _refusal(self._path) from error
            if _is_same(file, self._path):
                return file
            os.close(file)  # its holder removed it just now: try the one that is there instead


def check_free(folder: Path) -> None:
    """Raise if another process is writing into the folder."""
    if (folder / NAME).exists():
        Lock(folder).release()


def _is_same(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _holder() -> bytes:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"process": os.getpid(), "machine": platform.node(), "since": now}).encode()


def _refusal(path: Path) -> UsageError:
    said: Any = None
    with contextlib.suppress(OSError, ValueError):
        said = json.loads(path.read_bytes())
    who = "another process"
    if isinstance(said, dict):
        who = f"process {said.get('process')} on {said.get('machine')}, since {said.get('since')}"
    return UsageError(
        f"{path.parent} is being written by {who}",
        hint="wait until it is done, or choose another folder with --out",
    )
