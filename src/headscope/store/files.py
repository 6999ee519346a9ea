"""Files of a run folder: written in one step, and read as if a stranger had made them."""

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

# What a reader believes of a folder that a stranger may have made: whole runs of large models stay far below.
MOST_JSON = 32 * 2**20
MOST_BYTES = 2**30


def write(path: Path, data: bytes) -> str:
    """Put `data` under `path` in one step and return its sha256."""
    return write_file(path, data, RUN_FOLDER)


def write_json(path: Path, data: Any) -> str:
    """Readable, ordered, standard JSON.

    The name of a file that is no text gets question marks in it.
    """
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
    """What a JSON file holds.

    None where it is not JSON, or nested deeper than Python follows.
    """
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def read_bytes(path: Path, most: int) -> bytes | None:
    """The content of a regular file of at most `most` bytes.

    None for anything else, such as a pipe or a device.

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
    """The content of a file of a run.

    None where it is missing, far too large, or its sha256 is another one.
    """
    content = read_bytes(path, MOST_BYTES)
    return content if content is not None and sha256_of(content) == sha256 else None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity are not JSON


def disk_errors(path: Path) -> AbstractContextManager[None]:
    """Turn what the disk says of a run folder into an error that tells where and what to do."""
    return files.disk_errors(path, RUN_FOLDER)
