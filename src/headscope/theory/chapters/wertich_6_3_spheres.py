r"""Wertich, section 6.3: scores of vectors on spheres under a random matrix."""

import math

import torch
from torch import Tensor

from headscope.core.figure import Curves, Histogram, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.random_matrices.haar import haar_frames, pairs_at_cosine, product_moments, uniform_directions
from headscope.maths.random_matrices.marchenko_pastur import GaussianProduct
from headscope.maths.random_matrices.random_bilinear import RandomForm
from headscope.theory.checks import Lab, exact, fact, mean_of, trend_of, variance_of
from headscope.theory.works import wertich

CHAPTER = wertich()


def random_scores(lab: Lab, n: int, cosine: float, draws: int = 50_000) -> Tensor:
    """Scores vᵀCw of unit vectors at this cosine.

    C has independent entries of variance 1/n; every draw is new.
    """
    v, w = pairs_at_cosine(draws, n, cosine, lab.generator(f"pairs {cosine}"))
    c = lab.normal(draws, n, n, purpose=f"forms {cosine}") / n**0.5
    scores: Tensor = (v[:, None, :] @ c @ w[:, :, None])[:, 0, 0]
    return scores


@CHAPTER.claim(
    "W-6.35",
    section="6.3.1, (6.35)",
    statement="A coordinate of a vector that is uniform on a sphere of radius l has mean 0 and variance l²/n.",
    formula=r"E[x_i] = 0, \quad \mathrm{Var}(x_i) = \frac{l^2}{n}",
    lesson="No direction is preferred, so every coordinate has the same law, and x and −x are equally likely. The n "
    "squares sum to l², so each has the mean l²/n.",
)
def sphere_coordinates(lab: Lab) -> Evidence:
    comparisons = []
    for n, radius in ((3, 2.0), (20, 0.5)):
        x = radius * uniform_directions(50_000, n, lab.generator(f"{n}"))
        comparisons += [
            mean_of(f"mean of a coordinate, n = {n}, l = {radius}", 0.0, x[:, 0]),
            variance_of(f"variance of a coordinate, n = {n}, l = {radius}", radius**2 / n, x[:, n - 1]),
        ]
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-6.36",
    section="6.3.1, (6.36)",
    statement="Because the sphere has one degree of freedom less, two coordinates have the covariance −l²/(n(n−1)).",
    formula=r"\mathrm{Cov}(x_i, x_j) = -\frac{l^2}{n(n-1)}",
    correction="Two coordinates are uncorrelated. What the sphere fixes is the sum of the squares, so it is the "
    "squares that are negatively correlated.",
    corrected=r"\mathrm{Cov}(x_i, x_j) = 0, \quad \mathrm{Cov}(x_i^2, x_j^2) = -\frac{2\,l^4}{n^2(n+2)}",
    lesson="The stated value would follow if the sum of the coordinates were constant. On a sphere the sum of their "
    "squares is. Flipping the sign of one coordinate maps the sphere to itself and the covariance to its negative, "
    "so it is 0. Uncorrelated does not mean independent: a large x_i leaves less for x_j, whatever its sign.",
)
def sphere_covariance(lab: Lab) -> Evidence:
    n, radius = 4, 1.5
    x = radius * uniform_directions(100_000, n, lab.generator())
    squares = x.square() - radius**2 / n
    return Evidence(
        (mean_of("covariance of two coordinates, n = 4, l = 1.5", -(radius**2) / (n * (n - 1)), x[:, 0] * x[:, 1]),),
        (
            mean_of("covariance of two coordinates", 0.0, x[:, 0] * x[:, 1]),
            mean_of("covariance of their squares", -2 * radius**4 / (n**2 * (n + 2)), squares[:, 0] * squares[:, 1]),
        ),
    )


@CHAPTER.claim(
    "W-6.37",
    section="6.3.1, (6.37)",
    statement="For pairs on two spheres with a fixed cosine k the coordinates x_i and y_i have the covariance k "
    "l₁l₂/n.",
    formula=r"\mathrm{Cov}(x_i, y_i) = \frac{k\, l_1 l_2}{n}",
    lesson="The n products x_i y_i sum to the inner product k l₁l₂, and no coordinate is preferred. So each has an "
    "n-th of it in the mean: the angle is spread evenly over the coordinates.",
)
def same_coordinate(lab: Lab) -> Evidence:
    n, first, second = 5, 2.0, 0.5
    comparisons = []
    for cosine in (-0.7, 0.4):
        x, y = pairs_at_cosine(50_000, n, cosine, lab.generator(f"{cosine}"))
        product = first * second * x[:, 0] * y[:, 0]
        comparisons.append(
            mean_of(f"covariance of x_1 and y_1, n = 5, k = {cosine}", cosine * first * second / n, product)
        )
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-6.38",
    section="6.3.1, (6.38)",
    statement="Different coordinates x_i and y_j of such a pair are uncorrelated, so that the cross-covariance is "
    "dominated by its diagonal.",
    formula=r"\mathrm{Cov}(x_i, y_j) = 0 \quad (i \neq j)",
    lesson="Flipping the sign of coordinate i in both vectors changes neither lengths nor angle, but turns the "
    "covariance of x_i and y_j into its negative, so it is exactly 0 and Σ_XY is exactly k l₁l₂/n times the "
    "identity. The thesis's reason, that the points are nearly independent, is not the right one: at k = 1 they are "
    "equal and it still holds.",
)
def other_coordinate(lab: Lab) -> Evidence:
    n, comparisons = 4, []
    for cosine in (0.4, 1.0):
        x, y = pairs_at_cosine(50_000, n, cosine, lab.generator(f"{cosine}"))
        comparisons += [
            mean_of(f"covariance of x_1 and y_2, n = 4, k = {cosine}", 0.0, x[:, 0] * y[:, 1]),
            mean_of(f"covariance of x_1 and y_1, n = 4, k = {cosine}", cosine / n, x[:, 0] * y[:, 0]),
        ]
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-6.39a",
    section="6.3.2",
    statement="With Σ_XY = 0 and means that are mixtures of unit vectors with ⟨v_i, w_j⟩ = k_ij, the mean inner "
    "product is the sum of λ_i λ̃_j k_ij.",
    formula=r"E\langle x, y\rangle = \mu_X^T \mu_Y = \sum_{i,j} \lambda_i \tilde{\lambda}_j k_{ij}",
    lesson="Independent deviations from the mean cancel in the mean, so only the means remain, and an inner product "
    "of two sums is the sum of all inner products. With dependence the trace of Σ_XY would be added.",
)
def mixture_of_directions(lab: Lab) -> Evidence:
    n, k = 6, 3
    v, w = (uniform_directions(k, n, lab.generator(name)) for name in ("v", "w"))
    weights = lab.uniform(2, k, purpose="weights") + 0.1
    first, second = weights / weights.sum(-1, keepdim=True)
    mean_x, mean_y = first @ v, second @ w
    predicted = float((first[:, None] * second * (v @ w.mT)).sum())
    x, y = mean_x + lab.normal(50_000, n, purpose="x") / 4, mean_y + lab.normal(50_000, n, purpose="y") / 4
    return Evidence(
        (
            mean_of("mean of ⟨x, y⟩, 3 directions each, n = 6", predicted, (x * y).sum(-1)),
            exact("the sum against μ_Xᵀμ_Y", predicted, float(mean_x @ mean_y)),
        )
    )


@CHAPTER.claim(
    "W-6.40",
    section="6.3.2, (6.39) to (6.41)",
    statement="Over random matrices C with mean 0 the score vᵀCw of any two vectors has the mean 0.",
    formula=r"E_C[v^T C w] = \sum_{l,m} E[C_{lm}]\, v_l\, w_m = 0",
    lesson="The score is linear in C, so its mean is the score of the mean matrix, which is 0, for every pair and "
    "every angle. A random head has no opinion in the mean; what it says about a pair is noise of size 1/√n.",
)
def mean_over_forms(lab: Lab) -> Evidence:
    return Evidence(
        tuple(
            mean_of(f"mean of vᵀCw, n = 6, cosine {cosine}, in standard deviations", 0.0, scores / scores.std())
            for cosine in (0.0, 0.9)
            for scores in (random_scores(lab, 6, cosine, 20_000),)
        )
    )


@CHAPTER.claim(
    "W-6.42",
    section="6.3.2, (6.42)",
    statement="The variance of μ_XᵀCμ_Y over random C is about the sum of the variances of its parts λ_i λ̃_j v_iᵀCw_j.",
    formula=r"\mathrm{Var}(\mu_X^T C \mu_Y) \approx \sum_{i,j} \lambda_i^2 \tilde{\lambda}_j^2\, \mathrm{Var}(v_i^T "
    r"C w_j)",
    correction="The parts are correlated: the covariance of two of them is ⟨v_i, v_i'⟩⟨w_j, w_j'⟩/n. The exact "
    "variance is ‖μ_X‖²‖μ_Y‖²/n; the stated sum is that only if the v_i are orthogonal to one another and the w_j "
    "too. Vectors that share angles with the same w_j are not, and the error then stays however large n is.",
    corrected=r"\mathrm{Var}(\mu_X^T C \mu_Y) = \frac{1}{n} \|\mu_X\|^2 \|\mu_Y\|^2 = \frac{1}{n} \sum_{i,i',j,j'} "
    r"\lambda_i \lambda_{i'} \tilde{\lambda}_j \tilde{\lambda}_{j'} \langle v_i, v_{i'}\rangle \langle w_j, "
    r"w_{j'}\rangle",
    lesson="All parts contain the same random matrix, so variances do not simply add. Two similar vectors get "
    "similar scores, and their contributions reinforce each other. Here three v_i have the cosine 0.5 with each of "
    "three orthogonal w_j, which makes the v_i similar to one another (cosine 0.75).",
)
def correlated_parts(lab: Lab) -> Evidence:
    n, k, cosine = 24, 3, 0.5
    frame = haar_frames(1, n, 2 * k, lab.generator("frame"))[0]
    w, u = frame[:, :k].mT, frame[:, k:].mT
    v = cosine * w.sum(0) + (1 - k * cosine**2) ** 0.5 * u
    c = lab.normal(20_000, n, n, purpose="forms") / n**0.5
    mean_y = w.mean(0)
    scores, orthogonal_scores = (c @ mean_y) @ v.mean(0), (c @ mean_y) @ u.mean(0)
    stated = k * k * (1 / k**4) / n  # nine parts, each of variance 1/n and weight 1/9
    sizes, errors, spreads = (8, 16, 32), [], []
    for size, forms in zip(sizes, (20_000, 16_000, 8000), strict=True):
        mean_x, mean_w = _prescribed(lab, size, k, cosine)
        variance = variance_of(
            "", 0.0, (lab.normal(forms, size, size, purpose=f"{size}") @ mean_w) @ mean_x / size**0.5
        )
        parts = 1 / (k**2 * size)
        errors.append(abs(parts - variance.measured) / variance.measured)
        spreads.append(parts * variance.error / variance.measured**2)
    exact_variance = float(v.mean(0).square().sum() * mean_y.square().sum()) / n
    return Evidence(
        (
            exact(
                "the prescribed angles ⟨v_i, w_j⟩ = 0.5 (the worst one)", torch.full((k, k), cosine).double(), v @ w.mT
            ),
            variance_of("variance of μ_XᵀCμ_Y, n = 24, equal weights", stated, scores),
        ),
        (
            variance_of("variance of μ_XᵀCμ_Y, exact formula", exact_variance, scores),
            exact(
                "that formula against the sum over all pairs of parts",
                exact_variance,
                float((v @ v.mT).sum() * (w @ w.mT).sum()) / k**4 / n,
            ),
            variance_of("the same with v_i orthogonal to one another: the stated sum", stated, orthogonal_scores),
        ),
        trend_of("relative error of the stated sum, cosines 0.5", "n", sizes, errors, 0.0, spreads),
    )


def _prescribed(lab: Lab, n: int, k: int, cosine: float) -> tuple[Tensor, Tensor]:
    """Means of k unit vectors v_i and of k orthogonal w_j with ⟨v_i, w_j⟩ = cosine."""
    frame = haar_frames(1, n, 2 * k, lab.generator(f"frame {n}"))[0]
    w, u = frame[:, :k].mT, frame[:, k:].mT
    v = cosine * w.sum(0) + (1 - k * cosine**2) ** 0.5 * u
    return v.mean(0), w.mean(0)


@CHAPTER.claim(
    "W-6.43",
    section="6.3.2, (6.43)",
    statement="The variance of C_lm v_l w_m is 1/n times the variance of v_l w_m.",
    formula=r"\mathrm{Var}(C_{lm} v_l w_m) = \frac{1}{n} \mathrm{Var}(v_l w_m)",
    correction="It is 1/n times the second moment of v_l w_m. For l = m that product has the mean k/n, so its "
    "variance is smaller than its second moment.",
    corrected=r"\mathrm{Var}(C_{lm} v_l w_m) = \frac{1}{n} E[v_l^2 w_m^2]",
    lesson="For independent factors of which one has mean 0, the variance of the product is the product of the "
    "second moments. Subtracting the squared mean of the other factor is wrong: a constant c times C has the "
    "variance c²/n, not 0.",
    slip=True,
)
def variance_of_a_product(lab: Lab) -> Evidence:
    n, cosine = 6, 0.8
    v, w = pairs_at_cosine(200_000, n, cosine, lab.generator())
    part = lab.normal(200_000, purpose="C") / n**0.5 * v[:, 0] * w[:, 0]
    same, other = product_moments(n, cosine)
    off = lab.normal(200_000, purpose="off") / n**0.5 * v[:, 0] * w[:, 1]
    return Evidence(
        (variance_of("variance of C_11 v_1 w_1, n = 6, k = 0.8", (same - (cosine / n) ** 2) / n, part),),
        (
            variance_of("variance of C_11 v_1 w_1, second moment", same / n, part),
            variance_of("variance of C_12 v_1 w_2, second moment", other / n, off),
        ),
    )


@CHAPTER.claim(
    "W-6.45",
    section="6.3.2, (6.45)",
    statement="For unit vectors with ⟨v, w⟩ = k the variances of v_l w_l sum to k², and the variance of v_l w_m for "
    "l ≠ m is 1/n².",
    formula=r"\sum_l \mathrm{Var}(v_l w_l) = k^2, \quad \mathrm{Var}(v_l w_m) = \frac{1}{n^2}",
    correction="k² is the square of the sum of the products, not the sum of their variances, which is about (1 + "
    "k²)/n. For l ≠ m 1/n² is right to leading order.",
    corrected=r"\sum_l \mathrm{Var}(v_l w_l) = \frac{1 + 2k^2}{n+2} - \frac{k^2}{n}, \quad \mathrm{Var}(v_l w_m) = "
    r"\frac{n + 1 - 2k^2}{(n-1)\,n\,(n+2)}",
    lesson="The sum of the products is exactly k and does not vary at all; each single product varies by about 1/n. "
    "Confusing the square of a sum with a sum of squares puts k² where something n times smaller belongs, and the "
    "whole dependence on the angle in (6.47) comes from it.",
)
def variances_of_products(lab: Lab) -> Evidence:
    n, cosine = 6, 0.8
    v, w = pairs_at_cosine(100_000, n, cosine, lab.generator())
    same, other = product_moments(n, cosine)
    return Evidence(
        (
            variance_of("variance of v_1 w_1, an n-th of the sum, n = 6, k = 0.8", cosine**2 / n, v[:, 0] * w[:, 0]),
            variance_of("variance of v_1 w_2", 1 / n**2, v[:, 0] * w[:, 1]),
        ),
        (
            variance_of("variance of v_1 w_1, an n-th of the sum", same - (cosine / n) ** 2, v[:, 0] * w[:, 0]),
            variance_of("variance of v_1 w_2", other, v[:, 0] * w[:, 1]),
            exact(
                "the sum by the corrected formula",
                n * (same - (cosine / n) ** 2),
                (1 + 2 * cosine**2) / (n + 2) - cosine**2 / n,
            ),
        ),
    )


@CHAPTER.claim(
    "W-6.47",
    section="6.3.2, (6.46) and (6.47)",
    statement="For unit vectors with ⟨v, w⟩ = k and a random C with entries of variance 1/n the score vᵀCw has the "
    "variance k²/n + (n−1)/n².",
    formula=r"\mathrm{Var}(v^T C w) = \frac{k^2}{n} + \frac{n-1}{n^2}",
    correction="The variance is 1/n for every angle.",
    corrected=r"\mathrm{Var}(v^T C w) = \frac{1}{n} \|v\|^2 \|w\|^2 = \frac{1}{n}",
    lesson="The score is a sum of independent normal entries C_lm with the weights v_l w_m, so its variance is 1/n "
    "times the sum of all squared weights, and that sum is ‖v‖²‖w‖² = 1. The angle does not enter: a random matrix "
    "turns w into a random direction and forgets where v pointed.",
)
def variance_of_the_score(lab: Lab) -> Evidence:
    n, stated, corrected = 8, [], []
    for cosine in (0.0, 0.9):
        scores = random_scores(lab, n, cosine)
        name = f"variance of vᵀCw, n = 8, k = {cosine}"
        stated.append(variance_of(name, cosine**2 / n + (n - 1) / n**2, scores))
        corrected.append(variance_of(name, 1 / n, scores))
    return Evidence(tuple(stated), tuple(corrected))


@CHAPTER.claim(
    "W-6.48",
    section="6.3.2, (6.48)",
    statement="The angle between two vectors is preserved in the variance of their score under a random matrix.",
    formula=r"\mathrm{Var}(E[x^T C y]) \approx \sum_{i,j} \lambda_i^2 \tilde{\lambda}_j^2 \left(\frac{k_{ij}^2}{n} + "
    r"\frac{n-1}{n^2}\right)",
    correction="The variance is 1/n for every angle between query and key, so it preserves nothing of it. What "
    "survives is the angle between two keys (or two queries), in the covariance of their scores; and with tied "
    "weights, W_q = W_k, the angle between query and key is the mean score.",
    corrected=r"\mathrm{Var}(v^T C w) = \frac{1}{n}, \quad \mathrm{Cov}(v^T C w, v'^T C w') = \frac{1}{n} \langle v, "
    r"v'\rangle \langle w, w'\rangle, \quad C = A^T A: \ E[v^T C w] = \langle v, w\rangle",
    lesson="Independent query and key weights send v and w into unrelated random directions, so their score cannot "
    "know the angle between them. But two similar keys go to similar places and get similar scores. A random head "
    "therefore treats related tokens alike without attending to what is related.",
)
def angle_in_the_variance(lab: Lab) -> Evidence:
    n, draws = 8, 30_000
    cosines = (0.0, 0.25, 0.5, 0.75, 0.95)
    scores = {cosine: random_scores(lab, n, cosine, draws) for cosine in cosines}
    v, w, other = haar_frames(1, n, 3, lab.generator("frame"))[0].mT
    near = 0.6 * w + 0.8 * other
    c = lab.normal(draws, n, n, purpose="forms") / n**0.5
    first, second = (c.mT @ v * w).sum(-1), (c.mT @ v * near).sum(-1)
    covariance = float(RandomForm("one", 1 / n).covariance(v, w, v, near))
    tied = RandomForm("tied", 1 / n, n)
    ready = 0.6 * v + 0.8 * w
    shared = ((c @ v) * (c @ ready)).sum(-1)
    variances = [variance_of("", 1 / n, scores[cosine]) for cosine in cosines]
    measured = torch.tensor([n * c.measured for c in variances], dtype=torch.float64)
    errors = torch.tensor([n * c.error for c in variances], dtype=torch.float64)
    k, fine = torch.tensor(cosines, dtype=torch.float64), torch.linspace(0, 0.95, 50, dtype=torch.float64)
    picture = Curves(
        "variance_and_angle",
        "The variance of a score under a random matrix does not know the angle",
        "n times the variance of vᵀCw for unit vectors with cosine k, n = 8, with two standard errors. The dotted "
        "curve is the stated formula, k² + (n − 1)/n.",
        "cosine k",
        "n Var(vᵀCw)",
        (
            Series(
                "measured",
                k.numpy(),
                measured.numpy(),
                (measured - 2 * errors).numpy(),
                (measured + 2 * errors).numpy(),
            ),
            Series("1", k.numpy(), torch.ones_like(k).numpy(), role="theory"),
            Series("as stated", fine.numpy(), (fine.square() + (n - 1) / n).numpy(), role="null"),
        ),
    )
    sizes, off, spreads = (2, 6, 18), [], []
    for size in sizes:
        # What the angle adds to the variance, times n: k² as stated, nothing in truth.
        near_by, orthogonal = (variance_of("", 0.0, random_scores(lab, size, cosine, 25_000)) for cosine in (0.95, 0.0))
        off.append(abs(0.95**2 - size * (near_by.measured - orthogonal.measured)) / 0.95**2)
        spreads.append(size * math.hypot(near_by.error, orthogonal.error) / 0.95**2)
    return Evidence(
        tuple(
            variance_of(f"variance of vᵀCw, n = 8, k = {cosine}", cosine**2 / n + (n - 1) / n**2, scores[cosine])
            for cosine in (0.0, 0.95)
        ),
        (
            *(variance_of(f"variance of vᵀCw, k = {cosine}", 1 / n, scores[cosine]) for cosine in (0.0, 0.5, 0.95)),
            mean_of("covariance of the scores of two keys with cosine 0.6", covariance, first * second),
            mean_of("mean score with tied weights, cosine 0.6", float(tied.mean(v, ready)), shared),
            variance_of("its variance, (1 + k²)/n", float(tied.score_variance(v, ready)), shared),
        ),
        trend_of(
            "relative error of k²/n as what the angle adds to the variance, k = 0.95", "n", sizes, off, 0.0, spreads
        ),
        figures=(picture,),
    )


@CHAPTER.claim(
    "W-6.48b",
    section="6.3.2, after (6.48)",
    statement="The contribution of the angle starts to dominate the other term, (n−1)/n², for k_ij > 1/n.",
    formula=r"k_{ij} > \frac{1}{n} \ \Rightarrow \ \frac{k_{ij}^2}{n} > \frac{n-1}{n^2}",
    correction="Even by (6.47) the first term exceeds the second only for k² > 1 − 1/n, that is for nearly parallel "
    "vectors. And the true variance, 1/n, does not depend on k at all.",
    corrected=r"\frac{k^2}{n} > \frac{n-1}{n^2} \ \Leftrightarrow \ k^2 > 1 - \frac{1}{n}",
    lesson="Both terms carry a factor 1/n, so k² competes with (n−1)/n, nearly 1, and not with 1/n. At k = 1/n the "
    "first term is n(n−1) times smaller than the second.",
)
def where_the_angle_dominates(lab: Lab) -> Evidence:
    n = 64

    def ratio(k: float) -> float:
        return (k**2 / n) / ((n - 1) / n**2)

    scores = random_scores(lab, 8, 0.5)
    return Evidence(
        (
            Comparison("ratio of both terms at k = 1/n, where they should be equal, n = 64", 1.0, ratio(1 / n), 1e-9),
            fact("the first term is the larger one at k = 10/n", ratio(10 / n) > 1),
        ),
        (
            exact("ratio of both terms at k² = 1 − 1/n", 1.0, ratio(math.sqrt(1 - 1 / n))),
            variance_of("the true variance at k = 0.5, n = 8, is that of k = 0", 1 / 8, scores),
        ),
    )


@CHAPTER.claim(
    "W-6.49",
    section="6.3.3",
    statement="A score is bounded by the norms of both matrices, the lengths of both vectors and the cosine of the "
    "angle between x and y.",
    formula=r"|\langle W_q x, W_k y\rangle| \leq \|W_q\| \|W_k\| \|x\| \|y\| |\cos\angle(x, y)|",
    correction="The bound holds without the cosine. The cosine that does belong there is that of W_q x and W_k y, "
    "not that of x and y.",
    corrected=r"|\langle W_q x, W_k y\rangle| = \|W_q x\| \|W_k y\| |\cos\angle(W_q x, W_k y)| \leq \|W_q\| \|W_k\| "
    r"\|x\| \|y\|",
    lesson="Matrices turn vectors. Orthogonal x and y would have to score 0 by the stated bound, but W_q and W_k may "
    "turn them onto each other, and learning to do so is what they are for. The proof applies Cauchy–Schwarz, then "
    "puts the cosine of the original vectors into a bound that has already replaced it by 1.",
)
def cosine_in_the_bound(lab: Lab) -> Evidence:
    n, draws = 16, 5000
    w_q, w_k = lab.normal(2, draws, n, n, purpose="weights") / n**0.5
    norms = torch.linalg.matrix_norm(w_q, ord=2) * torch.linalg.matrix_norm(w_k, ord=2)
    exceeded, beyond = {}, 0
    for cosine in (0.0, 0.05):
        x, y = pairs_at_cosine(draws, n, cosine, lab.generator(f"{cosine}"))
        score = ((w_q @ x[:, :, None]) * (w_k @ y[:, :, None])).sum((-2, -1)).abs()
        exceeded[cosine] = (score > norms * abs(cosine) + 1e-12).double()
        beyond += int((score > norms + 1e-12).sum())
    _, d, v = torch.linalg.svd(w_q[0])
    reached = float((w_q[0] @ v[0]) @ (w_q[0] @ v[0]))
    return Evidence(
        (
            mean_of("share of pairs beyond the bound, x and y orthogonal, n = 16", 0.0, exceeded[0.0]),
            mean_of("share of pairs beyond the bound, cosine 0.05", 0.0, exceeded[0.05]),
        ),
        (
            fact(f"without the cosine {beyond} of 10,000 pairs are beyond the bound", beyond == 0),
            exact("and it is reached: W_q = W_k, x = y the first singular vector", float(d[0]) ** 2, reached),
        ),
    )


@CHAPTER.claim(
    "W-6.49b",
    section="6.3.3, (6.49)",
    statement="The largest singular value is a submultiplicative norm, and a matrix and its transpose have the same.",
    formula=r"\|W_q^T W_k\| \leq \|W_q^T\| \|W_k\| = \|W_q\| \|W_k\|",
    lesson="The second matrix stretches by at most its norm and the first stretches the result by at most its own. A "
    "matrix and its transpose share their singular values. The thesis writes this norm with an infinity sign, which "
    "usually means the largest row sum; that one is submultiplicative too but changes under transposition.",
)
def operator_norm(lab: Lab) -> Evidence:
    w_q, w_k = lab.normal(2, 3000, 6, 6)
    norm_q, norm_k = (torch.linalg.matrix_norm(w, ord=2) for w in (w_q, w_k))
    ratio = torch.linalg.matrix_norm(w_q.mT @ w_k, ord=2) / (norm_q * norm_k)
    rows, columns = (torch.linalg.matrix_norm(w, ord=math.inf) for w in (w_q, w_q.mT))
    return Evidence(
        (
            fact(
                f"the largest ratio of both sides in 3,000 pairs, {float(ratio.max()):.3f}, is at most 1",
                float(ratio.max()) <= 1 + 1e-12,
            ),
            exact(
                "norm of the transpose, 3,000 matrices (the worst one)", norm_q, torch.linalg.matrix_norm(w_q.mT, ord=2)
            ),
            fact(
                "the largest row sum is another norm: it changes under transposition",
                float((rows - columns).abs().min()) > 0,
            ),
        )
    )


@CHAPTER.claim(
    "W-6.49c",
    section="6.3.3",
    statement="For random W_q and W_k with entries of variance 1/n a pair is unlikely to be scaled by more than 2·2 "
    "= 4.",
    formula=r"\|W_q^T W_k\| \leq \|W_q\| \|W_k\| \approx 2 \cdot 2 = 4",
    lesson="Each matrix alone stretches by at most about 2, so both together by at most about 4. The bound is "
    "generous: the two matrices do not agree on which direction to stretch, and the largest singular value of the "
    "product tends to √(27/4) = 2.6. A typical pair of unit vectors gets a score of only 1/√n.",
)
def largest_scaling(lab: Lab) -> Evidence:
    n, pairs = 48, 300
    a, b = lab.normal(2, pairs, n, n) / n**0.5
    largest = torch.linalg.matrix_norm(a.mT @ b, ord=2)
    size = 512
    a, b = lab.normal(2, size, size, purpose="picture") / size**0.5
    sigma = torch.linalg.svdvals(a.mT @ b)
    law = GaussianProduct(size, size, size, 1 / size**2)
    density, edges = torch.histogram(sigma, bins=40, range=(0.0, 4.2), density=True)
    s = torch.linspace(0.03, math.sqrt(law.edges[1]), 200, dtype=torch.float64)
    picture = Histogram(
        "product_spectrum",
        "Singular values of the product of two 512 × 512 random matrices",
        "Entries of variance 1/n. The dashed curve is the law of such products (a free multiplicative convolution); it "
        "ends at √(27/4) = 2.6, well below the bound 4.",
        "singular value",
        edges.numpy(),
        density.numpy(),
        (Series("law of the product", s.numpy(), law.singular_density(s).numpy(), role="theory"),),
        (("edge", math.sqrt(law.edges[1])), ("bound", 4.0)),
    )
    return Evidence(
        (
            Comparison(
                "share of 300 pairs with ‖W_qᵀW_k‖ above 4, n = 48", 0.0, float((largest > 4).double().mean()), 0.0
            ),
            fact(f"n = 512: the largest scaling is {float(sigma[0]):.2f}, below 4", float(sigma[0]) < 4),
            fact("and within 0.15 of the edge √(27/4)", abs(float(sigma[0]) - math.sqrt(27 / 4)) < 0.15),
        ),
        figures=(picture,),
    )


@CHAPTER.claim(
    "W-6.49d",
    section="6.3.3",
    statement="With random matrices nearly orthogonal embeddings have a lower chance to attend to each other, and "
    "related ones, with a cosine near 1, attend unless they are actively suppressed.",
    formula=r"|\cos\angle(x, y)| \ \mathrm{small} \Rightarrow |\langle W_q x, W_k y\rangle| \ \mathrm{small}",
    correction="With independent random W_q and W_k the law of the score is the same for every angle. Related tokens "
    "attend to each other more only when the two matrices are related, for example tied, where the mean score is the "
    "inner product.",
    corrected=r"W_q, W_k \ \mathrm{independent}: \ \langle W_q x, W_k y\rangle \ \mathrm{has\ one\ law\ for\ all\ "
    r"angles}; \quad W_q = W_k: \ E\langle W_q x, W_k y\rangle = \langle x, y\rangle",
    lesson="W_q x and W_k y are independent random vectors whatever x and y are, so their inner product cannot "
    "depend on the angle between x and y. That similar tokens attend to each other is learned, by making W_qᵀW_k "
    "resemble a positive matrix, and not a property of initialisation. The claim rests on the bound with the wrong "
    "cosine.",
)
def related_tokens(lab: Lab) -> Evidence:
    n, draws = 12, 20_000
    x, z = haar_frames(1, n, 2, lab.generator("frame"))[0].mT
    near = 0.95 * x + (1 - 0.95**2) ** 0.5 * z
    w_q, w_k = lab.normal(2, draws, n, n, purpose="weights") / n**0.5
    query = w_q @ x
    unrelated, related = (query * (w_k @ z)).sum(-1), (query * (w_k @ near)).sum(-1)
    tied = (query * (w_q @ near)).sum(-1)
    level = 1.5 / n**0.5
    gain = (related > level).double() - (unrelated > level).double()
    surplus = float(gain.mean() / (gain.std() / draws**0.5))
    return Evidence(
        (
            fact(
                "a large score is more frequent at cosine 0.95 than at cosine 0 (by five standard errors)", surplus > 5
            ),
        ),
        (
            mean_of("difference of both frequencies", 0.0, gain),
            variance_of("variance of the score at cosine 0, n = 12", 1 / n, unrelated),
            variance_of("variance of the score at cosine 0.95", 1 / n, related),
            mean_of("mean score at cosine 0.95 with tied weights", 0.95, tied),
        ),
    )


@CHAPTER.claim(
    "W-6.49e",
    section="6.3.3",
    statement="With positions added to embeddings the score splits into four terms; the mixed ones, of content with "
    "position, are suppressed because content and position are nearly orthogonal.",
    formula=r"\langle W_q(x + \hat{x}), W_k(y + \hat{y})\rangle = \langle W_q x, W_k y\rangle + \langle W_q\hat{x}, "
    r"W_k y\rangle + \langle W_q x, W_k\hat{y}\rangle + \langle W_q\hat{x}, W_k\hat{y}\rangle, \quad \langle x, "
    r"\hat{y}\rangle \approx 0 \Rightarrow \langle W_q x, W_k\hat{y}\rangle \approx 0",
    correction="The four terms are right. Orthogonality does not make the mixed ones small: under random matrices "
    "every term has the variance given by the two lengths alone.",
    corrected=r"\mathrm{Var}\langle W_q a, W_k b\rangle = \frac{1}{n} \|a\|^2 \|b\|^2 \quad \mathrm{for\ each\ of\ "
    r"the\ four\ terms}",
    lesson="The argument uses the bound with the cosine of the vectors before they are mapped, which does not hold. "
    "A mixed term is small only if one of its vectors is short, or if W_qᵀW_k has learned to keep content and "
    "position apart. With equal lengths a quarter of the variance sits in each term.",
)
def mixed_terms(lab: Lab) -> Evidence:
    n, draws = 10, 20_000
    x, y, p, q = haar_frames(1, n, 4, lab.generator("frame"))[0].mT
    p, q = 0.5 * p, 0.5 * q
    w_q, w_k = lab.normal(2, draws, n, n, purpose="weights") / n**0.5

    def score(a: Tensor, b: Tensor) -> Tensor:
        scores: Tensor = ((w_q @ a) * (w_k @ b)).sum(-1)
        return scores

    total_score = score(x + p, y + q)
    parts = {
        "content, content": score(x, y),
        "position, content": score(p, y),
        "content, position": score(x, q),
        "position, position": score(p, q),
    }
    lengths = {
        "content, content": 1.0,
        "position, content": 0.25,
        "content, position": 0.25,
        "position, position": 0.0625,
    }
    ratio_name = "mean size of a mixed term, content orthogonal to position, over that where they are parallel"
    sizes = (3, 9, 27)
    ratios = [_mixed_ratio(lab, size, 10_000) for size in sizes]
    split = exact("sum of the four terms (the worst draw)", total_score, torch.stack(list(parts.values())).sum(0))
    return Evidence(
        (
            split,
            Comparison(f"{ratio_name}: 0 if suppressed", 0.0, *_mixed_ratio(lab, n, draws)),
        ),
        (
            split,
            *(variance_of(f"variance of {name}, n = 10", lengths[name] / n, term) for name, term in parts.items()),
            Comparison(ratio_name, 1.0, *_mixed_ratio(lab, n, draws)),
        ),
        trend_of(ratio_name, "n", sizes, [ratio for ratio, _ in ratios], 0.0, [error for _, error in ratios]),
    )


def _mixed_ratio(lab: Lab, n: int, draws: int) -> tuple[float, float]:
    """Mean |⟨W_q x, W_k p⟩| for p orthogonal to x over p along x, and its error.

    Both p have one length.
    """
    x, p = haar_frames(1, n, 2, lab.generator(f"ratio {n}"))[0].mT
    w_q, w_k = lab.normal(2, draws, n, n, purpose=f"ratio {n}")
    query = w_q @ x
    orthogonal, along = ((query * (w_k @ other)).sum(-1).abs() for other in (p, x))
    ratio = float(orthogonal.mean() / along.mean())
    return ratio, float((orthogonal - ratio * along).std() / along.mean()) / draws**0.5
