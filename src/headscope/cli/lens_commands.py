"""`headscope lens NAME MODEL`: one sub-command per lens, its settings as options."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from headscope.catalogue import Member, lens_member, lens_members
from headscope.cli.argument_checks import check_request, check_table, requested_text
from headscope.cli.member_commands import (
    REQUIRED,
    Arguments,
    command_or_reason,
    member_command,
    option_arguments,
    setting_values,
    table_option,
)
from headscope.cli.options import (
    AllWindows,
    Device,
    FirstTokens,
    Form,
    Hub,
    Model,
    Out,
    Seed,
    TextFile,
    Window,
    examples,
)
from headscope.cli.output import Format, check_destination, show_finding
from headscope.cli.progress_display import shown_progress
from headscope.cli.screen import note, resumable
from headscope.errors import LensError

if TYPE_CHECKING:
    from headscope.core import Finding

_COMMON: Arguments = {
    "model": (Model, REQUIRED),
    "text": (TextFile, None),
    "hub": (Hub, False),
    "device": (Device, None),
    "seed": (Seed, 0),
    "window": (Window, 512),
    "first_tokens": (FirstTokens, None),
    "all_windows": (AllWindows, False),
    "out": (Out, None),
    "form": (Form, Format.TABLE),
}


class LensGroup(TyperGroup):
    """Finds its commands by scanning the lenses, which happens only when someone asks."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the lenses."""
        return list(lens_members())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of one lens; an unknown name is answered with the nearest ones."""
        return command_or_reason(lens_member(cmd_name), command_of)


def command_of(lens: Member) -> Any:
    """A command made of a lens: its question as help, its settings as options."""
    tables = lens_tables(lens)
    table: Arguments = {"table": (table_option(tables), None)}
    options = option_arguments(lens, {**_COMMON, **table}, "Parameters of this lens")
    command = member_command(
        lens,
        partial(answer, lens),
        {"model": _COMMON["model"], **options, **_COMMON, **table},
        help_text=_help(lens),
        epilog=examples(f"headscope lens {lens.name} tiny"),
    )
    command.short_help = lens.about.question
    return command


def lens_tables(lens: Member) -> tuple[str, ...]:
    """The tables that a lens can make, the main one first; none where its settings do not say."""
    return tuple(lens.optional_setting("TABLES") or ())


def _help(lens: Member) -> str:
    about = lens.about
    return f"{about.question}\n\n{about.definition}\n\nHow to read it: {about.reading}".replace("[", "\\[")


def answer(
    lens: Member,
    *,
    model: str,
    text: str | None,
    hub: bool,
    device: str | None,
    seed: int,
    window: int,
    first_tokens: int | None,
    all_windows: bool,
    out: Path | None,
    table: str | None,
    form: Format,
    **words: Any,
) -> None:
    """Ask one lens and write its answer."""
    check_destination(form)
    check_table(table, lens_tables(lens), f"lens {lens.name!r}")
    settings = setting_values(lens, words)
    check_request(model, hub=hub, text=text, out=out, first_tokens=first_tokens, all_windows=all_windows)
    with resumable(out), shown_progress() as progress:
        from headscope import api

        run = api.measure(
            model,
            text=requested_text(text, device, progress),
            lenses=[lens.name],
            params={lens.name: settings},
            seed=seed,
            window=window,
            first_tokens=first_tokens,
            all_windows=all_windows,
            hub=hub,
            device=device,
            out=out,
            progress=progress,
        )
    finding = run[lens.name]
    if finding.status == "ok" or form is Format.JSON:
        show_finding(finding, form, table)
    _end(finding)


def _end(finding: "Finding") -> None:
    if finding.status == "failed":
        raise LensError(f"lens {finding.lens!r} failed: {finding.reason}", hint="--debug shows the traceback")
    if finding.status == "not applicable":
        note(f"not applicable: {finding.reason}")
