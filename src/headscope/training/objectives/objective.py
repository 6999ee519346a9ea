"""The contract of an objective: a model and a batch give a loss."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

# Names and shapes are those of transformers: input_ids, attention_mask, decoder_input_ids, labels.
Batch = Mapping[str, Tensor]

IGNORED = -100  # the label of a position that predicts nothing


@dataclass(frozen=True)
class Loss:
    """The loss of a batch, as sums over the predicted tokens.

    `total` is minimised. `nats` is the negative log-likelihood alone, without label smoothing, and has no gradient.
    """

    total: Float[Tensor, ""]
    nats: Float[Tensor, ""]
    n_predicted: int
    n_read: int


@runtime_checkable
class Objective(Protocol):
    """What a network is trained to do."""

    def identity(self) -> Mapping[str, Any]:
        """The name and the parameters, as JSON.

        A training goes on with the same ones only.
        """
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """The loss of a batch.

        Random numbers come from torch's global generator, which the trainer seeds.
        """
        ...
