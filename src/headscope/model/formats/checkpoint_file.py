"""One file of a checkpoint: its size, its hash, and the error where it cannot be read."""

import stat
from pathlib import Path

from headscope import files
from headscope.errors import CheckpointError


def file_size(file: Path) -> int:
    """The size of a regular file; a clear error for everything else that can be in its place."""
    try:
        status = file.stat()
    except FileNotFoundError as error:
        if file.is_symlink():
            raise CheckpointError(
                f"{file} is a link to {file.readlink()}, which does not exist",
                hint="copy the file itself, not the link to it",
            ) from error
        raise CheckpointError(f"{file} does not exist", hint="the checkpoint is incomplete: fetch it again") from error
    except OSError as error:
        raise unreadable(file, error) from error
    if not stat.S_ISREG(status.st_mode):
        file_kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise CheckpointError(
            f"{file} is {file_kind}, expected a file", hint="the checkpoint is incomplete: fetch it again"
        )
    return status.st_size


def unreadable(file: Path, error: OSError) -> CheckpointError:
    """The operating system does not let the file be read."""
    return CheckpointError(
        f"cannot read {file}: {error.strerror or error}",
        hint="check who may read the file and where it leads",
    )


def sha256_of(file: Path) -> str:
    """The sha256 of one file of a checkpoint, by which its weights are known; the file is read in blocks."""
    try:
        return files.sha256_of(file)
    except OSError as error:
        raise unreadable(file, error) from error
