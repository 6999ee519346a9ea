r"""What a plan costs: the perplexity of a model that predicts tokens, the embeddings of an encoder.

A yardstick reads a window (`reading`: plain numbers, so that a search can keep them) and compares the readings of a
plan with those of the original (`loss`): 0 where nothing changed. It also says how much a changed head matters:
`scalar` is what is differentiated, `damage` what a change of a head's output moves.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import UsageError
from headscope.experiments.text_sample import Tokens
from headscope.maths.resampling.clustered_mean import clustered_mean, exponential
from headscope.model.language import predicts_next_token
from headscope.model.model import Model
from headscope.model.predictions import embedding
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options

LATE = 4  # the last of so many parts of a window says what a mechanism costs
_HOPELESS = 3.0  # a plan whose mean is so many budgets over is not measured to the end
_ROWS = 256  # rows of logits that are normalised at a time
HeadOutputs = Float[Tensor, "1 heads queries d_value"]


@dataclass(frozen=True)
class Loss:
    """The quality that a plan loses, 0 for none; a search compares `high` with its budget."""

    mean: float
    low: float
    high: float


class Yardstick(ABC):
    """How the quality of a model with a plan is read and compared."""

    name: ClassVar[str]
    probes: ClassVar[int]  # backwards per window, each with another random scalar
    has_head: ClassVar[bool]  # whether the output head runs

    @abstractmethod
    def reading(self, model: Model, tokens: Tokens) -> list[float]:
        """The numbers by which a window is compared."""

    @abstractmethod
    def loss(
        self, readings: Sequence[Sequence[float]], originals: Sequence[Sequence[float]], windows: Sequence[Tokens]
    ) -> Loss:
        """What these readings lose against those of the original, on the same windows in the same order."""

    @abstractmethod
    def is_hopeless(self, loss: Loss, allowed: float) -> bool:
        """Whether the loss over some windows says enough: the others cannot bring it within the budget."""

    @abstractmethod
    def scalar(self, answer: Any, generator: torch.Generator) -> Tensor:
        """A random number of what the model answers; its gradients say how much each head matters."""

    @abstractmethod
    def damage(self, change: HeadOutputs, gradient: HeadOutputs) -> Float[Tensor, " heads"]:
        """How far a change of a head's output moves the model, to second order."""


class Perplexity(Yardstick):
    r"""Nats of the tokens, each predicted from those before it.

    Definition:
        The loss is the ratio of perplexities less 1, with a 95 % interval over windows. The damage is
        $\frac{1}{2|L|} \sum_{i \in L} (g_i \cdot \Delta z_i)^2$, g the gradient of $\sum_t \ln p(y_t)$, where each y_t
        is drawn from the model's own prediction: its expectation is the KL to second order, positions taken as
        independent. L is the last quarter of the positions: in a longer text most queries have as much behind them as
        these, and a window hides as much from them.
    Properties:
        - the loss is that of paired windows  (tested: test_the_loss_is_that_of_paired_windows)
    """

    name = "perplexity"
    probes = 1
    has_head = True

    def reading(self, model: Model, tokens: Tokens) -> list[float]:
        """The nats of the window's tokens, each but the first predicted from those before it."""
        with torch.no_grad(), restored(model.hf):
            logits = model.hf(input_ids=tokens[None].to(model.hf.device), **forward_options(model.hf)).logits[0, :-1]
        following = tokens[1:].to(logits.device)
        parts = zip(torch.split(logits, _ROWS), torch.split(following, _ROWS), strict=True)
        entropy = torch.nn.functional.cross_entropy
        return [sum(float(entropy(rows.float(), ids, reduction="sum")) for rows, ids in parts)]

    def loss(
        self, readings: Sequence[Sequence[float]], originals: Sequence[Sequence[float]], windows: Sequence[Tokens]
    ) -> Loss:
        """The ratio of perplexities less 1."""
        nats, without, counts = (
            torch.tensor(numbers, dtype=torch.float64)
            for numbers in ([nat for (nat,) in readings], [nat for (nat,) in originals], [len(t) - 1 for t in windows])
        )
        ratio = exponential(clustered_mean(nats - without, counts))
        return Loss(ratio.mean - 1.0, ratio.low - 1.0, ratio.high - 1.0)

    def is_hopeless(self, loss: Loss, allowed: float) -> bool:
        """Whether the mean is several budgets over, and the interval over the budget."""
        return loss.mean > _HOPELESS * allowed and loss.low > allowed

    def scalar(self, answer: Any, generator: torch.Generator) -> Tensor:
        """The log-probability of tokens that the model draws itself, at late positions, where late heads reach."""
        n: int = answer.logits.shape[1]
        log_p = torch.log_softmax(answer.logits[0, n - n // LATE :].float(), -1)
        return drawn_log_likelihood(log_p, generator)

    def damage(self, change: HeadOutputs, gradient: HeadOutputs) -> Float[Tensor, " heads"]:
        """The KL of the predictions in nats per token."""
        n: int = change.shape[2]
        late = slice(n - n // LATE, n)
        return predicted_divergence(change[:, :, late], gradient[:, :, late])


def drawn_log_likelihood(log_p: Float[Tensor, "tokens vocabulary"], generator: torch.Generator) -> Tensor:
    """The sum of ln p(y_t), each y_t drawn from the prediction itself."""
    labels = torch.multinomial(log_p.detach().exp().cpu(), 1, generator=generator).to(log_p.device)
    return log_p.gather(1, labels).sum()


def predicted_divergence(
    change: Float[Tensor, "1 heads positions d_value"], gradient: Float[Tensor, "1 heads positions d_value"]
) -> Float[Tensor, " heads"]:
    """The nats per token that a change of what each head gives moves the predictions, positions independent.

    Properties:
        - near the measured KL of switching one head off  (tested: test_gradients_predict_the_divergence)
    """
    per_position = (change.double() * gradient.double()).sum(-1)
    return per_position.square().mean(-1)[0] / 2


class Embeddings(Yardstick):
    r"""The mean of an encoder's last states, as text embeddings take it.

    Definition:
        The loss of a text is $1 - \cos(e', e)$: `mean` over the texts, `low` of the best, `high` of the worst, which a
        budget holds. With $\hat e = e/|e|$ it is to second order half the squared length of what a change moves $\hat
        e$ by. For a random direction r of unit variance, $E_r (\sum_i g_i \cdot \Delta z_i)^2$ with g the gradient of
        $r \cdot \hat e$ is that squared length. All positions of a text count together, since all add up to e.
    Properties:
        - the damage is that of the measured cosine  (tested: test_damage_predicts_the_cosine)
    """

    name = "embeddings"
    probes = 6
    has_head = False

    def reading(self, model: Model, tokens: Tokens) -> list[float]:
        """The embedding of the window."""
        return [float(number) for number in embedding(model, tokens)]

    def loss(
        self, readings: Sequence[Sequence[float]], originals: Sequence[Sequence[float]], windows: Sequence[Tokens]
    ) -> Loss:
        """One minus the cosine: the mean, the best and the worst text."""
        del windows  # each text counts once, whatever its length
        distances = 1.0 - cosines(readings, originals)
        return Loss(float(distances.mean()), float(distances.min()), float(distances.max()))

    def is_hopeless(self, loss: Loss, allowed: float) -> bool:
        """Whether one text is over the budget: each of them must be within it."""
        return loss.high > allowed

    def scalar(self, answer: Any, generator: torch.Generator) -> Tensor:
        """The direction of the embedding along a random one."""
        mean: Tensor = answer.last_hidden_state[0].float().mean(0)
        direction = torch.randn(mean.shape, generator=generator).to(mean.device)
        return torch.dot(direction, mean / mean.norm())

    def damage(self, change: HeadOutputs, gradient: HeadOutputs) -> Float[Tensor, " heads"]:
        """Half the squared step of the embedding's direction along the random one."""
        return (change.double() * gradient.double()).sum((-1, -2)).square()[0] / 2


def cosines(readings: Sequence[Sequence[float]], originals: Sequence[Sequence[float]]) -> Float[Tensor, " windows"]:
    """The cosines of embeddings with those of the original."""
    embeddings, without = (torch.tensor(list(rows), dtype=torch.float64) for rows in (readings, originals))
    return torch.nn.functional.cosine_similarity(embeddings, without, dim=-1)


def yardstick_of(model: Model) -> Yardstick:
    """Perplexity of a model that predicts the next token, embeddings of an encoder.

    Raises:
        UsageError: The model is neither.
    """
    if predicts_next_token(model):
        return Perplexity()
    if model.spec.kind == "encoder":
        return Embeddings()
    raise UsageError(
        f"{model.spec.name} ({model.spec.architecture}, {model.spec.kind}) is neither a model that predicts the next "
        "token nor an encoder of text, and a swap is judged by perplexity or by embeddings",
        hint="in Python, `session.replace` puts mechanisms into any model",
    )
