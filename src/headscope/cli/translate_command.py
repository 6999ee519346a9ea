"""`headscope translate`: sentences, or the lines of a file, translated by an encoder–decoder."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.catalogue import check_model, sentence_lines
from headscope.cli.argument_checks import check_file
from headscope.cli.options import Device, Form, Hub, Model, examples
from headscope.cli.output import Format, check_destination, show_rows, write_text
from headscope.cli.progress_display import shown_progress
from headscope.errors import UsageError

if TYPE_CHECKING:
    from headscope.api import TranslatedSentence

TRANSLATE_EXAMPLES = examples(
    'headscope translate headscope-translation/training/best "Click the button."',
    "headscope translate ./my-model --file sentences.txt --out translations.txt",
    'headscope translate ./my-model "Open the file." --beam 8 --n-best 4',
)


def translate(
    model: Model,
    sentences: Annotated[
        list[str] | None,
        typer.Argument(metavar="SENTENCE …", help="Sentences, each in quotation marks.", show_default=False),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="Translate the lines of this file; - is standard input."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the translations there.")] = None,
    beam: Annotated[int, typer.Option("--beam", min=1, help="Width of the beam search; 1 is greedy decoding.")] = 4,
    n_best: Annotated[
        int, typer.Option("--n-best", min=1, metavar="N", help="Show the N best translations with their scores.")
    ] = 1,
    length_penalty: Annotated[
        float, typer.Option("--length-penalty", help="Power of the length by which log-probabilities are divided.")
    ] = 1.0,
    hub: Hub = False,
    device: Device = None,
    form: Form = Format.TABLE,
) -> None:
    """Translate sentences, or the lines of a file, with an encoder–decoder.

    Translations go to standard output, one a line; with --n-best, or --format
    json, csv or parquet, with log-probability and score.
    """
    check_destination(form)
    if out is not None:
        check_file(out, "--out")
    check_model(model, hub=hub)
    lines = _lines(sentences or [], file)
    with shown_progress() as progress:
        from headscope import api

        answers = api.translate(
            model,
            lines,
            beam=beam,
            n_best=n_best,
            length_penalty=length_penalty,
            hub=hub,
            device=device,
            progress=progress,
        )
    if out is not None:
        write_text(_lines_of(answers), str(out))
    elif form is Format.TABLE and n_best == 1:
        sys.stdout.write(_lines_of(answers))
    else:
        show_rows(_rows(answers), form)


def _lines(sentences: list[str], file: str | None) -> list[str]:
    """What is to be translated."""
    if bool(sentences) == (file is not None):
        raise UsageError(
            "give sentences or --file" + (", not both" if sentences else ""),
            hint='headscope translate MODEL "Click the button."',
        )
    return sentences if file is None else sentence_lines(file)


def _rows(answers: "list[TranslatedSentence]") -> list[dict[str, Any]]:
    return [
        {
            "sentence": number,
            "rank": rank,
            "score": translation.score,
            "log_probability": translation.log_probability,
            "has_ended": translation.has_ended,
            "translation": translation.text,
        }
        for number, answer in enumerate(answers, 1)
        for rank, translation in enumerate(answer.translations, 1)
    ]


def _lines_of(answers: "list[TranslatedSentence]") -> str:
    """The translations, a line for each; several of a sentence follow one another."""
    return "".join(_line(translation.text) for answer in answers for translation in answer.translations)


def _line(translation: str) -> str:
    """A translation on a line of its own, whatever line ends the model wrote."""
    return " ".join(translation.splitlines()) + "\n"
