"""Predict masked tokens: the objective of an encoder."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from headscope.training.objectives.cross_entropy import cross_entropy
from headscope.training.objectives.objective import IGNORED, Batch, Loss
from headscope.training.objectives.token_count import n_tokens
from headscope.training.recipe import check_range


@dataclass(frozen=True)
class MaskedTokens:
    """Tokens that were chosen at random and hidden.

    A batch has `input_ids` and, where rows are padded, `attention_mask`. Each ordinary token is chosen with probability
    `share`. Of those, eight in ten are read as `mask`, one in ten as a random token, one in ten as itself. Tokens below
    `first_ordinary` are special and never chosen.
    """

    mask: int
    vocabulary: int
    first_ordinary: int = 0
    share: float | int = 0.15

    def __post_init__(self) -> None:
        check_range("share", self.share, above=0.0, below=1.0)
        check_range("first_ordinary", self.first_ordinary, least=0, below=self.vocabulary)

    def identity(self) -> Mapping[str, Any]:
        """The name and the parameters."""
        return {"name": "masked tokens", **asdict(self)}

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """The loss of the chosen tokens."""
        ids = batch["input_ids"]
        is_chosen = self._choice(batch)
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        logits = model(**{**inputs, "input_ids": self._hidden(ids, is_chosen)}).logits
        labels = ids.masked_fill(~is_chosen, IGNORED)
        total, nats = cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Loss(total, nats, int(is_chosen.sum()), n_tokens(batch))

    def _choice(self, batch: Batch) -> Bool[Tensor, "batch tokens"]:
        ids = batch["input_ids"]
        is_ordinary = ids >= self.first_ordinary
        if "attention_mask" in batch:
            is_ordinary = is_ordinary & (batch["attention_mask"] != 0)
        return (_uniform(ids) < self.share) & is_ordinary

    def _hidden(
        self, ids: Int[Tensor, "batch tokens"], is_chosen: Bool[Tensor, "batch tokens"]
    ) -> Int[Tensor, "batch tokens"]:
        lot = _uniform(ids)
        random_ids = torch.randint(self.first_ordinary, self.vocabulary, ids.shape).to(ids.device)
        masked = ids.masked_fill(is_chosen & (lot < 0.8), self.mask)
        return torch.where(is_chosen & (lot >= 0.9), random_ids, masked)


def _uniform(like: Tensor) -> Tensor:
    # Drawn on the CPU, so that every device hides the same tokens.
    return torch.rand(like.shape).to(like.device)
