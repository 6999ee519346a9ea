"""Files that are whole or absent: written under a temporary name, flushed, renamed."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headscope.errors import ResourceError, UsageError

TEMPORARY = ".headscope-partial"

# What a reader believes of a folder that a stranger may have made: whole runs of large models stay far below.
MOST_JSON = 32 * 2**20
MOST_BYTES = 2**30

_LONGEST = 200  # characters of a path in a message
_UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)


def write(path: Path, data: bytes) -> str:
    """Put `data` under `path` in one step and return its sha256."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}{TEMPORARY}")
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    return hashlib.sha256(data).hexdigest()


def write_json(path: Path, data: Any) -> str:
    """Readable, ordered, standard JSON; the name of a file that is no text gets question marks in it."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return write(path, text.encode(errors="replace"))


def read_json(path: Path) -> Any:
    """The content of a JSON file; None where there is none or it is not JSON.

    Raises:
        UsageError: The system does not let the file be read.
    """
    content = read_bytes(path, MOST_JSON)
    return None if content is None else json_in(content)


def json_in(content: bytes) -> Any:
    """What a JSON file holds; None where it is not JSON, or nested deeper than Python follows."""
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def read_bytes(path: Path, most: int) -> bytes | None:
    """The content of a regular file of at most `most` bytes; None for anything else, such as a pipe or a device.

    Raises:
        UsageError: The system does not let the file be read.
    """
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= most else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="check who may read it") from error


def read_intact(path: Path, sha256: str) -> bytes | None:
    """The content of a file of a run; None where it is missing, far too large, or its sha256 is another one."""
    content = read_bytes(path, MOST_BYTES)
    return content if content is not None and hashlib.sha256(content).hexdigest() == sha256 else None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity are not JSON


def sweep(folder: Path) -> None:
    """Remove what a killed run may have left under temporary names."""
    for partial in folder.rglob(f".*{TEMPORARY}"):
        partial.unlink(missing_ok=True)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the disk says into an error that tells where and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(
                f"the disk is full: {path} could not be written",
                hint="free some space or choose another folder with --out; finished parts are kept",
            ) from error
        refused = isinstance(error, (PermissionError, NotADirectoryError, FileExistsError, IsADirectoryError))
        if refused or error.errno in _UNUSABLE:
            raise UsageError(
                f"{shortened(path)} cannot be written: {error.strerror}", hint="choose another folder with --out"
            ) from error
        raise ResourceError(f"{path} could not be written: {error.strerror}", hint="check the disk") from error


def shortened(path: Path) -> str:
    """The path for a message: a name that is far too long is cut."""
    text = str(path)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text)} characters)"
