r"""Wertich, section 5.3.1: ratios of attention weights for Gaussian scores."""

import math

import numpy as np
import torch
from torch import Tensor

from headscope.core.figure import Curves, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.gaussians.lognormal import ratio_moments
from headscope.theory.checks import Lab, fact, mean_of, order_of, variance_of
from headscope.theory.works import wertich

CHAPTER = wertich()

_COUNT = 200_000
# Means, variances and covariance of the two scores whose shares are compared; a third score takes the rest.
_MEANS, _VARIANCES, _COVARIANCE = (0.5, -0.3), (0.20, 0.12), 0.05


def _ratios(lab: Lab) -> Tensor:
    """p_1/p_2 of a softmax over three scores, the first two of them correlated."""
    a, b, third = (lab.normal(_COUNT, purpose=name) for name in "abc")
    factor = _COVARIANCE / math.sqrt(_VARIANCES[0])
    first = _MEANS[0] + math.sqrt(_VARIANCES[0]) * a
    second = _MEANS[1] + factor * a + math.sqrt(_VARIANCES[1] - factor**2) * b
    p = torch.softmax(torch.stack([first, second, third], -1), -1)
    return p[:, 0] / p[:, 1]


@CHAPTER.claim(
    "W-5.20",
    section="5.3.1, (5.20)",
    statement="For Gaussian scores the mean ratio of two attention weights is the exponential of half of μ_i − μ_j + "
    "σ_i² + σ_j² − 2σ_ij.",
    formula=r"E[\frac{p_i}{p_j}] = \exp(\frac{\mu_i - \mu_j + \sigma_i^2 + \sigma_j^2 - 2\sigma_{ij}}{2})",
    correction="Only the variance of the difference is halved; the difference of the means enters whole.",
    corrected=r"E[\frac{p_i}{p_j}] = \exp(\mu_i - \mu_j + \frac{\sigma_i^2 + \sigma_j^2 - 2\sigma_{ij}}{2})",
    lesson="The ratio is the exponential of the difference of two scores, which is again normal. It is the mistake of "
    "the log-normal mean in section 5.1 carried on, and it makes the influence of the means look half as strong as it "
    "is. Where the means are equal, the formula is right.",
    slip=True,
)
def mean_ratio(lab: Lab) -> Evidence:
    ratios = _ratios(lab)
    spread = sum(_VARIANCES) - 2 * _COVARIANCE
    difference = _MEANS[0] - _MEANS[1]
    name = f"mean of p_1/p_2, {_COUNT:,} softmaxes of correlated scores"
    return Evidence(
        stated=(mean_of(name, math.exp((difference + spread) / 2), ratios),),
        corrected=(mean_of(name, ratio_moments(*_MEANS, *_VARIANCES, _COVARIANCE).mean, ratios),),
    )


@CHAPTER.claim(
    "W-5.21",
    section="5.3.1, (5.21)",
    statement="The variance of the ratio is (e^s − 1) e^(2(μ_i − μ_j) + s) with s the variance of the difference of "
    "the scores, σ_i² + σ_j² − 2σ_ij.",
    formula=r"\mathrm{Var}(\frac{p_i}{p_j}) = (e^{s} - 1)\,e^{2(\mu_i - \mu_j) + s}, \quad "
    r"s = \sigma_i^2 + \sigma_j^2 - 2\sigma_{ij}",
    lesson="Unlike the mean above it, this formula is right: it is the variance of a log-normal variable. Positive "
    "correlation of two scores makes their ratio steadier, because they move together.",
)
def variance_of_ratio(lab: Lab) -> Evidence:
    ratios = _ratios(lab)
    spread = sum(_VARIANCES) - 2 * _COVARIANCE
    predicted = (math.exp(spread) - 1) * math.exp(2 * (_MEANS[0] - _MEANS[1]) + spread)
    return Evidence((variance_of(f"variance of p_1/p_2, {_COUNT:,} softmaxes", predicted, ratios),))


@CHAPTER.claim(
    "W-5.3b",
    section="5.3.1",
    statement="Random vectors multiplied by a length l lie on a sphere of radius l, so σ² = l/n, and the ratio has "
    "the mean e^(l/n) and the variance (e^(2l/n) − 1) e^(2l/n).",
    formula=r"\sigma^2 = \frac{l}{n}, \quad E[\frac{p_i}{p_j}] = e^{l/n}, \quad "
    r"\mathrm{Var}(\frac{p_i}{p_j}) = (e^{2l/n} - 1)\,e^{2l/n}",
    correction="A factor l multiplies the variance by l². With σ² = l²/n every l in these formulas becomes l².",
    corrected=r"\sigma^2 = \frac{l^2}{n}, \quad E[\frac{p_i}{p_j}] = e^{l^2/n}, \quad "
    r"\mathrm{Var}(\frac{p_i}{p_j}) = (e^{2l^2/n} - 1)\,e^{2l^2/n}",
    lesson="Variance is measured in squared units: doubling a vector makes its variance four times as large. At l = 1 "
    "both readings agree, which is why the slip is easy to miss; at other radii the softmax reacts much more strongly "
    "to the radius than the stated formula says.",
    slip=True,
)
def ratio_at_radius(lab: Lab) -> Evidence:
    n, radius = 32, 2.0
    stated: list[Comparison] = []
    corrected: list[Comparison] = []
    v = radius * lab.normal(_COUNT, 2, purpose="v") / math.sqrt(n)
    ratios = (v[:, 0] - v[:, 1]).exp()
    for comparisons, spread in ((stated, radius / n), (corrected, radius**2 / n)):
        mean, variance = ratio_moments(0.0, 0.0, spread, spread)
        comparisons.append(mean_of(f"mean of p_1/p_2, n = {n}, radius {radius:g}", mean, ratios))
        comparisons.append(variance_of(f"variance of p_1/p_2, n = {n}, radius {radius:g}", variance, ratios))
    corrected.append(variance_of(f"variance of an entry, n = {n}, radius {radius:g}", radius**2 / n, v[:, 0]))
    return Evidence(tuple(stated), tuple(corrected), figures=(_moments_by_radius(lab),))


def _moments_by_radius(lab: Lab) -> Curves:
    n = 32
    radii = np.linspace(0.1, 4.0, 14)
    noise = lab.normal(20_000, 2, purpose="figure") / math.sqrt(n)
    difference = noise[:, 0] - noise[:, 1]
    draws = [(float(radius) * difference).exp() for radius in radii]
    means = np.array([float(x.mean()) for x in draws])
    errors = np.array([float(x.std()) for x in draws]) / math.sqrt(len(difference))
    return Curves(
        "ratio-by-radius",
        "Mean ratio of two attention weights against the radius",
        f"Vectors of {n} scores, of length l in the mean; band: two standard errors. The stated law has l where l² "
        "belongs; both agree at l = 1.",
        "radius l",
        "mean of p_i / p_j",
        (
            Series("measured", radii, means, means - 2 * errors, means + 2 * errors),
            Series("corrected: exp(l²/n)", radii, np.exp(radii**2 / n), role="theory"),
            Series("stated: exp(l/n)", radii, np.exp(radii / n), role="null"),
        ),
    )


def _by_quadrature(spread: float) -> tuple[float, float]:
    """Mean less 1 and variance of the ratio, by Gauss–Hermite quadrature.

    Both scores have the variance `spread`.
    """
    x, weight = np.polynomial.hermite_e.hermegauss(60)
    weight = weight / weight.sum()
    y = np.expm1(math.sqrt(2 * spread) * x)
    mean = float(weight @ y)
    return mean, float(weight @ (y - mean) ** 2)


@CHAPTER.claim(
    "W-5.3c",
    section="5.3.1",
    statement="To second order the mean of the ratio is 1 + l/n + l²/(2n²) and its variance 2l/n + 6l²/n².",
    formula=r"E[\frac{p_i}{p_j}] \approx 1 + \frac{l}{n} + \frac{l^2}{2n^2}, \quad "
    r"\mathrm{Var}(\frac{p_i}{p_j}) \approx \frac{2l}{n} + \frac{6l^2}{n^2}",
    lesson="With x = l/n the variance is e^(4x) − e^(2x) = 2x + 6x² + …, so the coefficients 2 and 6 are correct; what "
    "is left out begins with x³/6 and 28x³/3. The expansions are those of scores of variance l/n. For vectors of "
    "radius l the variance is l²/n (W-5.3b), and every l becomes l².",
    related=("W-5.3b",),
)
def expansion_of_ratio_moments(lab: Lab) -> Evidence:
    del lab
    sizes, scale = (16, 32, 64, 128, 256), 2.0
    moments = [_by_quadrature(scale / n) for n in sizes]
    spreads = [scale / n for n in sizes]
    means = [abs(s + s**2 / 2 - mean) for s, (mean, _) in zip(spreads, moments, strict=True)]
    variances = [abs(2 * s + 6 * s**2 - variance) for s, (_, variance) in zip(spreads, moments, strict=True)]
    return Evidence(
        (
            order_of("power of n in what the series of the mean leaves out", "n", -3.0, sizes, means),
            order_of("power of n in what the series of the variance leaves out", "n", -3.0, sizes, variances),
        )
    )


@CHAPTER.claim(
    "W-5.3d",
    section="5.3.1",
    statement="For radius one the ratio hovers around 1 + 1/n, with a variance of order 1/n and a standard deviation "
    "of order 1/√n.",
    formula=r"E[\frac{p_i}{p_j}] \approx 1 + \frac{1}{n}, \quad \mathrm{sd} \in O(\frac{1}{\sqrt{n}})",
    lesson="The typical deviation √(2/n) is much larger than the shift 1/n of the mean: a single ratio is as likely "
    "below one as above. The mean exceeds one only because ratios of two and of one half do not balance.",
)
def ratio_at_radius_one(lab: Lab) -> Evidence:
    del lab
    sizes = (16, 32, 64, 128)
    moments = [_by_quadrature(1 / n) for n in sizes]
    beyond = [mean - 1 / n for n, (mean, _) in zip(sizes, moments, strict=True)]
    return Evidence(
        (
            order_of("power of n in the mean beyond 1", "n", -1.0, sizes, [mean for mean, _ in moments]),
            order_of("power of n in the mean beyond 1 + 1/n", "n", -2.0, sizes, beyond),
            order_of("power of n in the variance", "n", -1.0, sizes, [variance for _, variance in moments]),
            order_of("power of n in the standard deviation", "n", -0.5, sizes, [v**0.5 for _, v in moments]),
            fact("at every n the mean lies closer to 1 + 1/n than a hundredth of the standard deviation",
                 all(gap < variance**0.5 / 100 for gap, (_, variance) in zip(beyond, moments, strict=True))),
        )
    )  # fmt: skip


@CHAPTER.claim(
    "W-5.3e",
    section="5.3.1",
    statement="The covariance of two scores is their correlation divided by the product of their standard deviations.",
    formula=r"\sigma_{ij} = \frac{\rho}{\sigma_i \sigma_j}",
    correction="It is the correlation times that product.",
    corrected=r"\sigma_{ij} = \rho\,\sigma_i \sigma_j",
    lesson="The correlation is the covariance measured in units of both standard deviations, so one multiplies to go "
    "back. With the division, scores with little spread would have a huge covariance, which is impossible: its size "
    "is at most σ_i σ_j.",
    slip=True,
)
def covariance_and_correlation(lab: Lab) -> Evidence:
    rho, first, second = 0.6, 1.5, 0.4
    a, b = lab.normal(100_000, purpose="a"), lab.normal(100_000, purpose="b")
    x, y = first * a, second * (rho * a + math.sqrt(1 - rho**2) * b)
    products = (x - x.mean()) * (y - y.mean())
    name = "covariance for correlation 0.6 and deviations 1.5 and 0.4"
    return Evidence(
        stated=(mean_of(name, rho / (first * second), products),),
        corrected=(mean_of(name, rho * first * second, products),),
    )


@CHAPTER.claim(
    "W-5.3f",
    section="5.3.1",
    statement="To set attention weights apart and raise p_i over p_j, the model can, more decisively than by shifting "
    "the means, enlarge the variances, since the mean ratio grows with σ_i² + σ_j².",
    formula=r"\sigma_i^2 + \sigma_j^2 \uparrow \ \Rightarrow \ E[\frac{p_i}{p_j}] \uparrow",
    correction="The mean of p_i/p_j grows, but so does that of p_j/p_i, by the same factor: variance drives the "
    "weights apart without a direction. Which of the two wins is decided by the means alone: the typical (median) "
    "ratio is e^(μ_i − μ_j), and larger variances bring the chance that p_i exceeds p_j closer to one half.",
    corrected=r"\mathrm{median}(\frac{p_i}{p_j}) = e^{\mu_i - \mu_j}, \quad "
    r"P(p_i > p_j) = \Phi(\frac{\mu_i - \mu_j}{s}), \quad s^2 = \sigma_i^2 + \sigma_j^2 - 2\sigma_{ij}",
    lesson="A mean of ratios is ruled by a few very large ones. If a coin decides whether p_i is ten times p_j or a "
    "tenth of it, the mean ratio is about 5 both ways, and neither weight is larger on average. Variance makes "
    "attention sharper, but to aim it the model must shift means.",
)
def variance_has_no_direction(lab: Lab) -> Evidence:
    count, difference = 100_000, 0.4
    noise = lab.normal(count, purpose="scores")
    spreads = (0.5, 1.0, 2.0)
    chances = [float((difference + s * noise > 0).double().mean()) for s in spreads]
    corrected = []
    for s, chance in zip(spreads, chances, strict=True):
        expected = (1 + math.erf(difference / s / math.sqrt(2))) / 2
        corrected.append(
            Comparison(f"chance that p_i exceeds p_j, μ_i − μ_j = 0.4, s = {s}", expected, chance,
                       math.sqrt(expected * (1 - expected) / count))
        )  # fmt: skip
        # The error of a median is that of a quantile: √(1/4N) over the density there.
        corrected.append(
            Comparison(f"median of ln(p_i/p_j), s = {s}", difference, float((difference + s * noise).median()),
                       s * math.sqrt(math.pi / 2 / count))
        )  # fmt: skip
    small = 0.5
    for sign in (1, -1):
        expected = ratio_moments(sign * difference, 0.0, small**2, 0.0).mean
        name = f"mean of {'p_i/p_j' if sign > 0 else 'p_j/p_i'}, s = 0.5: both contain e^(s²/2)"
        corrected.append(mean_of(name, expected, (sign * (difference + small * noise)).exp()))
    return Evidence(
        stated=(fact("p_i exceeds p_j more often as the variance grows (s = 0.5, 1, 2)", chances == sorted(chances)),),
        corrected=tuple(corrected),
    )
