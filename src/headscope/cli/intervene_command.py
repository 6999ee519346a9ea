"""`headscope intervene MODEL`: change the attention weights, see maps, perplexity and text change."""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand

from headscope.cli.options import Device, Form, Hub, Model, Seed, TextFile, examples
from headscope.cli.output import Format, check_destination, show_experiment, show_headlines, show_table
from headscope.cli.screen import bars
from headscope.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from headscope.core import Finding

# What a terminal shows of the table of effects, under short names; --format csv or json has everything.
COLUMNS = {
    "change": "change",
    "which": "which",
    "perplexity": "perplexity",
    "ratio": "ratio",
    "ratio_low": "low",
    "ratio_high": "high",
    "kl": "kl",
    "cosine": "cosine",
    "cosine_low": "low ",
    "cosine_high": "high ",
    "found": "found",
    "moved": "moved",
    "entropy_share": "entropy",
    "self": "self",
    "first": "first",
}
_LISTS = ("--scale", "--rank")
_NUMBER = re.compile(r"-?[\d./eE+-]+")


class Randomise(StrEnum):
    """What is drawn anew."""

    INIT = "init"
    V = "v"
    U = "u"
    PERMUTE = "permute"


class Remove(StrEnum):
    """Which part of a spectrum is removed."""

    SPIKES = "spikes"
    BULK = "bulk"


class InterveneCommand(TyperCommand):
    """Lets several numbers follow one option: `--scale 1/4 1/2 2 4`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give every further number its own option."""
        spelled: list[str] = []
        option, values = "", 0
        for word in args:
            if option and values and _NUMBER.fullmatch(word):
                spelled += [option, word]
                continue
            values += 1
            if word.startswith("--"):
                option, values = (word if word in _LISTS else ""), 0
            elif option and not _NUMBER.fullmatch(word):
                option = ""
            spelled.append(word)
        return super().parse_args(ctx, spelled)


def intervene(
    model: Model,
    scale: Annotated[
        list[str] | None,
        typer.Option("--scale", metavar="ALPHA...", help="Multiply every singular value by ALPHA: 2, 0.25, 1/4."),
    ] = None,
    randomise: Annotated[
        list[Randomise] | None,
        typer.Option("--randomise", help="Draw anew: as initialised, V, U, or the order of all entries."),
    ] = None,
    rank: Annotated[
        list[str] | None, typer.Option("--rank", metavar="R...", help="Keep only the R largest singular values.")
    ] = None,
    remove: Annotated[
        list[Remove] | None,
        typer.Option("--remove", help="Remove what is above the edge of the random bulk, or all that is not."),
    ] = None,
    matrices: Annotated[
        str, typer.Option("--matrices", metavar="LETTERS", help="Which projections: q, k, v, o.")
    ] = "qk",
    at: Annotated[
        str, typer.Option("--at", metavar="HEADS", help="Which layers and heads: L10-19, L3.H7, L0,L5.H2.")
    ] = "all",
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", metavar="TEXT", help="Write from this; may be repeated. Default: four of our own."),
    ] = None,
    text: TextFile = None,
    window: Annotated[int, typer.Option("--window", min=2, help="Tokens per window.")] = 256,
    windows: Annotated[int, typer.Option("--windows", min=1, help="Windows of the text, evenly spread.")] = 12,
    new_tokens: Annotated[int, typer.Option("--new-tokens", min=1, help="Tokens written from a prompt.")] = 40,
    draws: Annotated[int, typer.Option("--draws", min=1, help="Controls that are drawn for each change.")] = 3,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write the run and its report.html there.")
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="NAME", help="effects, texts, matrices or heads.")
    ] = None,
    hub: Hub = False,
    device: Device = None,
    seed: Seed = 0,
    form: Form = Format.TABLE,
) -> None:
    """Change the attention weights of a model and see what becomes of its predictions, maps and text.

    Each change is tried on its own, beside the original and beside a control of the same size in random directions, and
    undone. Without a change: --scale 1/4 1/2 2 4. For an encoder its sentence embeddings take the place of perplexity
    and text.
    """
    from headscope import api

    check_destination(form)
    for words in prompt or ():
        if any("\ud800" <= character <= "\udfff" for character in words):
            raise UsageError("--prompt is not text: it holds bytes that are not UTF-8", hint="write it in UTF-8")
    changes = [f"scale {one}" for many in scale or () for one in many.split(",")]
    changes += [f"randomise {one.value}" for one in randomise or ()]
    changes += [f"rank {one}" for many in rank or () for one in many.split(",")]
    changes += [f"remove {one.value}" for one in remove or ()]
    with bars() as progress:
        given = None if text is None else api.text(text, progress=progress.step)
        run = api.intervene(
            model, *changes, matrices=matrices, at=at, text=given, prompts=prompt,
            window=window, windows=windows, new_tokens=new_tokens, seed=seed, draws=draws, hub=hub, device=device,
            out=out, progress=progress,
        )  # fmt: skip
    show_experiment(run["intervene"], _tell, form, table, out)


def _tell(finding: "Finding") -> None:
    """Sentences, the table of effects as far as it fits, and the texts side by side."""
    show_headlines(finding)
    frame = finding.tables["effects"]
    shown = {name: short for name, short in COLUMNS.items() if name in frame.columns}
    show_table(frame.select(shown.keys()).rename(shown), Format.TABLE)
    if "texts" in finding.tables:
        _tell_texts(finding.tables["texts"])


def _tell_texts(texts: "pl.DataFrame") -> None:
    console = Console(highlight=False)
    for (prompt,), rows in texts.group_by(["prompt"], maintain_order=True):
        console.print(Text(f"\n{prompt}", style="bold"))
        for row in rows.iter_rows(named=True):
            which = row["change"] + (", control" if row["which"] == "control" else "")
            written = " ".join(row["text"].split()) or "(nothing)"
            console.print(Text.assemble((f"  {which}: ", "dim"), written))


INTERVENE_EXAMPLES = examples(
    "headscope intervene smollm2 --scale 1/4 1/2 2 4 --out out/scaled",
    "headscope intervene tiny --rank 4 --remove spikes --matrices qk --at L1-2",
    "headscope intervene minilm --randomise v",
)
