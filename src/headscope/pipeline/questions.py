"""Turns names and dictionaries into lenses and their parameters."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.errors import UsageError
from headscope.lenses import lens_members, lens_named
from headscope.lenses import lenses as every_lens
from headscope.lenses.lens import AS_IS, AnyLens, Lens, Needs
from headscope.members import check_settings

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Question:
    """A lens with its parameters."""

    lens: AnyLens
    params: Any

    @property
    def name(self) -> str:
        """The name of the lens."""
        return self.lens.name

    def needs_no_change(self) -> bool:
        """Whether the lens looks at the model as it is alone; one that cannot say is asked later, and fails there."""
        try:
            return set(self.lens.needs(self.params).variants) <= {AS_IS}
        except Exception:  # noqa: BLE001  a lens is foreign code: its failure becomes a finding
            return True

    def stated_params(self) -> dict[str, Scalar]:
        """The parameters as scalars, for the finding and the manifest."""
        return {field.name: _scalar(getattr(self.params, field.name)) for field in dataclasses.fields(self.params)}


@dataclass(frozen=True)
class LensPlan:
    """A question with the captures that it needs from this model."""

    question: Question
    needs: Needs


def questions(
    lenses: Sequence[str | AnyLens] | None, params: Mapping[str, Any] | None, *, quick: bool = False
) -> tuple[Question, ...]:
    """The chosen lenses (None: all) with their parameters, each lens once.

    They come in the order of `headscope lenses`, whatever the order of the choice, so that the same question gives the
    same report; a lens that is not listed there comes last.

    Args:
        lenses: Names of lenses, or lenses.
        params: Parameters by lens name.
        quick: Of all lenses only those that need no changed form of the model.
    """
    if quick and lenses is not None:
        raise UsageError(
            "a quick measurement chooses its lenses itself", hint="leave out either the lenses or `quick` (--quick)"
        )
    resolved = every_lens().values() if lenses is None else map(_lens, lenses)
    lenses_by_name = _in_order({lens.name: lens for lens in resolved})
    if not lenses_by_name:
        raise UsageError("no lens was chosen", hint="`headscope lenses` lists them")
    params_by_lens = dict(params or {})
    if unknown := params_by_lens.keys() - lenses_by_name.keys():
        raise UsageError(
            f"parameters for {', '.join(sorted(unknown))}, but the chosen lenses are {', '.join(lenses_by_name)}"
        )
    chosen_questions = (
        Question(lens, _params(lens, params_by_lens.get(name))) for name, lens in lenses_by_name.items()
    )
    return tuple(question for question in chosen_questions if not quick or question.needs_no_change())


def _in_order(lenses: Mapping[str, AnyLens]) -> dict[str, AnyLens]:
    names_in_order = [name for name in lens_members() if name in lenses]
    return {name: lenses[name] for name in dict.fromkeys((*names_in_order, *lenses))}


def _lens(lens: str | AnyLens) -> AnyLens:
    return lens_named(lens) if isinstance(lens, str) else lens


def _params(lens: Lens[Any], params: Any) -> Any:
    if params is None:
        return lens.params()
    if isinstance(params, lens.params):
        check_settings(params)
        return params
    field_names = {field.name for field in dataclasses.fields(lens.params)}
    if not isinstance(params, Mapping) or params.keys() - field_names:
        raise UsageError(
            f"lens {lens.name!r} cannot take {params!r}",
            hint=f"its parameters are {', '.join(sorted(field_names)) or 'none'}; give a dictionary of them",
        )
    settings = lens.params(**params)
    check_settings(settings)
    return settings


def _scalar(value: Any) -> Scalar:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list, frozenset)) else str(value)
