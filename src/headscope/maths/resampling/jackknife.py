r"""The jackknife: errors from estimates that leave out one unit each.

Units are what was sampled independently, windows of text for most lenses. Rows and pairs of tokens are no units: those
of one window depend on each other.
"""

from math import nan

import numpy as np
import torch
from jaxtyping import Float
from scipy import optimize, stats
from torch import Tensor

# The level of every interval, and the power at which an effect counts as detectable.
LEVEL, POWER = 0.95, 0.8
# Equally likely parts of the law of an estimated error, over which the power of a test is averaged.
CHI_PARTS = 2000


def student_quantile(units: int, probability: float = (1 + LEVEL) / 2) -> float:
    r"""The quantile of Student's t for an error from `units` units; NaN below two.

    Properties:
        - scipy's quantile with one degree of freedom less than units  (tested: test_student_quantile)
    """
    return float(stats.t.ppf(probability, units - 1)) if units > 1 else nan


def jackknife_error(estimates: Float[Tensor, "sets *batch"], population: int | None = None) -> Float[Tensor, "*batch"]:
    r"""The standard error of the first estimate; the others leave out one unit each.

    Definition:
        $\sqrt{\frac{w-1}{w} \sum_i (\hat\theta_{(i)} - \bar\theta)^2}$ over w units. Where the first estimate rests on
        all `population` units and only w of them were left out in turn, the sum estimates the sum over all of them:
        $\sqrt{\frac{m-1}{m} \frac{m}{w} \frac{w}{w-1} \sum_i (\hat\theta_{(i)} - \bar\theta)^2}$ with m units.
    Properties:
        - of a mean: its standard error  (tested: test_jackknife_of_a_mean)
        - a sample of left-out units estimates the same error  (tested: test_jackknife_of_some_units)
    Reference:
        Efron and Tibshirani (1993), An introduction to the bootstrap, chapter 11.
    """
    w = len(estimates) - 1
    left_out = estimates[1:]
    if w < 2:
        return torch.full_like(estimates[0], nan)
    squares = (left_out - left_out.mean(0)).square().sum(0)
    if population is None or population <= w:
        return ((w - 1) / w * squares).sqrt()
    return ((population - 1) / (w - 1) * squares).sqrt()


def jackknife(
    estimates: Float[Tensor, "sets *batch"], population: int | None = None
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    r"""The first estimate and half of its 95 % interval.

    The other estimates leave out one unit each.

    Definition:
        $\hat\theta \pm t_{0.975, w-1}$ standard errors (`jackknife_error`).
    Properties:
        - covers the truth in 95 of 100 samples  (tested: test_intervals_cover)
    """
    return estimates[0], jackknife_error(estimates, population) * student_quantile(len(estimates) - 1)


def jackknife_p(estimates: Float[Tensor, "sets *batch"]) -> Float[Tensor, "*batch"]:
    r"""The two-sided p-value of the first estimate against 0.

    It is NaN where leaving out a unit changes nothing.

    Properties:
        - below 0.05 where the interval leaves 0 out  (tested: test_p_value_and_interval_agree)
    """
    w = len(estimates) - 1
    error = jackknife_error(estimates)
    t = torch.where(error > 0, estimates[0] / error, nan).abs()
    return torch.from_numpy(np.asarray(2 * stats.t.sf(t.numpy(), max(1, w - 1))))


def detectable(half_width: Float[Tensor, "*batch"], units: int) -> Float[Tensor, "*batch"]:
    r"""The smallest effect that a test at the 5 % level finds in four of five samples.

    Definition:
        $(t_{0.975} + t_{0.8})$ standard errors, from half of a 95 % interval over `units` units.
    Properties:
        - an effect of this size is found in about 80 of 100 samples  (tested: test_detectable_effect)
    Reference:
        Cohen (1988), Statistical power analysis for the behavioral sciences, chapter 2.
    """
    return half_width * (1 + student_quantile(units, POWER) / student_quantile(units))


def detectable_among(
    half_width: Float[Tensor, "*batch"], units: int, tests: int, counted: int = 0
) -> Float[Tensor, "*batch"]:
    r"""The effect with which one more of several tests is counted in four of five samples.

    Definition:
        False discoveries held at α: one test more than the k counted ones of m is counted where its p-value is at most
        $\alpha (k + 1) / m$. The effect is δ standard errors, from half of a 95 % interval over `units` units, where
        a noncentral t with the shift δ exceeds $t_{1 - \alpha (k + 1) / 2 m}$ in four of five cases.
    Properties:
        - among tests of noise it is counted in 80 of 100 samples  (tested: test_detectable_effect_among_tests)
    Reference:
        Benjamini and Hochberg (1995), Journal of the Royal Statistical Society B 57, 289.
    """
    if units < 2:
        return torch.full_like(half_width, nan)
    level = (1 - LEVEL) * min(counted + 1, tests) / tests
    threshold = student_quantile(units, 1 - level / 2)
    # The error is estimated: a chi variable around the true one, here at the middles of equally likely parts of it.
    parts = (np.arange(CHI_PARTS) + 0.5) / CHI_PARTS
    errors = np.sqrt(stats.chi2.ppf(parts, units - 1) / (units - 1))

    def power(shift: float) -> float:
        return float(stats.norm.cdf(shift - threshold * errors).mean())

    shift = optimize.brentq(lambda effect: power(effect) - POWER, 0.0, 10.0 * (threshold + 1.0))
    return half_width * float(shift) / student_quantile(units)
