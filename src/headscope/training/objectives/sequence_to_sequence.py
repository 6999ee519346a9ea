"""Write one sequence in answer to another: the objective of an encoder–decoder."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from headscope.training.objectives.agreement import disagreement
from headscope.training.objectives.cross_entropy import Logits, cross_entropy
from headscope.training.objectives.objective import IGNORED, Batch, Loss
from headscope.training.objectives.token_count import n_labels, n_tokens
from headscope.training.recipe import check_range


@dataclass(frozen=True)
class SequenceToSequence:
    """The next token of the target, from the source and the target before it.

    A batch has `input_ids` and `attention_mask` of the source, and `labels`: the target with its end token, `IGNORED`
    where rows are padded. The decoder reads `start`, then the labels but the last one.

    With `agreement` above 0 a network in training reads each batch twice, under other dropout masks. The loss is the
    mean of both cross-entropies and, times `agreement`, the disagreement of both predictions.
    """

    start: int
    padding: int
    smoothing: float | int = 0.1
    agreement: float | int = 0.0

    def __post_init__(self) -> None:
        check_range("agreement", self.agreement, least=0.0)
        check_range("smoothing", self.smoothing, least=0.0, below=1.0)

    def identity(self) -> Mapping[str, Any]:
        """The name and the parameters."""
        return {"name": "sequence to sequence", **asdict(self)}

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """The loss of all tokens of the target."""
        labels = batch["labels"]
        is_twice = model.training and self.agreement > 0
        readings = _logits(model, _doubled(batch) if is_twice else batch, self.start, self.padding)
        repeated_labels = labels.flatten().repeat(1 + is_twice)
        total, nats = (cost / (1 + is_twice) for cost in cross_entropy(readings, repeated_labels, self.smoothing))
        if is_twice:
            first, second = readings.chunk(2)
            total = total + self.agreement * disagreement(first, second, labels.flatten())
        predicted = n_labels(batch)
        return Loss(total, nats, predicted, n_tokens(batch) + predicted)


def _doubled(batch: Batch) -> Batch:
    """A batch with each of its rows twice."""
    return {name: tensor.repeat(2, 1) for name, tensor in batch.items()}


def _logits(model: nn.Module, batch: Batch, start: int, padding: int) -> Logits:
    """The logits of all positions of the targets, row after row."""
    logits: Tensor = model(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        decoder_input_ids=shifted(batch["labels"], start, padding),
        use_cache=False,
    ).logits
    return logits.flatten(0, 1)


def shifted(labels: Int[Tensor, "batch tokens"], start: int, padding: int) -> Int[Tensor, "batch tokens"]:
    """What the decoder reads: the start token, then the labels but the last one."""
    inputs = labels.roll(1, dims=1)
    inputs[:, 0] = start
    return inputs.masked_fill_(inputs == IGNORED, padding)
