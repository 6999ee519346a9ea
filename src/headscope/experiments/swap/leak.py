"""Checks that a plan lets nothing leak from the future: later tokens change no earlier prediction.

The model with the plan reads a window twice, the second time with other tokens in its last part. What it predicts
before that part may differ by rounding alone: by twice what the original itself differs, or by `_FLOOR`. The check
of single mechanisms is `attention.leak_check`.
"""

from dataclasses import dataclass

import torch

from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.plan import Plan
from headscope.model.predictions import predict

_FLOOR = 1e-4  # of the largest logit: sums in float32 in another order differ by less


@dataclass(frozen=True)
class ModelLeak:
    """The largest change of an earlier logit, relative to the largest logit, and what counts as rounding."""

    change: float
    allowed: float

    @property
    def is_clean(self) -> bool:
        """Whether nothing leaks."""
        return self.change <= self.allowed


def model_leak(model: Model, plan: Plan, tokens: Tokens, seed: int) -> ModelLeak:
    """Change the last third of a window and compare the predictions before it.

    Properties:
        - a plan that looks ahead is caught  (tested: test_a_plan_that_looks_ahead_is_caught)
    """
    n = len(tokens)
    cut = max(1, n - n // 3)
    other = tokens.clone()
    # Tokens of the window itself in another order: all of them are tokens that the model knows.
    order = torch.randperm(n - cut, generator=torch.Generator().manual_seed(seed))
    other[cut:] = tokens[:cut][order]
    original = _difference(model, tokens, other, cut)
    with apply(plan, model):
        change = _difference(model, tokens, other, cut)
    return ModelLeak(change, max(_FLOOR, 2 * original))


def _difference(model: Model, tokens: Tokens, other: Tokens, cut: int) -> float:
    before, after = (predict(model, ids).logits[:cut] for ids in (tokens, other))
    return float((before - after).abs().max() / before.abs().max())
