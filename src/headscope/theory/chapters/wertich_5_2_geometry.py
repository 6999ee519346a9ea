r"""Wertich, sections 5.2.2 and 5.2.3: distributions and points on a sphere."""

import math

import numpy as np
import torch
from torch import Tensor

from headscope.core.figure import Curves, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.attention.softmax import entropy, entropy_expansion, gaussian_entropy, softmax
from headscope.maths.geometry.sphere import pairs_at_angle, slerp, uniform_on_sphere
from headscope.theory.checks import Lab, exact, fact, mean_of, order_of, variance_of
from headscope.theory.works import wertich

CHAPTER = wertich()


@CHAPTER.claim(
    "W-5.2e",
    section="5.2.2",
    statement="The zero vector has no corresponding probability distribution.",
    formula=r"\mathrm{Softmax}(0) \ \mathrm{is\ undefined}",
    correction="It has one: equal scores give equal shares. The zero vector stands for the uniform distribution, "
    "which is also the limit of Softmax(αv) as α goes to 0.",
    corrected=r"\mathrm{Softmax}(0) = (\frac{1}{n}, \ldots, \frac{1}{n})",
    lesson="Dividing by the length of the zero vector is impossible, but a softmax does not divide by a length. It "
    "divides by the sum of e^0 = 1 over all n events, which is n. The uniform distribution is the most ordinary point "
    "of all.",
)
def zero_vector(lab: Lab) -> Evidence:
    n = 7
    p = torch.softmax(torch.zeros(n, dtype=torch.float64), -1)
    is_distribution = bool((p >= 0).all()) and abs(float(p.sum()) - 1) < 1e-12
    small = torch.softmax(1e-12 * lab.normal(n, purpose="direction"), -1)
    return Evidence(
        stated=(fact("the softmax of the zero vector is no distribution", not is_distribution),),
        corrected=(
            exact("every share of the softmax of the zero vector, n = 7", 1 / n, p),
            exact("its entropy against ln n", math.log(n), entropy(p)),
            exact("it is the limit of the softmax of α v, α = 1e-12", p, small),
        ),
    )


@CHAPTER.claim(
    "W-5.2f",
    section="5.2.2",
    statement="Through the softmax, the points of a sphere of radius l and the discrete distributions correspond to "
    "each other one to one.",
    formula=r"S_l^{n-1} \leftrightarrow \{p : \sum_i p_i = 1\}",
    correction="The softmax ignores a constant added to all scores, so it is the hyperplane Σv = 0, not a sphere, "
    "that corresponds to the distributions. With c(p) = ln p less its mean: a distribution with |c(p)| < l comes from "
    "two points of the sphere, one with |c(p)| > l from none. Centred points of the sphere correspond one to one to "
    "the distributions with |c(p)| = l.",
    corrected=r"\{v : \sum_i v_i = 0\} \leftrightarrow \{p > 0\}, \quad "
    r"v_i = \ln p_i - \frac{1}{n}\sum_j \ln p_j",
    lesson="Both have n − 1 dimensions, which suggests a match, but the wrong direction is removed: the sphere fixes "
    "the length of the vector, the softmax forgets its mean. All sharp distributions are out of reach of a sphere of "
    "fixed radius, because a short vector cannot have very different entries.",
)
def sphere_and_simplex(lab: Lab) -> Evidence:
    n, radius = 5, 1.0
    logs = lab.normal(200, n, purpose="distributions") * torch.linspace(0.1, 1.2, 200, dtype=torch.float64)[:, None]
    p = torch.softmax(logs, -1)
    centre = p.log() - p.log().mean(-1, keepdim=True)
    # Every vector with the softmax p is centre + shift: count by brute force how often this line meets the sphere.
    shifts = torch.linspace(-1.5, 1.5, 30_001, dtype=torch.float64)
    squares = centre.square().sum(-1)[:, None] + n * shifts.square()  # the centre sums to 0
    line = centre[:5, None, :] + shifts[:, None]
    on_the_line = exact("squared length along the line of vectors with one softmax", squares[:5], line.square().sum(-1))
    meets = ((squares > radius**2).to(torch.int8).diff(dim=-1).abs()).sum(-1)
    reach = torch.linalg.vector_norm(centre, dim=-1)
    inside = reach < radius
    v = uniform_on_sphere(100, n, radius, generator=lab.generator("centred"), centred=True)
    q = torch.softmax(v, -1)
    return Evidence(
        stated=(
            Comparison("fewest points of the sphere that give one of 200 distributions", 1.0, float(meets.min()), 0.0),
            Comparison("most points of the sphere that give one of 200 distributions", 1.0, float(meets.max()), 0.0),
        ),
        corrected=(
            on_the_line,
            Comparison("points of the sphere for a distribution with |c(p)| < 1", 2.0,
                       float(meets[inside].float().mean()), 0.0),
            Comparison("points of the sphere for a distribution with |c(p)| > 1", 0.0,
                       float(meets[~inside].float().mean()), 0.0),
            exact("centred points of the sphere are recovered from their softmax (worst entry)", v,
                  q.log() - q.log().mean(-1, keepdim=True)),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-5.2g",
    section="5.2.2",
    statement="All linear combinations of probability functions whose coefficients sum to one are again probability "
    "functions.",
    formula=r"\sum_i \lambda_i = 1 \Rightarrow \sum_i \lambda_i p_i \ \mathrm{is\ a\ probability\ function}",
    correction="The coefficients must also be non-negative: only convex combinations (mixtures) stay probability "
    "functions for every choice of the p_i.",
    corrected=r"\lambda_i \geq 0, \ \sum_i \lambda_i = 1 \Rightarrow \sum_i \lambda_i p_i \ "
    r"\mathrm{is\ a\ probability\ function}",
    lesson="That the coefficients sum to one keeps the total at one, nothing more. Twice (1, 0) less (0, 1) is (2, "
    "−1): the sum is right, but a probability of −1 is not. Attention weights are non-negative, so the mixtures of "
    "attention are safe.",
)
def mixtures(lab: Lab) -> Evidence:
    p = torch.softmax(3 * lab.normal(500, 3, 5, purpose="distributions"), -1)
    free = lab.normal(500, 3, purpose="any")
    free = free + (1 - free.sum(-1, keepdim=True)) / 3
    positive = torch.softmax(free, -1)
    combined = [(weights[..., None] * p).sum(-2) for weights in (free, positive)]
    corner = 2 * torch.tensor([1.0, 0.0]) - torch.tensor([0.0, 1.0])

    def share_valid(values: Tensor) -> float:
        return float(((values >= 0).all(-1) & ((values.sum(-1) - 1).abs() < 1e-9)).double().mean())

    return Evidence(
        stated=(
            Comparison("share of 500 combinations with sum 1: distributions", 1.0, share_valid(combined[0]), 0.0),
            fact("2·(1, 0) − (0, 1) has no negative entry", bool((corner >= 0).all())),
        ),
        corrected=(
            Comparison("share of 500 combinations with non-negative coefficients and sum 1", 1.0,
                       share_valid(combined[1]), 0.0),
            exact("sum of the entries, any coefficients with sum 1", 1.0, combined[0].sum(-1), scale=10.0),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-5.2r",
    section="5.2.2",
    statement="The squared length of a sum or difference of two vectors is the sum of the squared lengths plus or "
    "minus twice their product.",
    formula=r"\|v \pm w\|^2 = \|v\|^2 + \|w\|^2 \pm 2 v^{\top} w",
    lesson="It is the law of cosines, and it holds for all vectors. The product term is why lengths do not simply "
    "add: it vanishes only where the vectors are orthogonal.",
)
def law_of_cosines(lab: Lab) -> Evidence:
    v, w = lab.normal(100, 9, purpose="v"), lab.normal(100, 9, purpose="w")
    squares = v.square().sum(-1) + w.square().sum(-1)
    product = 2 * (v * w).sum(-1)
    return Evidence(
        (
            exact("squared length of the sum (worst of 100)", squares + product, (v + w).norm(dim=-1) ** 2),
            exact("squared length of the difference (worst of 100)", squares - product, (v - w).norm(dim=-1) ** 2),
        )
    )


@CHAPTER.claim(
    "W-5.3",
    section="5.2.2, (5.3)",
    statement="Two independent random vectors with n entries of variance 1/n have a scalar product of mean 0 and "
    "variance 1/n.",
    formula=r"E\langle v, w \rangle = 0, \quad \mathrm{Var}\langle v, w \rangle = \frac{1}{n}",
    lesson="The product is a sum of n independent terms, each with mean 0 and variance 1/n². In many dimensions "
    "random directions are therefore nearly orthogonal, up to about 1/√n.",
)
def random_products(lab: Lab) -> Evidence:
    comparisons = []
    for n in (4, 32):
        product = (lab.normal(40_000, n, purpose=f"v{n}") * lab.normal(40_000, n, purpose=f"w{n}")).sum(-1) / n
        comparisons.append(mean_of(f"mean of the product, n = {n}", 0.0, product))
        comparisons.append(variance_of(f"variance of the product, n = {n}", 1 / n, product))
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-5.2h",
    section="5.2.2",
    statement="The sum of two random vectors of expected length one is expected to preserve the length.",
    formula=r"E\|v + w\|^2 = 1, \quad v, w \sim N(0, I_n/n)",
    correction="Squared lengths add: the sum of two is longer by √2, of k by √k. What preserves the expected squared "
    "length is a combination whose coefficients have squares that sum to one.",
    corrected=r"E\|v + w\|^2 = 2, \quad E\|\sum_i \lambda_i v_i\|^2 = \sum_i \lambda_i^2",
    lesson="Independent random vectors are nearly orthogonal, so Pythagoras applies: one and one make √2. Residual "
    "streams grow in this way unless something (a normalisation) rescales them.",
)
def length_of_sums(lab: Lab) -> Evidence:
    n, count = 16, 40_000
    v, w = (lab.normal(count, n, purpose=name) / math.sqrt(n) for name in "vw")
    total = (v + w).square().sum(-1)
    weighted_total = (0.6 * v + 0.8 * w).square().sum(-1)
    length = 2 * math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / math.sqrt(n)
    return Evidence(
        stated=(mean_of(f"mean squared length of v + w, n = {n}", 1.0, total),),
        corrected=(
            mean_of(f"mean squared length of v + w, n = {n}", 2.0, total),
            mean_of("mean length of v + w: √2 times that of v", length, total.sqrt()),
            mean_of("mean squared length of 0.6 v + 0.8 w", 1.0, weighted_total),
        ),
    )


@CHAPTER.claim(
    "W-5.2i",
    section="5.2.3",
    statement="Dividing the coefficients of a linear combination of unit vectors by their Euclidean norm gives the "
    "combination the length one.",
    formula=r"\|\sum_i \frac{\lambda_i}{\|\lambda\|_2} v_i\|_2 = 1",
    correction="Only for orthonormal vectors. In general the squared length is λᵀGλ with the Gram matrix G of the "
    "products of the vectors, and one must divide by its root. For independent random directions the mean squared "
    "length is one.",
    corrected=r"\|\sum_i \lambda_i v_i\|_2^2 = \lambda^{\top} G \lambda, \quad G_{ij} = \langle v_i, v_j \rangle",
    lesson="The norm of the coefficients is the norm of the combination only if the vectors are perpendicular axes. "
    "Two equal vectors with coefficients 1/√2 add up to √2, two opposite ones to zero.",
)
def normalised_coefficients(lab: Lab) -> Evidence:
    count, k, n = 5000, 3, 8
    v = uniform_on_sphere(count * k, n, generator=lab.generator("vectors")).reshape(count, k, n)
    weights = lab.normal(count, k, purpose="weights")
    unit = weights / weights.norm(dim=-1, keepdim=True)
    squares = (unit[..., None] * v).sum(-2).square().sum(-1)
    gram = v @ v.mT
    form = (unit[:, None, :] @ gram @ unit[..., None])[:, 0, 0]
    axes = torch.linalg.qr(v.mT).Q.mT
    return Evidence(
        stated=(exact(f"squared length of {count:,} combinations of 3 unit vectors (worst)", 1.0, squares),),
        corrected=(
            exact("squared length against λᵀGλ (worst)", form, squares),
            exact(
                "squared length for orthonormal vectors (worst)", 1.0, (unit[..., None] * axes).sum(-2).square().sum(-1)
            ),
            mean_of("mean squared length for random directions, n = 8", 1.0, squares),
        ),
    )


@CHAPTER.claim(
    "W-5.2j",
    section="5.2.3",
    statement="Scaling a vector with distinct entries up, Softmax(αv) tends to all mass on its largest entry (entropy "
    "0); scaling it down, to the uniform distribution (entropy log n).",
    formula=r"\alpha \rightarrow \infty: \ \mathrm{Softmax}(\alpha v) \rightarrow \delta_{\max}; \quad "
    r"\alpha \rightarrow 0: \ H \rightarrow \ln n",
    lesson="The factor α acts as an inverse temperature. Far up, the gap between the two largest scores decides and "
    "the rest dies out like e^(−α·gap); far down, the entropy lacks only α²Var(v)/2 to ln n. For Gaussian scores the "
    "entropy stays near ln n − σ²/2 while their deviation σ is well below √(2 ln n).",
)
def temperature_limits(lab: Lab) -> Evidence:
    v = lab.normal(64, purpose="scores")
    top = v.sort(descending=True).values
    gap = float(top[0] - top[1])
    hot, cold = softmax(1e-6 * v), softmax(v * (800 / gap))
    one_hot = torch.zeros_like(v)
    one_hot[v.argmax()] = 1.0
    alphas = (0.04, 0.02, 0.01)
    beyond = [abs(float(entropy_expansion(alpha * v) - entropy(softmax(alpha * v)))) for alpha in alphas]
    return Evidence(
        (
            exact("α = 800/gap: shares against all on the largest entry", one_hot, cold),
            exact("α = 800/gap: entropy", 0.0, entropy(cold)),
            exact("α = 1e-6: shares against 1/64 (worst)", 1 / 64, hot, scale=1e4),
            exact("α = 1e-6: entropy against ln 64", math.log(64), entropy(hot)),
            order_of("power of α in what the entropy lacks to ln 64, beyond α²Var/2", "α", 3.0, alphas, beyond),
        ),
        figures=(_entropy_by_deviation(lab),),
    )  # fmt: skip


def _entropy_by_deviation(lab: Lab) -> Curves:
    sigma = torch.logspace(-1, 1.2, 20, dtype=torch.float64)
    series = []
    for n in (16, 256, 4096):
        v = lab.normal(24, n, purpose=f"figure {n}")
        rows = entropy(softmax(sigma[:, None, None] * v)) / math.log(n)
        x, y, error = sigma.numpy(), rows.mean(-1).numpy(), rows.std(-1).numpy() / math.sqrt(24)
        theory = np.array([gaussian_entropy(n, float(s) ** 2) for s in sigma]) / math.log(n)
        series.append(Series(f"n = {n}", x, y, y - 2 * error, y + 2 * error))
        series.append(Series(f"theory, n = {n}", x, theory, role="theory"))
    return Curves(
        "entropy-by-deviation",
        "Entropy of a softmax against the spread of its scores",
        "Mean of 24 random vectors (bands: two standard errors). A vector on a sphere of radius l has scores of "
        "deviation σ = l/√n, a temperature T divides it. Dashed: the exact mean for Gaussian scores.",
        "deviation σ of the scores",
        "entropy / ln n",
        tuple(series),
        log_x=True,
    )


@CHAPTER.claim(
    "W-5.2k",
    section="5.2.3",
    statement="In spherical interpolation the coefficient of the first vector is sin((t − 1)θ)/sin θ.",
    formula=r"\lambda_1(t) = \frac{\sin((t-1)\theta)}{\sin\theta}",
    correction="The sign is turned round: sin((1 − t)θ), as the next section writes it.",
    corrected=r"\lambda_1(t) = \frac{\sin((1-t)\theta)}{\sin\theta}",
    lesson="At t = 0 the interpolation must give the first vector itself, so its coefficient must be +1. With t − 1 "
    "it would start at the opposite point.",
    slip=True,
)
def first_coefficient(lab: Lab) -> Evidence:
    angle = 1.1
    v, w = pairs_at_angle(1, 6, angle, generator=lab.generator("pair"))
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    # The arc as a rotation of v in the plane of both vectors: no coefficient of the formula enters.
    across = (w - math.cos(angle) * v) / math.sin(angle)
    arc = torch.cos(t * angle)[:, None] * v + torch.sin(t * angle)[:, None] * across
    second = (torch.sin(t * angle) / math.sin(angle))[:, None] * w
    name = "points of the arc at 11 times (worst entry)"
    return Evidence(
        stated=(exact(name, (torch.sin((t - 1) * angle) / math.sin(angle))[:, None] * v + second, arc),),
        corrected=(
            exact(name, (torch.sin((1 - t) * angle) / math.sin(angle))[:, None] * v + second, arc),
            exact("the same by headscope's slerp", slerp(v, w, t)[0], arc),
        ),
    )


@CHAPTER.claim(
    "W-5.2l",
    section="5.2.3",
    statement="The coefficients of spherical interpolation have the Euclidean norm one.",
    formula=r"\|\lambda\|_2 = \sqrt{\lambda_1^2 + \lambda_2^2} = 1",
    correction="Only for orthogonal vectors. What is always one is the length of the interpolated vector: λ₁² + λ₂² + "
    "2λ₁λ₂ cos θ = 1.",
    corrected=r"\lambda_1^2 + \lambda_2^2 + 2\lambda_1\lambda_2\cos\theta = 1",
    lesson="Spherical interpolation is built so that the point stays on the sphere. For two vectors at a small angle, "
    "both coefficients are near one half in the middle, and their norm is 1/√2; the vectors help each other to reach "
    "the length one.",
)
def norm_of_coefficients(lab: Lab) -> Evidence:
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    stated, corrected = [], []
    for angle in (0.6, 2.0):
        first, second = (torch.sin(x * angle) / math.sin(angle) for x in (1 - t, t))
        squares = first.square() + second.square()
        stated.append(exact(f"norm of the coefficients, angle {angle} (worst of 11 times)", 1.0, squares.sqrt()))
        corrected.append(
            exact(f"λ₁² + λ₂² + 2λ₁λ₂ cos θ, angle {angle}", 1.0, squares + 2 * first * second * math.cos(angle))
        )
        v, w = pairs_at_angle(1, 6, angle, generator=lab.generator(f"{angle}"))
        point = first[:, None] * v + second[:, None] * w
        corrected.append(exact(f"length of the interpolated vector, angle {angle}", 1.0, point.norm(dim=-1)))
    right = torch.sin(math.pi / 2 * t).square() + torch.sin(math.pi / 2 * (1 - t)).square()
    corrected.append(exact("norm of the coefficients for orthogonal vectors", 1.0, right.sqrt()))
    return Evidence(tuple(stated), tuple(corrected))
