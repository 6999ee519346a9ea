"""Conti's families: the masses that decide a head's family, and the rule."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.lenses.structure.reading import Reading
from headscope.lenses.structure.tables import FIRST_TOKEN, NONE, POSITIONAL, RARE, SYNTACTIC

# The share of the near mass that the half-width w holds.
WIDTH_SHARE = 0.9
# A family fits where it covers this part of the mass that chance leaves over; fewer pairs win within the margin.
LEAST, MARGIN = 0.5, 0.1
ROUNDING = 1e-12

# In the order of the pairs that they keep of each row.
MASSES = {"positional": POSITIONAL, "rare_token": RARE, "near": SYNTACTIC}


@dataclass(frozen=True)
class Masses:
    """Sums over the rows of one window, in float64.

    The weight on the first token counts in `first` and `all_mass` alone. `near_at` holds the mass at each distance up
    to the reach, `width` the half-width of the band, `blocks` the runs of neighbours that look at one key most and
    `in_blocks` their rows.
    """

    later_mass: Float[Tensor, " heads"]
    all_mass: Float[Tensor, " heads"]
    first: Float[Tensor, " heads"]
    positional: Float[Tensor, " heads"]
    near: Float[Tensor, " heads"]
    rare_token: Float[Tensor, " heads"]
    near_at: Float[Tensor, "distances heads"]
    width: Float[Tensor, " heads"]
    blocks: Float[Tensor, " heads"]
    in_blocks: Float[Tensor, " heads"]


def masses_of(reading: Reading, reach: int) -> tuple[Masses, Masses]:
    """The masses of the maps of one window, and of the maps with permuted keys."""
    measured = _masses(reading, reading.pattern, reach, None)
    return measured, _masses(reading, _permuted(reading), reach, measured.width)


def first_chance(reading: Reading) -> float:
    """The summed weight of the first token if every visible key had the same."""
    return float((1 / reading.visible.sum(1).to(torch.float64)).sum())


def family_of(masses: Mapping[str, float], chances: Mapping[str, float], blocks: float) -> tuple[str, str]:
    """The family by the rule of about.md, and the name of the mass that decides.

    Without a family it is the mass that is best beyond chance.
    """
    beyond = {name: beyond_chance(masses[name], chances[name]) for name in MASSES}
    if not blocks > 0:
        beyond["rare_token"] = -torch.inf
    most = max(beyond.values())
    best = next(name for name in MASSES if beyond[name] >= most - MARGIN)
    if beyond_chance(masses["first"], chances["first"]) >= LEAST:
        return FIRST_TOKEN, "first"
    return (MASSES[best] if most >= LEAST else NONE), best


def beyond_chance(mass: float, chance: float) -> float:
    """The part of what chance leaves over that a mass covers: 0 by chance, 1 for all."""
    return (mass - chance) / (1 - chance) if chance < 1 - 1e-9 else -torch.inf


def _masses(
    reading: Reading,
    pattern: Float[Tensor, "heads rows keys"],
    reach: int,
    width: Float[Tensor, " heads"] | None,
) -> Masses:
    exact = pattern.to(torch.float64)
    later = exact[..., 1:]
    near_at = _near_at(reading, exact, reach)
    within = near_at.cumsum(0)
    if width is None:
        width = (within < WIDTH_SHARE * within[-1] - ROUNDING).sum(0).to(torch.float64)
    rare, blocks, in_blocks = _shared_keys(reading, exact)
    return Masses(
        later_mass=later.sum((1, 2)),
        all_mass=exact.sum((1, 2)),
        first=exact[..., 0].sum(1),
        positional=near_at[0],
        near=within.gather(0, width.long()[None])[0],
        rare_token=rare,
        near_at=near_at,
        width=width,
        blocks=blocks,
        in_blocks=in_blocks,
    )


def _near_at(reading: Reading, exact: Float[Tensor, "heads rows keys"], reach: int) -> Float[Tensor, "distances heads"]:
    """The mass at each distance from 0 to the reach, on either side."""
    masses = exact.new_zeros(reach + 1, len(exact))
    for side in (1, -1):
        distances = torch.arange(0 if side == 1 else 1, reach + 1)
        keys = reading.positions[:, None] - side * distances
        inside = (keys > 0) & (keys < reading.n)
        keys = keys.clamp(0, reading.n - 1)
        weights = exact.gather(2, keys.expand(len(exact), -1, -1)) * inside
        masses[distances] += weights.sum(1).T
    return masses


def _shared_keys(
    reading: Reading, exact: Float[Tensor, "heads rows keys"]
) -> tuple[Float[Tensor, " heads"], Float[Tensor, " heads"], Float[Tensor, " heads"]]:
    """The mass on shared keys, the runs of rows that share one, and their rows.

    Rows outside of such runs count the mass on themselves.
    A row looks at the key with its largest weight, of equal ones at the first; on the first token it is at rest.
    """
    weights = torch.where(reading.visible, exact, -1.0)
    # numpy takes the first of equal weights.
    top = torch.from_numpy(weights.numpy().argmax(-1))
    is_same = (top[:, 1:] == top[:, :-1]) & (reading.positions.diff() == 1) & (top[:, 1:] > 0)
    edge = torch.zeros(len(top), 1, dtype=torch.bool)
    as_before, as_after = torch.cat((edge, is_same), 1), torch.cat((is_same, edge), 1)
    in_block = as_before | as_after
    on_top = exact.gather(2, top[..., None])[..., 0]
    itself = reading.positions.expand(len(top), -1)
    on_itself = exact.gather(2, itself[..., None])[..., 0] * (reading.positions > 0)
    rare = torch.where(in_block, on_top, on_itself).sum(1)
    starts = as_after & ~as_before
    return rare, starts.sum(1).to(torch.float64), in_block.sum(1).to(torch.float64)


def _permuted(reading: Reading) -> Float[Tensor, "heads rows keys"]:
    """The weights of each row in random order; that of the first token stays."""
    movable: Bool[Tensor, "rows keys"] = reading.visible.clone()
    movable[:, 0] = False
    source: Int[Tensor, "rows keys"] = torch.where(movable, reading.noise, torch.inf).argsort(-1)
    target = (~movable).to(torch.int8).argsort(dim=-1, stable=True)
    mixed = reading.pattern.gather(2, source.expand_as(reading.pattern))
    permuted = reading.pattern.clone()
    room = movable.sum(1)
    is_moved = torch.arange(reading.n) < room[:, None]
    before = permuted.gather(2, target.expand_as(permuted))
    return permuted.scatter(2, target.expand_as(permuted), torch.where(is_moved, mixed, before))
