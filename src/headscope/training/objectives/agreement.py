r"""How far two readings of the same batch disagree: the symmetric divergence of their predictions.

Definition:
    Two readings under other dropout masks give the logits a and b. With $p = \mathrm{softmax}(a)$ and
    $q = \mathrm{softmax}(b)$ a labelled position costs $\frac{1}{4} [KL(p, q) + KL(q, p)]
    = \frac{1}{4} \sum_v (p_v - q_v)(\log p_v - \log q_v)$. Positions with the label `IGNORED` cost nothing.
Reference:
    Liang et al. (2021), R-Drop: regularized dropout for neural networks. Their loss sums over both readings; this
    is half of it, so that it is added to the mean of both cross-entropies with their weight.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.training.objectives.cross_entropy import Labels, Logits
from headscope.training.objectives.objective import IGNORED


def definition(first: Logits, second: Logits, labels: Labels) -> Float[Tensor, ""]:
    """The formula, in float64."""
    total = (first.double().sum() + second.double().sum()) * 0.0  # without labels it still has a gradient
    for a, b, label in zip(first.double(), second.double(), labels.tolist(), strict=True):
        if label != IGNORED:
            p, q = torch.softmax(a, 0), torch.softmax(b, 0)
            total = total + ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 4
    return total


def disagreement(first: Logits, second: Logits, labels: Labels) -> Float[Tensor, ""]:
    """The sum over all labelled positions.

    Properties:
        - value and gradient are those of the definition  (tested: test_the_disagreement_is_that_of_the_definition)
        - equal readings cost nothing  (tested: test_equal_readings_agree)
    """
    is_labelled = labels != IGNORED
    log_p, log_q = (torch.log_softmax(logits[is_labelled], dim=-1) for logits in (first, second))
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum() / 4
