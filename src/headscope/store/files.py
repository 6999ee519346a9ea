"""Writes files of a run folder in one step, and reads them without trust."""

import errno
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from headscope import files
from headscope.errors import UsageError
from headscope.files import Destination, sha256_of, write_file

_FREE_SPACE = "free some space or choose another folder with --out; finished parts are kept"
RUN_FOLDER = Destination(
    failure="{path} could not be written: {reason}",
    hint="check the disk",
    full="the disk is full: {path} could not be written",
    hints={errno.ENOSPC: _FREE_SPACE, errno.EDQUOT: _FREE_SPACE},
    refusal="{path} cannot be written: {reason}",
    refusal_hint="choose another folder with --out",
)

# Size limits for a folder that a stranger may have made: complete runs of large models stay far below.
MOST_JSON = 32 * 2**20
MOST_BYTES = 2**30


def write(path: Path, data: bytes) -> str:
    """Write `data` to `path` in one step and return its sha256."""
    return write_file(path, data, RUN_FOLDER)


def write_json(path: Path, data: Any) -> str:
    """Write readable, ordered, standard JSON.

    Characters that cannot be encoded, as in some file names, become question marks.
    """
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return write(path, text.encode(errors="replace"))


def read_json(path: Path) -> Any:
    """The content of a JSON file; None where the file is missing or not JSON.

    Raises:
        UsageError: The system refuses to read the file.
    """
    content = read_bytes(path, MOST_JSON)
    return None if content is None else json_in(content)


def json_in(content: bytes) -> Any:
    """The content of JSON bytes.

    None where they are not JSON, or nested too deeply for Python.
    """
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def read_bytes(path: Path, most: int) -> bytes | None:
    """The content of a regular file of at most `most` bytes.

    None for anything else, such as a pipe or a device.

    Raises:
        UsageError: The system refuses to read the file.
    """
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= most else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="check who may read it") from error


def read_intact(path: Path, sha256: str) -> bytes | None:
    """The content of a file of a run.

    None where the file is missing, far too large, or has another sha256.
    """
    content = read_bytes(path, MOST_BYTES)
    return content if content is not None and sha256_of(content) == sha256 else None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity are not JSON


def disk_errors(path: Path) -> AbstractContextManager[None]:
    """Turn a disk error in a run folder into one that says where and what to do."""
    return files.disk_errors(path, RUN_FOLDER)
