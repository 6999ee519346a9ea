"""The arguments and options that several commands share, each written once."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headscope.catalogue import forms
from headscope.cli.output import Format

MODEL_HELP = (
    f"tiny, tiny-translate, smollm2, minilm, {', '.join(forms())}, random:PATH, BASE+ADAPTER, or a hub id with --hub."
)


class FigureFormat(StrEnum):
    """What a figure can be saved as."""

    SVG = "svg"
    PDF = "pdf"
    PNG = "png"


def examples(*commands: str) -> str:
    """The foot of a help text: commands to copy."""
    title = "Examples:" if len(commands) > 1 else "Example:"
    return "\n".join([title, *(f"  {command}" for command in commands)])


def paragraphs(text: str) -> str:
    """A help text with every paragraph on one line: the terminal wraps it, and would wrap wrapped lines again."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip()))


Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
ModelOrTiny = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
TextFile = Annotated[
    str | None,
    typer.Option(
        "--text",
        metavar="TEXT",
        help="A UTF-8 file, - for standard input, or a name that `headscope data` lists; NAME:fit, NAME:search and "
        "NAME:test are parts of it. Default: a text that ships with headscope.",
    ),
]
TextOrSentence = Annotated[
    str | None,
    typer.Option(
        "--text",
        metavar="TEXT",
        help="The text itself (several words), a UTF-8 file, - for standard input, or a name that `headscope data` "
        "lists. Default: see above.",
    ),
]
Hub = Annotated[bool, typer.Option("--hub", help="Allow fetching the model from the hub.")]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="Where the model runs: cpu, cuda, cuda:1, mps. Default: cpu."),
]
# Larger whole numbers are not kept exactly by every reader of the manifest, nor taken by every random generator.
MOST_SEED = 2**53
Seed = Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="Seed of everything that is drawn at random.")]
Window = Annotated[
    int, typer.Option("--window", min=1, help="Tokens per window; the model's context where that is shorter.")
]
FirstTokens = Annotated[
    int | None,
    typer.Option(
        "--first-tokens",
        min=1,
        metavar="N",
        help="Read the first N tokens of the text. Default: 32 windows that are evenly spread over it.",
    ),
]
AllWindows = Annotated[bool, typer.Option("--all", help="Read the whole text, however long it is.")]
Form = Annotated[Format, typer.Option("--format", help="How data is written to standard output.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="The run folder; an interrupted run in it is resumed."),
]
