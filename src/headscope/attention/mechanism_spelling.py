"""Mechanisms as text: `window(left=256)`, `bigbird(block=16)`, `dense`.

This is their form on the command line. Reading it loads no torch; `spelled` does, to make the mechanism.
"""

import ast
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING

from headscope.attention.mechanism_summary import stored_summaries
from headscope.attention.mechanisms import mechanism_member
from headscope.errors import UsageError

if TYPE_CHECKING:
    from headscope.attention.mechanism import Mechanism

_LONGEST = 500  # characters: many times what any mechanism needs, and never enough to exhaust the parser


@dataclass(frozen=True)
class Spelling:
    """The name of a mechanism and its parameters, as they were written."""

    text: str
    name: str
    parameters: dict[str, object]


def spelled(text: str) -> "Mechanism":
    """The mechanism that `text` names, with its parameters.

    Only literals are read, and nothing is run.
    """
    from headscope.attention.mechanism import mechanism_named

    spelling = _parsed(text)
    cls = mechanism_named(spelling.name)
    try:
        return cls(**spelling.parameters)
    except TypeError as error:
        raise UsageError(
            f"{text!r}: {str(error).replace(f'{cls.__name__}.__init__()', cls.name)}",
            hint=f"headscope mechanisms {cls.name} tells its parameters",
        ) from None


def spelling_of(mechanism: "Mechanism") -> str:
    """The text that `spelled` reads as this mechanism: its name, and the parameters that differ from their defaults.

    Properties:
        - `spelled` reads it as an equal mechanism  (tested: test_spelling_and_back)

    Raises:
        UsageError: A parameter is no literal, such as a tensor.
    """
    parameters = []
    for field in fields(mechanism):  # type: ignore[arg-type]  # every mechanism is a dataclass
        value = getattr(mechanism, field.name)
        if field.default is MISSING or value != field.default:
            parameters.append(f"{field.name}={value!r}")
    text = f"{mechanism.name}({', '.join(parameters)})" if parameters else mechanism.name
    try:
        is_read_back = spelled(text) == mechanism
    except UsageError:
        is_read_back = False
    if not is_read_back:
        raise UsageError(f"{mechanism!r} cannot be written as text: a parameter is no number, word or tuple of these")
    return text


def check_spelling(text: str) -> None:
    """Refuse a text that `spelled` would refuse for its form, its name or the names of its parameters.

    Raises:
        UsageError: It cannot be read, or there is no such mechanism or parameter.
    """
    spelling = _parsed(text)
    mechanism_member(spelling.name)
    summary = stored_summaries().get(spelling.name)
    if summary is None:
        return  # of another package: its class knows
    hint = f"its parameters are: {summary.spelled_parameters()}"
    if unknown := spelling.parameters.keys() - summary.parameters.keys():
        raise UsageError(f"{text!r}: {summary.name} has no parameter {min(unknown)!r}", hint=hint)
    required = {name for name, default in summary.parameters.items() if default is None}
    if missing := required - spelling.parameters.keys():
        raise UsageError(f"{text!r}: {summary.name} needs the parameter {min(missing)!r}", hint=hint)


def _parsed(text: str) -> Spelling:
    if len(text) > _LONGEST:
        raise _unreadable(f"{text[:40]} … ({len(text)} characters)")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unreadable(text) from None
    if isinstance(tree, ast.Name):
        return Spelling(text, tree.id, {})
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise _unreadable(text)
    return Spelling(text, tree.func.id, _parameters(text, tree))


def _parameters(text: str, call: ast.Call) -> dict[str, object]:
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise UsageError(f"{text!r}: parameters are given by name", hint="for example window(left=256)")
    parameters: dict[str, object] = {}
    for keyword in call.keywords:
        if keyword.arg in parameters:
            raise UsageError(f"{text!r}: {keyword.arg} is given twice", hint="give each parameter once")
        try:
            parameters[str(keyword.arg)] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, RecursionError, MemoryError):
            value = ast.unparse(keyword.value)
            raise UsageError(
                f"{text!r}: {keyword.arg} must be a number, a string, a tuple, True, False or None, got {value}"
            ) from None
    return parameters


def _unreadable(text: str) -> UsageError:
    return UsageError(
        f"cannot read the mechanism {text!r}", hint="write a name with parameters, for example window(left=256)"
    )
