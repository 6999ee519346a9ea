"""What can be compared, asked before anything is fetched or loaded; loads no torch."""

import re
from collections.abc import Sequence
from pathlib import Path

from headscope.errors import UsageError
from headscope.model.sources.names import check_name
from headscope.store.folder_check import check_finished, check_folder, is_run_folder

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 60  # characters of the name of a folder
_USAGE = "name two or more models or run folders, e.g. headscope compare tiny ./my-model"


def check_sources(names: Sequence[str | Path], *, hub: bool = False, out: Path | None = None) -> None:
    """Refuse fewer than two, the same twice, names that mean nothing, and folders that cannot hold the runs.

    Raises:
        UsageError: One of these, or a run folder without a finished run.
        CheckpointError: A model is written as a path, and there is nothing.
    """
    if len(names) < 2:
        raise UsageError(f"compare needs at least two, {len(names)} was named", hint=_USAGE)
    _check_different(names)
    for name in names:
        if is_run_folder(Path(name)):
            check_finished(Path(name))
        else:
            check_name(name, hub=hub)
    if out is not None:
        check_place(out)
        for folder in run_folders(names, out).values():
            check_folder(folder)


def _check_different(names: Sequence[str | Path]) -> None:
    identities = [_identity(name) for name in names]
    for index, identity in enumerate(identities):
        if identity in identities[:index]:
            raise UsageError(f"{names[index]} is named twice, and a model equals itself", hint=_USAGE)


def _identity(name: str | Path) -> str:
    path = Path(name).expanduser()
    is_path = path.exists() and (isinstance(name, Path) or is_run_folder(path) or len(path.parts) > 1)
    return str(path.resolve()) if is_path else str(name)


def check_place(out: Path) -> None:
    """Refuse a file where a folder for the page and the runs is expected."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file, expected a folder", hint="choose another folder with --out")


def run_folders(names: Sequence[str | Path], out: Path) -> dict[int, Path]:
    """The folder below `out` for each name that is no run folder itself; none is used twice."""
    used = {Path(name).resolve() for name in names if is_run_folder(Path(name))}
    folders: dict[int, Path] = {}
    for index, name in enumerate(names):
        if not is_run_folder(Path(name)):
            folders[index] = _unused(out, _slug(str(name)), used)
            used.add(folders[index].resolve())
    return folders


def _slug(name: str) -> str:
    """The end of a name, in characters that every file system takes."""
    last = name.rstrip("/").rpartition("/")[2]
    return _UNSAFE.sub("-", last).strip(".-")[-_LONGEST:] or "model"


def _unused(out: Path, slug: str, used: set[Path]) -> Path:
    candidates = (out / (slug if number == 1 else f"{slug}-{number}") for number in range(1, len(used) + 2))
    return next(folder for folder in candidates if folder.resolve() not in used)
