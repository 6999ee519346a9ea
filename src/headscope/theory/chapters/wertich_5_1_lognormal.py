r"""Wertich, section 5.1: the exponential of normal scores, and their normalisation."""

import math

import numpy as np
import torch
from scipy import integrate, stats

from headscope.core.figure import Histogram, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.attention.softmax import jacobian, softmax
from headscope.maths.gaussians.lognormal import fenton_wilkinson, moments
from headscope.theory.checks import Lab, exact, fact, mean_of, order_of, trend_of, variance_of
from headscope.theory.works import wertich

CHAPTER = wertich()


def _quadrature(mean: float, variance: float) -> tuple[float, float]:
    """Mean and variance of e^X by Gauss–Hermite quadrature, without the formulas."""
    x, weight = np.polynomial.hermite_e.hermegauss(60)
    weight = weight / weight.sum()
    y = np.expm1(mean + math.sqrt(variance) * x)
    first = float(weight @ y)
    return 1 + first, float(weight @ (y - first) ** 2)


@CHAPTER.claim(
    "W-5.1a",
    section="5.1",
    statement="The exponential of a normal variable with mean μ and variance σ² has the mean e^((μ+σ²)/2).",
    formula=r"E[e^X] = e^{(\mu + \sigma^2)/2}",
    correction="Only the variance is halved, not the mean.",
    corrected=r"E[e^X] = e^{\mu + \sigma^2/2}",
    lesson="Exponentiating lifts large values more than it lowers small ones, so the mean of e^X exceeds e^μ by a "
    "factor that depends on the spread. That factor is e^(σ²/2); the mean μ itself enters whole. The stated formula "
    "is right only where μ = 0.",
    slip=True,
)
def log_normal_mean(lab: Lab) -> Evidence:
    stated, corrected = [], []
    for mu, sigma in ((0.5, 0.4), (-1.0, 0.7)):
        samples = (mu + sigma * lab.normal(200_000, purpose=f"{mu}")).exp()
        name = f"mean of e^X, μ = {mu}, σ = {sigma}, 200,000 draws"
        stated.append(mean_of(name, math.exp((mu + sigma**2) / 2), samples))
        corrected.append(mean_of(name, moments(mu, sigma**2).mean, samples))
    return Evidence(tuple(stated), tuple(corrected))


@CHAPTER.claim(
    "W-5.1b",
    section="5.1",
    statement="Its variance is (e^(σ²) − 1) e^(2μ+σ²).",
    formula=r"\mathrm{Var}(e^X) = (e^{\sigma^2} - 1)\, e^{2\mu + \sigma^2}",
    lesson="The spread of e^X grows with the square of its mean: a score that is larger on average is also more "
    "variable after exponentiation. The formula is the textbook one and holds.",
)
def log_normal_variance(lab: Lab) -> Evidence:
    comparisons = []
    for mu, sigma in ((0.5, 0.4), (-1.0, 0.7)):
        samples = (mu + sigma * lab.normal(200_000, purpose=f"{mu}")).exp()
        predicted = (math.exp(sigma**2) - 1) * math.exp(2 * mu + sigma**2)
        comparisons.append(variance_of(f"variance of e^X, μ = {mu}, σ = {sigma}", predicted, samples))
    return Evidence(tuple(comparisons))


_SIZES = (2, 4, 8, 16, 32, 64)


@CHAPTER.claim(
    "W-5.1",
    section="5.1.2, (5.1)",
    statement="For scores with mean 0 and variance 1/n, the mean of the exponential is e^(1/(2n)), which to second "
    "order (Taylor) is 1 + 1/(2n) + 1/(8n²).",
    formula=r"E[e^{x}] = e^{1/(2n)} \approx 1 + \frac{1}{2n} + \frac{1}{8n^2}",
    lesson="With μ = 0 the misplaced half of the general formula does no harm. The scores are small, so a few terms "
    "of the exponential series are enough: what is left out begins with 1/(48n³), and already at n = 8 the error is "
    "below one in ten thousand. (The last entry of the displayed vector carries a factor l that belongs to a later "
    "section.)",
)
def mean_under_xavier(lab: Lab) -> Evidence:
    del lab
    measured = [_quadrature(0.0, 1 / n)[0] for n in _SIZES]
    left = [abs(1 + 1 / (2 * n) + 1 / (8 * n**2) - mean) for n, mean in zip(_SIZES, measured, strict=True)]
    return Evidence(
        (
            exact("mean of e^x, n = 2: e^(1/(2n))", math.exp(1 / 4), measured[0]),
            order_of("power of n in what the series leaves out, n = 2 to 64", "n", -3.0, _SIZES, left),
        )
    )


@CHAPTER.claim(
    "W-5.2",
    section="5.1.2, (5.2)",
    statement="For the same scores the variance of the exponential is e^(2/n) − e^(1/n), which to second order is "
    "1/n + 3/(2n²).",
    formula=r"\mathrm{Var}(e^{x}) = e^{2/n} - e^{1/n} \approx \frac{1}{n} + \frac{3}{2n^2}",
    lesson="To first order the exponential of a small score is one plus the score, so it keeps the variance 1/n. The "
    "next terms come from the bend of the exponential and fade quickly as n grows: what is left out begins with "
    "7/(6n³).",
)
def variance_under_xavier(lab: Lab) -> Evidence:
    del lab
    measured = [_quadrature(0.0, 1 / n)[1] for n in _SIZES]
    left = [abs(1 / n + 3 / (2 * n**2) - variance) for n, variance in zip(_SIZES, measured, strict=True)]
    return Evidence(
        (
            exact("variance of e^x, n = 2: e^(2/n) − e^(1/n)", math.e - math.sqrt(math.e), measured[0]),
            order_of("power of n in what the series leaves out, n = 2 to 64", "n", -3.0, _SIZES, left),
        )
    )


@CHAPTER.claim(
    "W-5.1c",
    section="5.1.2",
    statement="Summing up, the mean of an exponentiated score is about 1 + 1/m and its variance about 1/n.",
    formula=r"E[\hat{X}_i] \approx 1 + \frac{1}{m}",
    correction="The mean exceeds one by half of that, and the size is called n: 1 + 1/(2n), as equation (5.1) says.",
    corrected=r"E[\hat{X}_i] = e^{1/(2n)} \approx 1 + \frac{1}{2n}",
    lesson="The mean of e^x is e^(σ²/2), and half of σ² = 1/n is 1/(2n). The variance really is about 1/n. The "
    "summary lost the factor two that the equation above it still has.",
    slip=True,
)
def mean_in_summary(lab: Lab) -> Evidence:
    del lab
    sizes = (16, 64, 256)
    excess = {n: _quadrature(0.0, 1 / n)[0] - 1 for n in sizes}
    left = [abs(1 / (2 * n) - excess[n]) for n in sizes]
    return Evidence(
        tuple(exact(f"mean of e^x beyond 1, n = {n}", 1 / n, excess[n]) for n in (16, 256)),
        (
            *(exact(f"mean of e^x, n = {n}", math.exp(1 / (2 * n)), 1 + excess[n]) for n in (16, 256)),
            order_of("power of n in what 1 + 1/(2n) leaves out", "n", -2.0, sizes, left),
        ),
        trend_of("relative error of 1/n as the mean beyond 1", "n", sizes,
                 [abs(1 / n - excess[n]) / excess[n] for n in sizes], 0.0),
    )  # fmt: skip


@CHAPTER.claim(
    "W-5.1d",
    section="5.1.2",
    statement="Exponentiation is invertible and bijective (onto the positive numbers), so that no information is "
    "gained or lost by it.",
    formula=r"\ln(e^{x}) = x, \quad D(e^X \| e^Y) = D(X \| Y)",
    lesson="A one-to-one map only renames the outcomes, and any measure of information between two variables or two "
    "laws stays the same: mutual information and divergences do. Only the differential entropy changes (by the mean "
    "μ), because it depends on the unit in which one measures; it is not an amount of information by itself.",
)
def exponential_keeps_information(lab: Lab) -> Evidence:
    x = 3 * lab.normal(1000, purpose="x")
    first, second = (0.2, 0.5), (-0.4, 0.8)  # mean and deviation

    def log_density(y: float, mean: float, deviation: float) -> float:
        return -(((math.log(y) - mean) / deviation) ** 2) / 2 - math.log(y * deviation * math.sqrt(2 * math.pi))

    def gained(y: float) -> float:
        a, b = (log_density(y, *law) for law in (first, second))
        return math.exp(a) * (a - b)

    measured = sum(integrate.quad(gained, low, high, epsabs=1e-12)[0] for low, high in ((1e-6, 1), (1, 5), (5, 100)))
    ratio = first[1] / second[1]
    of_normals = -math.log(ratio) + (ratio**2 + ((first[0] - second[0]) / second[1]) ** 2 - 1) / 2
    rho, count = 0.7, 100_000
    a, noise = lab.normal(count, purpose="a"), lab.normal(count, purpose="b")
    u, v = a.exp(), (rho * a + math.sqrt(1 - rho**2) * noise).exp()
    # The logarithm of the joint density over the product of both: the factors 1/(uv) of the change of variables cancel.
    log_u, log_v = u.log(), v.log()
    joint = (log_u.square() - 2 * rho * log_u * log_v + log_v.square()) / (1 - rho**2)
    information = (log_u.square() + log_v.square() - joint) / 2 - math.log(1 - rho**2) / 2
    return Evidence(
        (
            exact("the logarithm of e^x gives x back (worst of 1000)", x, x.exp().log()),
            exact("divergence of two log-normal laws (quadrature) against the normal ones", of_normals, measured, 10.0),
            mean_of("mutual information of e^X and e^Y, correlation 0.7, against X and Y", -math.log(1 - rho**2) / 2,
                    information),
        )
    )  # fmt: skip


@CHAPTER.claim(
    "W-5.1e",
    section="5.1.3",
    statement="A sum of log-normal variables is not log-normal; the Fenton–Wilkinson law, a log-normal law with the "
    "same mean and variance, can stand in for it.",
    formula=r"\sum_i e^{X_i} \sim \mathrm{LogNormal}(\mu_S, \sigma_S^2) \ \mathrm{approximately}",
    lesson="If the sum S were log-normal, ln S would be normal and E[S³]·E[S]³ would equal E[S²]³; it does not. "
    "Matching two moments leaves the shape to chance, yet for a spread of the scores of one half the largest error of "
    "the distribution function is below one percent. For a spread of 2 it is far off.",
)
def sums_of_log_normals(lab: Lab) -> Evidence:
    terms, count = 8, 40_000
    # Moments of the sum of independent terms, from the moments e^(k²σ²/2) of each: no sampling.
    sigma = 0.5
    power = [math.exp(k * k * sigma**2 / 2) for k in range(4)]
    first = terms * power[1]
    second = terms * power[2] + terms * (terms - 1) * power[1] ** 2
    third = (
        terms * power[3]
        + 3 * terms * (terms - 1) * power[2] * power[1]
        + terms * (terms - 1) * (terms - 2) * power[1] ** 3
    )
    law = fenton_wilkinson(torch.zeros(terms, dtype=torch.float64), sigma**2 * torch.eye(terms, dtype=torch.float64))
    draws = (sigma * lab.normal(count, terms, purpose="terms")).exp().sum(-1)
    normal = stats.norm(law.mean, math.sqrt(law.variance))
    distance = float(stats.kstest(draws.log().numpy(), normal.cdf).statistic)
    wide = fenton_wilkinson(torch.zeros(terms, dtype=torch.float64), 4.0 * torch.eye(terms, dtype=torch.float64))
    wide_draws = (2.0 * lab.normal(count, terms, purpose="wide")).exp().sum(-1).log()
    wide_distance = float(
        stats.kstest(wide_draws.numpy(), stats.norm(wide.mean, math.sqrt(wide.variance)).cdf).statistic
    )
    match = moments(law.mean, law.variance)
    return Evidence(
        (
            fact("E[S³]·E[S]³/E[S²]³ differs from 1, the value of every log-normal law (8 terms, σ = 0.5): "
                 f"{third * first**3 / second**3:.5f}", abs(third * first**3 / second**3 - 1) > 1e-6),
            mean_of("mean of the sum against Fenton–Wilkinson", match.mean, draws),
            variance_of("variance of the sum against Fenton–Wilkinson", match.variance, draws),
            fact(f"largest error of the distribution function at σ = 0.5: {distance:.3f}, below 0.03", distance < 0.03),
            fact(f"at σ = 2 it is {wide_distance:.2f}: above 0.1, no longer a good stand-in", wide_distance > 0.1),
        ),
        figures=(_histogram_of_sums(draws.numpy(), law.mean, math.sqrt(law.variance)),),
    )  # fmt: skip


def _histogram_of_sums(draws: np.ndarray, mean: float, deviation: float) -> Histogram:
    density, edges = np.histogram(draws, bins=60, range=(3.0, 20.0), density=True)
    x = np.linspace(3.0, 20.0, 200)
    return Histogram(
        "fenton-wilkinson",
        "The sum of eight log-normal variables",
        "Exponentials of eight independent normal scores (deviation 0.5), summed. Line: the log-normal law with the "
        "same mean and variance (Fenton–Wilkinson).",
        "sum",
        edges,
        density,
        (Series("Fenton–Wilkinson", x, stats.lognorm(s=deviation, scale=math.exp(mean)).pdf(x), role="theory"),),
    )


@CHAPTER.claim(
    "W-5.1f",
    section="5.1.3",
    statement="Normalising is a multiplication of each row by a number, A' = DA with diagonal D; as a map of the "
    "scores it cannot be undone, it changes the singular values, and it removes one degree of freedom from each row.",
    formula=r"A' = D A, \quad D = \mathrm{diag}(\alpha_1, \ldots, \alpha_n), \quad \sum_j A'_{ij} = 1",
    lesson="A row of a softmax has n entries but only n − 1 of them are free, since they sum to one; adding a "
    "constant to a row of scores changes nothing. The matrix D itself is invertible, so the rank of the exponentiated "
    "matrix is kept: what is lost is the size of each row, which D depends on.",
)
def normalisation(lab: Lab) -> Evidence:
    n = 8
    scores = lab.normal(n, n, purpose="scores")
    exponentials = scores.exp()
    scaling = torch.diag(1 / exponentials.sum(-1))
    pattern = torch.softmax(scores, -1)
    shifted = torch.softmax(scores + lab.normal(n, 1, purpose="shift"), -1)
    rank = torch.linalg.matrix_rank(jacobian(softmax(scores[0])), tol=1e-12)
    before, after = torch.linalg.svdvals(exponentials), torch.linalg.svdvals(pattern)
    # The spectra differ in shape, not only by a common factor.
    change = float((after / after[0] - before / before[0]).abs().max())
    return Evidence(
        (
            exact("the softmax as DA (worst entry)", scaling @ exponentials, pattern),
            exact("softmax after a constant was added to each row: the same (not invertible)", pattern, shifted),
            Comparison(f"free directions of a row of {n} shares (rank of the derivative)", n - 1.0, float(rank), 0.0),
            fact("the singular values change, also relative to the largest", change > 1e-3),
        )
    )


@CHAPTER.claim(
    "W-5.1g",
    section="5.1.3",
    statement="The ratios of the entries of a row are untouched by the normalisation, while the moments of a single "
    "normalised entry have no closed form in general.",
    formula=r"\frac{p_i}{p_j} = \frac{e^{x_i}}{e^{x_j}} = e^{x_i - x_j}",
    lesson="Dividing two entries by the same sum leaves their ratio alone, so ratios are the quantity one can compute "
    "with. A single share has no elementary moments when scores are normal (it is logistic-normal), with one "
    "exception: if all scores have the same law, symmetry makes the mean share exactly 1/n.",
)
def ratios_survive(lab: Lab) -> Evidence:
    x = lab.normal(50_000, 6, purpose="scores")
    p = torch.softmax(x, -1)
    return Evidence(
        (
            exact("p_1/p_2 against e^(x_1 − x_2) (worst of 50,000 rows)", (x[:, 0] - x[:, 1]).exp(), p[:, 0] / p[:, 1]),
            mean_of("mean share of one of 6 scores of the same law: 1/6 by symmetry", 1 / 6, p[:, 0]),
        )
    )
