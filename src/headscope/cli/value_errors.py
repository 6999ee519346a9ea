"""What is wrong with the value of an option, in plain words: what was expected, and what was given."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

# By the names that pydantic, with which typer reads values, gives to errors; names in braces are its names of limits.
_EXPECTED = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}
_PREFIX = "Value error, "


@contextmanager
def plain_value_errors() -> Iterator[None]:
    """Say in plain words what typer refuses; what has no words here keeps its own."""
    try:
        yield
    except typer.BadParameter as refusal:
        refusal.message = _plain(refusal.message, _details(refusal.__cause__))
        raise


def _details(cause: BaseException | None) -> Mapping[str, Any]:
    """The first error of pydantic; nothing where another one refused the value."""
    errors = getattr(cause, "errors", None)
    return errors()[0] if callable(errors) else {}


def _plain(message: str, details: Mapping[str, Any]) -> str:
    expected = _EXPECTED.get(details.get("type", ""))
    if expected is None:
        return message.removeprefix(_PREFIX)
    limits, value = details.get("ctx"), str(details["input"])
    return f"expected {expected.format(**limits)}, got {value}." if limits else f"expected {expected}, got {value!r}."
