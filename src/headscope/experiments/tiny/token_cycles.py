r"""Cycles: random tokens on a ring, on which nothing but induction lowers the loss.

Definition:
    Each row has a ring of s different random tokens, $2 \le s < \min(n / 2, 160)$ for n tokens, and a rate of jumps
    between 0 and 0.2. It walks the ring token by token; with the probability of a jump it goes on at a random place
    instead. A token has a label where it was reached by a step that the row has made before: its successor then is
    the one that followed at the last visit. All other positions predict nothing.
Properties:
    - a labelled token followed the same token earlier in its row  (tested: test_a_labelled_token_came_before)
    - the labelled steps of a row form one cycle  (tested: test_labelled_steps_form_a_cycle)
    - a step that a row makes a second time is labelled  (tested: test_every_second_step_is_labelled)
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headscope.corpora.byte_pair_tokenizer import BOS_ID, SPECIAL_TOKENS
from headscope.training import Batch, Place
from headscope.training.batches.seeds import generator_of
from headscope.training.objectives.objective import IGNORED

N_SPECIAL = len(SPECIAL_TOKENS)
LARGEST_RING = 160
MOST_JUMPS = 0.2
_PER_EPOCH = 1000  # batches; there are always more


@dataclass(frozen=True)
class CycleBatches:
    """Batches of cycles without end."""

    rows: int
    length: int
    vocabulary: int
    seed: int

    def identity(self) -> Mapping[str, Any]:
        """The name and the sizes."""
        return {"name": "cycles", **asdict(self)}

    def batches_in(self, epoch: int) -> int:
        """How many batches an epoch has."""
        return _PER_EPOCH

    def batch(self, place: Place) -> Batch:
        """The batch at a place."""
        generator = generator_of(self.seed, place.epoch, place.position)
        return cycles(self.rows, self.length, self.vocabulary, generator)


def cycles(rows: int, length: int, vocabulary: int, generator: torch.Generator) -> Batch:
    """Rows of cycles, each after the token that begins a text."""
    size = torch.randint(2, max(3, min(length // 2, LARGEST_RING)), (rows, 1), generator=generator)
    rate = MOST_JUMPS * torch.rand(rows, 1, generator=generator)
    jumps = torch.rand(rows, length, generator=generator) < rate
    jumps[:, 0] = True  # no token of the ring comes before the first
    distances = (torch.rand(rows, length, generator=generator) * size).long()
    places = torch.where(jumps, distances, 1).cumsum(1) % size
    ring = torch.rand(rows, vocabulary - N_SPECIAL, generator=generator).argsort(1) + N_SPECIAL
    tokens = ring.gather(1, places)
    steps = torch.where(jumps, -1 - torch.arange(length), places)  # a step is named by its end; no jump is like another
    return {"input_ids": after_start(tokens), "labels": tokens.where(has_earlier(steps), IGNORED)}


def after_start(tokens: Int[Tensor, "rows tokens"]) -> Int[Tensor, "rows tokens"]:
    """The tokens one place later, after the token that begins a text; the last one is left out."""
    inputs = tokens.roll(1, dims=1)
    inputs[:, 0] = BOS_ID
    return inputs


def has_earlier(numbers: Int[Tensor, "rows places"]) -> Bool[Tensor, "rows places"]:
    """Whether the same number comes earlier in the row."""
    same = numbers[:, :, None] == numbers[:, None, :]
    return same.tril(-1).any(2)
