"""The circumstances of a training; a folder refuses one with others."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headscope.errors import UsageError
from headscope.training.recipe import Recipe

FORMAT = 1  # of the folder
_NOTES = ("saving", "versions")  # these change no result, or not by intention


def circumstances(
    recipe: Recipe, *, data: Mapping[str, Any], objective: Mapping[str, Any], network: Mapping[str, Any]
) -> dict[str, Any]:
    """All circumstances of a training, as JSON."""
    settings = asdict(recipe)
    saving = settings.pop("saving")
    return {
        "format": FORMAT,
        "recipe": settings,
        "data": dict(data),
        "objective": dict(objective),
        "network": dict(network),
        "saving": saving,
        "versions": {name: version(name) for name in ("torch", "transformers", "accelerate")},
    }


def check_same(earlier: Mapping[str, Any], present: Mapping[str, Any], folder: Path) -> None:
    """Refuse to go on in the folder of another training.

    Raises:
        UsageError: The two differ; the message says in what.
    """
    before, after = dict(_leaves(earlier)), dict(_leaves(present))
    differing = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    if differing:
        name = differing[0]
        more = f" (and {len(differing) - 1} more differ)" if len(differing) > 1 else ""
        raise UsageError(
            f"{folder} holds another training: its {name} is {before.get(name)!r}, expected {after.get(name)!r}{more}",
            hint="choose another folder, or train with the same settings, data and network",
        )


def _leaves(content: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            if name or key not in _NOTES:
                yield from _leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(content, (list, tuple)):
        yield name, tuple(content)
    else:
        yield name, content
