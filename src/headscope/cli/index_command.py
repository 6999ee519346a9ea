"""`headscope index`: every figure, table, formula and question of the documents, and how it is reproduced here."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.catalogue import check_index, index_item
from headscope.cli.argument_checks import check_request, requested_text
from headscope.cli.claims_command import COLOURS
from headscope.cli.command_lookup import lacking, run, takes
from headscope.cli.options import Device, Form, Hub, Seed, TextFile, Window, examples
from headscope.cli.output import Format, check_destination, console, show_headlines, show_json, show_table
from headscope.cli.progress_display import shown_progress
from headscope.cli.screen import note
from headscope.errors import LensError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from headscope.api import Item, Step, Way
    from headscope.core import Run

DRAWINGS = Path("headscope-index")


def index(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[ITEM]", help="One item, e.g. wertich:A.20 or conti:eq.3; or a document.", show_default=False
        ),
    ] = None,
    document: Annotated[
        str, typer.Option("--document", metavar="NAME", help="Only this document: wertich, conti, bukatin.")
    ] = "",
    kind: Annotated[
        str, typer.Option("--kind", help="Only figure, table, formula, theorem, question or statement.")
    ] = "",
    section: Annotated[str, typer.Option("--section", metavar="N", help="Only this section and its parts.")] = "",
    missing: Annotated[bool, typer.Option("--missing", help="Only what nothing reproduces yet.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Reproduce the item on this model.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where its page goes.  [default: headscope-index/ITEM]"),
    ] = None,
    text: TextFile = None,
    hub: Hub = False,
    device: Device = None,
    seed: Seed = 0,
    window: Window = 512,
    form: Form = Format.TABLE,
) -> None:
    """List every figure, table, numbered formula and question of the documents with the command that reproduces it.

    With an item: what it is, how it is reproduced, the published numbers and the verdicts of its claims. With --model
    too: ours is drawn on a page, with the published numbers beside it where there are any. What nothing reproduces yet
    says why.
    """
    check_destination(form)
    if name is not None and ":" not in name and not document:
        document = name
    item_id = "" if name is None or name == document else index_item(name)
    check_index(document, kind)
    if not item_id and (model is not None or out is not None):
        raise UsageError("--model and --out need an item", hint="e.g. headscope index wertich:A.20 --model tiny")
    if model is None and out is not None:
        raise UsageError("--out needs --model", hint=f"e.g. headscope index {item_id} --model tiny --out {out}")
    folder = DRAWINGS / item_id.replace(":", "-") if out is None else out
    if model is not None:
        check_request(model, hub=hub, text=text, out=folder)
    with shown_progress():
        from headscope import api

        items = api.items(document, kind, section)
    if not item_id:
        _list(items, missing, form)
        return
    item = api.item_named(item_id)
    if model is None:
        _tell(item, form, seed)
        return
    _reproduce(item, model, folder, {"text": text, "hub": hub, "device": device, "seed": seed, "window": window}, form)


def ways_of(item: "Item") -> "tuple[Way, ...]":
    """The steps of an item, each with what is still missing for it."""
    from headscope import api

    return api.ways(item, lambda step: lacking(step.words, step.mentions))


def rows(items: "tuple[Item, ...]") -> list[dict[str, Any]]:
    """One plain object per item, as `--format json` and `csv` write it."""
    from headscope import api

    objects = []
    for item in items:
        item_ways = ways_of(item)
        objects.append(
            {
                "id": item.id,
                "document": item.document,
                "kind": item.kind,
                "section": item.section,
                "title": item.title,
                "commands": [str(way.step) for way in item_ways if not way.lacks],
                "not_yet": [f"{way.step}: {way.lacks}" for way in item_ways if way.lacks],
                "reason": api.why_not(item, item_ways) or None,
                "claims": list(item.claims),
                "published": len(item.published),
            }
        )
    return objects


def _list(items: "tuple[Item, ...]", missing: bool, form: Format) -> None:
    objects = [row for row in rows(items) if row["reason"] or not missing]
    if form is Format.JSON:
        show_json(objects)
    elif form is not Format.TABLE:
        import polars as pl

        words = {name: pl.String for name in ("commands", "not_yet", "claims")}
        flat = [{k: "; ".join(v) if isinstance(v, list) else v for k, v in row.items()} for row in objects]
        show_table(pl.DataFrame(flat, schema_overrides={**words, "reason": pl.String}), form)
    else:
        _overview(objects)


def _overview(objects: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("item", "what", "how"):
        table.add_column(name, no_wrap=name == "item", overflow="fold")
    for row in objects:
        how = Text(row["reason"], style="yellow") if row["reason"] else Text(row["commands"][0])
        table.add_row(Text(row["id"]), Text(row["title"]), how)
    console().print(table)
    counts = Counter(row["kind"] for row in objects)
    without = sum(bool(row["reason"]) for row in objects)
    kinds = ", ".join(f"{counts[kind]} of the kind {kind}" for kind in counts)
    note(
        f"{len(objects)} items ({kinds or 'nothing fits'}); {len(objects) - without} have a command, {without} a reason"
    )
    note("`headscope index ITEM` tells more; --model MODEL reproduces it")


def _tell(item: "Item", form: Format, seed: int) -> None:
    from rich.text import Text

    from headscope import api

    published = api.published_table(item)
    with shown_progress() as progress:
        judged = api.judge_claims(item.claims, seed=seed, progress=progress).entries if item.claims else ()
    (row,) = rows((item,))
    verdicts = [{"claim": claim, "verdict": entry.reading} for entry in judged for claim in entry.ids]
    if form is Format.JSON:
        show_json({**row, "published": published.to_dicts(), "read": item.read or None, "verdicts": verdicts})
        return
    if form is not Format.TABLE:
        show_table(published, form)
        return
    screen = console()
    _describe(screen, item, ways_of(item))
    if item.published:
        screen.print(Text.assemble(("\nPublished ", "bold"), (f"({item.read})", "dim")))
        show_table(published.select("quantity", "published", "error", "predicted"), form)
    if judged:
        screen.print(Text("\nClaims", style="bold"))
    for entry in judged:
        verdict = (f"  {entry.reading}  ", COLOURS.get(entry.verdict, "dim"))
        screen.print(Text.assemble(" ".join(entry.ids), verdict, entry.statement))
    if item.lenses:
        note(f"\n`headscope index {item.id} --model tiny` draws ours")


def _describe(screen: "Console", item: "Item", item_ways: "tuple[Way, ...]") -> None:
    from rich.text import Text

    from headscope import api

    work = api.document_of(item)
    screen.print(Text.assemble((item.id, "bold"), f"  {item.title}"))
    screen.print(Text(f"{item.kind}; {work.author}, {work.title}, section {item.section}", style="dim"))
    if item.reason:
        screen.print(Text(f"\nNot reproduced: {item.reason}."))
    for way in item_ways:
        if way.lacks:
            reason = way.lacks if way.is_final else f"not yet: {way.lacks}"
            screen.print(Text(f"  {way.step}  ({reason})", style="yellow"))
        else:
            screen.print(Text(f"  {way.step}", style="green"))


def _reproduce(item: "Item", model: str, out: Path, options: dict[str, Any], form: Format) -> None:
    """Draw what the lenses measure on one page; run other commands that take a model as they are written."""
    from headscope import api

    item_ways = ways_of(item)
    if reason := api.why_not(item, item_ways):
        raise UsageError(f"{item.id} is not reproduced here: {reason}")
    possible = [way.step for way in item_ways if not way.lacks]
    measured = next((step for step in possible if step.lens), None)
    other_steps = [step for step in possible if not step.lens and step.words[0] not in ("claims", "report")]
    if measured is not None:
        _page(item, measured.on(model).words[2], out, options, form)
        for step in other_steps:
            note(f"also: {step.on(model)}")
        return
    runnable = [step for step in other_steps if step.on(model) != step] or [step for step in possible if not step.lens]
    for step in runnable:
        _run(step.on(model), out if len(runnable) == 1 else out / step.words[0], options, form)


def _run(step: "Step", out: Path, options: dict[str, Any], form: Format) -> None:
    words = [*step.words]
    if takes(words, "form") and form is not Format.TABLE:
        words += ["--format", form.value]
    if takes(words, "out"):
        words += ["--out", str(out)]
    if takes(words, "seed"):
        words += ["--seed", str(options["seed"])]
    if takes(words, "text") and options["text"]:
        words += ["--text", options["text"]]
    if takes(words, "hub") and options["hub"]:
        words += ["--hub"]
    if takes(words, "device") and options["device"]:
        words += ["--device", options["device"]]
    note(f"headscope {' '.join(words)}")
    run(words)


def _page(item: "Item", model: str, out: Path, options: dict[str, Any], form: Format) -> None:
    from headscope import api

    with shown_progress() as progress:
        text = requested_text(options["text"], options["device"], progress)
        reproduced = api.reproduce(item, model, **{**options, "text": text}, out=out, progress=progress)
    _show(item, reproduced, form)
    note(f"the page: {(out / 'report.html').resolve()}")
    finding = reproduced["index"]
    if finding.status == "failed":
        raise LensError(f"{item.id}: the lens failed: {finding.reason}", hint="--debug shows the traceback")


def _show(item: "Item", reproduced: "Run", form: Format) -> None:
    finding = reproduced["index"]
    if form is Format.JSON:
        facts = {name: getattr(finding, name) for name in ("status", "reason", "warnings", "method")}
        facts["headlines"] = [headline.full for headline in finding.headlines]
        tables = {name: table.to_dicts() for name, table in finding.tables.items()}
        show_json({"id": item.id, "title": item.title, "model": asdict(reproduced.model)["name"], **facts, **tables})
        return
    if finding.status != "ok":
        note(f"{item.id}: {finding.status}: {finding.reason}")
        return
    if form is not Format.TABLE:
        show_table(finding.table, form)
        return
    from rich.text import Text

    screen = console()
    _describe(screen, item, ())
    show_headlines(finding)
    if "published" in finding.tables:
        screen.print(Text(f"Published ({item.read}), and {reproduced.model.name}", style="bold"))
        show_table(finding.tables["published"], form)


INDEX_EXAMPLES = examples(
    "headscope index --kind figure", "headscope index wertich:A.20", "headscope index wertich:A.20 --model tiny"
)
