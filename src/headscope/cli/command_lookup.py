"""Commands that are written down elsewhere: whether one exists, how it is parsed, how it is run."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import typer

from headscope.errors import UsageError


def command_at(words: Sequence[str]) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
    """The command that the words lead to (None where there is none), the words that name it, and its arguments."""
    named: tuple[str, ...] = ()
    while hasattr(_named(named), "get_command") and len(named) < len(words):
        named = tuple(words[: len(named) + 1])
    return _named(named), named, tuple(words[len(named) :])


@cache
def _named(path: tuple[str, ...]) -> Any:
    """The command of this path, or None."""
    from headscope.cli.app import app  # which itself holds the commands that ask here

    if not path:
        return typer.main.get_command(app)
    group = _named(path[:-1])
    try:
        return group.get_command(group.make_context(group.name, [], resilient_parsing=True), path[-1])
    except UsageError:  # a group that answers with the nearest names
        return None


def lacking(words: Sequence[str], mentions: str = "") -> str:
    """What is missing before these words are a command: empty, or e.g. `lens maps`, `command study fewshot`."""
    command, named, _ = command_at(words)
    name = " ".join(named)
    if command is None or hasattr(command, "get_command"):
        return name if name.startswith("lens ") else f"command {name}"
    return f"{mentions} in {name}" if mentions and mentions not in (command.help or "") else ""


def parse(words: Sequence[str]) -> dict[str, Any]:
    """The parameters of the command; wrong arguments are an error of typer's. Nothing is run."""
    command, named, arguments = command_at(words)
    if command is None:
        raise UsageError(f"there is no command {' '.join(named)!r}")
    parameters: dict[str, Any] = command.make_context(" ".join(named), list(arguments)).params
    return parameters


def takes(words: Sequence[str], option: str) -> bool:
    """Whether the command knows an option, by the name of its parameter."""
    command, _, _ = command_at(words)
    return command is not None and any(parameter.name == option for parameter in command.params)


def run(words: Sequence[str]) -> None:
    """Run a command as if it had been typed; its errors are raised."""
    from headscope.cli.app import app

    app(list(words), prog_name="headscope", standalone_mode=False)
