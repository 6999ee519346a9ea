"""Lists the parallel texts that have a name, and counts the splits of one."""

from dataclasses import dataclass
from pathlib import Path

from headscope.corpora.parallel.cached_pairs import facts_of_pairs, path_of_pairs
from headscope.corpora.parallel.help_languages import HELP_PAIRS, LICENCE, SUMMARY, TITLE, languages_of
from headscope.corpora.parallel.pair_argument import parallel_text, parse_pair_spelling
from headscope.corpora.parallel.pairs import PAIR_SPLITS, PairCounts, PairPart, PairSplit
from headscope.progress import Step


@dataclass(frozen=True)
class PairEntry:
    """A parallel text with a name; pairs and characters are known once it is fetched."""

    name: str
    language: str
    title: str
    summary: str
    licence: str
    origin: str
    size_bytes: int
    is_cached: bool
    pairs: int | None
    characters: int | None


@dataclass(frozen=True)
class PairSplitSize:
    """One split of a parallel text: its nominal share and its actual content."""

    split: PairSplit
    share: float
    pairs: int
    groups: int
    source_words: int
    target_words: int


@dataclass(frozen=True)
class LocatedPairs:
    """A parallel text or a split of it, its splits, and its file in the cache."""

    part: PairPart
    path: Path | None
    counts: PairCounts
    sizes: tuple[PairSplitSize, ...]


def parallel_texts() -> list[PairEntry]:
    """Every parallel text with a name; one that is not in the cache is fetched when used."""
    return [_entry(name) for name in HELP_PAIRS]


def find_pairs(spelling: str, progress: Step | None = None, archives_folder: Path | None = None) -> LocatedPairs:
    """Find a parallel text as the command line spells it, with its splits.

    Args:
        spelling: A name, a file or two files; a split may follow after a colon.
        progress: Called with the progress of the work.
        archives_folder: A folder with the packages of a name, for machines without apt.
    """
    from headscope.corpora.parallel.pair_splits import PAIR_SHARES

    name, split = parse_pair_spelling(spelling)
    text = parallel_text(name, progress, archives_folder)
    languages = languages_of(name)
    return LocatedPairs(
        text.part(split),
        None if languages is None else path_of_pairs(*languages),
        text.counts,
        tuple(_size(text.part(split_name), split_name, PAIR_SHARES[split_name]) for split_name in PAIR_SPLITS),
    )


def _size(part: PairPart, split: PairSplit, share: float) -> PairSplitSize:
    source_words, target_words = (sum(len(text.split()) for text in side) for side in (part.sources, part.targets))
    return PairSplitSize(split, share, len(part.pairs), len(set(part.groups)), source_words, target_words)


def _entry(name: str) -> PairEntry:
    languages = languages_of(name)
    assert languages is not None  # noqa: S101  the names are those of the table
    facts = facts_of_pairs(*languages)
    packages = [language.package for language in languages]
    return PairEntry(
        name,
        "–".join(language.code for language in languages),
        TITLE,
        SUMMARY,
        LICENCE,
        " and ".join((packages[0].origin, packages[1].name)),
        sum(package.size_bytes for package in packages),
        facts is not None,
        None if facts is None else facts.pairs,
        None if facts is None else facts.characters,
    )
