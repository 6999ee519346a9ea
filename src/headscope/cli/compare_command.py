"""`headscope compare`: two or more models, checkpoints or run folders next to each other."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.catalogue import Amount, check_compared, check_text
from headscope.cli.argument_checks import check_lenses, requested_text
from headscope.cli.list_options import SEVERAL
from headscope.cli.options import (
    MODEL_HELP,
    AllWindows,
    Device,
    FirstTokens,
    Form,
    Hub,
    Seed,
    TextFile,
    Window,
    examples,
)
from headscope.cli.output import Format, check_destination, show_json, show_table
from headscope.cli.progress_display import shown_progress
from headscope.cli.screen import note, resumable
from headscope.errors import LensError

if TYPE_CHECKING:
    from headscope.api import Comparison

COMPARISONS = Path("headscope-compare")


def compare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C …]",
            help=f"Two or more, each compared with the first: a run folder that `headscope report` wrote, or a model: "
            f"{MODEL_HELP}",
            show_default=False,
        ),
    ],
    text: TextFile = None,
    lens: Annotated[
        list[str] | None,
        typer.Option(
            "--lens",
            metavar="NAME",
            help=f"Only these lenses. {SEVERAL} Default: all, or those of the run folders.",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Where the page goes, and a run folder for each model; these are resumed."
        ),
    ] = COMPARISONS,
    hub: Hub = False,
    device: Device = None,
    seed: Seed = 0,
    window: Window = 512,
    first_tokens: FirstTokens = None,
    all_windows: AllWindows = False,
    form: Form = Format.TABLE,
) -> None:
    """Compare models, checkpoints or run folders: which heads moved, and what every lens says about each.

    Writes one self-contained compare.html with the atlas of differences, the heads that moved most, the answers of all
    lenses side by side, and every difference with its interval. Models are measured on the same text.
    """
    check_destination(form)
    names = check_lenses(lens)
    Amount(first_tokens, all_windows)
    check_compared(sources, hub=hub, out=out)
    if text is not None:
        check_text(text)
    with resumable(out), shown_progress() as progress:
        from headscope import api

        comparison = api.compare(
            *sources,
            text=requested_text(text, device, progress),
            lenses=names,
            seed=seed,
            window=window,
            first_tokens=first_tokens,
            all_windows=all_windows,
            hub=hub,
            device=device,
            out=out,
            progress=progress,
        )
    _show(comparison, out / "compare.html", form)
    _fail_for(comparison)


def _fail_for(comparison: "Comparison") -> None:
    failed = comparison.verdicts.filter(comparison.verdicts["status"] == "failed")
    if failed.height:
        answers = ", ".join(f"{lens} on {model}" for lens, model in failed.select("lens", "model").iter_rows())
        raise LensError(f"no answer, because the lens failed: {answers}; the page shows why", hint="--debug shows more")


def _show(comparison: "Comparison", page: Path, form: Format) -> None:
    """A summary for people, or every difference."""
    if form is Format.JSON:
        show_json(_as_object(comparison) | {"page": str(page.resolve())})
        return
    for pair in comparison.pairs:
        for text in pair.notes:
            note(f"{pair.base_label} and {pair.other_label}: {text}")
    if form is not Format.TABLE:
        show_table(comparison.differences, form)
        note(f"the page: {page.resolve()}")
        return
    for sentence in comparison.sentences():
        typer.echo(f"• {sentence}")
    if all(pair.heads is None for pair in comparison.pairs):
        show_table(comparison.verdicts.select("lens", "model", "answer", "number", "null"), form)
    typer.echo(f"\nThe page: {page.resolve()}")


def _as_object(comparison: "Comparison") -> dict[str, Any]:
    return {
        "models": list(comparison.labels),
        "lenses": list(comparison.lenses),
        "pairs": [
            {
                "base": pair.base_label,
                "model": pair.other_label,
                "why_no_heads": pair.obstacle or None,
                "notes": list(pair.notes),
                "rule": pair.rule,
                "largest": [{"text": entry.text, "effect": entry.effect} for entry in pair.largest(5)],
            }
            for pair in comparison.pairs
        ],
        "heads": comparison.heads.to_dicts(),
        "verdicts": comparison.verdicts.to_dicts(),
        "differences": comparison.differences.to_dicts(),
    }


COMPARE_EXAMPLES = examples(
    "headscope compare tiny ./my-model",
    "headscope compare checkpoint-100 checkpoint-200 checkpoint-300 --lens focus,spectra",
    "headscope compare runs/before runs/after",
)
