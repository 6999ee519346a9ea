r"""Differences of two estimates of which only intervals are stored, and which of many differences count."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor

from headscope.maths.resampling.jackknife import LEVEL

Ends = tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]


def difference_interval(
    first: Float[Tensor, "*batch"], first_ends: Ends, second: Float[Tensor, "*batch"], second_ends: Ends
) -> Ends:
    r"""Both ends of an interval of second − first, as if the two estimates were independent.

    Definition:
        With $x \in [l, u]$ and $y \in [l', u']$ the interval of $y - x$ is
        $y - x - \sqrt{(y - l')^2 + (u - x)^2}$ to $y - x + \sqrt{(u' - y)^2 + (x - l)^2}$. Both intervals may be
        lopsided. Estimates from the same windows vary together: where their correlation is positive, the interval is
        wider than it has to be.
    Properties:
        - symmetric intervals: half-widths add in squares  (tested: test_half_widths_add_in_squares)
        - exchanging the two changes signs alone  (tested: test_exchange_changes_signs)
        - covers in 95 of 100 samples, more where the two vary together  (tested: test_intervals_of_differences_cover)
    Reference:
        Zou and Donner (2008), Construction of confidence limits about effect measures, Statistics in Medicine 27, 1693.
    """
    (low, high), (second_low, second_high) = first_ends, second_ends
    difference = second - first
    below = torch.hypot(second - second_low, high - first)
    above = torch.hypot(second_high - second, first - low)
    return difference - below, difference + above


def difference_p(
    difference: Float[Tensor, "*batch"], ends: Ends, units: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    r"""The two-sided p-value of a difference against 0, read from its interval.

    Definition:
        The distance from the difference to the end towards 0 is $t_{0.975, w-1}$ standard errors over w units. A
        difference of exactly 0 has p = 1. NaN where there is no interval, or fewer than two units.
    Properties:
        - below 0.05 where the interval leaves 0 out  (tested: test_p_value_and_difference_interval_agree)
    """
    low, high = ends
    half = torch.where(difference > 0, difference - low, high - difference).numpy()
    freedom = np.maximum(units.numpy() - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(difference.numpy()) / half * stats.t.ppf((1 + LEVEL) / 2, freedom)
    p = np.where(difference.numpy() == 0, np.where(np.isnan(half), np.nan, 1.0), 2 * stats.t.sf(t, freedom))
    return torch.from_numpy(np.where(units.numpy() < 2, np.nan, p))


def adjusted_p(p: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    r"""p-values adjusted for all tests together; counting those up to α keeps false discoveries at the share α.

    Definition:
        Of m p-values in ascending order, the k-th becomes the least $m p_{(j)} / j$ with $j \ge k$. NaN is no test.
    Properties:
        - the least of one test is itself, and order stays  (tested: test_adjusted_p)
    Reference:
        Benjamini and Hochberg (1995), Journal of the Royal Statistical Society B 57, 289.
    """
    tested: Bool[Tensor, "*batch"] = ~p.isnan()
    adjusted = torch.full_like(p, torch.nan)
    if bool(tested.any()):
        adjusted[tested] = torch.from_numpy(np.asarray(stats.false_discovery_control(p[tested].numpy())))
    return adjusted
