"""Which lenses with which parameters: names and dictionaries made into lenses and their dataclasses."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.errors import UsageError
from headscope.lenses import lens_members, lens_named
from headscope.lenses import lenses as every_lens
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
class LensPlan:
    """A question with what it needs of the model at hand."""

    question: Question
    needs: Needs


def questions(lenses: Sequence[str | AnyLens] | None, params: Mapping[str, Any] | None) -> tuple[Question, ...]:
    """The chosen lenses (None: all) with the given parameters or their defaults, each lens once.

    They come in the order of `headscope lenses`, whatever the order in which they were chosen, so that the same
    question gives the same report; a lens that is not listed there comes last.
    """
    resolved = every_lens().values() if lenses is None else map(_lens, lenses)
    every = _in_order({lens.name: lens for lens in resolved})
    if not every:
        raise UsageError("no lens was chosen", hint="`headscope lenses` lists them")
    params_by_lens = dict(params or {})
    if strangers := params_by_lens.keys() - every.keys():
        raise UsageError(f"parameters for {', '.join(sorted(strangers))}, but the chosen lenses are {', '.join(every)}")
    return tuple(Question(lens, _params(lens, params_by_lens.get(name))) for name, lens in every.items())


def _in_order(lenses: Mapping[str, AnyLens]) -> dict[str, AnyLens]:
    listed = [name for name in lens_members() if name in lenses]
    return {name: lenses[name] for name in dict.fromkeys((*listed, *lenses))}


def _lens(lens: str | AnyLens) -> AnyLens:
    return lens_named(lens) if isinstance(lens, str) else lens


def _params(lens: Lens[Any], params: Any) -> Any:
    if params is None:
        return lens.params()
    if isinstance(params, lens.params):
        return params
    field_names = {field.name for field in dataclasses.fields(lens.params)}
    if not isinstance(params, Mapping) or params.keys() - field_names:
        raise UsageError(
            f"lens {lens.name!r} cannot be given {params!r}",
            hint=f"its parameters are {', '.join(sorted(field_names)) or 'none'}; give a dictionary of them",
        )
    return lens.params(**params)


def _scalar(value: Any) -> Scalar:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list, frozenset)) else str(value)
