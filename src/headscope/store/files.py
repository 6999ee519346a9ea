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
    """Readable, ordered, standard JSON."""
    return write(path, (json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file; None where there is none or it is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError, json.JSONDecodeError):
        return None


def sha256_of(path: Path) -> str:
    """Hash of a file; empty where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


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
        if isinstance(error, (PermissionError, NotADirectoryError, FileExistsError, IsADirectoryError)):
            raise UsageError(
                f"{path} cannot be written: {error.strerror}", hint="choose another folder with --out"
            ) from error
        raise ResourceError(f"{path} could not be written: {error.strerror}", hint="check the disk") from error
