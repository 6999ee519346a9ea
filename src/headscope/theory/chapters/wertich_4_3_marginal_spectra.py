r"""Wertich, section 4.3: the covariance and spectrum of a token with k values."""

import math

import numpy as np
import torch
from torch import Tensor

from headscope.core.figure import Curves, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.gaussians.gaussian import of_points, pseudo_log_determinant, rank
from headscope.maths.linear_algebra.spectrum import effective_rank, participation_ratio, singular_values
from headscope.maths.random_matrices.wishart import mean_length
from headscope.theory.checks import Lab, exact, fact, mean_of, trend_of
from headscope.theory.works import wertich

CHAPTER = wertich()


def unit_vectors(lab: Lab, k: int, d: int, common: float = 0.5) -> Tensor:
    """k unit vectors with a common component and a positive mean scalar product."""
    x = lab.normal(k, d, purpose="own") + common * lab.normal(1, d, purpose="common")
    return torch.nn.functional.normalize(x, dim=1)


def probabilities(lab: Lab, k: int) -> Tensor:
    return torch.softmax(0.7 * lab.normal(k, purpose="probabilities"), 0)


def as_in_the_thesis(lab: Lab, k: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    """Y = [λ₁v₁ … λₖvₖ] with points as columns, the vectors in rows, and the λ."""
    v, weights = unit_vectors(lab, k, d), probabilities(lab, k)
    return (weights[:, None] * v).mT, v, weights


@CHAPTER.claim(
    "W-4.3a",
    section="4.3.1",
    statement="Stacking k vectors as often as their probabilities λᵢ say is equivalent to scaling each by λᵢ, so that "
    "the covariance is the sum of λᵢ² vᵢvᵢᵀ.",
    formula=r"Y Y^{\top} = \sum_i (\lambda_i v_i)(\lambda_i v_i)^{\top} = \sum_i \lambda_i^2\, v_i v_i^{\top}",
    correction="A vector that is repeated in a share λ of the rows contributes λ vvᵀ, so the equivalent scaling is by "
    "the root of λ. (The thesis writes λ without the square two formulas later.) For the covariance the mean must be "
    "taken away as well.",
    corrected=r"Y = [\sqrt{\lambda_i}\, v_i], \quad Y Y^{\top} = \sum_i \lambda_i v_i v_i^{\top}, \quad "
    r"\Sigma = \sum_i \lambda_i v_i v_i^{\top} - \mu\mu^{\top}, \quad \mu = \sum_i \lambda_i v_i",
    lesson="Write the sum over all repeated copies: ten copies add ten times vvᵀ, not a hundred times. Squaring the "
    "probabilities would make rare tokens vanish too fast: with λ = 0.9 and 0.1 the true ratio is 9, the stated one "
    "is 81.",
    slip=True,
)
def stacking(lab: Lab) -> Evidence:
    counts = torch.tensor([50, 30, 20])
    weights = counts.double() / 100
    v = unit_vectors(lab, 3, 6)
    stacked = v.repeat_interleave(counts, dim=0)
    raw, centred = stacked.mT @ stacked / 100, torch.cov(stacked.mT, correction=0)
    squared = (v.mT * weights**2) @ v
    single = (v.mT * weights) @ v
    shape = raw / raw.trace()
    return Evidence(
        stated=(
            exact("YYᵀ of 100 stacked vectors over 100 (worst entry), weights 0.5, 0.3, 0.2", squared, raw),
            exact("the same after both are divided by their trace", squared / squared.trace(), shape),
        ),
        corrected=(
            exact("YYᵀ of 100 stacked vectors over 100 (worst entry)", single, raw),
            exact("covariance of the stacked vectors (worst entry)", of_points(v, weights).covariance, centred),
            exact("the same from the sum less the mean's square", single - torch.outer(v.mT @ weights, v.mT @ weights),
                  centred),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-4.3b",
    section="4.3.1",
    statement="The sum of k weighted outer products has rank at most k, so the covariance of a token with k likely "
    "values has at most k nonzero singular values.",
    formula=r"\mathrm{rank}\left(\sum_{i=1}^k \lambda_i v_i v_i^{\top}\right) \leq k",
    lesson="Every vector that the sum produces is a combination of the k vectors, so its image has at most k "
    "dimensions. Once the mean is taken away, one more is lost: k points span at most k − 1 directions around their "
    "mean. A small remainder of other tokens fills the other dimensions with small values.",
)
def rank_of_the_marginal(lab: Lab) -> Evidence:
    k, d = 5, 20
    v, weights = unit_vectors(lab, k, d), probabilities(lab, k)
    product = (v.mT * weights) @ v
    doubled = v.clone()
    doubled[1] = doubled[0]
    noisy = 0.99 * product + 0.01 * torch.eye(d).double() / d
    values = torch.linalg.eigvalsh(noisy).flip(0)
    return Evidence(
        (
            Comparison("rank for 5 vectors in 20 dimensions", float(k), float(rank(product)), 0.0),
            Comparison("rank when two of them are equal", k - 1.0, float(rank((doubled.mT * weights) @ doubled)), 0.0),
            Comparison("rank of the covariance, the mean taken away", float(k - 1),
                       float(rank(of_points(v, weights).covariance)), 0.0),
            fact("with 1 % of noise the sixth singular value is small beside the fifth",
                 float(values[k]) < 0.1 * float(values[k - 1])),
        )
    )  # fmt: skip


@CHAPTER.claim(
    "W-4.3c",
    section="4.3.1",
    statement="YYᵀ and the Gram matrix YᵀY have the same nonzero eigenvalues, the squared singular values of Y.",
    formula=r"\lambda_i(Y Y^{\top}) = \lambda_i(Y^{\top} Y) = \sigma_i(Y)^2",
    lesson="If YᵀY u = s u, then Yu is an eigenvector of YYᵀ for the same s. So the spectrum of a covariance in many "
    "dimensions can be found from the small table of scalar products between the k vectors. The larger of the two "
    "matrices has additional zeros.",
)
def gram_and_covariance(lab: Lab) -> Evidence:
    k, d = 4, 12
    y, _, _ = as_in_the_thesis(lab, k, d)
    squares = singular_values(y).square()
    inner = torch.linalg.eigvals(y.mT @ y).real.sort(descending=True).values
    outer = torch.linalg.eigvals(y @ y.mT).real.sort(descending=True).values
    return Evidence(
        (
            exact("largest eigenvalue of YᵀY", squares[0], inner[0]),
            exact("smallest eigenvalue of YᵀY", squares[-1], inner[-1], scale=10.0),
            exact("first 4 eigenvalues of YYᵀ (the worst)", squares, outer[:k]),
            Comparison("largest of the other 8", 0.0, float(outer[k:].abs().max()), 1e-12),
        )
    )


@CHAPTER.claim(
    "W-4.3d",
    section="4.3.1",
    statement="For Y made of unit vectors scaled by λᵢ the trace of YᵀY is the squared length of λ.",
    formula=r"\mathrm{Tr}(Y^{\top} Y) = \|\lambda\|_2^2 = \sum_i \lambda_i^2",
    lesson="The diagonal of the Gram matrix holds the squared lengths of the columns, here λᵢ². It holds for this Y; "
    "with the right weights, the roots of the probabilities, the trace is their sum and so always 1: every unit vector "
    "has mean squared length 1.",
)
def trace_of_the_gram_matrix(lab: Lab) -> Evidence:
    comparisons = []
    for k in (3, 8):
        y, v, weights = as_in_the_thesis(lab, k, 10)
        comparisons += [
            exact(f"trace of YᵀY, k = {k}", weights.square().sum(), (y.mT @ y).trace()),
            exact(f"sum of the σ², k = {k}", weights.square().sum(), singular_values(y).square().sum()),
            exact(f"with √λ as weights, k = {k}", 1.0, ((v.mT * weights) @ v).trace()),
        ]  # fmt: skip
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-4.3e",
    section="4.3.1",
    statement="The determinant of YᵀY is the product of the singular values, and it is the volume of the resulting "
    "Gaussian.",
    formula=r"\det(Y^{\top} Y) = \prod_{i=1}^k \sigma_i = V",
    correction="With the singular values of Y the determinant is the product of their squares. The volume of the "
    "ellipsoid is the product of the σᵢ themselves, times the volume of the unit ball in k dimensions; in the d > k "
    "dimensions of the embedding determinant and volume are zero.",
    corrected=r"\det(Y^{\top} Y) = \prod_{i=1}^k \sigma_i(Y)^2, \qquad V_k = \frac{\pi^{k/2}}{\Gamma(k/2+1)} "
    r"\prod_{i=1}^k \sigma_i(Y), \qquad \det(Y Y^{\top}) = 0 \ (k < d)",
    lesson="Eigenvalues of YᵀY are squared lengths, so their product is a squared volume: the same missing root as in "
    "section 2.2. If σᵢ is read as an eigenvalue of YYᵀ, the first equality is right and the volume is the root of the "
    "product. The Gaussian lives on a k-dimensional subspace, and only there it has a volume.",
    slip=True,
)
def determinant_of_the_gram_matrix(lab: Lab) -> Evidence:
    k, d, draws = 3, 8, 200_000
    y, _, _ = as_in_the_thesis(lab, k, d)
    gram = y.mT @ y
    sigma = singular_values(y)
    # The ellipsoid {Y u : |u| ≤ 1} in coordinates of its subspace: x = R u with YᵀY = RᵀR.
    covariance = torch.linalg.qr(y).R @ torch.linalg.qr(y).R.mT
    half = covariance.diagonal().sqrt()
    points = (2 * lab.uniform(draws, k) - 1) * half
    inside = (torch.einsum("ki,ij,kj->k", points, torch.linalg.inv(covariance), points) <= 1).double()
    volumes = inside * float((2 * half).prod())
    ball = math.pi ** (k / 2) / math.gamma(k / 2 + 1)
    log_pdet, counted = pseudo_log_determinant(y @ y.mT)
    return Evidence(
        stated=(
            exact("determinant of YᵀY, k = 3", sigma.prod(), torch.det(gram)),
            mean_of("volume of the ellipsoid in its subspace, by counting", float(torch.det(gram)), volumes),
        ),
        corrected=(
            exact("determinant of YᵀY, k = 3", sigma.square().prod(), torch.det(gram)),
            mean_of("volume of the ellipsoid in its subspace, by counting", ball * float(sigma.prod()),
                    volumes),
            Comparison("determinant of YYᵀ in 8 dimensions", 0.0, float(torch.det(y @ y.mT)), 1e-12),
            exact("product of its nonzero eigenvalues", torch.det(gram), log_pdet.exp(), scale=100.0),
            Comparison("and their number", float(k), float(counted), 0.0),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-4.3f",
    section="4.3.1",
    statement="In high dimensions a Gaussian resembles a hypersphere.",
    formula=r"\|x\|_2 \approx \sqrt{d}, \quad x \sim N(0, 1_d)",
    correction="The length of a standard normal vector is √d up to a standard deviation of 1/√2, so its relative "
    "spread falls like 1/√(2d). For another covariance the effective dimension (Tr Σ)²/Tr Σ² takes the place of d: "
    "with k dominant tokens, as in this very section, the Gaussian is no sphere however large d is.",
    corrected=r"\frac{\mathrm{sd}\,\|x\|^2}{E\,\|x\|^2} = \sqrt{\frac{2}{d_{\mathrm{eff}}}}, \qquad d_{\mathrm{eff}} = "
    r"\frac{(\mathrm{Tr}\,\Sigma)^2}{\mathrm{Tr}\,\Sigma^2}",
    lesson="The squared length is a sum of d independent squares, and such a sum has a relative spread of √(2/d): "
    "almost all of the mass lies in a thin shell, although the density is largest at the centre. If a few directions "
    "hold most of the variance, the sum has only a few terms that matter and the shell is thick.",
)
def hypersphere(lab: Lab) -> Evidence:
    dims, draws = (4, 16, 64, 256, 1024), 4000
    spreads, errors = [], []
    lengths = torch.zeros(draws, dtype=torch.float64)
    for d in dims:
        lengths = lab.normal(draws, d, purpose=f"{d}").norm(dim=1) / math.sqrt(d)
        squares = (lengths - 1).square()
        spreads.append(float(squares.mean().sqrt()))
        errors.append(float(squares.std()) / math.sqrt(draws) / (2 * spreads[-1]))
    thick = lab.normal(50_000, 16, purpose="thick").norm(dim=1) / 4
    d = 256
    variances = torch.full((d,), 0.1 / (d - 3), dtype=torch.float64)
    variances[:3] = 0.3  # three directions hold 0.9 of the variance
    squared = (lab.normal(20_000, d, purpose="few") * variances.sqrt()).square().sum(1)
    effective = float(participation_ratio(variances.sqrt()))
    figure = Curves(
        "w43f_shell", "How thin the shell is",
        "Spread of the length of standard normal vectors about √d, relative to √d, over the dimension.",
        "dimension d", "relative spread",
        (
            Series("4000 draws", np.array(dims, float), np.array(spreads)),
            Series("1/√(2d)", np.array(dims, float), 1 / np.sqrt(2 * np.array(dims, float)), role="theory"),
        ),
        log_x=True, log_y=True,
    )  # fmt: skip
    return Evidence(
        stated=(
            mean_of("mean squared deviation of |x|/√d from 1, d = 1024", 0.0, (lengths - 1).square()),
        ),
        corrected=(
            mean_of("mean squared deviation of |x|/√d from 1, d = 16, from 2 − 2 E|x|/√d",
                    2 - 2 * mean_length(16) / 4, (thick - 1).square()),
            mean_of("mean squared deviation of |x|² with three dominant directions, from 2/d_eff", 2 / effective,
                    (squared - 1).square()),
        ),
        trend=trend_of("relative spread of the length", "dimension d", dims, spreads, -0.5, errors),
        figures=(figure,),
    )  # fmt: skip


def block(first: float, second: float, alpha: float) -> Tensor:
    """The 2 × 2 block of YᵀY as the thesis writes it."""
    return torch.tensor([[first**2, first * second * alpha], [first * second * alpha, second**2]], dtype=torch.float64)


def stated_eigenvalues(first: float, second: float, alpha: float) -> Tensor:
    total = first**2 + second**2
    root = math.sqrt(total**2 - 4 * first**2 * second**2 * (1 - alpha**2))
    return torch.tensor([(total - root) / 2, (total + root) / 2], dtype=torch.float64)


@CHAPTER.claim(
    "W-4.3g",
    section="4.3.2",
    statement="The eigenvalues of the 2 × 2 block of the Gram matrix follow from its trace and determinant.",
    formula=r"\lambda_{1,2} = \frac{\lambda_1^2+\lambda_2^2 \pm \sqrt{(\lambda_1^2+\lambda_2^2)^2 - "
    r"4\lambda_1^2\lambda_2^2(1-\alpha_{12}^2)}}{2}",
    lesson="A 2 × 2 matrix has the characteristic equation x² − (trace) x + (determinant) = 0. Here the trace is "
    "λ₁² + λ₂² and the determinant λ₁²λ₂²(1 − α²), and the formula is the solution of the quadratic equation. The "
    "left side uses the letter λ for the eigenvalues as well; they are not the probabilities.",
)
def two_by_two(lab: Lab) -> Evidence:
    comparisons = []
    for first, second, alpha in (0.1 + 0.8 * lab.uniform(3, 3)).tolist():
        values = torch.linalg.eigvalsh(block(first, second, alpha))
        name = f"weights {first:.2f} and {second:.2f}, α = {alpha:.2f}"
        predicted = stated_eigenvalues(first, second, alpha)
        comparisons += [
            exact(f"larger eigenvalue, {name}", predicted[1], values[1]),
            exact(f"smaller eigenvalue, {name}", predicted[0], values[0], scale=10.0),
        ]
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-4.3h",
    section="4.3.2",
    statement="If both weights are nearly equal to λ, the eigenvalues are nearly λ(1 ± α).",
    formula=r"\lambda_{1,2} \approx \lambda\,(1 \pm \alpha_{12})",
    correction="They are λ²(1 ± α), exactly so for equal weights. λ(1 ± α) is what the right weights, the roots of the "
    "probabilities, would give.",
    corrected=r"\lambda_{1,2} = \lambda^2\,(1 \pm \alpha_{12})",
    lesson="Every entry of the block carries two factors λ, so the eigenvalues scale with λ². Put α = 0: the matrix is "
    "then λ² times the identity. With Y = [√λ v] the entries are λ and λα, and the stated formula would be right.",
    slip=True,
)
def equal_weights(lab: Lab) -> Evidence:
    del lab  # nothing here is random
    weight, stated, corrected = 0.2, [], []
    for alpha in (0.3, 0.8):
        values = torch.linalg.eigvalsh(block(weight, weight, alpha))
        signs = torch.tensor([1 - alpha, 1 + alpha], dtype=torch.float64)
        name = f"eigenvalues for λ = 0.2 twice, α = {alpha}"
        stated.append(exact(name, weight * signs, values))
        corrected.append(exact(name, weight**2 * signs, values))
        rooted = torch.linalg.eigvalsh(block(weight**0.5, weight**0.5, alpha))
        corrected.append(exact(f"with √λ as weights: λ(1 ± α), α = {alpha}", weight * signs, rooted))
    # On the way to equal weights the stated value does not come nearer: it lacks a factor λ.
    unequal, errors = (0.02, 0.01, 0.005), []
    for gap in unequal:
        top = float(torch.linalg.eigvalsh(block(weight + gap, weight, 0.5))[1])
        errors.append(abs(weight * 1.5 - top) / top)
    alphas = np.linspace(0, 1, 41)
    measured = np.array([torch.linalg.eigvalsh(block(weight, weight, float(a))).numpy() for a in alphas])
    figure = Curves(
        "w43h_repulsion", "Two vectors that point the same way",
        "Eigenvalues of the Gram matrix of two vectors of weight λ = 0.2, over their scalar product α.",
        "scalar product α", "eigenvalue",
        (
            Series("larger", alphas, measured[:, 1]),
            Series("smaller", alphas, measured[:, 0]),
            Series("λ²(1 + α)", alphas, weight**2 * (1 + alphas), role="theory"),
            Series("λ²(1 − α)", alphas, weight**2 * (1 - alphas), role="theory"),
        ),
    )  # fmt: skip
    trend = trend_of("relative error of λ(1 + α), α = 0.5", "difference of the weights", unequal, errors, 0.0)
    return Evidence(tuple(stated), tuple(corrected), trend, figures=(figure,))


@CHAPTER.claim(
    "W-4.3i",
    section="4.3.2",
    statement="Larger scalar products between the vectors go with repelled singular values: the spectrum gets less "
    "balanced and more sparse.",
    formula=r"|\alpha_{ij}| \uparrow \ \Longrightarrow\ \sigma\ \mathrm{less\ balanced}",
    lesson="The sum of the eigenvalues is fixed by the lengths of the vectors, and the sum of their squares is Σ "
    "λᵢ²λⱼ²αᵢⱼ²: it grows with every squared scalar product, so the spectrum must spread. More is true: if all scalar "
    "products grow by one factor, the sums of the largest eigenvalues all grow (majorisation). The sign does not "
    "matter: opposite vectors repel the eigenvalues as well.",
)
def repelled_eigenvalues(lab: Lab) -> Evidence:
    k, d = 8, 40
    y, v, weights = as_in_the_thesis(lab, k, d)
    gram = y.mT @ y
    diagonal = torch.diag(gram.diagonal())
    steps = torch.linspace(0, 1, 21).double()
    spectra = torch.stack([torch.linalg.eigvalsh(diagonal + t * (gram - diagonal)).flip(0) for t in steps])
    partial = spectra.cumsum(1)
    ranks = effective_rank(spectra.clamp_min(0).sqrt())
    alpha = v @ v.mT
    squares = float((torch.outer(weights, weights) * alpha).square().sum())
    # A family of its own: k equal weights and one scalar product α for all pairs.
    a = 0.6
    flat = torch.linalg.eigvalsh((1 - a) * torch.eye(k).double() + a * torch.ones(k, k).double())
    gaps = [float(torch.linalg.eigvalsh(block(0.3, 0.2, x)).diff()) for x in (0.0, 0.4, 0.8)]
    figure = Curves(
        "w43i_spread", "Effective rank over the size of the scalar products",
        "Eight weighted vectors; all scalar products between different vectors multiplied by a factor.",
        "factor on the scalar products", "effective rank",
        (Series("effective rank of Y", steps.numpy(), ranks.numpy()),),
    )  # fmt: skip
    return Evidence(
        (
            exact("sum of the squared eigenvalues, from Σ λᵢ²λⱼ²αᵢⱼ²", squares, spectra[-1].square().sum()),
            fact("every sum of the largest eigenvalues grows with the scalar products",
                 bool((partial.diff(dim=0)[:, :-1] > -1e-12).all())),
            fact("the effective rank falls", bool((ranks.diff() < 0).all())),
            exact("k equal weights, all α = 0.6: largest eigenvalue 1 + (k − 1)α", 1 + (k - 1) * a, flat[-1]),
            exact("and all others 1 − α (the worst)", (1 - a) * torch.ones(k - 1).double(), flat[:-1]),
            fact("two vectors of different weight: the gap grows with α", gaps[0] < gaps[1] < gaps[2]),
            exact("and is the same for −α", gaps[2], torch.linalg.eigvalsh(block(0.3, 0.2, -0.8)).diff()),
        ),
        figures=(figure,),
    )  # fmt: skip
