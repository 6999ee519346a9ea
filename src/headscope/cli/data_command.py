"""`headscope data`: list the texts that have a name, of one language or two; fetch, count and write one of them."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.catalogue import (
    check_pairs,
    check_text,
    find_pairs,
    find_text,
    is_parallel,
    joined_pairs,
    joined_text,
    parallel_texts,
    texts,
)
from headscope.cli.argument_checks import check_file
from headscope.cli.options import Form, examples
from headscope.cli.output import Format, check_destination, show_json, show_rows, write_text
from headscope.cli.progress_display import shown_progress
from headscope.cli.screen import note
from headscope.errors import UsageError

DATA_EXAMPLES = examples(
    "headscope data",
    "headscope data moby-dick",
    "headscope data handbook-de:test --out test.txt",
    "headscope lens gaussian minilm --text handbook-de:fit",
    "headscope data en-it:test --out test.tsv",
)


def data(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]",
            help="Fetch this one: a name, also with a split (moby-dick:fit). A file or - is only counted, and so are "
            "files of parallel text (pairs.tsv, or a.en,a.it).",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write the text there; - is standard output.")
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Take the package from this file instead of fetching it; for parallel text, a folder with both.",
        ),
    ] = None,
    form: Form = Format.TABLE,
) -> None:
    """List the texts that have a name, or fetch one and tell where it is.

    Every --text takes such a name, a file, or -. A split behind a colon takes
    a part: 70 % of the documents are fit, 15 % search and 15 % test, decided
    by a hash of the document; near-duplicates and translations of one page
    stay together. In a file, a line *** separates documents.

    Parallel text, such as en-it, has the splits train, valid and test (90, 4
    and 6 %): no sentence of one is nearly the same as one of another, on
    either side. Any two of its languages can be paired, as in de-fr.
    """
    check_destination(form)
    if text is None:
        if out is not None or archive is not None:
            raise UsageError("--out and --from need the name of a text", hint="headscope data NAME --out FILE")
        _list(form)
    elif is_parallel(text):
        _fetch_pairs(text, out, archive, form)
    else:
        _fetch(text, out, archive, form)


def _list(form: Format) -> None:
    rows = [*map(dataclasses.asdict, texts()), *(_pair_row(dataclasses.asdict(entry)) for entry in parallel_texts())]
    show_rows([_short(row) for row in rows] if form is Format.TABLE else rows, form)
    if form is Format.TABLE:
        note("MB are downloaded once, for all texts of a package; `headscope data NAME` or any --text NAME fetches it")
        note("en-it and its like are parallel text, counted in pairs; any two of its languages can be paired")


def _pair_row(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a parallel text, in the columns of a text as far as they fit."""
    return {"what" if name == "summary" else name: value for name, value in row.items()}


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """What fits a terminal; --format csv has the rest."""
    size = row["size_bytes"]
    return {
        "text": row["name"],
        "lang": row["language"],
        "MB": f"{size / 1e6:.1f}" if size else "",
        "docs": row["pairs"] if "pairs" in row else row["documents"],
        "here": row["is_cached"],
        "from": row["origin"].split()[0],
        "licence": row["licence"],
        "what": row["title"],
    }


def _fetch(spelling: str, out: str | None, archive: Path | None, form: Format) -> None:
    check_text(spelling)
    if out not in (None, "-"):
        check_file(Path(str(out)), "--out")
    if archive is not None and not archive.is_file():
        raise UsageError(f"there is no file {archive}", hint="give the package as a file with --from")
    with shown_progress(loads_torch=False) as progress:
        download = find_text(spelling, progress=progress.step, archive=archive)
    if out is not None:
        write_text(joined_text(download.text.documents), out)
        return
    parts = [dataclasses.asdict(part) for part in download.parts]
    if form is Format.JSON:
        facts = {"text": download.text.name, "sha256": download.text.sha256, "path": download.path, "splits": parts}
        show_json(facts | {"documents": len(download.text.documents), "characters": download.text.n_characters})
        return
    show_rows(parts, form)
    if form is Format.TABLE:
        note(
            f"{download.text.name}: {len(download.text.documents)} documents, {download.text.n_characters:,} characters"
        )
        if download.path is not None:
            typer.echo(str(download.path))


def _fetch_pairs(spelling: str, out: str | None, folder: Path | None, form: Format) -> None:
    check_pairs(spelling)
    if out not in (None, "-"):
        check_file(Path(str(out)), "--out")
    if folder is not None and not folder.is_dir():
        raise UsageError(
            f"{folder} is no folder", hint="give a folder that holds the packages of both languages with --from"
        )
    with shown_progress(loads_torch=False) as progress:
        download = find_pairs(spelling, progress=progress.step, folder=folder)
    part, counts = download.part, download.counts
    if out is not None:
        write_text(joined_pairs(part.pairs), out)
        return
    sizes = [dataclasses.asdict(size) for size in download.sizes]
    if form is Format.JSON:
        facts = {"text": part.name, "languages": part.languages, "sha256": part.sha256, "path": download.path}
        show_json(facts | {"pairs": len(part.pairs), "counts": dataclasses.asdict(counts), "splits": sizes})
        return
    show_rows(sizes, form)
    if form is Format.TABLE:
        note(f"{part.name}: {len(part.pairs):,} pairs, from {counts.aligned:,} aligned, {counts.unique:,} different")
        for reason, number in counts.dropped.items():
            note(f"dropped: {number:,} {reason}")
        if download.path is not None:
            typer.echo(str(download.path))
