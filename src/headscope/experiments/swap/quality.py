r"""How well a model predicts with a plan: perplexity, KL and agreement, window by window beside the original.

The same windows go through the model with and without the plan, so that differences are paired. With nats $\ell$ of a
window's tokens, the ratio of perplexities is $e^{\bar d}$, $\bar d$ the mean difference per token, with an interval
over windows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.experiments.swap.yardstick import Embeddings, Perplexity, cosines
from headscope.experiments.text_sample import Tokens
from headscope.maths.resampling.clustered_mean import Estimate, clustered_mean, exponential
from headscope.model.model import Model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.plan import Plan
from headscope.model.predictions import States, predict
from headscope.progress import Step

_ROWS = 256  # rows of logits that are normalised at a time


@dataclass(frozen=True)
class PairedNats:
    """Nats of the scored tokens of each window, changed and original."""

    nats: Float[Tensor, " windows"]
    original_nats: Float[Tensor, " windows"]
    tokens: Float[Tensor, " windows"]

    @property
    def ratio(self) -> Estimate:
        """Perplexity over the original's; the ends are NaN for one window."""
        return exponential(self.mean(self.nats - self.original_nats))

    @property
    def perplexity(self) -> float:
        """The changed perplexity."""
        return math.exp(min(float(self.nats.sum() / self.tokens.sum()), 700.0))

    def mean(self, sums: Float[Tensor, " windows"]) -> Estimate:
        """A mean per token of sums over windows."""
        return clustered_mean(sums, self.tokens)


@dataclass(frozen=True)
class Quality(PairedNats):
    """What a plan does to each window: sums over its scored tokens."""

    kl: Float[Tensor, " windows"]
    agreeing: Float[Tensor, " windows"]


def window_nats(model: Model, tokens: Tokens) -> float:
    """The nats of a window's tokens, each but the first predicted from those before it."""
    (nats,) = Perplexity().reading(model, tokens)
    return nats


def scored_tokens(windows: Sequence[Tokens]) -> Float[Tensor, " windows"]:
    """The number of tokens of each window that are predicted."""
    return torch.tensor([len(tokens) - 1 for tokens in windows], dtype=torch.float64)


def quality(model: Model, plan: Plan, windows: Sequence[Tokens]) -> Quality:
    """Perplexity, KL and agreement of a plan on some windows."""
    rows = [_compared(model, plan, tokens) for tokens in windows]
    nats, original_nats, kl, agreeing = torch.tensor(rows, dtype=torch.float64).T
    return Quality(nats, original_nats, scored_tokens(windows), kl, agreeing)


def embedding_cosines(
    model: Model, plan: Plan, windows: Sequence[Tokens], task: str, step: Step
) -> Float[Tensor, " windows"]:
    """The cosine of each window's embedding with that of the original."""
    originals = _embeddings(model, windows, task, step)
    with apply(plan, model):
        return cosines(_embeddings(model, windows, task, step), originals)


def quality_ratio(measured: Quality, reference: Quality) -> Estimate:
    """The perplexity of one plan over that of another on the same windows, paired."""
    return exponential(measured.mean(measured.nats - reference.nats))


def _embeddings(model: Model, windows: Sequence[Tokens], task: str, step: Step) -> list[list[float]]:
    readings = []
    for index, tokens in enumerate(windows):
        step(task, index, len(windows))
        readings.append(Embeddings().reading(model, tokens))
    step(task, len(windows), len(windows))
    return readings


def _compared(model: Model, plan: Plan, tokens: Tokens) -> tuple[float, float, float, float]:
    original: States = predict(model, tokens).states
    with apply(plan, model):
        prediction = predict(model, tokens, original)
    if prediction.other_logits is None:
        raise RuntimeError("the prediction of the original states is missing")
    sums = torch.zeros(4, dtype=torch.float64)
    for start in range(0, len(tokens) - 1, _ROWS):
        part = slice(start, min(start + _ROWS, len(tokens) - 1))
        log_q, log_p = (
            torch.log_softmax(logits[part].float(), -1) for logits in (prediction.logits, prediction.other_logits)
        )
        following = tokens[1:][part, None]
        sums[0] -= log_q.gather(1, following).double().sum()
        sums[1] -= log_p.gather(1, following).double().sum()
        sums[2] += (log_p.exp() * (log_p - log_q)).sum(-1).double().sum()
        sums[3] += (log_p.argmax(-1) == log_q.argmax(-1)).sum()
    nats, original_nats, kl, agreeing = sums.tolist()
    return nats, original_nats, kl, agreeing
