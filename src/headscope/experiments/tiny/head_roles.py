"""What the heads do, by the definitions of the lens `roles`: induction, the previous token, the first token."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscope.core import Site
from headscope.experiments.tiny.token_cycles import N_SPECIAL
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.roles.tables import MADE_ROLES, TEXT_ROLES
from headscope.lenses.roles.token_windows import RandomTokens
from headscope.lenses.roles.window_sums import Sums, made_sums, text_sums
from headscope.model.model import Model, open_model
from headscope.training.weights import load_weights, weights_of

INDUCTION, PREVIOUS, FIRST = "induction", "previous token", "first token"
# Tokens before they repeat, and whether the token that begins a text comes first.
REPEATS = ((48, True), (48, False), (100, True), (200, True))
MEASURE = "induction"  # the name of the measure during training
_ROWS = 8
_WATCHED_ROWS = 4
TEXT_LENGTH = 128
_TEXT_ROWS = 16

Windows = Int[Tensor, "windows tokens"]


@dataclass(frozen=True)
class RoleMass:
    """The mean mass that a head gives to the keys of a role, and its null.

    The null is the same mass where nothing repeats, or on text the mass of uniform attention.
    """

    role: str
    windows: str
    site: Site
    head: int
    value: float
    null: float


class InductionMeasure:
    """The mass of the strongest induction head of a network in training, on a copy, which leaves it untouched."""

    def __init__(self, network: nn.Module, start: int, length: int) -> None:
        self._probe = open_model(copy.deepcopy(network).eval())
        self._start, self._length = start, length

    def __call__(self, network: nn.Module) -> Mapping[str, float]:
        """The largest mean mass of all heads."""
        load_weights(self._probe.hf, weights_of(network), "the network in training")
        sums = _repeated_sums(self._probe, self._start, self._length, _WATCHED_ROWS)
        return {MEASURE: max(float(part.value()[MADE_ROLES.index(INDUCTION)].max()) for part in sums.values())}


def role_masses(model: Model, start: int, text: Int[Tensor, " tokens"]) -> list[RoleMass]:
    """The masses of all heads on repeated random tokens and on text."""
    masses = [mass for length, has_start in REPEATS for mass in _induction(model, start, length, has_start)]
    count = min(_TEXT_ROWS, len(text) // TEXT_LENGTH)
    windows = text[: count * TEXT_LENGTH].reshape(count, TEXT_LENGTH).clone()
    windows[:, 0] = start
    batch = Batch(AS_IS, windows, torch.ones_like(windows, dtype=torch.bool))
    for site, captured in _captured(model, windows, TEXT_LENGTH).items():
        sums = text_sums(batch, captured)
        for role in (PREVIOUS, FIRST):
            index = TEXT_ROLES.index(role)
            masses += _by_head(role, "text", site, sums.value()[index], sums.null()[index])
    return masses


def strongest(masses: list[RoleMass], role: str, windows: str) -> RoleMass:
    """The head with the largest mass in a role."""
    return max((mass for mass in masses if (mass.role, mass.windows) == (role, windows)), key=lambda mass: mass.value)


def window_name(length: int, has_start: bool) -> str:
    """The name of windows of repeated tokens."""
    return f"2x{length}{'' if has_start else ' without bos'}"


def _induction(model: Model, start: int, length: int, has_start: bool) -> list[RoleMass]:
    repeated, fresh = (
        _repeated_sums(model, start, length, _ROWS, repeats=repeats, has_start=has_start) for repeats in (True, False)
    )
    index = MADE_ROLES.index(INDUCTION)
    name = window_name(length, has_start)
    return [
        mass
        for site, sums in repeated.items()
        for mass in _by_head(INDUCTION, name, site, sums.value()[index], fresh[site].value()[index])
    ]


def _repeated_sums(
    model: Model, start: int, length: int, rows: int, *, repeats: bool = True, has_start: bool = True
) -> dict[Site, Sums]:
    ids = torch.arange(N_SPECIAL, model.spec.vocabulary)
    generator = torch.Generator().manual_seed(length)
    windows = RandomTokens(length, repeats, None)(ids, generator, rows, 2 * length + 1)
    windows[:, 0] = start
    windows = windows if has_start else windows[:, 1:]
    return {site: made_sums(captured, length) for site, captured in _captured(model, windows, length).items()}


def _captured(model: Model, windows: Windows, period: int) -> dict[Site, Float[Tensor, "windows heads queries kinds"]]:
    name = f"repeats:{period}"
    with model.session() as session, torch.no_grad():
        capture = session.capture(name)
        session.run(windows, head=False)
        return capture.take()[name]


def _by_head(role: str, windows: str, site: Site, values: Tensor, nulls: Tensor) -> list[RoleMass]:
    return [
        RoleMass(role, windows, site, head, value, null)
        for head, (value, null) in enumerate(zip(values.tolist(), nulls.tolist(), strict=True))
    ]
