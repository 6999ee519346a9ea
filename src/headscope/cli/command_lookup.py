"""The commands as others write them down: does one exist, can it be parsed, run it."""

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
    found, named, _ = command_at(words)
    name = " ".join(named)
    if found is None or hasattr(found, "get_command"):
        return name if name.startswith("lens ") else f"command {name}"
    return f"{mentions} in {name}" if mentions and mentions not in (found.help or "") else ""


def parse(words: Sequence[str]) -> dict[str, Any]:
    """What the command would be given; an error of typer's where its arguments are wrong. Nothing is run."""
    found, named, rest = command_at(words)
    if found is None:
        raise UsageError(f"there is no command {' '.join(named)!r}")
    given: dict[str, Any] = found.make_context(" ".join(named), list(rest)).params
    return given


def takes(words: Sequence[str], option: str) -> bool:
    """Whether the command knows an option, by the name of its parameter."""
    found, _, _ = command_at(words)
    return found is not None and any(parameter.name == option for parameter in found.params)


def run(words: Sequence[str]) -> None:
    """Run a command as if it had been typed; its errors are raised."""
    from headscope.cli.app import app

    app(list(words), prog_name="headscope", standalone_mode=False)
