r"""Wertich, section 5.3.2: how far the exponential is from linear."""

import math

import numpy as np
import torch
from scipy import integrate, special, stats
from torch import Tensor

from headscope.core.verdict import STANDARD_ERRORS, Comparison, Evidence
from headscope.theory.checks import Lab, exact, fact, less_than, mean_of, order_of, trend_of, variance_of
from headscope.theory.works import wertich

CHAPTER = wertich()


def _pairs_sum(x: Tensor) -> Tensor:
    """The sum of x_i x_j over i < j along the last axis."""
    return (x.sum(-1).square() - x.square().sum(-1)) / 2


@CHAPTER.claim(
    "W-5.3g",
    section="5.3.2",
    statement="To second order, e^(λv) is λe^v + 1 − λ + (λ² − λ)v²/2.",
    formula=r"e^{\lambda v} \approx \lambda e^{v} + 1 - \lambda + (\lambda^2 - \lambda)\,\frac{v^2}{2}",
    lesson="Both sides have the same value, slope and curvature at v = 0. The approximation is exact for λ = 0 and λ "
    "= 1; what is left out begins with (λ³ − λ)v³/6, a factor of a thousand for every factor of ten in v.",
)
def scaled_exponential(lab: Lab) -> Evidence:
    del lab
    values = (0.04, 0.02, 0.01)

    def left(weight: float, v: float) -> float:
        return abs(weight * math.exp(v) + 1 - weight + (weight**2 - weight) * v**2 / 2 - math.exp(weight * v))

    comparisons = [
        order_of(f"power of v in what is left out, λ = {weight}", "v", 3.0, values, [left(weight, v) for v in values])
        for weight in (-0.5, 0.3, 0.7, 2.0)
    ]
    ends = max(left(weight, v) for weight in (0.0, 1.0) for v in (0.1, 2.0))
    return Evidence((*comparisons, exact("for λ = 0 and λ = 1 nothing is left out", 1.0, 1.0 + ends)))


@CHAPTER.claim(
    "W-5.3h",
    section="5.3.2",
    statement="To second order the exponential of a combination is (n − 1) plus the sum of the single exponentials "
    "plus the mixed products.",
    formula=r"\exp(\sum_i \lambda_i v_i) \approx (n - 1) + \sum_i e^{\lambda_i v_i} + "
    r"\sum_{i<j} \lambda_i \lambda_j v_i v_j",
    correction="The shift has the wrong sign: each of the n exponentials brings a one, and only one is wanted, so n − "
    "1 must be subtracted.",
    corrected=r"\exp(\sum_i \lambda_i v_i) = 1 - n + \sum_i e^{\lambda_i v_i} + "
    r"\sum_{i<j} \lambda_i \lambda_j v_i v_j + O(|v|^3)",
    lesson="Set all v to zero: the left side is 1, the sum of the n exponentials is n. The stated formula would give "
    "2n − 1. With the sign put right, what is left out is of third order.",
    slip=True,
)
def exponential_of_a_sum(lab: Lab) -> Evidence:
    n = 6
    weights = torch.softmax(lab.normal(n, purpose="weights"), -1)
    v = lab.normal(200, n, purpose="v")

    def gap(scale: float, shift: float) -> Tensor:
        x = scale * weights * v
        return (shift + x.exp().sum(-1) + _pairs_sum(x) - x.sum(-1).exp()).abs().max()

    scales = (0.04, 0.02, 0.01)
    name = "power of |v| in what is left out, n = 6"
    return Evidence(
        stated=(order_of(name, "|v|", 3.0, scales, [float(gap(s, n - 1.0)) for s in scales]),),
        corrected=(
            order_of(name, "|v|", 3.0, scales, [float(gap(s, 1.0 - n)) for s in scales]),
            exact("approximation less the exponential at v = 0, n = 6", 0.0, gap(0.0, 1.0 - n)),
        ),
    )


@CHAPTER.claim(
    "W-5.3i",
    section="5.3.2",
    statement="The product of two independent normal variables with mean zero has the mean 0 and the variance σ_i² "
    "σ_j².",
    formula=r"E[v_i v_j] = 0, \quad \mathrm{Var}(v_i v_j) = \sigma_i^2 \sigma_j^2",
    lesson="For independent variables the mean of a product is the product of the means, and likewise for the "
    "squares. With means that are not zero, the variance gains the terms μ_i²σ_j² + μ_j²σ_i².",
)
def product_of_normals(lab: Lab) -> Evidence:
    product = 1.5 * lab.normal(200_000, purpose="a") * 0.4 * lab.normal(200_000, purpose="b")
    return Evidence(
        (
            mean_of("mean of the product, σ = 1.5 and 0.4", 0.0, product),
            variance_of("variance of the product, σ = 1.5 and 0.4", 1.5**2 * 0.4**2, product),
        )
    )


@CHAPTER.claim(
    "W-5.3j",
    section="5.3.2",
    statement="The product of two different normal variables follows a chi-square distribution.",
    formula=r"v_i v_j \sim \chi^2",
    correction="Only the square of one variable does. The product of two independent ones is symmetric about zero, "
    "with the density K₀(|x|/(σ_i σ_j))/(π σ_i σ_j), K₀ the modified Bessel function: σ_i σ_j/2 times the difference "
    "of two independent chi-square variables.",
    corrected=r"f(x) = \frac{1}{\pi \sigma_i \sigma_j}\,K_0(\frac{|x|}{\sigma_i \sigma_j}), \quad "
    r"v_i v_j = \frac{(v_i + v_j)^2 - (v_i - v_j)^2}{4}",
    lesson="A square is never negative, a product of two independent variables is negative half of the time. The mean "
    "of zero, which the section uses in the same line, already contradicts a chi-square distribution, whose mean is "
    "positive.",
)
def law_of_the_product(lab: Lab) -> Evidence:
    count = 20_000
    product = lab.normal(count, purpose="a") * lab.normal(count, purpose="b")
    negative = float((product < 0).double().mean())
    half = math.sqrt(0.25 / count)
    # The distribution function of |x| under the corrected law, by summing its density over a fine grid.
    grid = np.logspace(-8, 1.4, 4000)
    density = 2 * special.k0(grid) / math.pi
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(grid))])
    mass = 2 * float(integrate.quad(lambda x: special.k0(x) / math.pi, 0, 1)[0])
    mass += 2 * float(integrate.quad(lambda x: special.k0(x) / math.pi, 1, 60)[0])
    limit = float(stats.kstwobign.isf(5e-7)) / math.sqrt(count)
    distance = float(stats.kstest(product.abs().numpy(), lambda x: np.interp(x, grid, below)).statistic)
    return Evidence(
        stated=(
            Comparison("share of negative products: 0 for a chi-square law", 0.0, negative, half),
        ),
        corrected=(
            Comparison("share of negative products: one half", 0.5, negative, half),
            exact("mass of the density K₀(|x|)/π by quadrature", 1.0, mass),
            # Kolmogorov's law: a sample of this size strays farther once in two million times.
            less_than(f"largest error of its distribution function, {count:,} products", limit, distance, 0.0),
            variance_of("variance", 1.0, product),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-5.3k",
    section="5.3.2",
    statement="By Jensen's inequality, for weights that sum to one the sum of (λ_i λ_j)² over pairs is at most that "
    "of equal weights.",
    formula=r"\sum_{i<j} (\lambda_i \lambda_j)^2 \leq \sum_{i<j} \frac{1}{n^4}",
    correction="False for n ≥ 3: two weights of one half and zeros elsewhere give 1/16, equal weights (n − 1)/(2n³). "
    "For non-negative weights 1/16 is the true bound, whatever n: merging the two smallest weights never lowers the "
    "sum, until two are left.",
    corrected=r"\sum_{i<j} (\lambda_i \lambda_j)^2 \leq \frac{1}{16} \quad (\lambda_i \geq 0, \ \sum_i \lambda_i = 1)",
    lesson="With a single weight the sum is zero, with two it is largest, and the more evenly it is spread over many "
    "the smaller it gets. Jensen's inequality, which bounds a mean of squares from below, points the other way. So "
    "the noise term can be much larger than the section says when a few weights dominate, as in sharp attention.",
)
def weights_of_pairs(lab: Lab) -> Evidence:
    n = 10
    equal = (n - 1) / (2 * n**3)
    concentration = 3 * lab.uniform(20_000, 1, purpose="concentration")
    weights = torch.softmax(3 * concentration * lab.normal(20_000, n, purpose="weights"), -1)
    sums = _pairs_sum(weights.square())
    even_pair = torch.zeros(n, dtype=torch.float64)
    even_pair[:2] = 0.5
    # Merging the two smallest weights: the step of the proof, on all samples.
    ordered = weights.sort(-1).values
    merged = torch.cat([ordered[:, :1] + ordered[:, 1:2], ordered[:, 2:]], -1)
    return Evidence(
        stated=(fact(f"largest sum among 20,000 weights, n = 10, is {float(sums.max()):.4f}, at most {equal:.4f}",
                     bool(sums.max() <= equal)),),
        corrected=(
            exact("weights (1/2, 1/2, 0, …)", 1 / 16, _pairs_sum(even_pair.square())),
            fact("no sum among 20,000 weights exceeds 1/16", bool(sums.max() <= 1 / 16 + 1e-12)),
            fact("merging the two smallest weights never lowers the sum",
                 bool((_pairs_sum(merged.square()) >= sums - 1e-15).all())),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-5.3l",
    section="5.3.2",
    statement="For equal weights 1/n and scores of variance l/n, the variance of the sum of the mixed products is of "
    "order l²/n⁴.",
    formula=r"\mathrm{Var}(\sum_{i<j} \frac{1}{n^2} v_i v_j) \in O(\frac{l^2}{n^4})",
    lesson="There are n(n − 1)/2 pairs, uncorrelated, each with the variance l²/n⁶, so the exact value is (n − "
    "1)l²/(2n⁵). The order is right; the line before it counts every pair twice and doubles the variance, which makes "
    "it four times too large. The thesis puts this sum above that of any other weights, by the inequality of W-5.3k, "
    "which is false: two weights of one half give l²/(16n²), far more. For vectors of radius l, read l² for l.",
    related=("W-5.3k",),
)
def variance_of_mixed_products(lab: Lab) -> Evidence:
    count, scale = 20_000, 2.0

    def variance(n: int, factor: float) -> Comparison:
        v = math.sqrt(factor / n) * lab.normal(count, n, purpose=f"{n} {factor}")
        predicted = (n - 1) * factor**2 / (2 * n**5)
        return variance_of(f"variance, n = {n}, l = {factor:g}, against (n − 1)l²/(2n⁵)", predicted, _pairs_sum(v / n))

    first, medium, long = (variance(n, scale) for n in (16, 64, 256))
    wide = variance(16, 3 * scale)
    sizes = trend_of("variance", "n", (16, 64, 256), [c.measured for c in (first, medium, long)], -4.0,
                     [c.error for c in (first, medium, long)])  # fmt: skip
    power_l = math.log(wide.measured / first.measured) / math.log(3)
    noise = math.hypot(first.error / first.measured, wide.error / wide.measured) / math.log(3)
    return Evidence(
        (
            Comparison("power of n, n = 64 to 256", -4.0, sizes.fitted, sizes.uncertainty / STANDARD_ERRORS),
            Comparison("power of l, l = 2 to 6", 2.0, power_l, noise),
            first,
            long,
        )
    )


@CHAPTER.claim(
    "W-5.3m",
    section="5.3.2",
    statement="For vectors on a sphere of radius l ≤ 1, linear combinations carry over well to their exponentials: "
    "after a constant shift, the exponential of the combination is the sum of the single exponentials up to a "
    "negligible noise.",
    formula=r"\exp(\sum_i \lambda_i v_i) \approx \mathrm{const} + \sum_i e^{\lambda_i v_i}, \quad l \leq 1",
    correction="Right as an approximation, with the shift 1 − k for k vectors. The noise relative to the signal is "
    "about √((k − 1)/2)/k · l/√n for equal weights: what matters is that l/√n is small, not that l is below one.",
    corrected=r"\frac{\mathrm{noise}}{\mathrm{signal}} \approx \frac{\sqrt{(k-1)/2}}{k} \cdot \frac{l}{\sqrt{n}}",
    lesson="Small numbers make every smooth function look linear, and the entries of a vector of radius l are of size "
    "l/√n. In many dimensions even a radius of ten is small in this sense; in few dimensions a radius of one is not.",
)
def exponentials_of_combinations(lab: Lab) -> Evidence:
    n, k, batches, size = 64, 8, 40, 500
    v = lab.normal(batches, size, k, purpose="v") / math.sqrt(n)
    radii = (2.0, 1.0, 0.5, 0.25)

    def noise_to_signal(radius: float) -> Tensor:
        x = radius * v / k
        signal = x.sum(-1).exp()
        noise = signal - (1 - k + x.exp().sum(-1))
        return noise.square().mean(-1).sqrt() / (signal - 1).square().mean(-1).sqrt()  # one number per batch

    ratios = [noise_to_signal(radius) for radius in radii]
    predicted = math.sqrt((k - 1) / 2) / k / math.sqrt(n)
    return Evidence(
        stated=(mean_of("noise over signal at radius 1, 8 vectors, n = 64: 0 if exact", 0.0, ratios[1]),),
        corrected=(
            mean_of("noise over signal at radius 1/4 against √((k − 1)/2)/k · l/√n", predicted / 4, ratios[3]),
        ),
        trend=trend_of("noise over signal (root mean squares), 8 vectors, n = 64", "l", radii,
                       [float(x.mean()) for x in ratios], 1.0, [float(x.std()) / batches**0.5 for x in ratios]),
    )  # fmt: skip
