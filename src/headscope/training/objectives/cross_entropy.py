r"""Cross-entropy with label smoothing, summed over the labelled positions.

Definition:
    With logits z over V tokens, $\log p = z - \ln \sum_v e^{z_v}$, label y and smoothing ε, a position costs
    $-(1 - ε) \log p_y - (ε / V) \sum_v \log p_v$. Positions with the label `IGNORED` cost nothing.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.training.objectives.objective import IGNORED

Logits = Float[Tensor, "positions vocabulary"]
Labels = Int[Tensor, " positions"]


def definition(logits: Logits, labels: Labels, smoothing: float | int) -> Float[Tensor, ""]:
    """The formula, in float64."""
    log_p = torch.log(torch.softmax(logits.double(), dim=-1))
    costs = [
        -(1 - smoothing) * row[label] - smoothing * row.mean()
        for row, label in zip(log_p, labels.tolist(), strict=True)
        if label != IGNORED
    ]
    return torch.stack(costs).sum() if costs else log_p.sum() * 0.0


def cross_entropy(
    logits: Logits, labels: Labels, smoothing: float | int = 0.0
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The smoothed loss and, without a gradient, the negative log-likelihood.

    Properties:
        - loss and gradient are those of the definition  (tested: test_the_loss_is_that_of_the_definition)
        - ignored positions have no gradient  (tested: test_ignored_positions_have_no_gradient)
        - logits of a lower precision are read as float32  (tested: test_the_loss_of_low_precision_logits)
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total, nats = _CrossEntropy.apply(logits, labels, smoothing)  # type: ignore[no-untyped-call]
    return total, nats


class _CrossEntropy(torch.autograd.Function):
    """The loss in one pass forward and one backward.

    Autograd would keep three tensors of the size of the logits.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float | int) -> tuple[Tensor, Tensor]:
        is_labelled = labels != IGNORED
        index = labels.where(is_labelled, 0)[:, None]
        log_sum = logits.logsumexp(dim=-1)
        nats = (log_sum - logits.gather(1, index)[:, 0]).where(is_labelled, 0.0).sum()
        spread = (log_sum - logits.mean(dim=-1)).where(is_labelled, 0.0).sum() if smoothing else nats
        ctx.save_for_backward(logits, log_sum, is_labelled, index)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(nats)
        return (1 - smoothing) * nats + smoothing * spread, nats

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, log_sum, is_labelled, index = ctx.saved_tensors
        gradient = (logits - log_sum[:, None]).exp_()
        if ctx.smoothing:
            gradient -= ctx.smoothing / logits.shape[-1]
        gradient.scatter_add_(1, index, gradient.new_full((1, 1), ctx.smoothing - 1.0).expand_as(index))
        gradient *= (gradients[0] * is_labelled)[:, None]
        return gradient, None, None
