"""`headscope lens NAME MODEL`: one sub-command per lens, its settings as options."""

import dataclasses
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from headscope.catalogue import Member, lens_member, lens_members
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
from headscope.cli.screen import bars, note, resumable
from headscope.errors import LensError, UsageError

if TYPE_CHECKING:
    from headscope.core import Finding

_SHARED: dict[str, tuple[Any, Any]] = {
    "model": (Model, inspect.Parameter.empty),
    "text": (TextFile, None),
    "hub": (Hub, False),
    "device": (Device, None),
    "seed": (Seed, 0),
    "window": (Window, 512),
    "first_tokens": (FirstTokens, None),
    "all_windows": (AllWindows, False),
    "out": (Out, None),
    "table": (
        Annotated[str | None, typer.Option("--table", metavar="NAME", help="Which table; default the main one.")],
        None,
    ),
    "form": (Form, Format.TABLE),
}


class LensGroup(TyperGroup):
    """Finds its commands by scanning the lenses, which happens only when someone asks."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the lenses."""
        return list(lens_members())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of one lens; an unknown name is answered with the nearest ones."""
        return command_of(lens_member(cmd_name))


def command_of(lens: Member) -> Any:
    """A command made of a lens: its question as help, its settings as options."""
    small = typer.Typer(
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    small.command(name=lens.name, help=_help(lens), epilog=examples(f"headscope lens {lens.name} tiny"))(
        _function(lens)
    )
    command = typer.main.get_command(small)
    command.short_help = lens.about.question
    return command


def _help(lens: Member) -> str:
    about = lens.about
    return f"{about.question}\n\n{about.definition}\n\nHow to read it: {about.reading}".replace("[", "\\[")


def _function(lens: Member) -> Any:
    """A function with the signature that typer reads; the body is the same for every lens."""
    fields = dataclasses.fields(lens.settings)
    hints = get_type_hints(lens.settings)
    own = {
        field.name: (
            Annotated[
                hints[field.name],
                typer.Option(
                    help=_sentence(field.metadata.get("help", "")),
                    rich_help_panel="Parameters of this lens",
                    min=0 if hints[field.name] is int else None,  # they count things
                ),
            ],
            field.default,
        )
        for field in fields
    }
    if clash := own.keys() & _SHARED.keys():
        raise UsageError(f"lens {lens.name!r}: the parameters {', '.join(sorted(clash))} are options of every lens")

    def command(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in own}
        answer(lens.name, chosen, **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, keyword, annotation=annotation, default=default)
        for name, (annotation, default) in {"model": _SHARED["model"], **own, **_SHARED}.items()
    ]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def answer(
    name: str,
    params: dict[str, Any],
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
) -> None:
    """Ask one lens and write what it says."""
    from headscope import api

    check_destination(form)
    with resumable(out), bars() as progress:
        run = api.measure(
            model,
            text=None if text is None else api.text(text, progress=progress.step),
            lenses=[name],
            params={name: params},
            seed=seed,
            window=window,
            first_tokens=first_tokens,
            all_windows=all_windows,
            hub=hub,
            device=device,
            out=out,
            progress=progress,
        )
    finding = run[name]
    if finding.status == "ok" or form is Format.JSON:
        show_finding(finding, form, table)
    _end(finding)


def _end(finding: "Finding") -> None:
    if finding.status == "failed":
        raise LensError(f"lens {finding.lens!r} failed: {finding.reason}", hint="--debug shows the traceback")
    if finding.status == "not applicable":
        note(f"not applicable: {finding.reason}")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') or not text else '.'}"
