r"""Wertich, section 5.1: the exponential of normal scores."""

import math

from headscope.claims.lab import Lab, mean_of, variance_of
from headscope.claims.works import wertich
from headscope.core.verdict import Evidence

CHAPTER = wertich()


@CHAPTER.claim(
    "W-5.1a",
    section="5.1",
    statement="The exponential of a normal variable with mean μ and variance σ² has the mean e^((μ+σ²)/2).",
    formula=r"E[e^X] = e^{(\mu + \sigma^2)/2}",
    correction="Only the variance is halved, not the mean.",
    corrected=r"E[e^X] = e^{\mu + \sigma^2/2}",
    lesson="Exponentiating lifts large values more than it lowers small ones, so the mean of e^X exceeds e^μ by a "
    "factor that depends on the spread. That factor is e^(σ²/2); the mean μ itself enters whole. The stated formula is "
    "right only where μ = 0.",
    slip=True,
)
def log_normal_mean(lab: Lab) -> Evidence:
    stated, corrected = [], []
    for mu, sigma in ((0.5, 0.4), (-1.0, 0.7)):
        samples = (mu + sigma * lab.normal(200_000, purpose=f"{mu}")).exp()
        name = f"mean of e^X, μ = {mu}, σ = {sigma}, 200,000 draws"
        stated.append(mean_of(name, math.exp((mu + sigma**2) / 2), samples))
        corrected.append(mean_of(name, math.exp(mu + sigma**2 / 2), samples))
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
