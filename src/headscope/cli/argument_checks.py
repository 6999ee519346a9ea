"""Checks of arguments that several commands share: what can be refused is refused before torch is loaded."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.catalogue import Amount, check_folder, check_model, check_text, lens_member
from headscope.cli.list_options import listed
from headscope.errors import ResourceError, UsageError
from headscope.progress import Progress

if TYPE_CHECKING:
    from headscope.api import Text


def check_lenses(values: Sequence[str] | None) -> list[str] | None:
    """The names of lenses that an option lists, None where it is not given; refuses names that no lens has."""
    if values is None:
        return None
    return [lens_member(name).name for name in listed(values)]


def check_request(
    model: str,
    *,
    hub: bool = False,
    text: str | None = None,
    out: Path | None = None,
    first_tokens: int | None = None,
    all_windows: bool = False,
) -> None:
    """Refuse a model, a text, an amount of it or a run folder that cannot be meant; nothing is fetched or read.

    Raises:
        UsageError: One of them does not exist or makes no sense.
        CheckpointError: The model is written as a path, and there is nothing.
    """
    Amount(first_tokens, all_windows)
    if out is not None:
        check_folder(out)
    check_model(model, hub=hub)
    if text is not None:
        check_text(text)


def requested_text(spelling: str | None, device: str | None, progress: Progress) -> "Text | None":
    """The text that a command names, fetched if need be; a device that torch does not know is refused before."""
    from headscope import api

    if device is not None:
        api.check_device(device)
    return None if spelling is None else api.text(spelling, progress=progress.step)


def stated_sentence(text: str | None) -> str | None:
    """The text itself, where an option holds several words that are no file; else None."""
    is_sentence = text is not None and len(text.split()) > 1 and not is_file(text)
    return text if is_sentence else None


def sentence_text(sentence: str) -> "Text":
    """A sentence of the command line as a text."""
    from headscope import api

    return api.Text("text of the command line", (sentence,))


def is_file(path: str) -> bool:
    """Whether there is such a file; a sentence may be longer than any name of a file."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def check_table(name: str | None, tables: Sequence[str], owner: str) -> None:
    """Refuse a table that a lens or an experiment does not make; without a list of tables nothing is refused."""
    if name is not None and tables and name not in tables:
        raise UsageError(f"{owner} makes no table {name!r}", hint=f"its tables are {', '.join(tables)}")


def check_file(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before the work whose result it is to hold."""
    folder = path.absolute().parent
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        reason = "permission denied"
    else:
        return
    raise ResourceError(f"cannot write {path}: {reason}", hint=f"choose another file with {option}")


def check_drawings(folder: Path) -> None:
    """Refuse a folder for drawings that is a file, or that nobody may write to."""
    hint = "choose another folder with --out"
    try:
        nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:
        raise ResourceError(f"cannot write to this folder: {error.strerror}", hint=hint) from error
    if not nearest.is_dir():
        raise UsageError(f"{nearest} is a file, expected a folder", hint=hint)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ResourceError(f"cannot write to {nearest}: permission denied", hint=hint)
