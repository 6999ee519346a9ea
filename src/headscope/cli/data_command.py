"""`headscope data`: list the texts that have a name; fetch, count and write one of them."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.catalogue import check_text, find_text, joined_text, texts
from headscope.cli.argument_checks import check_file
from headscope.cli.options import Form, examples
from headscope.cli.output import Format, check_destination, show_json, show_rows
from headscope.cli.progress_display import shown_progress
from headscope.cli.screen import note
from headscope.errors import ResourceError, UsageError

DATA_EXAMPLES = examples(
    "headscope data",
    "headscope data moby-dick",
    "headscope data handbook-de:test --out test.txt",
    "headscope lens gaussian minilm --text handbook-de:fit",
)


def data(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]",
            help="Fetch this one: a name, also with a split (moby-dick:fit). A file or - is only counted.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write the text there; - is standard output.")
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Take the package from this file instead of fetching it."),
    ] = None,
    form: Form = Format.TABLE,
) -> None:
    """List the texts that have a name, or fetch one and tell where it is.

    Every --text takes such a name, a file, or -. A split behind a colon takes
    a part: 70 % of the documents are fit, 15 % search and 15 % test, decided
    by a hash of the document; near-duplicates and translations of one page
    stay together. In a file, a line *** separates documents.
    """
    check_destination(form)
    if text is None:
        if out is not None or archive is not None:
            raise UsageError("--out and --from need the name of a text", hint="headscope data NAME --out FILE")
        _list(form)
    else:
        _fetch(text, out, archive, form)


def _list(form: Format) -> None:
    rows = [dataclasses.asdict(source) for source in texts()]
    show_rows([_short(row) for row in rows] if form is Format.TABLE else rows, form)
    if form is Format.TABLE:
        note("MB are downloaded once, for all texts of a package; `headscope data NAME` or any --text NAME fetches it")


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """What fits a terminal; --format csv has the rest."""
    size = row["size_bytes"]
    return {
        "text": row["name"],
        "lang": row["language"],
        "MB": f"{size / 1e6:.1f}" if size else "",
        "docs": row["documents"],
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
        _write(joined_text(download.text.documents), out)
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


def _write(content: str, out: str) -> None:
    if out == "-":
        sys.stdout.buffer.write(content.encode())
        return
    try:
        Path(out).write_text(content, encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"cannot write {out}: {error.strerror}", hint="choose another file with --out") from error
    typer.echo(out)
