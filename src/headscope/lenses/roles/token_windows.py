"""Windows of random tokens: the same tokens twice, or fresh ones in the second half."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.errors import LensError
from headscope.lenses.lens import AS_IS, MadeWindows
from headscope.lenses.roles.settings import Params
from headscope.lenses.roles.tables import FEW_REPEATED, FRESH, REPEATED

INITIALISED = "initialised"


@dataclass(frozen=True)
class RandomTokens:
    """Makes windows of one first token and random tokens, which repeat after `period` tokens or never.

    Tokens of a window differ from each other where there are enough of them.
    """

    period: int
    repeats: bool
    id_range: tuple[int, int] | None

    def __call__(
        self, ids: Int[Tensor, " ids"], generator: torch.Generator, count: int, length: int
    ) -> Int[Tensor, "count length"]:
        """The tokens of all windows."""
        if self.id_range is not None:
            first, last = self.id_range
            ids = ids[(ids >= first) & (ids <= last)]
            if not len(ids):
                raise LensError(f"no ordinary token has an id from {first} to {last}", hint="choose other ids")
        drawn_length = min(length, self.period + 1) if self.repeats else length
        windows = torch.stack([_random_tokens(ids, generator, drawn_length) for _ in range(count)])
        positions = torch.arange(length)
        if self.repeats:
            positions = torch.where(positions > self.period, (positions - 1) % self.period + 1, positions)
        return windows[:, positions]


def _random_tokens(ids: Tensor, generator: torch.Generator, length: int) -> Int[Tensor, " length"]:
    if len(ids) < length:
        return ids[torch.randint(len(ids), (length,), generator=generator)]
    return ids[torch.randperm(len(ids), generator=generator)[:length]]


def made_windows(params: Params) -> tuple[MadeWindows, ...]:
    """Windows in which tokens repeat, and fewer: in which none does, and for the initialised model."""
    length, id_range = 2 * params.tokens + 1, params.id_range()
    repeated, fresh = (RandomTokens(params.tokens, repeats, id_range) for repeats in (True, False))
    few = max(2, params.sequences // 3)
    return (
        MadeWindows(REPEATED, params.sequences, length, repeated, begins=True, variants=(AS_IS,)),
        MadeWindows(FRESH, few, length, fresh, begins=True, variants=(AS_IS,)),
        MadeWindows(FEW_REPEATED, few, length, repeated, begins=True, variants=(INITIALISED,)),
    )
