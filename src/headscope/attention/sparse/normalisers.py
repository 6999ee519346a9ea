r"""Normalisers of attention pooling: from the scores of a row to its weights.

| name | weights of a row of scores s over its visible keys |
|---|---|
| `softmax` | $e^{s_j} / \sum_j e^{s_j}$ |
| `sparsemax` | nearest point of the simplex, $\max(s_j - \tau, 0)$ (Martins and Astudillo, From Softmax to …) |
| `relu` | $\max(s_j, 0) / \sum_j \max(s_j, 0)$, 0 where there is nothing positive |
| `none` | $s_j$ |

Masked scores are −∞ here and get the weight 0; a row of them gets weights of 0. Gradients are finite everywhere.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

NORMALISERS = ("softmax", "sparsemax", "relu", "none")

Pairs = Float[Tensor, "batch heads queries keys"]


def normalised(name: str, scores: Pairs, allowed: Bool[Tensor, "some_batch some_heads queries keys"] | None) -> Pairs:
    """The weights of every row by the named normaliser.

    `softmax` is separate, since it gives the log-sum-exp too.
    """
    if name == "sparsemax":
        return sparsemax(scores if allowed is None else scores.masked_fill(~allowed, -torch.inf))
    if name == "relu":
        scores = scores.clamp_min(0)
    if allowed is not None:
        scores = scores * allowed
    if name == "none":
        return scores
    total = scores.sum(dim=-1, keepdim=True)
    return scores / torch.where(total > 0, total, 1.0)


def softmax(
    scores: Pairs, allowed: Bool[Tensor, "some_batch some_heads queries keys"] | None
) -> tuple[Pairs, Float[Tensor, "batch heads queries"]]:
    """Weights and log-sum-exp: 0 and −∞ for a row that is allowed nothing."""
    if allowed is None:
        lse = torch.logsumexp(scores, dim=-1)
        return torch.exp(scores - lse[..., None]), lse
    scores = scores.masked_fill(~allowed, -torch.inf)
    # The gradient of a softmax over nothing is NaN, so such rows attend to everything and are wiped after.
    nothing = ~allowed.any(dim=-1).expand(scores.shape[:-1])
    scores = scores.masked_fill(nothing[..., None], 0.0)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse[..., None]).masked_fill(nothing[..., None], 0.0)
    return weights, lse.masked_fill(nothing, -torch.inf)


def sparsemax(scores: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows keys"]:
    r"""The Euclidean projection of each row onto the simplex.

    Definition:
        $p = \max(s - \tau, 0)$ with $\tau$ such that the row adds up to 1. With the scores sorted downwards,
        the support is the longest run with $1 + r\, s_{(r)} > \sum_{t \le r} s_{(t)}$, and $\tau$ is its mean less one
        over its size.
    Properties:
        - rows add up to 1 and hold exact zeros  (tested: test_sparsemax_rows_are_sparse_distributions)
        - no point of the simplex is nearer  (tested: test_sparsemax_is_the_nearest_point)
    """
    with torch.no_grad():
        largest = scores.amax(dim=-1, keepdim=True)
        nothing = largest == -torch.inf
        shifted = scores - largest.masked_fill(nothing, 0.0)
        ordered = shifted.sort(dim=-1, descending=True).values
        ranks = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
        # Only scores within 1 of the largest can be in the support; the rest must not spoil the sums with −∞.
        within = ordered > -1
        inside = within & (1 + ranks * ordered > ordered.clamp_min(-1).cumsum(dim=-1))
        size = inside.sum(dim=-1, keepdim=True)
        support = (shifted >= ordered.gather(-1, (size - 1).clamp_min(0))) & ~nothing
        size = support.sum(dim=-1, keepdim=True).clamp_min(1)
    support_scores = scores.masked_fill(~support, 0.0)
    tau = (support_scores.sum(dim=-1, keepdim=True) - 1) / size
    return (support_scores - tau).clamp_min(0).masked_fill(~support, 0.0)
