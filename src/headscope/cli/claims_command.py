"""`headscope claims`: the ledger of the theory's statements."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.cli.options import Device, Hub, Seed, examples
from headscope.cli.output import show_json
from headscope.cli.screen import bars, note

if TYPE_CHECKING:
    from headscope.core import Entry, Ledger

ORDER = ("refuted", "approximate", "holds", "needs a model", "not testable")
COLOURS = {"refuted": "red", "approximate": "yellow", "holds": "green"}
DRAWINGS = Path("headscope-claims")


def claims(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Explain these claims in full, e.g. W-5.1a.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every claim, slips too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One object per id to standard output.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the ledger as a page of its own.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Also judge what a lens settles on this model.")
    ] = None,
    hub: Hub = False,
    device: Device = None,
    seed: Seed = 0,
) -> None:
    """Judge every statement of the theory by executing it: what holds, what is refuted, and the correction.

    With ids: each in full, its figures saved in the folder headscope-claims. Without: counts by verdict and the
    statements that their numbers refute. A verdict is computed from measured numbers; statements about trained
    models wait for --model.
    """
    from headscope import api

    with bars() as progress:
        ledger = api.judge_claims(ids or (), seed=seed, model=model, hub=hub, device=device, progress=progress)
    if html is not None:
        note(f"the ledger: {api.write_ledger(ledger, html).resolve()}")
    if as_json:
        show_json(api.ledger_objects(ledger, ids or ()))
    elif ids:
        for entry in ledger.entries:
            _explain(entry)
    elif html is None:
        _overview(ledger, everything)


def _overview(ledger: "Ledger", everything: bool) -> None:
    console = Console(highlight=False)
    counts = ledger.counts()
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER if verdict in counts)
    console.print(Text(f"{sum(counts.values())} statements: {told}"))
    slips = [entry for entry in ledger.entries if entry.slip]
    chosen = [entry for entry in ledger.entries if everything or (entry.verdict == "refuted" and not entry.slip)]
    chosen.sort(key=lambda entry: (ORDER.index(entry.verdict), entry.slip))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("claim", "verdict", "statement", "corrected"):
        table.add_column(name)
    for entry in chosen:
        verdict = Text(entry.verdict + (" (slip)" if entry.slip else ""), style=COLOURS.get(entry.verdict, "dim"))
        correction = entry.correction or entry.reason
        table.add_row(Text(" ".join(entry.ids)), verdict, Text(entry.statement), Text(correction))
    console.print(table)
    if slips and not everything:
        count = sum(len(entry.ids) for entry in slips)
        note(f"and {count} more that are slips (a sign, a factor, an index); --all lists everything")
    note("`headscope claims ID` explains one; --html FILE writes the whole ledger as a page")


def _explain(entry: "Entry") -> None:
    from headscope import api

    console = Console(highlight=False)
    slip = " (slip)" if entry.slip else ""
    colour = COLOURS.get(entry.verdict, "dim")
    console.print(Text.assemble((" ".join(entry.ids), "bold"), "  ", (entry.verdict + slip, f"bold {colour}")))
    console.print(Text(str(entry.source), style="dim"))
    console.print(Text(f"\n{entry.statement}"))
    if entry.formula:
        console.print(Text(f"  {entry.formula}", style="cyan"))
    if entry.correction or entry.corrected_formula:
        console.print(Text.assemble("\n", ("Corrected. ", "bold"), entry.correction))
        console.print(Text(f"  {entry.corrected_formula}", style="cyan"))
    if entry.reason:
        where = f"Settled by {entry.lens}: " if entry.lens else ""
        console.print(Text(f"\n{where}{entry.reason}"))
    console.print(Text(f"\n{entry.lesson}\n"))
    _numbers(console, entry)
    for figure in entry.figures:
        typer.echo(str(api.save_figure(figure, DRAWINGS / f"{entry.ids[0]}.{figure.name}.svg")))
    console.print()


def _numbers(console: Console, entry: "Entry") -> None:
    if entry.evidence is None:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("formula", "what"):
        table.add_column(name)
    for name in ("predicted", "measured", "± error"):
        table.add_column(name, justify="right")
    table.add_column("agrees")
    for which, comparisons in (("stated", entry.evidence.stated), ("corrected", entry.evidence.corrected)):
        for c in comparisons:
            numbers: list[Any] = [Text(f"{x:.6g}") for x in (c.predicted, c.measured)]
            table.add_row(which, Text(c.what), *numbers, f"{c.error:.2g}", "yes" if c.agrees else "no")
    console.print(table)
    if (trend := entry.evidence.trend) is not None:
        steps = ", ".join(f"{e:.3g} at {v:g}" for v, e in zip(trend.values, trend.errors, strict=True))
        console.print(Text(f"{trend.what}: relative error {steps}; order {trend.order:.2f} in {trend.parameter}"))


CLAIMS_EXAMPLES = examples("headscope claims", "headscope claims W-5.1a", "headscope claims --html ledger.html")
