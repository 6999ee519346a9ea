"""`headscope study fewshot MODEL`: crossword clues after a few examples, and where attention goes meanwhile."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from headscope.cli.options import Device, Form, Hub, Model, Seed, examples
from headscope.cli.output import Format, check_destination, show_experiment, show_headlines, show_table
from headscope.cli.screen import bars

if TYPE_CHECKING:
    import polars as pl

    from headscope.core import Finding

# What a terminal shows of the table of shots, under short names; --format csv or json has everything.
SHOTS_COLUMNS = {
    "shots": "shots",
    "log_probability": "log p",
    "log_probability_low": "low",
    "log_probability_high": "high",
    "gain": "gain",
    "exchanged": "exchanged",
    "word_worth": "word worth",
    "word_worth_low": "low ",
    "word_worth_high": "high ",
}


def fewshot(
    model: Model,
    category: Annotated[
        str,
        typer.Option(
            "--category",
            metavar="NAME",
            help="animals, plants, food, professions, music, sports, household, transport, landscape or clothing.",
        ),
    ] = "animals",
    word: Annotated[
        str, typer.Option("--word", metavar="WORD", help="The target whose maps are drawn. Default: the first.")
    ] = "",
    shots: Annotated[int, typer.Option("--shots", min=1, max=8, help="Examples before the target.")] = 3,
    words: Annotated[
        int | None, typer.Option("--words", min=9, help="Only so many words, drawn at random. Default: all.")
    ] = None,
    clues: Annotated[
        int, typer.Option("--clues", min=0, help="Words for which clues are written after 3, 5 and 8 shots.")
    ] = 8,
    alpha: Annotated[
        list[str] | None,
        typer.Option("--alpha", metavar="ALPHA", help="Also with W_Q and W_K scaled: 2, 1/4; may be repeated."),
    ] = None,
    initialised: Annotated[
        bool, typer.Option("--initialised/--no-initialised", help="Also on the freshly initialised model.")
    ] = True,
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="LAYERS", help="Draw the maps of these with their words, e.g. L0,L5-7."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write the run and its report.html there.")
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="NAME", help="shots, clues, quality, states, layers or heads.")
    ] = None,
    hub: Hub = False,
    device: Device = None,
    seed: Seed = 0,
    form: Form = Format.TABLE,
) -> None:
    """Crossword clues after 0 to 8 examples: how expected they are, what is written, and where attention goes.

    The words and clues ship with headscope. Every number stands beside a null: clues behind wrong words, attention that
    is uniform or knows only nearness, the freshly initialised model.
    """
    from headscope import api

    check_destination(form)
    scales = [one for many in alpha or () for one in many.split(",")]
    with bars() as progress:
        run = api.fewshot(
            model, category=category, word=word, shots=shots, words=words, clues=clues, alphas=scales,
            initialised=initialised, layers=layers, seed=seed, hub=hub, device=device, out=out, progress=progress,
        )  # fmt: skip
    show_experiment(run["fewshot"], _tell, form, table, out)


def _tell(finding: "Finding") -> None:
    """Sentences, the table of shots as far as it fits, and the clues."""
    show_headlines(finding)
    frame = finding.tables["shots"]
    show_table(frame.select(SHOTS_COLUMNS.keys()).rename(SHOTS_COLUMNS), Format.TABLE)
    if "clues" in finding.tables:
        _tell_clues(finding.tables["clues"])
    if finding.tables["states"].height > 1:
        _tell_states(finding.tables["states"], str(finding.params["word"]))


def _tell_clues(clues: "pl.DataFrame") -> None:
    console = Console(highlight=False)
    for row in clues.iter_rows(named=True):
        console.print(Text(f"\n{row['word']}", style="bold"))
        for name, clue in row.items():
            if name != "word":
                console.print(Text.assemble((f"  {name}: ", "dim"), " ".join(clue.split()) or "(nothing)"))


def _tell_states(states: "pl.DataFrame", word: str) -> None:
    console = Console(highlight=False)
    console.print(Text(f"\n{word}, by the state of the model", style="bold"))
    for row in states.iter_rows(named=True):
        console.print(Text.assemble((f"  {row['state']}: ", "dim"), " ".join(row["clue"].split()) or "(nothing)"))


FEWSHOT_EXAMPLES = examples(
    "headscope study fewshot smollm2 --category animals --word Ant --shots 3 --out out/ant",
    "headscope study fewshot smollm2 --category food --words 20 --alpha 1/4 --alpha 1/2 --alpha 2 --alpha 4",
    "headscope study fewshot tiny --table layers --format csv",
)
