"""`headscope claims`: the ledger of the theory's statements."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.catalogue import check_claims, check_model
from headscope.cli.argument_checks import check_file
from headscope.cli.list_options import listed
from headscope.cli.options import Device, Form, Hub, Seed, examples
from headscope.cli.output import Format, check_destination, console, show_json, show_rows
from headscope.cli.progress_display import shown_progress
from headscope.cli.screen import note

if TYPE_CHECKING:
    from rich.console import Console

    from headscope.core import Comparison, Entry, Ledger

COLOURS = {"refuted": "red", "approximate": "yellow", "holds": "green", "true but empty": "yellow"}
DRAWINGS = Path("headscope-claims")
_SIDES = {">": "> ", "<": "< "}


def claims(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Explain these claims in full, e.g. W-5.1a.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every claim, slips too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", hidden=True, help="The same as --format json.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the ledger as a page of its own.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Also judge what a lens settles on this model.")
    ] = None,
    hub: Hub = False,
    device: Device = None,
    seed: Seed = 0,
    form: Form = Format.TABLE,
) -> None:
    """Judge every statement of the theory by executing it: what holds, what is refuted, and the correction.

    With ids: each in full, its figures saved in the folder headscope-claims. Without: counts by verdict and the
    statements that their numbers refute. A verdict is computed from measured numbers by one written rule
    (docs/claims.md). Statements about trained models wait for --model, and what one model decides reads so:
    "refuted on MODEL".
    """
    chosen_form = Format.JSON if as_json else form
    check_destination(chosen_form)
    selectors = listed(ids or ())
    check_claims(selectors)
    if model is not None:
        check_model(model, hub=hub)
    if html is not None:
        check_file(html, "--html")
    with shown_progress() as progress:
        from headscope import api

        ledger = api.judge_claims(selectors, seed=seed, model=model, hub=hub, device=device, progress=progress)
    if html is not None:
        note(f"the ledger: {api.write_ledger(ledger, html).resolve()}")
    if chosen_form is not Format.TABLE:
        _write(api.ledger_objects(ledger, selectors), chosen_form)
    elif ids:
        for entry in ledger.entries:
            _explain(entry)
    elif html is None:
        _overview(ledger, everything)


def _write(objects: list[dict[str, Any]], form: Format) -> None:
    """One object per id as JSON; as a table without what is no single value."""
    if form is Format.JSON:
        show_json(objects)
        return
    rows = [{**entry, "related": " ".join(entry["related"])} for entry in objects]
    show_rows([{name: value for name, value in row.items() if name not in ("numbers", "trend")} for row in rows], form)


def _overview(ledger: "Ledger", everything: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    counts = ledger.counts()
    counts_text = ", ".join(f"{count} {_plural(reading, count)}" for reading, count in counts.items())
    screen.print(Text(f"{sum(counts.values())} statements: {counts_text}"))
    slips = [entry for entry in ledger.entries if entry.slip]
    entries = [entry for entry in ledger.entries if everything or (entry.verdict == "refuted" and not entry.slip)]
    entries.sort(key=lambda entry: (list(counts).index(entry.reading), entry.slip))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("claim", "verdict", "statement", "corrected"):
        table.add_column(name)
    for entry in entries:
        verdict = Text(entry.reading + (" (slip)" if entry.slip else ""), style=COLOURS.get(entry.verdict, "dim"))
        correction = entry.correction or entry.reason
        table.add_row(Text(" ".join(entry.ids)), verdict, Text(entry.statement), Text(correction))
    screen.print(table)
    if slips and not everything:
        count = sum(len(entry.ids) for entry in slips)
        note(f"and {count} more that are slips (a sign, a factor, an index); --all lists everything")
    note("`headscope claims ID` explains one; --html FILE writes the whole ledger as a page")


def _explain(entry: "Entry") -> None:
    from rich.text import Text

    from headscope import api

    screen = console()
    slip = " (slip)" if entry.slip else ""
    colour = COLOURS.get(entry.verdict, "dim")
    screen.print(Text.assemble((" ".join(entry.ids), "bold"), "  ", (entry.reading + slip, f"bold {colour}")))
    screen.print(Text(str(entry.source), style="dim"))
    screen.print(Text(f"\n{entry.statement}"))
    if entry.formula:
        screen.print(Text(f"  {entry.formula}", style="cyan"))
    if entry.correction or entry.corrected_formula:
        head = "Answer. " if entry.verdict == "open question" else "Corrected. "
        screen.print(Text.assemble("\n", (head, "bold"), entry.correction))
        screen.print(Text(f"  {entry.corrected_formula}", style="cyan"))
    if entry.reason:
        where = f"Settled by {entry.lens}: " if entry.lens else "Needed: " if entry.verdict == "needs a model" else ""
        screen.print(Text(f"\n{where}{entry.reason}"))
    screen.print(Text(f"\n{entry.lesson}\n"))
    if entry.related:
        screen.print(Text(f"See also {', '.join(entry.related)}.\n"))
    _numbers(screen, entry)
    for figure in entry.figures:
        typer.echo(str(api.save_figure(figure, DRAWINGS / f"{entry.ids[0]}.{figure.name}.svg")))
    screen.print()


def _numbers(screen: "Console", entry: "Entry") -> None:
    from rich.table import Table
    from rich.text import Text

    if entry.evidence is None:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("formula", "what"):
        table.add_column(name)
    for name in ("predicted", "measured", "± error"):
        table.add_column(name, justify="right")
    table.add_column("agrees")
    for group, comparisons in entry.evidence.groups:
        for c in comparisons:
            numbers: list[Any] = [Text(f"{_SIDES.get(c.relation, '')}{c.predicted:.6g}"), Text(f"{c.measured:.6g}")]
            table.add_row(group, Text(c.what), *numbers, f"{c.error:.2g}", _agreement(c))
    screen.print(table)
    if (trend := entry.evidence.trend) is not None:
        steps = ", ".join(f"{e:.3g} at {v:g}" for v, e in zip(trend.values, trend.errors, strict=True))
        measured = f"measured order {trend.fitted:.2f} ± {trend.uncertainty:.2f}, stated {trend.order:.3g}"
        screen.print(Text(f"{trend.what}: {steps} ({trend.parameter}); {measured}"))


def _agreement(c: "Comparison") -> str:
    """Yes, no, or open where an interval holds the limit."""
    return "yes" if c.agrees else "no" if c.contradicts else "open"


def _plural(reading: str, count: int) -> str:
    """The verdict as a verb or noun that fits the count."""
    singular = {"holds": "hold", "needs a model": "need a model", "open question": "open questions"}
    head = next((verdict for verdict in singular if reading.startswith(verdict)), None)
    return reading if head is None or count == 1 else reading.replace(head, singular[head], 1)


CLAIMS_EXAMPLES = examples("headscope claims", "headscope claims W-5.1a", "headscope claims --html ledger.html")
