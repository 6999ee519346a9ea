"""Whether a folder can hold a run, asked before any work; loads no torch and no tables."""

import errno
import os
from pathlib import Path

from headscope.errors import UsageError
from headscope.files import shortened
from headscope.folder_lock import NAME as LOCK
from headscope.folder_lock import check_free
from headscope.store.files import disk_errors, read_json
from headscope.store.journal import NAME as JOURNAL
from headscope.store.journal import SCHEMA, read_journal
from headscope.store.names import MANIFEST, PARTS

_CONFIG = "config.json"  # every folder with a checkpoint has it


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot hold a run, or that another process writes into.

    This refuses everything that `RunFolder.begin` would refuse, before a model is opened.

    Raises:
        UsageError: The folder holds other things, cannot be made, leads elsewhere, or its journal is damaged.
    """
    if "\0" in str(path):
        raise UsageError("the name of the run folder holds a zero byte", hint="choose another folder with --out")
    with disk_errors(path):
        _check_place(path)
        if path.exists() and not _is_ours(path):
            obstacle = "is not empty and holds no headscope run" if path.is_dir() else "is a file, expected a folder"
            raise UsageError(f"{path} {obstacle}; nothing was written", hint="choose another folder with --out")
        for part in PARTS:
            # Files are written and removed below these folders: a link would lead elsewhere.
            if (path / part).is_symlink() or ((path / part).exists() and not (path / part).is_dir()):
                raise UsageError(
                    f"{path / part} is not a folder of its own; nothing was written", hint="choose another with --out"
                )
        read_journal(path)
        check_free(path)


def _check_place(path: Path) -> None:
    """Raise what the system would raise when the folder is made or written to."""
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if nearest != path and not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
    if nearest.is_dir() and not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest))


def check_finished(path: Path) -> None:
    """Refuse a folder without a finished run.

    Raises:
        UsageError: There is none.
    """
    if not _is_marked(path / MANIFEST):
        raise no_finished_run(path)


def is_run_folder(path: Path) -> bool:
    """Whether a folder holds a run, finished or not; one with a checkpoint's config.json holds a model."""
    if not path.is_dir() or (path / _CONFIG).exists():
        return False
    return any((path / name).exists() for name in (MANIFEST, JOURNAL))


def no_finished_run(path: Path) -> UsageError:
    """The error for a folder without a finished run."""
    return UsageError(
        f"{shortened(path)} holds no finished run: {_state(path)}", hint="make one with `headscope report --out FOLDER`"
    )


def _is_marked(path: Path) -> bool:
    data = read_json(path)
    return isinstance(data, dict) and data.get("schema") == SCHEMA


def _is_ours(path: Path) -> bool:
    if not path.is_dir():
        return False
    is_run = any(_is_marked(path / name) for name in (MANIFEST, JOURNAL))
    return is_run or all(file.name == LOCK for file in path.iterdir())


def _state(path: Path) -> str:
    if not path.exists():
        return "it does not exist"
    if not path.is_dir():
        return "it is a file"
    if (path / MANIFEST).exists():
        return "its manifest.json is not one of a headscope run"
    return "a run was started there and not finished" if _is_marked(path / JOURNAL) else "no manifest.json"
