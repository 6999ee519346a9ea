"""One writer per run folder: a lock that the system releases when its holder dies.

The lock file names the holder, for the error that another writer gets. Only the system's lock on it counts, so the
file of a killed process is simply taken over. On a file system without locks a run proceeds without one.
"""

import contextlib
import errno
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from headscope.errors import UsageError

NAME = ".headscope-lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
_ATTEMPTS = 100


class Lock:
    """The right to write into a folder, from `Lock(folder)` to `release`.

    Properties:
        - a second writer is refused  (tested: test_a_second_writer_is_refused)
        - the lock of a dead process is taken over  (tested: test_a_dead_writer_is_taken_over)
        - a file system without locks stops nobody  (tested: test_a_file_system_without_locks_stops_nobody)
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._lock = _acquire(self._path)
        self._is_released = False

    def release(self) -> None:
        """Let other processes write; harmless when done twice."""
        if self._is_released:
            return
        self._is_released = True
        # Removed while the lock is held, so that nobody can have taken it in between.
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.release()


def check_free(folder: Path) -> None:
    """Raise if another process is writing into the folder."""
    if (folder / NAME).exists():
        Lock(folder).release()


def _acquire(path: Path) -> FileLock | None:
    """The acquired lock; None on a file system without locks.

    A symbolic link is not followed.

    Raises:
        UsageError: Another writer holds the lock.
        OSError: The file cannot be written, for instance because it is a link.
    """
    lock = FileLock(path, blocking=False, thread_local=False, fallback_to_soft=False, on_acquired=_write_holder)
    for _ in range(_ATTEMPTS):
        try:
            lock.acquire()
        except Timeout:
            if path.exists():
                break
            # Its holder has just removed it: there is nothing to wait for.
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            raise
        else:
            return lock
    raise _refusal(path)


def _write_holder(file: int) -> None:
    """Write the holder into the open lock file; its name might lead elsewhere by now."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    os.ftruncate(file, 0)
    os.write(file, json.dumps({"process": os.getpid(), "machine": platform.node(), "since": since}).encode())


def _refusal(path: Path) -> UsageError:
    note: Any = None
    with contextlib.suppress(OSError, ValueError):
        note = json.loads(path.read_bytes())
    holder = "another process"
    if isinstance(note, dict):
        holder = f"process {note.get('process')} on {note.get('machine')}, since {note.get('since')}"
    return UsageError(
        f"{path.parent} is being written by {holder}",
        hint="wait until it is done, or choose another folder with --out",
    )
