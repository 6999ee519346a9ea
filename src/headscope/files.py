"""Writes files in one step, hashes them, and translates disk errors.

A file is complete or absent: it is written under a temporary name, flushed, and renamed.
"""

import errno
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headscope.errors import HeadscopeError, ResourceError, UsageError

TEMPORARY = ".headscope-partial"

_BLOCK = 1 << 20
_NAME_AT_MOST = 40  # characters of a name in its temporary name: a file system allows 255 bytes
_PATH_AT_MOST = 200  # characters of a path in a message
_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
_REFUSED = (PermissionError, NotADirectoryError, FileExistsError, IsADirectoryError)


@dataclass(frozen=True)
class Destination:
    """The messages and hints for disk errors at one kind of place.

    Messages hold `{path}` and `{reason}`; hints say what to do. Without `full` a full disk gets the message of any
    other failure. With `refusal`, a path that the system refuses is an error of usage; without it, of the machine.
    """

    failure: str
    hint: str
    full: str = ""
    hints: Mapping[int, str] = field(default_factory=dict)  # by error number
    refusal: str = ""
    refusal_hint: str = ""


def write_file(path: Path, content: bytes, destination: Destination) -> str:
    """Write `content` to `path` in one step and return its sha256.

    Raises:
        HeadscopeError: The disk is full or refuses the path, in the words of `destination`.
    """
    with disk_errors(path, destination):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name[:_NAME_AT_MOST]}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
        try:
            with partial.open("xb") as file:  # never through a link that someone put there
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    return sha256_of(content)


def sweep(folder: Path) -> None:
    """Remove temporary files that a killed process may have left."""
    for partial in folder.rglob(f".*{TEMPORARY}"):
        partial.unlink(missing_ok=True)


def sha256_of(source: Path | bytes) -> str:
    """The sha256 of a file, read in blocks, or of bytes."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    digest = hashlib.sha256()
    with source.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def disk_errors(path: Path, destination: Destination) -> Iterator[None]:
    """Turn a disk error into one that says where it happened and what to do."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, path, destination) from error


def disk_error(error: OSError, path: Path, destination: Destination) -> HeadscopeError:
    """Translate a file system error for the user: a full disk, a forbidden folder, …"""
    reason, number = error.strerror or error, error.errno or 0
    hint = destination.hints.get(number, destination.hint)
    if destination.full and number in _FULL:
        return ResourceError(destination.full.format(path=path), hint=hint)
    if destination.refusal and (isinstance(error, _REFUSED) or number in _UNUSABLE):
        return UsageError(
            destination.refusal.format(path=shortened(path), reason=reason), hint=destination.refusal_hint
        )
    return ResourceError(destination.failure.format(path=path, reason=reason), hint=hint)


def shortened(path: Path) -> str:
    """The path for a message; a very long one is cut."""
    text = str(path)
    return text if len(text) <= _PATH_AT_MOST else f"{text[:_PATH_AT_MOST]} … ({len(text)} characters)"
