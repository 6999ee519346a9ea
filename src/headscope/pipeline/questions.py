"""Which lenses with which parameters: names and dictionaries made into lenses and their dataclasses."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.errors import UsageError
from headscope.lenses import lens_members, lens_named
from headscope.lenses.lens import AnyLens, Lens, Needs

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Question:
    """A lens with its parameters."""

    lens: AnyLens
    params: Any

    @property
    def name(self) -> str:
        """The lens's name."""
        return self.lens.name

    def stated_params(self) -> dict[str, Scalar]:
        """The parameters as scalars, for the finding and the manifest."""
        return {field.name: _scalar(getattr(self.params, field.name)) for field in dataclasses.fields(self.params)}


@dataclass(frozen=True)
class Asked:
    """A question with what it needs of the model at hand."""

    question: Question
    needs: Needs


def questions(chosen: Sequence[str | AnyLens] | None, params: Mapping[str, Any] | None) -> tuple[Question, ...]:
    """The chosen lenses (None: all) with the given parameters or their defaults, each lens once.

    They come in the order of `headscope lenses`, whatever the order in which they were chosen, so that the same
    question gives the same report; a lens that is not listed there comes last.
    """
    found = map(_lens, lens_members() if chosen is None else chosen)
    every = _in_order({lens.name: lens for lens in found})
    if not every:
        raise UsageError("no lens was chosen", hint="`headscope lenses` lists them")
    given = dict(params or {})
    if strangers := given.keys() - every.keys():
        raise UsageError(f"parameters for {', '.join(sorted(strangers))}, but the chosen lenses are {', '.join(every)}")
    return tuple(Question(lens, _params(lens, given.get(name))) for name, lens in every.items())


def _in_order(chosen: Mapping[str, AnyLens]) -> dict[str, AnyLens]:
    listed = [name for name in lens_members() if name in chosen]
    return {name: chosen[name] for name in dict.fromkeys((*listed, *chosen))}


def _lens(chosen: str | AnyLens) -> AnyLens:
    return lens_named(chosen) if isinstance(chosen, str) else chosen


def _params(lens: Lens[Any], given: Any) -> Any:
    if given is None:
        return lens.params()
    if isinstance(given, lens.params):
        return given
    known = {field.name for field in dataclasses.fields(lens.params)}
    if not isinstance(given, Mapping) or given.keys() - known:
        raise UsageError(
            f"lens {lens.name!r} cannot be given {given!r}",
            hint=f"its parameters are {', '.join(sorted(known)) or 'none'}; give a dictionary of them",
        )
    return lens.params(**given)


def _scalar(value: Any) -> Scalar:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list, frozenset)) else str(value)
