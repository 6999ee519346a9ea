"""Predict the next token: the objective of a decoder-only network."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from headscope.training.objectives.cross_entropy import cross_entropy
from headscope.training.objectives.objective import IGNORED, Batch, Loss
from headscope.training.objectives.token_count import n_tokens
from headscope.training.recipe import check_range


@dataclass(frozen=True)
class NextToken:
    """The next token at every position.

    A batch has `input_ids`, `attention_mask` where rows are padded, and may have `labels`: the token that each position
    has to predict, or `IGNORED`. Without them it is the next token of the row.
    """

    smoothing: float | int = 0.0

    def __post_init__(self) -> None:
        check_range("smoothing", self.smoothing, least=0.0, below=1.0)

    def identity(self) -> Mapping[str, Any]:
        """The name and the parameters."""
        return {"name": "next token", **asdict(self)}

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """The loss of all labelled positions."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        labels = batch["labels"] if "labels" in batch else next_tokens(batch)
        logits = model(**inputs, use_cache=False).logits
        total, nats = cross_entropy(logits.flatten(0, 1), labels.flatten(), self.smoothing)
        return Loss(total, nats, int((labels != IGNORED).sum()), n_tokens(batch))


def next_tokens(batch: Batch) -> Int[Tensor, "batch tokens"]:
    """The next token of each position.

    It is `IGNORED` at the last one and where padding comes next.
    """
    labels = torch.full_like(batch["input_ids"], IGNORED)
    labels[:, :-1] = batch["input_ids"][:, 1:]
    if "attention_mask" in batch:
        mask = batch["attention_mask"]
        labels[:, :-1].masked_fill_((mask[:, 1:] == 0) | (mask[:, :-1] == 0), IGNORED)
    return labels
