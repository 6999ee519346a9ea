"""The sums of a window as one tensor, so that the state of a site is one tensor.

Many small tensors that stay, between large ones that come and go, would break the memory into pieces.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.lenses.structure.errors import MOST_RANKS, Errors
from headscope.lenses.structure.families import Masses
from headscope.lenses.structure.structures import STRUCTURES

_TABLES = ("written", "map", "numbers", "low_rank")
_SINGLE = tuple(field.name for field in fields(Masses) if field.name != "near_at")
_CONSTANTS = 3


@dataclass(frozen=True)
class Window:
    """The sums of one site in one window."""

    errors: Errors
    measured: Masses
    permuted: Masses
    first_chance: float


def packed(window: Window) -> Float[Tensor, "columns heads"]:
    """All numbers of a window, head by head."""
    errors = window.errors
    constants = torch.tensor([errors.rows, errors.visible, window.first_chance], dtype=torch.float64)
    parts = [constants[:, None].expand(-1, len(errors.energy))]
    parts += [*(getattr(errors, name) for name in _TABLES), errors.tails, errors.energy[None]]
    for masses in (window.measured, window.permuted):
        parts += [masses.near_at, *(getattr(masses, name)[None] for name in _SINGLE)]
    return torch.cat(parts)


def unpacked(numbers: Float[Tensor, "columns heads"]) -> Window:
    """The window that was packed."""
    head = [_CONSTANTS, *(len(STRUCTURES),) * len(_TABLES), MOST_RANKS + 1, 1]
    distances = (len(numbers) - sum(head)) // 2 - len(_SINGLE)
    sizes = [*head, *((distances, *(1,) * len(_SINGLE)) * 2)]
    constants, *parts = torch.split(numbers, sizes)
    rows, visible, first_chance = constants[:, 0].tolist()
    tables, (tails, energy), masses = parts[: len(_TABLES)], parts[len(_TABLES) : len(_TABLES) + 2], parts[6:]
    errors = Errors(
        **dict(zip(_TABLES, tables, strict=True)), tails=tails, energy=energy[0], rows=int(rows), visible=int(visible)
    )
    half = len(masses) // 2
    return Window(errors, _masses(masses[:half]), _masses(masses[half:]), first_chance)


def _masses(parts: list[Tensor] | tuple[Tensor, ...]) -> Masses:
    near_at, *single = parts
    return Masses(near_at=near_at, **{name: part[0] for name, part in zip(_SINGLE, single, strict=True)})
