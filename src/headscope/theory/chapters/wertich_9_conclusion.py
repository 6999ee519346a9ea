r"""Wertich, chapter 9: the conclusion."""

import math

import torch

from headscope.core.verdict import Evidence, Trend
from headscope.theory.checks import Lab, exact, mean_of, trend_of, variance_of
from headscope.theory.works import wertich

CHAPTER = wertich()


@CHAPTER.claim(
    "W-9.1a",
    section="9.1",
    statement="Standard normal variables correspond to hyperspheres of radius 1/n.",
    formula=r"x \sim \mathcal{N}(0, I_n) \ \Rightarrow\ |x| \approx \frac{1}{n}",
    correction="Their radius is √n. Radius 1 belongs to variance 1/n, as section 5.3.1 of the thesis itself says.",
    corrected=r"x \sim \mathcal{N}(0, I_n) \ \Rightarrow\ |x| \approx \sqrt{n}, \quad "
    r"x \sim \mathcal{N}(0, I_n / n) \ \Rightarrow\ |x| \approx 1",
    lesson="The squared length of n standard normal coordinates is a sum of n squares with mean 1, so it is close to "
    "n, with relative fluctuations of √(2/n). In high dimension a Gaussian is nearly a sphere, and its radius is the "
    "standard deviation of one coordinate times √n.",
    slip=True,
)
def sphere_radius(lab: Lab) -> Evidence:
    n = 100
    lengths = lab.normal(20_000, n, purpose="draws").norm(dim=1)
    half = torch.tensor(n / 2, dtype=torch.float64)
    radius = math.sqrt(2) * float(torch.exp(torch.lgamma(half + 0.5) - torch.lgamma(half)))
    return Evidence(
        (mean_of("mean length, n = 100", 1 / n, lengths),),
        (
            mean_of("mean length, n = 100 (exact: √2 Γ((n+1)/2)/Γ(n/2))", radius, lengths),
            mean_of("mean squared length", float(n), lengths.square()),
            mean_of("mean squared length at variance 1/n", 1.0, lengths.square() / n),
        ),
        _relative_errors(lab),
    )


def _relative_errors(lab: Lab) -> Trend:
    """Relative error of 1/n as the length, which does not fall with n."""
    sizes, errors, spreads = (16, 64, 256), [], []
    for n in sizes:
        lengths = lab.normal(2000, n, purpose=f"{n}").norm(dim=1)
        errors.append(1 - 1 / n / float(lengths.mean()))
        spreads.append(1 / n * float(lengths.std()) / 2000**0.5 / float(lengths.mean()) ** 2)
    return trend_of("relative error of 1/n as the length", "n", sizes, errors, 0.0, spreads)


@CHAPTER.claim(
    "W-9.1b",
    section="9.1",
    statement="The trace of the product of independent random matrices follows a chi-squared distribution, which "
    "approximates a normal one.",
    formula=r"\mathrm{Tr}(A^T B) \sim \chi^2",
    correction="It is symmetric about 0, the difference of two independent chi-squared variables: a variance-gamma "
    "law. Chi-squared is the law of Tr(AᵀA). That it approaches a normal law is right, with excess kurtosis 6/n².",
    corrected=r"\mathrm{Tr}(A^T B) = \frac{\sigma^2}{2} (\chi^2_{n^2} - \tilde\chi^2_{n^2}), \quad "
    r"E[e^{i t \mathrm{Tr}}] = (1 + \sigma^4 t^2)^{-n^2/2}",
    lesson="The trace adds n² products of two independent normal numbers, and a product is as often negative as "
    "positive. Writing ab as a quarter of (a + b)² minus (a − b)² shows the two chi-squared parts, which are "
    "independent because a + b and a − b are. A chi-squared variable is never negative.",
)
def trace_law(lab: Lab) -> Evidence:
    n, draws = 3, 100_000
    a, b = lab.normal(2, draws, n * n, purpose="entries") / math.sqrt(n)
    trace = (a * b).sum(-1)
    variance = n * n / n**2
    skew = trace.pow(3) / variance**1.5
    fourth = trace.pow(4) / variance**2
    negative = (trace < 0).to(torch.float64)
    sums, gaps = (a + b).square().sum(-1) / 2, (a - b).square().sum(-1) / 2
    t = 1.3
    sizes, shares, spreads = (2, 4, 8), [], []
    for size in sizes:
        x, y = lab.normal(2, 20_000, size * size, purpose=f"{size}")
        below = ((x * y).sum(-1) < 0).to(torch.float64)
        shares.append(float(below.mean()))
        spreads.append(float(below.std()) / len(below) ** 0.5)
    return Evidence(
        (mean_of("share of negative traces", 0.0, negative),
         mean_of("skewness (chi-squared with n² degrees of freedom, standardised)", math.sqrt(8) / n, skew)),
        (
            mean_of("share of negative traces", 0.5, negative),
            mean_of("skewness", 0.0, skew),
            variance_of("variance at σ² = 1/n", 1.0, trace),
            mean_of("kurtosis, 3 + 6/n²", 3 + 6 / n**2, fourth),
            mean_of("characteristic function at t = 1.3", (1 + t**2 / n**2) ** (-n * n / 2), torch.cos(t * trace)),
            exact("the trace against half the difference of two sums of squares", trace, (sums - gaps) / 2),
        ),
        trend_of("share of traces below 0, where a chi-squared variable has none", "n", sizes, shares, 0.0, spreads),
    )  # fmt: skip
