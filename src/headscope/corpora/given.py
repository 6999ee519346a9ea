"""Whatever a caller may give as text: a Text, the text itself, a file, standard input, or the name of a text."""

import difflib
from pathlib import Path

from headscope.corpora import fetched
from headscope.corpora.catalogue import SOURCES
from headscope.corpora.splits import SPLITS, Split, part_of, splits_of
from headscope.corpora.text import SHIPPED, Text, documents_in, read_text, shipped_text
from headscope.errors import UsageError
from headscope.fetch.progress import Progress

NAMES = (SHIPPED, *SOURCES)


def text_of(what: "Text | str | Path | None", progress: Progress | None = None) -> Text:
    """A Text, a string that is the text or the name of one (`moby-dick:fit`), a path of a file, or nothing.

    Nothing means the shipped text.
    """
    if what is None:
        return shipped_text()
    if isinstance(what, Path):
        return read_text(what)
    if isinstance(what, str):
        return named_text(what, progress) if is_name(what) else Text("text given in Python", documents_in(what))
    return what


def spelled_text(spelling: str, progress: Progress | None = None) -> Text:
    """A text as the command line spells it: a file, `-`, or a name; behind a colon, one of its splits.

    Raises:
        UsageError: There is neither such a file nor such a name, or the file is no text.
        ResourceError: The text must be fetched and cannot be.
    """
    name, split = _cut(spelling)
    return whole_or_part(*with_splits(name, progress), split)


def with_splits(name: str, progress: Progress | None = None) -> tuple[Text, tuple[Split, ...]]:
    """A text, given by file, `-` or name, and the split of each of its documents. A file goes before a name."""
    if name == "-" or Path(name).exists() or not is_name(name):
        text = _read(name)
        return text, splits_of(text.documents)
    if name == SHIPPED:
        return shipped_text(), splits_of(shipped_text().documents)
    found = fetched.kept(SOURCES[name], progress)
    return found.text, found.splits


def whole_or_part(text: Text, splits: tuple[Split, ...], split: str | None) -> Text:
    """The text, or its documents of one split."""
    return text if split is None else part_of(text, splits, split)


def named_text(spelling: str, progress: Progress | None = None) -> Text:
    """A text by its name, behind a colon one of its splits."""
    name, split = _cut(spelling)
    if name == SHIPPED:
        text = shipped_text()
        return whole_or_part(text, splits_of(text.documents), split)
    found = fetched.kept(SOURCES[name], progress)
    return whole_or_part(found.text, found.splits, split)


def is_name(spelling: str) -> bool:
    """Whether this is the name of a text, with a split behind a colon or without."""
    return _cut(spelling)[0] in NAMES


def _cut(spelling: str) -> tuple[str, str | None]:
    """The name and the split behind its last colon; a colon that no split follows belongs to the name."""
    name, colon, split = spelling.rpartition(":")
    is_split = colon and (split in SPLITS or name in NAMES) and not Path(spelling).exists()
    return (name, split) if is_split else (spelling, None)


def _read(name: str) -> Text:
    try:
        return read_text(name)
    except UsageError as error:
        if name == "-" or Path(name).exists():
            raise
        near = difflib.get_close_matches(name, NAMES, n=3)
        names = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(
            f"{name!r} is neither a text file (looked in {Path(name).absolute().parent}) nor the name of a text",
            hint=f"{names}`headscope data` lists the names; `-` reads standard input",
        ) from error
