"""Turns any text argument into a Text: a string, a file, `-`, or a name."""

import difflib
from pathlib import Path

from headscope.corpora import cached_texts
from headscope.corpora.catalogue import SOURCES
from headscope.corpora.parallel.help_languages import languages_of
from headscope.corpora.splits import SPLITS, Split, checked_split, part_of, splits_of
from headscope.corpora.text import SHIPPED, Text, documents_in, missing_file, read_text, shipped_text
from headscope.errors import UsageError
from headscope.progress import Step


def names() -> tuple[str, ...]:
    """The names of all texts."""
    return SHIPPED, *SOURCES


def text_of(source: "Text | str | Path | None", progress: Step | None = None) -> Text:
    """Turn a text argument into a Text; None gives the shipped text.

    A string is the text itself or the name of one (`moby-dick:fit`); a path is a file.
    """
    if source is None:
        return shipped_text()
    if isinstance(source, Path):
        return read_text(source)
    if isinstance(source, str):
        is_name = parse_spelling(source)[0] in names()
        return spelled_text(source, progress) if is_name else Text("text given in Python", documents_in(source))
    return source


def spelled_text(spelling: str, progress: Step | None = None) -> Text:
    """Read a text as the command line spells it: a file, `-`, or a name.

    A split may follow after a colon.

    Raises:
        UsageError: There is neither such a file nor such a name, or the file is no text.
        ResourceError: The text cannot be fetched.
    """
    name, split = parse_spelling(spelling)
    if split is None:
        return _whole(name, progress)
    return part_of(*with_splits(name, progress), split)


def with_splits(name: str, progress: Step | None = None) -> tuple[Text, tuple[Split, ...]]:
    """The text of a file, `-` or a name, and the split of each document."""
    if _is_fetched(name):
        cached = cached_texts.cached_text(SOURCES[name], progress)
        return cached.text, cached.splits
    text = _whole(name, progress)
    return text, splits_of(text.documents)


def parse_spelling(spelling: str) -> tuple[str, Split | None]:
    """Separate the name of a text from the split after its last colon.

    A colon inside a file name does not count.
    """
    name, colon, split = spelling.rpartition(":")
    is_split = colon and (split in SPLITS or name in names()) and not file_exists(spelling)
    return (name, checked_split(split)) if is_split else (spelling, None)


def check_spelling(spelling: str) -> None:
    """Refuse a spelling that `spelled_text` would refuse without reading or fetching anything.

    Raises:
        UsageError: There is neither such a file nor such a name, or no such split.
    """
    name, _ = parse_spelling(spelling)
    if _is_fetched(name) or (name == SHIPPED and not file_exists(name)) or name == "-":
        return
    if not file_exists(name) and Path(name).suffix:
        raise missing_file(Path(name))
    if not file_exists(name):
        raise _unknown(name)


def file_exists(name: str) -> bool:
    """Whether a file has this name.

    False for names that no file can have (too long, with a zero byte).
    """
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def _whole(name: str, progress: Step | None) -> Text:
    if _is_fetched(name):
        return cached_texts.cached_text(SOURCES[name], progress).text
    if name == SHIPPED and not file_exists(name):
        return shipped_text()
    if name == "-" or file_exists(name) or Path(name).suffix:
        return read_text(name)
    raise _unknown(name)


def _unknown(name: str) -> UsageError:
    if languages_of(name) is not None:
        return UsageError(
            f"{name!r} is parallel text, expected a text of one language",
            hint=f"`headscope data {name} --out FILE` writes its pairs",
        )
    near = " or ".join(difflib.get_close_matches(name, names(), n=3))
    return UsageError(
        f"{name!r} is neither a text file (looked in {Path(name).absolute().parent}) nor the name of a text",
        hint=f"did you mean {near}?" if near else "`headscope data` lists the names; `-` reads standard input",
    )


def _is_fetched(name: str) -> bool:
    """Whether this names a fetched text; a file of that name takes precedence."""
    return name in SOURCES and not file_exists(name)
