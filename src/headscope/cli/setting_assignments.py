"""Settings of a lens as `NAME=VALUE`, for commands that take a lens by its name and cannot have its options."""

import dataclasses
from collections.abc import Sequence
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin

from headscope.catalogue import Member
from headscope.cli.member_commands import option_name, setting_values
from headscope.errors import UsageError

_WORDS = {"yes": True, "true": True, "no": False, "false": False}


def assigned_settings(member: Member, assignments: Sequence[str]) -> dict[str, Any]:
    """The values that assignments give to the settings of a member; checked.

    Raises:
        UsageError: One is no assignment, names no setting, or its value cannot be read.
    """
    hints = member.setting_types()
    names = {option_name(field).removeprefix("--"): field.name for field in dataclasses.fields(member.settings)}
    words: dict[str, Any] = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        option = name.strip().replace("_", "-")
        if not sign or option not in names:
            reason = f"{member.role} {member.name!r} has no setting {name!r}" if sign else f"{assignment!r} has no ="
            raise UsageError(f"--set: {reason}", hint=f"write NAME=VALUE, with one of {', '.join(filter(None, names))}")
        words[names[option]] = _value(assignment, hints[names[option]], value.strip())
    return setting_values(member, words)


def _value(assignment: str, hint: Any, word: str) -> Any:
    """The value as typer would hand it over: several values as a list of words."""
    kind = next((kind for kind in get_args(hint) if kind is not NoneType), hint) if NoneType in get_args(hint) else hint
    if get_origin(kind) is tuple:
        return [word]
    if kind is bool:
        if word.lower() not in _WORDS:
            raise UsageError(f"--set {assignment}: expected yes or no")
        return _WORDS[word.lower()]
    try:
        return kind(word)
    except ValueError:
        is_choice = isinstance(kind, type) and issubclass(kind, Enum)
        expected = f"one of {', '.join(str(choice.value) for choice in kind)}" if is_choice else kind.__name__
        raise UsageError(f"--set {assignment}: cannot read {word!r}, expected: {expected}") from None
