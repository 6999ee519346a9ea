"""Mechanisms as text: `window(left=256)`, `bigbird(block=16)`, `dense`.

This is their form on the command line.
"""

import ast

from headscope.attention.mechanism import Mechanism, mechanism_named
from headscope.errors import UsageError

_LONGEST = 500  # characters: many times what any mechanism needs, and never enough to exhaust the parser


def spelled(text: str) -> Mechanism:
    """The mechanism that `text` names, with its parameters.

    Only literals are read, and nothing is run.
    """
    if len(text) > _LONGEST:
        raise _unreadable(f"{text[:40]} … ({len(text)} characters)")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unreadable(text) from None
    if isinstance(tree, ast.Name):
        return _made(text, mechanism_named(tree.id), {})
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise _unreadable(text)
    return _made(text, mechanism_named(tree.func.id), _parameters(text, tree))


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


def _made(text: str, cls: type[Mechanism], parameters: dict[str, object]) -> Mechanism:
    try:
        return cls(**parameters)
    except TypeError as error:
        raise UsageError(
            f"{text!r}: {str(error).replace(f'{cls.__name__}.__init__()', cls.name)}",
            hint=f"headscope mechanisms {cls.name} tells its parameters",
        ) from None


def _unreadable(text: str) -> UsageError:
    return UsageError(
        f"cannot read the mechanism {text!r}", hint="write a name with parameters, for example window(left=256)"
    )
