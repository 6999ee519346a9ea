"""The beginnings of all prompts as rows of tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Candidate:
    """A beginning and a token after it.

    `beam` is the number of its row among those of its prompt.
    """

    log_probability: float
    beam: int
    token: int


@dataclass(frozen=True)
class Move:
    """From which rows the next ones come, and the tokens that they append.

    `index` is empty where every row stays. With `moves_prompts` rows get other prompts.
    """

    index: Int[Tensor, " rows"] | None
    tokens: Int[Tensor, " rows"]
    moves_prompts: bool


@dataclass(frozen=True)
class BeamRows:
    """Rows by prompt, with their texts and log-probabilities.

    Each of `prompts` has `width` rows.
    """

    prompts: tuple[int, ...]
    texts: Int[Tensor, "rows written"]
    sums: Float[Tensor, "prompts width"]

    @classmethod
    def first(cls, n_prompts: int, device: torch.device) -> "BeamRows":
        """One empty beginning for each prompt."""
        texts = torch.zeros(n_prompts, 0, dtype=torch.long, device=device)
        return cls(tuple(range(n_prompts)), texts, torch.zeros(n_prompts, 1, dtype=torch.float64, device=device))

    @property
    def width(self) -> int:
        """The rows of each prompt."""
        return self.sums.shape[1]

    def candidates(self, logits: Float[Tensor, "rows vocabulary"], count: int) -> list[list[Candidate]]:
        """The best extensions for each prompt, at most `count`, the best first."""
        values, tokens = logits.topk(min(count, logits.shape[1]), dim=-1)
        gains = values.double() - logits.logsumexp(dim=-1, keepdim=True)
        totals = (self.sums.flatten()[:, None] + gains).view(len(self.prompts), -1)
        best, places = totals.topk(min(count, totals.shape[1]), dim=-1)
        beams = places.div(tokens.shape[1], rounding_mode="floor")
        written = tokens.view(len(self.prompts), -1).gather(1, places)
        columns = (best.tolist(), beams.tolist(), written.tolist())
        return [[Candidate(*parts) for parts in zip(*numbers, strict=True)] for numbers in zip(*columns, strict=True)]

    def extended(self, beginnings: Sequence[Sequence[Candidate]], width: int) -> tuple["BeamRows", Move]:
        """The rows of the next step; prompts without beginnings are over.

        A prompt with fewer beginnings than `width` gets impossible ones.
        """
        going = [place for place, candidates in enumerate(beginnings) if candidates]
        filled = [_filled(beginnings[place], width) for place in going]
        parents = [place * self.width + part.beam for place, row in zip(going, filled, strict=True) for part in row]
        device = self.texts.device
        tokens = torch.tensor([part.token for row in filled for part in row], device=device)
        sums = torch.tensor([[part.log_probability for part in row] for row in filled], dtype=torch.float64)
        moves_prompts = len(going) < len(self.prompts) or width != self.width
        index = None if parents == list(range(len(self.texts))) else torch.tensor(parents, device=device)
        texts = self.texts if index is None else self.texts[index]
        prompts = tuple(self.prompts[place] for place in going)
        rows = BeamRows(prompts, torch.cat([texts, tokens[:, None]], dim=1), sums.to(device))
        return rows, Move(index, tokens, moves_prompts)


def _filled(candidates: Sequence[Candidate], width: int) -> list[Candidate]:
    first = candidates[0]
    return [*candidates, *[Candidate(-torch.inf, first.beam, first.token)] * (width - len(candidates))]
