"""Commands made of members: every field of a lens's or an experiment's `Params` is an option.

The type and the default of a field are those of the option. A tuple takes several values, by the rule of
`cli/list_options.py`: the option is repeated, or the values are separated by commas. The metadata of a field may hold:

    help        what it means
    option      the name of the option where it is not the field's; "" for a field that only Python has
    metavar     the word for its value in the help
    min, max    the least and the largest whole number; the least is 0 unless the field says otherwise
    commas      False for texts, in which a comma is a comma: such an option is repeated
    separator   what separates the values of a field that holds several in one string: "," or " "
    numbers     whether several numbers may follow the option: `--scale 1/4 1/2 2`
    positional  whether a tuple takes the arguments after the model in Python
    heads       whether it names heads: those that a model does not have are refused before it is opened
    argument    whether it is an argument after the model, and no option; in Python it may be given by its position

A member of another package that is broken is a command too: its help says why, and who runs it gets the error.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import NoneType
from typing import Annotated, Any, NoReturn, get_args, get_origin

import typer
from typer.core import TyperCommand

from headscope.catalogue import Member, check_settings, setting_help
from headscope.cli.list_options import SEVERAL, listed
from headscope.errors import HeadscopeError, UsageError

Arguments = dict[str, tuple[Any, Any]]  # annotation and default of every parameter of a command
REQUIRED = inspect.Parameter.empty

_NUMBER = re.compile(r"-?[\d./eE+-]+")


class MemberCommand(TyperCommand):
    """Lets several numbers follow one option: `--scale 1/4 1/2 2 4`."""

    number_options: tuple[str, ...] = ()

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
                option, values = (word if word in self.number_options else ""), 0
            elif option and not _NUMBER.fullmatch(word):
                option = ""
            spelled.append(word)
        return super().parse_args(ctx, spelled)


def member_command(
    member: Member, run: Callable[..., None], arguments: Arguments, *, help_text: str, epilog: str
) -> Any:
    """A command of these arguments that calls `run` with them by name."""
    small = typer.Typer(
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    small.command(name=member.name, cls=MemberCommand, help=help_text, epilog=epilog)(_with_signature(run, arguments))
    command: Any = typer.main.get_command(small)
    fields = dataclasses.fields(member.settings)
    command.number_options = tuple(option_name(field) for field in fields if field.metadata.get("numbers"))
    return command


def command_or_reason(member: Member, make: Callable[[Member], Any]) -> Any:
    """The command that `make` makes of a member; for a broken one of another package a command that says why."""
    try:
        with member.guard():
            return make(member)
    except HeadscopeError as error:
        if not member.is_foreign:
            raise
        return _broken_command(member, error)


def _broken_command(member: Member, error: HeadscopeError) -> Any:
    def refuse() -> NoReturn:
        raise error

    small = typer.Typer(add_completion=False, rich_markup_mode="rich")
    anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": ["-h", "--help"]}
    text = f"Broken: {error.message}".replace("[", "\\[")
    small.command(name=member.name, help=text, context_settings=anything)(refuse)
    return typer.main.get_command(small)


def option_arguments(member: Member, common: Arguments, panel: str | None = None) -> Arguments:
    """The options of a member's own settings.

    Raises:
        UsageError: A setting has the name of an option that every member of the kind has.
    """
    hints = member.setting_types()
    fields = [field for field in dataclasses.fields(member.settings) if option_name(field)]
    if clash := {field.name for field in fields} & common.keys():
        kind = member.role
        raise UsageError(
            f"{kind} {member.name!r}: the parameters {', '.join(sorted(clash))} are options of every {kind}"
        )
    return {field.name: _option(field, hints[field.name], panel) for field in fields}


def table_option(tables: Sequence[str]) -> Any:
    """The annotation of `--table`, whose help lists the tables, the main one first."""
    several = f"{', '.join(tables[:-1])} or {tables[-1]}." if len(tables) > 1 else ""
    text = f"{several} Default: {tables[0]}." if several else "Which table; default the main one."
    return Annotated[str | None, typer.Option("--table", metavar="NAME", help=text)]


def option_name(field: "dataclasses.Field[Any]") -> str:
    """The option of a field, e.g. `--new-tokens`; empty where only Python has it."""
    name = field.metadata.get("option", field.name).replace("_", "-")
    return f"--{name}" if name else ""


def setting_values(member: Member, words: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a member's settings, from what the command line was given under their names; checked.

    Raises:
        UsageError: A value cannot be read, or the settings make no sense.
    """
    hints = member.setting_types()
    fields = [field for field in dataclasses.fields(member.settings) if field.name in words]
    values = {field.name: _value(field, hints[field.name], words[field.name]) for field in fields}
    check_settings(member.settings(**values))
    return values


def _value(field: "dataclasses.Field[Any]", hint: Any, word: Any) -> Any:
    if word is None:
        return field.default
    if not isinstance(word, list):
        return word
    if any("\ud800" <= character <= "\udfff" for text in word for character in text):
        name = option_name(field)
        raise UsageError(f"{name} is not text: it holds bytes that are not UTF-8", hint="write it in UTF-8")
    if separator := field.metadata.get("separator"):
        return separator.join(word)
    values = listed(word) if field.metadata.get("commas", True) else word
    return tuple(_element(field, get_args(_without_none(hint))[0], value) for value in values)


def _element(field: "dataclasses.Field[Any]", kind: Any, value: str) -> Any:
    """One value of a list, as the setting holds it."""
    if kind is str:
        return value
    try:
        return kind(value)
    except ValueError:
        is_choice = isinstance(kind, type) and issubclass(kind, Enum)
        expected = f"one of {', '.join(choice.value for choice in kind)}" if is_choice else f"expected: {kind.__name__}"
        raise UsageError(f"{option_name(field)}: cannot read {value!r}", hint=expected) from None


def _option(field: "dataclasses.Field[Any]", hint: Any, panel: str | None) -> tuple[Any, Any]:
    kind = _without_none(hint)
    is_list = get_origin(kind) is tuple or "separator" in field.metadata
    name = option_name(field)
    if field.metadata.get("argument"):
        metavar = field.metadata.get("metavar", field.name.upper())
        argument = typer.Argument(metavar=metavar, help=setting_help(field), show_default=False)
        return Annotated[hint, argument], field.default
    option = typer.Option(
        f"{name}/--no-{name.removeprefix('--')}" if hint is bool else name,
        metavar=field.metadata.get("metavar", _list_metavar(kind) if is_list else None),
        help=_help(field, is_list),
        rich_help_panel=panel,
        min=field.metadata.get("min", 0 if kind is int else None),  # they count things
        max=field.metadata.get("max"),
        show_default=str(field.default) if is_list and isinstance(field.default, str) else True,
    )
    if is_list:
        return Annotated[list[str] | None, option], None
    return Annotated[hint, option], field.default


def _list_metavar(kind: Any) -> str | None:
    """The choices of a list of choices, as typer writes those of a single one."""
    element = get_args(kind)[0] if get_origin(kind) is tuple else str
    if isinstance(element, type) and issubclass(element, Enum):
        return f"[{'|'.join(str(choice.value) for choice in element)}]"
    return None


def _without_none(hint: Any) -> Any:
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if NoneType in get_args(hint) else [hint]
    return kinds[0]


def _with_signature(run: Callable[..., None], arguments: Arguments) -> Callable[..., None]:
    """A function with the signature that typer reads."""

    def command(**words: Any) -> None:
        run(**words)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, keyword, annotation=annotation, default=default)
        for name, (annotation, default) in arguments.items()
    ]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _help(field: "dataclasses.Field[Any]", is_list: bool) -> str:
    text = setting_help(field)
    if not text or not is_list:
        return text
    has_commas = field.metadata.get("commas", True) and field.metadata.get("separator", ",") == ","
    return f"{text} {SEVERAL if has_commas else 'May be repeated.'}"
