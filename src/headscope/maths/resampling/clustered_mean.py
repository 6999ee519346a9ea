"""Means of values in clusters, with their errors: tokens come in windows of text."""

from dataclasses import dataclass
from math import exp, nan, sqrt

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from headscope.errors import UsageError

_LARGEST = 700.0  # whose exponential is still a float


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval; the ends are NaN for a single cluster."""

    mean: float
    low: float
    high: float


def exponential(estimate: Estimate) -> Estimate:
    """The exponential of a mean and of its ends, bounded so that it is finite: nats as a ratio of perplexities."""
    return Estimate(*(exp(min(end, _LARGEST)) for end in (estimate.mean, estimate.low, estimate.high)))


def clustered_mean(sums: Float[Tensor, " clusters"], counts: Float[Tensor, " clusters"]) -> Estimate:
    r"""The mean over all members of clusters of unequal size, and its interval.

    Definition:
        $\bar x = \sum_w s_w / \sum_w n_w$ with the error of a ratio of two sums over m clusters,
        $\sqrt{\sum_w \frac{a_w^2 (s_w / n_w - \bar x)^2}{1 - 2 a_w + \sum_v a_v^2}}$, where $a_w = n_w / \sum_v n_v$.
        Each square is over its expectation for clusters that vary alike. Student's t with $(\sum a^2)^2 / \sum a^4 - 1$
        degrees of freedom, at least 1: a few large clusters tell little about the error. Clusters without members do
        not count.
    Properties:
        - equal sizes: the interval of the clusters' means  (tested: test_equal_clusters_are_a_plain_sample)
        - covers the truth in 95 of 100 samples  (tested: test_clustered_intervals_cover)
        - also with few clusters of very unequal size  (tested: test_few_unequal_clusters_cover)
    Reference:
        Cochran (1977), Sampling techniques, section 6.3. Bell and McCaffrey (2002), Survey Methodology 28, 169 (few
        clusters).
    """
    has_members = counts > 0
    s, n = sums[has_members].double(), counts[has_members].double()
    m = len(n)
    if m == 0:
        raise UsageError("a mean needs at least one member")
    mean = float(s.sum() / n.sum())
    if m == 1:
        return Estimate(mean, nan, nan)
    share = n / n.sum()
    squares = share.square()
    error = sqrt(float((squares * (s / n - mean).square() / (1 - 2 * share + squares.sum())).sum()))
    freedom = float(squares.sum().square() / squares.square().sum()) - 1
    half = float(stats.t.ppf(0.975, max(freedom, 1.0))) * error
    return Estimate(mean, mean - half, mean + half)


def total_variation(p: Float[Tensor, "*batch n"], q: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""Share of the mass that must move to turn one distribution into the other.

    Definition:
        $\frac{1}{2} \sum_j |p_j - q_j|$.
    Properties:
        - between 0 and 1, 1 for disjoint ones, a metric  (tested: test_total_variation)
    """
    return (p - q).abs().sum(-1, dtype=torch.float64) / 2
