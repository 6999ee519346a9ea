r"""The weights of a map at random places; every key keeps its popularity."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.maths.attention.fixed_margins import Fitted, with_margins

ROUNDS = 8
# The largest move of a strength in one round.
MOVE = 4.0
# The share of weight that every visible key gets before scaling, so that all sums can be reached.
TRACE = 1e-9


def popular_placement(
    pattern: Float[Tensor, "*batch rows keys"], visible: Bool[Tensor, "rows keys"], noise: Float[Tensor, "rows keys"]
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
        - patterns that are placed together are placed as each alone  (tested: test_placements_do_not_mix)
    Numerics:
        Keys whose $\theta_j + g_{ij}$ agree to about 12 digits are ordered by their index.
    Reference:
        Luce (1959), Individual Choice Behavior; Plackett (1975), Applied Statistics 24, 193.
    """
    pattern = pattern.to(torch.float64)
    columns = pattern.sum(-2)
    # numpy sorts rows of this size three times as fast as torch.
    weights = torch.from_numpy(-np.sort(-torch.where(visible, pattern, 0.0).numpy(), axis=-1))
    strengths = (columns / visible.sum(0).clamp_min(1)).clamp_min(TRACE).log()
    visible_noise = torch.where(visible, noise.to(torch.float64), -torch.inf)
    nearest_order = torch.zeros_like(pattern, dtype=torch.int64)
    nearest = torch.full_like(columns[..., :1], torch.inf)
    most = torch.where(visible, weights[..., :1], 0.0).sum(-2)
    target_odds = _odds(columns, most)
    for _ in range(ROUNDS):
        order = falling_order(visible_noise + strengths[..., None, :])
        sums = torch.zeros_like(columns).scatter_add(-1, order.flatten(-2), weights.flatten(-2))
        distance = (sums - columns).abs().sum(-1, keepdim=True)
        nearer = distance < (1 - 1e-9) * nearest  # of placements that are equally near the first
        # A choice between two maps takes half as long as a sort: most rounds need none.
        if bool(nearer.any()):
            nearest_order = order if bool(nearer.all()) else torch.where(nearer[..., None], order, nearest_order)
        nearest = torch.where(nearer, distance, nearest)
        strengths = strengths + (target_odds - _odds(sums, most)).clamp(-MOVE, MOVE)
    placement = torch.zeros_like(pattern).scatter(-1, nearest_order, weights)
    return with_margins(placement + TRACE * visible, pattern.sum(-1), columns)


def falling_order(x: Float[Tensor, "*batch n"]) -> Int[Tensor, "*batch n"]:
    r"""The indices that sort the last axis, largest first, four times as fast as argsort.

    Definition:
        The bits of a float, read as an integer, are in the order of the floats (negative ones after a flip of all bits
        but the sign). The index replaces the last $\lceil \log_2 n \rceil$ bits, so that sorting the integers sorts the
        indices with them.
    Properties:
        - the order of argsort where numbers differ in the first 12 digits  (tested: test_falling_order)
        - infinities are the ends, and numbers that are equal keep their order  (tested: test_falling_order)
    """
    # In place: copies of all bits would take longer than the sort.
    packed = (-x.to(torch.float64)).numpy().view(np.int64)
    packed ^= (packed >> 63) & np.iinfo(np.int64).max
    last_bits = (1 << (x.shape[-1] - 1).bit_length()) - 1
    packed &= ~last_bits
    packed |= np.arange(x.shape[-1])
    packed.sort(axis=-1)
    packed &= last_bits
    return torch.from_numpy(packed)


def _odds(sums: Float[Tensor, "*batch keys"], most: Float[Tensor, "*batch keys"]) -> Float[Tensor, "*batch keys"]:
    """The log odds of a key's weight against the most that it could get."""
    return (sums.clamp_min(TRACE) / (most - sums).clamp_min(TRACE)).log()


def gumbel(uniform: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Gumbel noise from uniform numbers."""
    return -(-uniform.to(torch.float64).clamp_min(1e-300).log()).log()
