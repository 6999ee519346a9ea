"""`headscope intervene MODEL`, `headscope study fewshot MODEL`: one command per experiment, its settings as options."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headscope.catalogue import (
    Command,
    Member,
    check_folder,
    check_heads,
    check_writer,
    command_of,
    experiment_members,
)
from headscope.cli.argument_checks import (
    check_request,
    check_table,
    requested_text,
    sentence_text,
    stated_sentence,
)
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
    Device,
    Form,
    Hub,
    Model,
    ModelOrTiny,
    Seed,
    TextFile,
    TextOrSentence,
    examples,
    paragraphs,
)
from headscope.cli.output import Format, check_destination, show_experiment, show_page
from headscope.cli.progress_display import shown_progress
from headscope.cli.screen import resumable
from headscope.errors import HeadscopeError, UsageError

# What the help says of a group of commands.
GROUPS = {"study": "Experiments from a prompt to a page."}


class ExperimentGroup(TyperGroup):
    """A group whose commands are experiments, found by a scan when someone asks for one."""

    path: tuple[str, ...] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._packages: set[str] = set()  # of the experiments that have their command or group

    def list_commands(self, ctx: Any) -> list[str]:
        """Its own commands, then those of the experiments below its path."""
        self._scan()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command of its own, an experiment, or a group of experiments."""
        if cmd_name not in self.commands:
            self._scan()
        return super().get_command(ctx, cmd_name)

    def _scan(self) -> None:
        for member in sorted(experiment_members().values(), key=lambda member: member.is_foreign):
            path = _path(member)
            is_below = len(path) > len(self.path) and path[: len(self.path)] == self.path
            if is_below and member.package not in self._packages:
                self._packages.add(member.package)
                self._add(path[: len(self.path) + 1], path, member)

    def _add(self, below: tuple[str, ...], path: tuple[str, ...], member: Member) -> None:
        """Add an experiment or its group; where the name is taken, a command that says so under another name."""
        name, holder = below[-1], self.commands.get(below[-1])
        if holder is None:
            self.add_command(command_or_reason(member, command_of_experiment) if path == below else _group(below), name)
        elif path == below or not isinstance(holder, ExperimentGroup):
            problem = f"headscope has a command {' '.join(below)!r}; change the path of its COMMAND"
            clash = dataclasses.replace(member, problem=member.problem or problem)
            self.add_command(command_or_reason(clash, command_of_experiment), member.package)


def _path(member: Member) -> tuple[str, ...]:
    """Where the command of an experiment is; a broken one of another package is at the top under its name."""
    try:
        return command_of(member).path
    except HeadscopeError:
        if not member.is_foreign:
            raise
        return (member.name,)


def command_of_experiment(member: Member) -> Any:
    """A command made of an experiment: the help of its settings, their fields as options."""
    command = command_of(member)
    common: Arguments = {
        "out": (Annotated[Path | None, typer.Option("--out", metavar="DIR", help=_out_help(command))], None),
        "open_page": (
            Annotated[bool, typer.Option("--open", help="Open the page in a browser when it is written.")],
            False,
        ),
        "table": (table_option(command.tables), None),
        "hub": (Hub, False),
        "device": (Device, None),
        "form": (Form, Format.TABLE),
    }
    model = (ModelOrTiny, command.default_model) if command.default_model else (Model, REQUIRED)
    if command.makes_model:
        del common["hub"], common["device"]
    options = option_arguments(member, {"model": model, **common})
    options.pop("seed", None)
    if "text" in options:
        options["text"] = (TextOrSentence if command.reads_sentences else TextFile, None)
    form = common.pop("form")
    arguments = {**options, **common, "seed": (Seed, 0), "form": form}
    return member_command(
        member,
        partial(_trained, member) if command.makes_model else partial(_answer, member),
        arguments if command.makes_model else {"model": model, **arguments},
        help_text=paragraphs(command.help).replace("[", "\\["),
        epilog=examples(*command.examples),
    )


def _group(path: tuple[str, ...]) -> Any:
    group = typer.Typer(
        name=path[-1],
        cls=ExperimentGroup,
        no_args_is_help=True,
        rich_markup_mode="rich",
        help=GROUPS.get(path[-1], "Experiments."),
        context_settings={"help_option_names": ["-h", "--help"]},
        add_completion=False,
    )
    group.callback()(lambda: None)
    command: Any = typer.main.get_command(group)
    command.path = path
    return command


def _answer(
    member: Member,
    *,
    model: str,
    hub: bool,
    device: str | None,
    out: Path | None,
    open_page: bool,
    table: str | None,
    form: Format,
    **words: Any,
) -> None:
    """Run one experiment and write its result."""
    check_destination(form)
    command = command_of(member)
    check_table(table, command.tables, f"experiment {member.name!r}")
    settings = setting_values(member, words)
    sentence = stated_sentence(settings.get("text")) if command.reads_sentences else None
    out = _folder(command, out, is_shown=form is Format.TABLE and table is None)
    if open_page and out is None:
        raise UsageError("--open opens the page, and no page is written here", hint="add --out DIR")
    check_request(model, hub=hub, text=None if sentence else settings.get("text"), out=out)
    check_heads(model, _named_heads(member, settings), hub=hub)
    if command.needs_writer:
        check_writer(model, f"`headscope {' '.join(command.path)}`")
    with shown_progress() as progress:
        from headscope import api

        text = sentence_text(sentence) if sentence else requested_text(settings.get("text"), device, progress)
        params = member.settings(**settings) if text is None else member.settings(**{**settings, "text": text})
        run = api.run_experiment(member.name, model, params, hub=hub, device=device, out=out, progress=progress)
    show_experiment(run[member.name], api.experiment_named(member.name).show, form, table, out)
    if open_page and out is not None:
        show_page(out / "report.html")


def _trained(
    member: Member, *, out: Path | None, open_page: bool, table: str | None, form: Format, **words: Any
) -> None:
    """Run an experiment that trains its own model in a folder, and write its result."""
    check_destination(form)
    command = command_of(member)
    check_table(table, command.tables, f"experiment {member.name!r}")
    settings = setting_values(member, words)
    folder = Path(command.default_out) if out is None else out
    check_folder(folder)
    with resumable(folder), shown_progress() as progress:
        from headscope import api

        params = member.settings(**settings)
        run = api.run_experiment(member.name, params=params, out=folder, progress=progress)
    show_experiment(run[member.name], api.experiment_named(member.name).show, form, table, folder)
    if open_page:
        show_page(folder / "report.html")


def _folder(command: Command, out: Path | None, *, is_shown: bool) -> Path | None:
    """The folder that was named; else that of the experiment, unless only data was asked for."""
    return Path(command.default_out) if out is None and command.default_out and is_shown else out


def _out_help(command: Command) -> str:
    folder = (
        f" Default: {command.default_out}, unless --table or --format asks for data." if command.default_out else ""
    )
    return f"Write the run and its report.html there.{folder}"


def _named_heads(member: Member, settings: dict[str, Any]) -> list[str]:
    """The heads that the settings name, so that those of no head are refused before torch is loaded."""
    fields = [field.name for field in dataclasses.fields(member.settings) if field.metadata.get("heads")]
    return [settings[name] for name in fields if settings.get(name) is not None]
