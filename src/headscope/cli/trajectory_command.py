"""`headscope trajectory`: the heads of a network over the saved steps of its training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.catalogue import Amount, check_text, check_trajectory, lens_member
from headscope.cli.argument_checks import check_table, requested_text
from headscope.cli.list_options import SEVERAL, listed
from headscope.cli.member_commands import table_option
from headscope.cli.options import AllWindows, Device, FirstTokens, Form, Seed, TextFile, Window, examples
from headscope.cli.output import Format, check_destination, show_json, show_table
from headscope.cli.progress_display import shown_progress
from headscope.cli.screen import note, resumable
from headscope.cli.setting_assignments import assigned_settings
from headscope.errors import LensError

if TYPE_CHECKING:
    import polars as pl

    from headscope.api import Trajectory

TRAJECTORIES = Path("headscope-trajectory")
TABLES = ("changes", "values")
_SHOWN = ("quantity", "step", "step_low", "step_high", "value_before", "value_after", "value")


def trajectory(
    training: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a training, with its saved steps.", show_default=False)
    ],
    lens: Annotated[
        str,
        typer.Option("--lens", metavar="NAME", help="The lens that measures every step; see `headscope lenses`."),
    ],
    quantity: Annotated[
        list[str] | None,
        typer.Option(
            "--quantity", metavar="KEY", help=f"Only these quantities of the lens. {SEVERAL} Default: all of them."
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the lens; `headscope lens NAME --help` lists them. May be repeated.",
        ),
    ] = None,
    text: TextFile = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Where the page goes, and a run folder for each step; these are resumed."
        ),
    ] = TRAJECTORIES,
    device: Device = None,
    seed: Seed = 0,
    window: Window = 512,
    first_tokens: FirstTokens = None,
    all_windows: AllWindows = False,
    table: table_option(TABLES) = None,  # type: ignore[valid-type]
    form: Form = Format.TABLE,
) -> None:
    """Draw numbers of heads over the saved steps of a training, and name the step where each changes most steeply.

    Writes one self-contained trajectory.html with the curves of all heads, and for each head the step of steepest
    change with its interval. Every saved step is measured once; the steps of a longer training are added to the folder.
    """
    check_destination(form)
    check_table(table, TABLES, "trajectory")
    member = lens_member(lens)
    settings = assigned_settings(member, setting or ())
    Amount(first_tokens, all_windows)
    check_trajectory(training, out)
    if text is not None:
        check_text(text)
    with resumable(out), shown_progress() as progress:
        from headscope import api

        measured = api.trajectory(
            training,
            member.name,
            quantities=None if quantity is None else listed(quantity),
            text=requested_text(text, device, progress),
            params=settings,
            seed=seed,
            window=window,
            first_tokens=first_tokens,
            all_windows=all_windows,
            device=device,
            out=out,
            progress=progress,
        )
    _show(measured, (out / "trajectory.html").resolve(), form, table)
    _end(measured)


def _show(measured: "Trajectory", page: Path, form: Format, table: str | None) -> None:
    """A summary and the changes for people, or a whole table."""
    if form is Format.JSON:
        show_json(_as_object(measured) | {"page": str(page)})
        return
    for step, reason in measured.reasons.items():
        if measured.steps:  # without any step the end says why
            note(f"step {step} is left out: {reason}")
    if form is not Format.TABLE:
        show_table(measured.values if table == "values" else measured.changes, form)
        note(f"the page: {page}")
        return
    for sentence in measured.sentences():
        typer.echo(f"• {sentence}")
    if measured.finding.status == "ok":
        typer.echo("")
        show_table(measured.values if table == "values" else _shown_changes(measured), form)
    typer.echo(f"\nThe page: {page}")


def _shown_changes(measured: "Trajectory") -> "pl.DataFrame":
    """The changes as a screen has room for them, the largest first."""
    changes = measured.changes.sort("effect", descending=True, nulls_last=True, maintain_order=True)
    place = [name for name in ("stack", "kind", "layer", "head") if changes[name].n_unique() > 1]
    return changes.select(*place, *_SHOWN)


def _as_object(measured: "Trajectory") -> dict[str, Any]:
    finding = measured.finding
    return {
        "training": measured.run.model.name,
        "lens": measured.lens,
        "status": finding.status,
        "reason": finding.reason or None,
        "steps": list(measured.steps),
        "left_out": [{"step": step, "reason": reason} for step, reason in measured.reasons.items()],
        "sentences": list(measured.sentences()),
        "method": finding.method,
        "changes": measured.changes.to_dicts(),
        "values": measured.values.to_dicts(),
    }


def _end(measured: "Trajectory") -> None:
    finding = measured.finding
    if finding.status == "failed":
        raise LensError(f"no trajectory of the lens {measured.lens!r}: {finding.reason}", hint="--debug shows more")
    if finding.status == "not applicable":
        note(f"not applicable: {finding.reason}")


TRAJECTORY_EXAMPLES = examples(
    "headscope trajectory my-training --lens roles",
    "headscope trajectory my-training --lens roles --quantity induction,previous_token --out out/induction",
    "headscope trajectory my-training --lens roles --set with_text=no --set sequences=48",
)
