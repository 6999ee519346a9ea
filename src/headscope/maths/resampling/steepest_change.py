r"""Where a curve changes most steeply, from the points of the curve and their intervals.

A curve is known at the points $x_0 < x_1 < …$, each value $y_i$ with a 95 % interval $[l_i, u_i]$. The rate of pair
j is $r_j = (y_{j+1} - y_j) / (x_{j+1} - x_j)$, and the steepest pair is that of the largest $|r_j|$.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from headscope.maths.resampling.interval_difference import Ends, difference_interval, difference_p
from headscope.maths.resampling.jackknife import LEVEL, POWER

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SteepestChange:
    """The steepest pair of each curve, by its place, with its rate; -1 and NaN where no pair has both values.

    `p` tests the steepest change against 0, among all pairs of the curve. `first` and `last` are the places of the
    earliest and the latest pair that may be the steepest. `detectable` is the change between any two neighbours that
    would be found in four of five samples. These are NaN, or the ends of the curve, where there is no interval.
    """

    pair: Int[Tensor, " curves"]
    rate: Float[Tensor, " curves"]
    p: Float[Tensor, " curves"]
    first: Int[Tensor, " curves"]
    last: Int[Tensor, " curves"]
    detectable: Float[Tensor, " curves"]


def steepest_change(
    x: Float[Tensor, " points"],
    values: Float[Tensor, "curves points"],
    ends: tuple[Float[Tensor, "curves points"], Float[Tensor, "curves points"]],
    units: Int[Tensor, " curves"],
) -> SteepestChange:
    r"""The steepest pair of neighbours of each curve, and which other pairs may be the steepest.

    Definition:
        The points count as independent; where they come from the same units and vary together, the interval is wider
        than it has to be. The p-value is that of the difference of the two neighbours (`difference_p`) times the number
        of pairs, at most 1. With the widest interval of a difference and its standard error, `detectable` is
        $t_{1 - 0.05 / 2 m} + t_{0.8}$ of these errors over m pairs.

        Pair k may be the steepest unless a contrast with the steepest pair b excludes it: $|r_b| - r_k$ and
        $|r_b| + r_k$ both exceed their margin at the one-sided level $0.05 / 2 (m - 1)$ over m pairs. The margin of
        $\sum_i c_i y_i$ is $\sqrt{\sum_i c_i^2 d_i^2}$ times the ratio of the quantiles of Student's t at that level
        and at 0.975, where $d_i = y_i - l_i$ if $c_i > 0$ and $u_i - y_i$ otherwise. So the pair that is truly the
        steepest is excluded in at most 5 of 100 samples.
    Properties:
        - without error only the steepest pair may be the steepest  (tested: test_exact_curves_have_one_steepest_pair)
        - the truly steepest pair is among them in at least 95 of 100  (tested: test_the_steepest_pair_is_covered)
        - a flat curve is called a change in at most 5 of 100 samples  (tested: test_flat_curves_are_seldom_changes)
        - a change of the size `detectable` is found in four of five  (tested: test_a_detectable_change_is_detected)
        - turning the curve upside down changes the sign alone  (tested: test_a_curve_upside_down)
    Reference:
        Hsu (1981), Simultaneous confidence intervals for all distances from the "best", Annals of Statistics 9, 1026;
        Zou and Donner (2008), Construction of confidence limits about effect measures, Statistics in Medicine 27, 1693.
    """
    rates = values.diff(dim=-1) / x.diff()
    is_pair = rates.isfinite()
    pair = torch.where(is_pair, rates.abs(), -1.0).argmax(-1)
    rate = rates.gather(-1, pair[:, None])[:, 0]
    candidates = _candidates(x, values, ends, units, pair)
    places = torch.arange(len(x) - 1)
    p, detectable = _test(values, ends, units, pair)
    return SteepestChange(
        torch.where(is_pair.any(-1), pair, -1),
        rate,
        p,
        torch.where(candidates, places, len(x) - 2).amin(-1),
        torch.where(candidates, places, 0).amax(-1),
        detectable,
    )


def _candidates(
    x: Float[Tensor, " points"],
    values: Float[Tensor, "curves points"],
    ends: Ends,
    units: Int[Tensor, " curves"],
    pair: Int[Tensor, " curves"],
) -> Bool[Tensor, "curves pairs"]:
    """Which pairs may be the steepest; a pair without both values never is, one without an error always is."""
    n_pairs = len(x) - 1
    step = torch.eye(len(x), dtype=torch.float64).diff(dim=0) / x.diff()[:, None]  # rates are step @ values
    rates = values.diff(dim=-1) / x.diff()
    best = rates.gather(-1, pair[:, None]).sign()[..., None] * step[pair][:, None]  # |r_b| is best @ values
    size = rates.gather(-1, pair[:, None]).abs()
    ratio = _quantile_ratio(units, 1 - (1 - LEVEL) / (2 * max(n_pairs - 1, 1)))[:, None]
    is_excluded = torch.ones_like(rates, dtype=torch.bool)
    for sign in (1.0, -1.0):
        margin = ratio * _lower_margin(best - sign * step, values, ends)
        is_excluded &= size - sign * rates > margin
    is_excluded.scatter_(-1, pair[:, None], value=False)
    return ~is_excluded & rates.isfinite()


def _lower_margin(
    contrasts: Float[Tensor, "curves pairs points"], values: Float[Tensor, "curves points"], ends: Ends
) -> Float[Tensor, "curves pairs"]:
    """How far below each contrast its 95 % interval begins."""
    low, high = ends
    below, above = (values - low)[:, None], (high - values)[:, None]
    parts = contrasts * torch.where(contrasts > 0, below, above)
    return torch.where(contrasts == 0, 0.0, parts).square().sum(-1).sqrt()  # 0 times NaN is no part


def _test(
    values: Float[Tensor, "curves points"], ends: Ends, units: Int[Tensor, " curves"], pair: Int[Tensor, " curves"]
) -> tuple[Float[Tensor, " curves"], Float[Tensor, " curves"]]:
    """The p-value of the steepest pair among all, and the change that would be detected in any pair."""
    low, high = ends
    before, after = slice(None, -1), slice(1, None)
    differences = values.diff(dim=-1)
    interval = difference_interval(
        values[:, before], (low[:, before], high[:, before]), values[:, after], (low[:, after], high[:, after])
    )
    p = difference_p(differences, interval, units[:, None].expand_as(differences))
    n_pairs = differences.isfinite().sum(-1).clamp(min=1)
    half = (interval[1] - interval[0]).nan_to_num(-1.0).amax(-1) / 2
    errors = half / torch.from_numpy(_student(units, (1 + LEVEL) / 2))
    quantiles = _student(units, 1 - (1 - LEVEL) / (2 * n_pairs.numpy())) + _student(units, POWER)
    detectable = torch.where((half < 0) | (units < 2), torch.nan, errors * torch.from_numpy(quantiles))
    return (p.gather(-1, pair[:, None])[:, 0] * n_pairs).clamp(max=1.0), detectable


def _quantile_ratio(units: Int[Tensor, " curves"], probability: float) -> Float[Tensor, " curves"]:
    """By how much the margin at a one-sided level exceeds that of a 95 % interval."""
    return torch.from_numpy(_student(units, probability) / _student(units, (1 + LEVEL) / 2))


def _student(units: Int[Tensor, " curves"], probability: float | Array) -> Array:
    """The quantile of Student's t for each curve."""
    return np.asarray(stats.t.ppf(probability, np.maximum(units.numpy() - 1, 1)), dtype=np.float64)
