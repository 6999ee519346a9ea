"""Writes files so that a half-written one never stands under its final name."""

import errno
import os
import tempfile
from pathlib import Path

from headscope.errors import ResourceError

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space or choose another folder",
    errno.EDQUOT: "the quota is used up: free some space or choose another folder",
    errno.EACCES: "choose a folder that you may write to",
    errno.EROFS: "choose a folder that you may write to",
    errno.EISDIR: "this is a folder: name a file in it",
}


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to a temporary file beside `path`, then rename it."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".part", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise ResourceError(
            f"cannot write {path}: {error.strerror or error}",
            hint=_HINTS.get(error.errno or 0, "check the folder and the disk"),
        ) from error


def _umask() -> int:
    """The mask that ordinary files get; mkstemp makes private ones."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
