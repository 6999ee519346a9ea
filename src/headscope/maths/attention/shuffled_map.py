r"""The weights of a map at random places; every key keeps its popularity."""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.maths.attention.fixed_margins import Fitted, with_margins

ROUNDS = 8
# The largest move of a strength in one round.
MOVE = 4.0
# The share of weight that every visible key gets before scaling, so that all sums can be reached.
TRACE = 1e-9


def popular_placement(
    pattern: Float[Tensor, "rows keys"], visible: Bool[Tensor, "rows keys"], noise: Float[Tensor, "rows keys"]
) -> Fitted:
    r"""A random map with the weights of each row and the column sums of the original.

    Definition:
        In row i the visible keys are put in a random order, by falling $\theta_j + g_{ij}$ (g: `noise`; with
        Gumbel noise this is the law of Plackett and Luce of strengths $e^{\theta_j}$), and the weights of the row are
        dealt out in this order, the largest first. $\theta_j$ starts as the logarithm of the mean weight of key j among
        the rows that see it. In each of eight rounds it moves by the difference of $\ln(c_j / (m_j - c_j))$ between
        pattern and placement, at most by 4, where $c_j$ is a column sum and $m_j$ what it would be if key j had the
        largest weight of each row that sees it. Of the eight placements the one whose column sums are nearest is taken,
        every visible key gets 10⁻⁹, and `with_margins` scales it to the row and column sums of the pattern.
    Properties:
        - row sums are exact, column sums to the stated share  (tested: test_placement_has_the_margins)
        - nothing lies where nothing is visible  (tested: test_placement_has_the_margins)
        - a key that every row likes best stays so  (tested: test_a_sink_stays_a_sink)
        - a sink with unrelated rows has the spectrum of its placement
          (tested: test_a_sink_has_the_spectrum_of_its_placement)
    Reference:
        Luce (1959), Individual Choice Behavior; Plackett (1975), Applied Statistics 24, 193.
    """
    pattern = pattern.to(torch.float64)
    columns = pattern.sum(0)
    # numpy sorts rows of this size three times as fast as torch.
    weights = torch.from_numpy(-np.sort(-torch.where(visible, pattern, 0.0).numpy(), axis=-1))
    strengths = (columns / visible.sum(0).clamp_min(1)).clamp_min(TRACE).log()
    visible_noise = torch.where(visible, noise.to(torch.float64), -torch.inf)
    placement, nearest = torch.zeros_like(pattern), torch.inf
    most = torch.where(visible, weights[:, :1], 0.0).sum(0)
    target_odds = _odds(columns, most)
    for _ in range(ROUNDS):
        order = torch.from_numpy(np.argsort(-(visible_noise + strengths).numpy(), axis=-1, kind="stable"))
        dealt = torch.zeros_like(pattern).scatter(-1, order, weights)
        sums = dealt.sum(0)
        distance = float((sums - columns).abs().sum())
        if distance < (1 - 1e-9) * nearest:  # of placements that are equally near the first
            placement, nearest = dealt, distance
        strengths = strengths + (target_odds - _odds(sums, most)).clamp(-MOVE, MOVE)
    return with_margins(placement + TRACE * visible, pattern.sum(-1), columns)


def _odds(sums: Float[Tensor, " keys"], most: Float[Tensor, " keys"]) -> Float[Tensor, " keys"]:
    """The log odds of a key's weight against the most that it could get."""
    return (sums.clamp_min(TRACE) / (most - sums).clamp_min(TRACE)).log()


def gumbel(uniform: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Gumbel noise from uniform numbers."""
    return -(-uniform.to(torch.float64).clamp_min(1e-300).log()).log()
