"""The Python function of an experiment, made of its settings: `headscope.intervene(model, "rank 8", at="L3")`.

Every field of `Params` is a keyword argument with the field's type, default and help: `help()` and completion show what
the settings say. A field with the metadata `positional` takes the arguments after the model instead. None stands for
the default of a setting, a single value for a tuple of one. Loads no torch. A field with the metadata `argument` may be
given by its position.
"""

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from headscope.errors import HeadscopeError, UsageError
from headscope.experiments import command_of
from headscope.members import Member, check_settings, setting_help

if TYPE_CHECKING:
    from headscope.core import Run

Runner = Callable[..., "Run"]  # of the experiment's name, the model and the parameters, and the common arguments
MODEL = inspect.Parameter("what", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Any)
# Type, default and help of the arguments that every experiment has.
COMMON: dict[str, tuple[Any, Any, str]] = {
    "hub": (bool, False, "Whether a name may be fetched from the model hub."),
    "device": ("str | None", None, 'Where the model runs, e.g. "cuda"; None is the CPU, or where a loaded model is.'),
    "out": ("str | Path | None", None, "A folder for the run and its `report.html`."),
    "progress": ("Progress | None", None, "Told about every step."),
}
_WIDTH = 110


def function_of(member: Member, run: Runner) -> Callable[..., "Run"]:
    """The function of an experiment; that of a broken one raises the reason when it is called."""
    try:
        with member.guard():
            signature, text = _signature(member), _docstring(member)
    except HeadscopeError as error:
        return _broken_function(member, error)

    def function(*arguments: Any, **keywords: Any) -> "Run":
        try:
            bound = signature.bind(*arguments, **keywords)
        except TypeError as error:
            raise TypeError(f"{member.name}() {error}") from None
        values = dict(bound.arguments)
        model = values.pop(MODEL.name, command_of(member).default_model or None)
        common = {name: values.pop(name) for name in COMMON if name in values}
        return run(member.name, model, _params(member, values, common.get("progress")), **common)

    vars(function)["__signature__"] = signature
    return _named(function, member, text)


def _broken_function(member: Member, error: HeadscopeError) -> Callable[..., "Run"]:
    def function(*arguments: Any, **keywords: Any) -> "Run":
        raise error

    return _named(function, member, f"Broken: {error.message}.")


def _named(function: Callable[..., "Run"], member: Member, text: str) -> Callable[..., "Run"]:
    function.__name__ = function.__qualname__ = member.name
    function.__module__ = "headscope"
    function.__doc__ = text
    return function


def _signature(member: Member) -> inspect.Signature:
    fields = dataclasses.fields(member.settings)
    if clash := {field.name for field in fields} & {MODEL.name, *COMMON}:
        raise UsageError(
            f"experiment {member.name!r}: the settings {', '.join(sorted(clash))} are arguments of every experiment"
        )
    settings = [_parameter(field, member.setting_types()[field.name]) for field in fields]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default, _) in _common(member).items()
    ]
    default = command_of(member).default_model
    model = MODEL.replace(default=default) if default else MODEL
    models = [] if command_of(member).makes_model else [model]
    parameters = [*models, *sorted(settings, key=lambda parameter: parameter.kind), *common]
    return inspect.Signature(parameters, return_annotation="Run")


def _parameter(field: "dataclasses.Field[Any]", hint: Any) -> inspect.Parameter:
    if field.metadata.get("positional"):
        annotation = get_args(_without_none(hint))[0]
        return inspect.Parameter(field.name, inspect.Parameter.VAR_POSITIONAL, annotation=annotation)
    by_position = field.metadata.get("argument", False)
    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD if by_position else inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, keyword, annotation=field.type, default=field.default)


def _common(member: Member) -> dict[str, tuple[Any, Any, str]]:
    """The arguments that the experiment shares with others: one that makes its model fetches and places none."""
    of_models = ("hub", "device") if command_of(member).makes_model else ()
    return {name: argument for name, argument in COMMON.items() if name not in of_models}


def _docstring(member: Member) -> str:
    summary, _, _ = command_of(member).help.partition("\n\n")
    fields = dataclasses.fields(member.settings)
    command = command_of(member)
    model = {} if command.makes_model else {MODEL.name: f"A model, or what `open` takes.{_default_words(member)}"}
    arguments = {
        **model,
        **{field.name: setting_help(field) for field in fields if field.metadata.get("positional")},
        **{field.name: setting_help(field) for field in fields if not field.metadata.get("positional")},
        **{name: text for name, (_, _, text) in _common(member).items()},
    }
    return "\n".join(
        [
            " ".join(summary.split()),
            "",
            f"On the command line: `headscope {' '.join(command.path)}{'' if command.makes_model else ' MODEL'}`.",
            "",
            "Args:",
            *(_argument_lines(name, text) for name, text in arguments.items()),
            "",
            "Raises:",
            "    UsageError: The arguments make no sense, or the experiment cannot be done with this model.",
        ]
    )


def _default_words(member: Member) -> str:
    default = command_of(member).default_model
    return f" Default: `{default}`." if default else ""


def _argument_lines(name: str, text: str) -> str:
    lines = textwrap.wrap(f"{name}: {text}", _WIDTH, break_long_words=False, break_on_hyphens=False)
    return textwrap.indent("\n    ".join(lines), "    ")


def _params(member: Member, values: Mapping[str, Any], progress: Any) -> Any:
    """The parameters that the arguments spell."""
    hints = member.setting_types()
    converted = {name: _converted(name, hints[name], value) for name, value in values.items()}
    # None stands for the default, unless it is a value of its own.
    settings = {name: value for name, value in converted.items() if value is not None or _allows_none(hints[name])}
    params = member.settings(**settings)
    check_settings(params)  # before a text is fetched
    if settings.get("text") is None:
        return params
    from headscope.corpora import text_of

    return dataclasses.replace(params, text=text_of(settings["text"], None if progress is None else progress.step))


def _converted(name: str, hint: Any, value: Any) -> Any:
    """The value as its setting holds it: a sequence as a tuple, what is spelled as a string or an enum."""
    plain = _without_none(hint)
    if value is None or get_origin(plain) is not tuple:
        return value if value is None else _element(name, plain, value)
    values = value if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    kind = get_args(plain)[0]
    return tuple(str(element) if kind is str else _element(name, kind, element) for element in values)


def _element(name: str, kind: Any, value: Any) -> Any:
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        return value
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(str(choice.value) for choice in kind)
        raise UsageError(f"{name}: there is no {value!r}", hint=f"one of {choices}") from None


def _allows_none(hint: Any) -> bool:
    return NoneType in get_args(hint)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 else hint
