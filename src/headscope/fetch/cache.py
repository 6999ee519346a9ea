"""The cache: folders that appear complete or not at all, with sizes and hashes.

Several processes may want the same folder at the same time: each fills a temporary one and renames it; the
first rename wins and the others use it.
"""

import contextlib
import errno
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from headscope.files import Destination, disk_errors, sha256_of

_MANIFEST = "headscope-cache.json"
_STALE_S = 24 * 3600
_FREE_SPACE = "free some space, or set HEADSCOPE_CACHE to a folder on another disk"
CACHE = Destination(
    failure="cannot write {path}: {reason}",
    hint="set HEADSCOPE_CACHE to a folder that you may write to",
    full="no space left on the disk while writing {path}",
    hints={errno.ENOSPC: _FREE_SPACE, errno.EDQUOT: _FREE_SPACE},
)


def cache_folder() -> Path:
    """The folder of fetched and derived files.

    `HEADSCOPE_CACHE`, else the convention of the platform.
    """
    if setting := os.environ.get("HEADSCOPE_CACHE"):
        return Path(setting).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "headscope"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "headscope"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headscope"


def about(folder: Path, *, contents: bool = False) -> dict[str, str] | None:
    """The notes from the installation of `folder`.

    None where the folder is missing or a file has changed its size. With `contents` the sha256 of every file is
    compared too, which finds changes at equal size and added files.
    """
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        intact = all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
        if intact and contents:
            names = {path.name for path in folder.iterdir()} - {_MANIFEST}
            intact = names == set(manifest["files"]) and all(
                sha256_of(folder / name) == manifest["sha256"][name] for name in names
            )
        return {str(key): str(value) for key, value in manifest["about"].items()} if intact else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def install(folder: Path, fill: Callable[[Path], None], *, notes: Mapping[str, str], contents: bool = False) -> Path:
    """Let `fill` write a temporary folder, then rename it to `folder`.

    An intact folder of that name stays; with `contents` the files themselves are checked too.
    """
    with disk_errors(folder, CACHE):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            new = Path(temporary, "new")
            new.mkdir()
            fill(new)
            _write_manifest(new, notes)
            _rename(new, folder, contents=contents)
    return folder


def _write_manifest(folder: Path, notes: Mapping[str, str]) -> None:
    files = sorted(folder.iterdir())
    sizes = {path.name: path.stat().st_size for path in files}
    hashes = {path.name: sha256_of(path) for path in files}
    text = json.dumps({"about": dict(notes), "files": sizes, "sha256": hashes}, indent=2, sort_keys=True)
    (folder / _MANIFEST).write_text(text, encoding="utf-8")


def _rename(new: Path, folder: Path, *, contents: bool) -> None:
    try:
        new.rename(folder)
    except OSError:
        if about(folder, contents=contents) is not None:
            return  # another process was faster, and its folder is complete
        # Damaged leftovers are moved away, never written into: nobody sees a mixture.
        folder.rename(new.with_name("damaged"))
        new.rename(folder)


def _sweep(parent: Path) -> None:
    """Remove the leftovers of killed processes; a day is longer than any download."""
    for leftover in parent.glob(".*-*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _STALE_S:
                shutil.rmtree(leftover, ignore_errors=True)
