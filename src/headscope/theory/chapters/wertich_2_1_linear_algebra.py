r"""Wertich, section 2.1: principal components, ellipsoid, singular values, maps."""

import math

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from headscope.core.figure import Curves, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.gaussians.gaussian import Gaussian, fitted, log_determinant
from headscope.maths.gaussians.moments import Moments
from headscope.theory.checks import Lab, exact, fact, mean_of, trend_of
from headscope.theory.works import wertich

CHAPTER = wertich()

SCAN = 1e-6  # what a fine scan over directions leaves open, relative


def data(lab: Lab, d: int, n: int, purpose: str = "") -> Tensor:
    """Correlated data away from the origin, d × n: one point per column."""
    mixing = lab.normal(d, d, purpose=f"mixing {purpose}") + 2 * torch.eye(d)
    return mixing @ lab.normal(d, n, purpose=f"points {purpose}") + lab.normal(d, 1, purpose=f"mean {purpose}") + 3


def centred(x: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True)


def unit_ball(d: int) -> float:
    return float(math.pi ** (d / 2) / math.gamma(d / 2 + 1))


@CHAPTER.claim(
    "W-2.1a",
    section="2.1",
    statement="The covariance matrix of mean-shifted data, their products summed and divided by n − 1, is positive "
    "semi-definite and can be diagonalised by the spectral theorem.",
    formula=r"\Sigma = \frac{1}{n-1} \bar{X}\bar{X}^{\top} = V \Lambda V^{\top}, \quad \Lambda \geq 0",
    lesson="What the spectral theorem needs is symmetry, and a product of a matrix with its own transpose has it. "
    "Semi-definiteness comes on top: the variance along any direction v is the squared length of a vector, divided by "
    "n − 1, and so never negative. With fewer points than dimensions some of these variances are exactly zero.",
)
def covariance_is_diagonalisable(lab: Lab) -> Evidence:
    comparisons = []
    for d, n in ((6, 40), (6, 4)):
        shifted = centred(data(lab, d, n, f"{n}"))
        sigma = shifted @ shifted.mT / (n - 1)
        values = torch.linalg.eigvals(sigma)  # the general solver: symmetry is not put in
        smallest, imaginary = float(values.real.min()), float(values.imag.abs().max())
        size = float(values.real.max())
        q = torch.linalg.eigh(sigma).eigenvectors
        rebuilt = q @ torch.diag((q.mT @ sigma @ q).diagonal()) @ q.mT
        comparisons += [
            exact(f"entries of Σ, from those of Σᵀ, {n} points in {d} dimensions (the worst)", sigma.mT, sigma),
            fact(f"no eigenvalue is negative beyond rounding ({n} points)", smallest > -1e-12 * size),
            fact(f"no eigenvalue is complex ({n} points)", imaginary < 1e-12 * size),
            exact(f"trace of Σ rebuilt from an orthogonal basis ({n} points)", sigma.trace(), rebuilt.trace()),
            fact(
                f"rebuilt from an orthogonal basis it is Σ ({n} points)",
                float((rebuilt - sigma).abs().max()) < 1e-12 * size,
            ),
        ]
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-2.1b",
    section="2.1",
    statement="The Gaussian with the data's mean and the covariance with 1/(n − 1) is the best one in the sense of "
    "maximum likelihood.",
    formula=r"\hat\Sigma_{\mathrm{ML}} = \frac{1}{n-1} \bar{X}\bar{X}^{\top}",
    correction="Maximum likelihood divides by n. Dividing by n − 1 gives the unbiased estimate, which is larger by "
    "n/(n − 1) and less likely: the relative error is 1/(n − 1).",
    corrected=r"\hat\Sigma_{\mathrm{ML}} = \frac{1}{n} \bar{X}\bar{X}^{\top}",
    lesson="The likelihood asks which covariance makes the data at hand most probable, and the answer is their mean "
    "squared spread about their own mean, with 1/n. That mean was fitted to the same data, so the spread comes out a "
    "little small; 1/(n − 1) repairs this on average, at the price of no longer being the most likely.",
)
def maximum_likelihood(lab: Lab) -> Evidence:
    d, n = 3, 12
    x = data(lab, d, n)
    name = "factor of XXᵀ/(n − 1), centred, at which the likelihood is largest, n = 12"
    best = _likeliest_factor(x)
    top = -float(Gaussian(x.mean(1), torch.cov(x) * ((n - 1) / n)).log_density(x.mT).sum())
    root = torch.linalg.cholesky(torch.cov(x) * ((n - 1) / n))
    tilts = [0.02 * lab.normal(d, d, purpose=f"tilt {i}") for i in range(50)]
    tilted_covariances = [root @ (torch.eye(d) + tilt + tilt.mT) @ root.mT for tilt in tilts]
    beaten = all(-float(Gaussian(x.mean(1), other).log_density(x.mT).sum()) > top for other in tilted_covariances)
    sizes = (12, 48, 192)
    factors = [_likeliest_factor(data(lab, d, size, f"{size}")) for size in sizes]
    return Evidence(
        stated=(Comparison(name, 1.0, best, SCAN),),
        corrected=(
            Comparison(name, (n - 1) / n, best, SCAN),
            fact("50 other covariances near XXᵀ/n are all less likely than it", beaten),
        ),
        trend=trend_of("relative error of 1/(n − 1) as the likeliest scale", "n", sizes,
                       [(1 - factor) / factor for factor in factors], -1.0),
    )  # fmt: skip


def _likeliest_factor(x: Tensor) -> float:
    """The factor of the 1/(n − 1) covariance with the largest likelihood, by search."""
    unbiased = torch.cov(x)

    def minus_log_likelihood(factor: float) -> float:
        return -float(Gaussian(x.mean(1), unbiased * factor).log_density(x.mT).sum())

    optimum = scipy.optimize.minimize_scalar(minus_log_likelihood, bounds=(0.3, 3.0), method="bounded",
                                           options={"xatol": 1e-9})  # fmt: skip
    return float(optimum.x)


@CHAPTER.claim(
    "W-2.1c",
    section="2.1",
    statement="The density of the multivariate Gaussian is the exponential of minus half the quadratic form, divided "
    "by the root of (2π)^d times the determinant of Σ.",
    formula=r"f(x) = \frac{1}{\sqrt{(2\pi)^d |\Sigma|}} "
    r"\exp\left(-\frac{1}{2}(x-\mu)^{\top} \Sigma^{-1} (x-\mu)\right)",
    lesson="The prefactor is what makes the total probability 1. In the coordinates of the principal axes the density "
    "is a product of one-dimensional bells, each with its 1/√(2πλ), and the product of the λ is the determinant.",
)
def density(lab: Lab) -> Evidence:
    mean = torch.tensor([0.5, -1.0], dtype=torch.float64)
    sigma = torch.tensor([[2.0, 0.9], [0.9, 0.7]], dtype=torch.float64)
    inverse, determinant = torch.linalg.inv(sigma), float(torch.det(sigma))

    def f(x: Tensor) -> Tensor:
        gap = x - mean
        form = torch.einsum("...i,ij,...j->...", gap, inverse, gap)
        return (-form / 2).exp() / math.sqrt((2 * math.pi) ** 2 * determinant)

    step = 0.05
    axis = torch.arange(-15, 15, step, dtype=torch.float64) + step / 2  # midpoints: 1 and −1 are borders of cells
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
    weight, gap = f(grid) * step**2, grid - mean
    box = weight[(grid[..., 0] > 1) & (grid[..., 1] > -1)].sum()
    draws = mean + lab.normal(200_000, 2) @ torch.linalg.cholesky(sigma).mT
    hits = ((draws[:, 0] > 1) & (draws[:, 1] > -1)).double()
    return Evidence(
        (
            exact("total probability", 1.0, weight.sum()),
            exact("covariance of the two coordinates", 0.9, (weight * gap[..., 0] * gap[..., 1]).sum()),
            exact("variance of the first coordinate", 2.0, (weight * gap[..., 0].square()).sum()),
            mean_of("share of 200,000 draws with x₁ > 1 and x₂ > −1", float(box), hits),
        )
    )


@CHAPTER.claim(
    "W-2.1d",
    section="2.1",
    statement="The Gaussian ellipsoid is the set of points at which the quadratic form of the exponent is zero.",
    formula=r"Q(x) = (x-\mu)^{\top} \Sigma^{-1} (x-\mu) = 0",
    correction="Q(x) = 0 has one solution, the mean. The ellipsoid is where Q(x) equals a positive constant, usually "
    "1: the surface at one standard deviation.",
    corrected=r"Q(x) = (x-\mu)^{\top} \Sigma^{-1} (x-\mu) = 1",
    lesson="Q measures the squared distance from the mean in units of the spread along each direction. It is zero only "
    "at the mean itself, because Σ is positive definite. Surfaces of equal density are surfaces of equal Q, so every "
    "positive constant gives an ellipsoid of the same shape.",
    slip=True,
)
def ellipsoid(lab: Lab) -> Evidence:
    p = fitted(Moments.of(data(lab, 3, 50).mT))
    values, vectors = torch.linalg.eigh(p.covariance)
    tips = p.mean + (vectors * values.sqrt()).mT  # the ends of the half-axes, one standard deviation away
    q = p.mahalanobis_squared(tips)
    away = p.mean + lab.normal(1000, 3)
    return Evidence(
        stated=(exact("Q at the ends of the half-axes √λ v", 0.0, q),),
        corrected=(
            exact("Q at the ends of the half-axes √λ v", 1.0, q),
            exact("Q at the ends of the negative half-axes", 1.0, p.mahalanobis_squared(2 * p.mean - tips)),
            fact("Q is positive at 1000 points other than the mean", bool((p.mahalanobis_squared(away) > 0).all())),
        ),
    )


@CHAPTER.claim(
    "W-2.1e",
    section="2.1",
    statement="The half-axes of the Gaussian ellipsoid are the principal components, with the singular values of X "
    "for lengths.",
    formula=r"\ell_i = \sigma_i(X)",
    correction="The half-axes have the length of the standard deviations along the principal components: the singular "
    "values of the mean-shifted data divided by the root of n − 1.",
    corrected=r"\ell_i = \sqrt{\lambda_i(\Sigma)} = \frac{\sigma_i(\bar X)}{\sqrt{n-1}}",
    lesson="Σ is the centred data's product divided by n − 1, so its eigenvalues are the squared singular values "
    "divided by n − 1. Without that factor the ellipsoid would grow with every new data point, although the "
    "distribution stays the same. Without centring it would also stretch towards the mean.",
    slip=True,
)
def half_axes(lab: Lab) -> Evidence:
    n = 60
    x = data(lab, 2, n)
    sigma = torch.cov(x)
    angle = torch.linspace(0, math.pi, 200_001, dtype=torch.float64)
    u = torch.stack([angle.cos(), angle.sin()], -1)
    radius = torch.einsum("ki,ij,kj->k", u, torch.linalg.inv(sigma), u).rsqrt()  # where Q = 1 along u
    measured = float(radius.max()), float(radius.min())
    raw, shifted = torch.linalg.svdvals(x), torch.linalg.svdvals(centred(x))
    names = [f"{extreme} half-axis of Q = 1, found by turning, n = {n}" for extreme in ("longest", "shortest")]
    return Evidence(
        stated=tuple(
            Comparison(f"{name}, beside σ of {matrix_name}", float(s), m, SCAN * m)
            for matrix_name, sigmas in (("X", raw), ("the centred X", shifted))
            for name, s, m in zip(names, sigmas, measured, strict=True)
        ),
        corrected=tuple(
            Comparison(name, float(s) / math.sqrt(n - 1), m, SCAN * m)
            for name, s, m in zip(names, shifted, measured, strict=True)
        ),
    )


@CHAPTER.claim(
    "W-2.1f",
    section="2.1",
    statement="The volume of the ellipsoid is the product of the inverse singular values and therefore inversely "
    "proportional to the root of the determinant of Σ.",
    formula=r"V = \sigma_1^{-1} \sigma_2^{-1} \cdots \sigma_n^{-1} \propto \frac{1}{\sqrt{|\Sigma|}}",
    correction="The volume grows with the spread: it is the volume of the unit ball times the root of the determinant. "
    "What falls like 1/√|Σ| is the height of the density at the mean.",
    corrected=r"V = \frac{\pi^{d/2}}{\Gamma(d/2+1)} \sqrt{|\Sigma|}",
    lesson="An ellipsoid is a ball stretched along its axes, so its volume is multiplied by each half-axis √λ, and "
    "wider data have a larger ellipsoid. Because the total probability is 1, a wider bell must be lower: peak height "
    "times volume is the same for all Gaussians of one dimension. The statement gives the height where it says volume.",
    slip=True,
)
def volume(lab: Lab) -> Evidence:
    d, n = 3, 40
    x = data(lab, d, n)
    sigma = torch.cov(x)

    def measured(quantity: str, factor: float, prediction: float, draws: int = 200_000) -> Comparison:
        covariance = torch.cov(factor * x)
        half = covariance.diagonal().sqrt()  # half the sides of the smallest box around the ellipsoid
        points = (2 * lab.uniform(draws, d, purpose=f"{factor}") - 1) * half
        inside = torch.einsum("ki,ij,kj->k", points, torch.linalg.inv(covariance), points) <= 1
        return mean_of(quantity, prediction, inside.double() * float((2 * half).prod()))

    root = math.exp(float(log_determinant(sigma)) / 2)
    inverse = float(1 / torch.linalg.svdvals(centred(x)).prod())
    true = unit_ball(d) * root
    scales = np.geomspace(0.5, 2.0, 9)
    figure = Curves(
        "w21f_volume", "Volume of the Gaussian ellipsoid",
        "Volume of the ellipsoid of data stretched by a factor, as counted by random points in a box, beside the root "
        "of the determinant and beside its inverse (drawn to meet at factor 1).",
        "factor on the data", "volume",
        (
            Series("counted", scales, np.array([measured("", float(s), 0.0, 20_000).measured for s in scales])),
            Series("unit ball × √|Σ|", scales, true * scales**d, role="theory"),
            Series("as stated, ∝ 1/√|Σ|", scales, true * scales**-d, role="null"),
        ),
        log_x=True, log_y=True,
    )  # fmt: skip
    return Evidence(
        stated=(
            measured("volume of the ellipsoid Q = 1 by counting random points", 1.0, inverse),
            measured("volume after doubling the data, from the one before", 2.0, true / 2**d),
        ),
        corrected=(
            measured("volume of the ellipsoid Q = 1 by counting random points", 1.0, true),
            measured("volume after doubling the data, from the one before", 2.0, true * 2**d),
        ),
        figures=(figure,),
    )


@CHAPTER.claim(
    "W-2.1g",
    section="2.1",
    statement="If the data matrix is diagonalisable, it can be written with an eigenbasis and that basis's transpose.",
    formula=r"X = Q \Lambda Q^{\top}",
    correction="A diagonalisable matrix is PΛP⁻¹. The inverse is the transpose, with real eigenvalues, exactly when X "
    "is symmetric.",
    corrected=r"X = P \Lambda P^{-1}; \quad X = Q \Lambda Q^{\top},\ Q^{\top} Q = 1 "
    r"\ \Longleftrightarrow\ X = X^{\top}",
    lesson="Diagonalisable means that there is a basis of eigenvectors, and nothing says that they are perpendicular. "
    "QΛQᵀ is its own transpose whatever Q and Λ are, so no matrix that is not symmetric can be written so. A data "
    "matrix has no reason to be symmetric: its rows are features and its columns are points.",
    slip=True,
)
def diagonalisable(lab: Lab) -> Evidence:
    x = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, -1.0]], dtype=torch.float64)  # eigenvalues 2, 1, −1
    values, vectors = (part.real for part in torch.linalg.eig(x))
    symmetric = data(lab, 3, 3)
    symmetric = symmetric + symmetric.mT
    eigenvalues, q = torch.linalg.eigh(symmetric)
    return Evidence(
        stated=(
            exact("worst entry of X, rebuilt as QΛQᵀ", vectors @ torch.diag(values) @ vectors.mT, x),
            exact("entry 12 of X, from entry 21 (QΛQᵀ is symmetric)", x[1, 0], x[0, 1]),
        ),
        corrected=(
            exact("X rebuilt as PΛP⁻¹", vectors @ torch.diag(values) @ torch.linalg.inv(vectors), x),
            exact("a symmetric matrix rebuilt as QΛQᵀ", q @ torch.diag(eigenvalues) @ q.mT, symmetric),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.1h",
    section="2.1",
    statement="For a diagonalisable X there is a one-to-one correspondence between the data matrix and its Gaussian.",
    formula=r"X \longleftrightarrow N(\mu, \Sigma)",
    correction="The Gaussian fixes XXᵀ and the mean, so X only up to an orthogonal matrix on the right that keeps the "
    "vector of ones, for instance a reordering of the points. It fixes X itself when X is known to be symmetric and "
    "positive semi-definite: then X is the square root.",
    corrected=r"X X^{\top} = (n-1)\Sigma + n \mu \mu^{\top}, \quad X' = X O,\ O^{\top} O = 1,\ O \mathbf{1} = "
    r"\mathbf{1}",
    lesson="A Gaussian keeps d + d(d + 1)/2 numbers, the data n·d. The identity matrix and the matrix that swaps its "
    "columns are both symmetric and describe the same two points, so even among symmetric matrices two of them can "
    "share one Gaussian. All data sets of one size with the same Gaussian differ by rotations among the points.",
)
def one_to_one(lab: Lab) -> Evidence:
    identity, swap = torch.eye(2).double(), torch.eye(2).double().flip(0)
    pair = [(x.mean(1), torch.cov(x)) for x in (identity, swap)]
    same = all(torch.equal(a, b) for a, b in zip(*pair, strict=True))
    n = 4
    x = data(lab, n, n)
    # An orthogonal matrix that keeps the vector of ones: a rotation of what is perpendicular to it.
    frame = torch.linalg.qr(torch.cat([torch.ones(n, 1).double(), lab.normal(n, n - 1, purpose="frame")], 1)).Q
    turn = torch.eye(n).double()
    turn[1:, 1:] = torch.linalg.qr(lab.normal(n - 1, n - 1, purpose="turn")).Q
    o = frame @ turn @ frame.mT
    back = torch.linalg.solve(x, x @ o)
    psd = x @ x.mT
    second = (n - 1) * torch.cov(psd) + n * torch.outer(psd.mean(1), psd.mean(1))
    values, vectors = torch.linalg.eigh(second)
    root = vectors @ torch.diag(values.clamp_min(0).sqrt()) @ vectors.mT
    size = float(psd.abs().max())
    return Evidence(
        stated=(
            Comparison("how many symmetric X have the Gaussian of the identity (it and its swap, counted)", 1.0,
                       1.0 + same, 0.0),
            exact("worst entry of XO, from the X with the same mean and covariance", x, x @ o),
        ),
        corrected=(
            exact("mean of XO", x.mean(1), (x @ o).mean(1)),
            exact("covariance of XO", torch.cov(x), torch.cov(x @ o), scale=10.0),
            exact("X⁻¹X' of two matrices with the same Gaussian, times the ones", torch.ones(n).double(), back.sum(1),
                  scale=100.0),
            exact("trace of the same, times its transpose", float(n), (back @ back.mT).trace(), scale=100.0),
            Comparison("largest error of a positive X rebuilt as a square root, over its largest entry", 0.0,
                       float((root - psd).abs().max()) / size, 1e-7),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.1i",
    section="2.1",
    statement="If some eigenvalues are equal, the principal components are unique up to a permutation of those that "
    "belong to them.",
    formula=r"\lambda_i = \lambda_j:\quad v_i \leftrightarrow v_j",
    correction="Equal eigenvalues leave any rotation inside their common eigenspace free, not only permutations. "
    "Distinct eigenvalues leave the sign of each component free.",
    corrected=r"\lambda_1 = \ldots = \lambda_m:\quad [v_1 \ldots v_m] \to [v_1 \ldots v_m]\, O, \quad O^{\top} O = 1",
    lesson="If two directions have the same variance, so has every direction between them: a circle has no longest "
    "diameter. An algorithm then returns some orthonormal pair, decided by rounding. With noise exact equality never "
    "happens, but eigenvalues that nearly agree leave the components nearly as undetermined.",
)
def equal_eigenvalues(lab: Lab) -> Evidence:
    basis = torch.linalg.qr(lab.normal(3, 3)).Q
    sigma = basis @ torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)) @ basis.mT
    angle = math.pi / 6
    turned = math.cos(angle) * basis[:, 0] + math.sin(angle) * basis[:, 1]
    nearest = min(float((turned - sign * basis[:, i]).norm()) for i in range(3) for sign in (-1, 1))
    return Evidence(
        stated=(
            Comparison("distance of an eigenvector of λ = 2 from the nearest of the first three", 0.0, nearest, 1e-9),
        ),
        corrected=(
            exact("a mixture of both eigenvectors (30 degrees) under Σ is 2 × itself", 2 * turned, sigma @ turned),
            exact("its length", 1.0, turned.norm()),
            exact("a single eigenvalue: −v is an eigenvector as well", -basis[:, 2], sigma @ -basis[:, 2]),
        ),
    )


@CHAPTER.claim(
    "W-2.1j",
    section="2.1",
    statement="In the diagonalisable case the squared singular values are the absolute eigenvalues.",
    formula=r"\sigma_i^2 = |\lambda_i|",
    correction="The singular values themselves are the absolute eigenvalues, and only where X is symmetric (or "
    "normal). For other matrices the two differ; what always holds is that the squares are the eigenvalues of XᵀX.",
    corrected=r"\sigma_i = |\lambda_i| \ (X = X^{\top}), \qquad \sigma_i^2 = \lambda_i(X^{\top} X)",
    lesson="A symmetric matrix stretches along perpendicular eigenvectors, so the amount of stretch is |λ|, not √|λ|. "
    "When the eigenvectors are not perpendicular, the directions of strongest stretch are no eigenvectors at all: the "
    "matrix with rows (1, 10) and (0, 2) has eigenvalues 1 and 2 but stretches some vector by more than 10.",
    slip=True,
)
def singular_and_eigenvalues(lab: Lab) -> Evidence:
    half = lab.normal(5, 5)
    x = half + half.mT
    sigma = torch.linalg.svdvals(x)
    absolute = torch.linalg.eigvals(x).abs().sort(descending=True).values
    oblique = torch.tensor([[1.0, 10.0], [0.0, 2.0]], dtype=torch.float64)
    oblique_sigma = torch.linalg.svdvals(oblique)
    return Evidence(
        stated=(exact("squared singular values of a symmetric 5 × 5 matrix, from |λ|", absolute, sigma**2),),
        corrected=(
            exact("singular values of a symmetric 5 × 5 matrix, from |λ|", absolute, sigma),
            exact("squared singular values of a matrix that is not symmetric, from the eigenvalues of XᵀX",
                  torch.linalg.eigvalsh(oblique.mT @ oblique).flip(0), oblique_sigma**2),
            fact("its largest singular value exceeds 10, its largest eigenvalue is 2", float(oblique_sigma[0]) > 10),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.1k",
    section="2.1",
    statement="For X with n rows and d columns and X = UDVᵀ, the columns of V are eigenvectors of XXᵀ, and those of U "
    "are eigenvectors of the Gram matrix XᵀX.",
    formula=r"X X^{\top} V = V D^2, \qquad X^{\top} X\, U = U D^2 \qquad (X \in R^{n \times d})",
    correction="The transposes are exchanged: V belongs to XᵀX, which is d × d, and U to XXᵀ, which is n × n. With "
    "points in rows the covariance is XᵀX and the matrix of scalar products between points is XXᵀ.",
    corrected=r"X^{\top} X\, V = V D^2, \qquad X X^{\top} U = U D^2",
    lesson="Put X = UDVᵀ into XᵀX: the U in the middle cancels and V D² Vᵀ is left. A quick test is the size: a column "
    "of V has d entries and cannot be multiplied by an n × n matrix. The paragraphs before it write points as columns, "
    "and there the roles are the other way round.",
    slip=True,
)
def singular_vectors(lab: Lab) -> Evidence:
    tall, square = data(lab, 5, 3, "tall"), data(lab, 4, 4, "square")
    stated, corrected = [], []
    u, s, vh = torch.linalg.svd(tall, full_matrices=False)
    stated.append(
        Comparison("entries in a column of V for X of 5 × 3, from the size of XXᵀ", 5.0, float(len(vh.mT)), 0.0)
    )
    corrected += [
        exact("XᵀX V, from V D² (5 × 3)", vh.mT * s**2, tall.mT @ tall @ vh.mT),
        exact("XXᵀ U, from U D² (5 × 3)", u * s**2, tall @ tall.mT @ u),
    ]
    u, s, vh = torch.linalg.svd(square)
    stated += [
        exact("XXᵀ V, from V D² (4 × 4)", vh.mT * s**2, square @ square.mT @ vh.mT),
        exact("XᵀX U, from U D² (4 × 4)", u * s**2, square.mT @ square @ u),
    ]
    corrected.append(exact("XᵀX V, from V D² (4 × 4)", vh.mT * s**2, square.mT @ square @ vh.mT))
    return Evidence(tuple(stated), tuple(corrected))


@CHAPTER.claim(
    "W-2.1l",
    section="2.1",
    statement="The eigenvalues of the unscaled covariance matrix are the squares of the singular values of the data.",
    formula=r"\lambda_i(X X^{\top}) = \sigma_i(X)^2",
    lesson="In XXᵀ = UD²Uᵀ the rotations stay and the stretching is squared. This is for the unscaled product; the "
    "covariance itself needs centred data and the factor 1/(n − 1). Numerically the way through the singular values is "
    "the better one, because squaring first loses half of the digits of the small ones.",
)
def squared_singular_values(lab: Lab) -> Evidence:
    comparisons = []
    for d, n in ((4, 30), (6, 3)):
        x = centred(data(lab, d, n, f"{d}"))
        values = torch.linalg.eigvals(x @ x.mT).real.sort(descending=True).values
        squares = torch.zeros(d, dtype=torch.float64)
        squares[: min(d, n)] = torch.linalg.svdvals(x).square()
        comparisons += [
            exact(f"largest eigenvalue of XXᵀ, X centred, {d} × {n}", squares[0], values[0]),
            exact(f"all eigenvalues of XXᵀ, {d} × {n} (the worst)", squares, values),
        ]
        normalised = torch.linalg.eigvalsh(torch.cov(x))[-1]
        comparisons.append(exact(f"largest of the covariance: the square over n − 1, {d} × {n}",
                                 squares[0] / (n - 1), normalised))  # fmt: skip
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-2.1m",
    section="2.1",
    statement="A linear map A of every data point turns the fitted Gaussian into one with mean Aμ and covariance AΣAᵀ, "
    "and fitting to the mapped points gives the same.",
    formula=r"\mu' = A\mu, \qquad \Sigma' = A \Sigma A^{\top}",
    lesson="Mean and covariance are averages of linear and of quadratic expressions in the data, and a linear map goes "
    "through the averages. It holds for any data, Gaussian or not, and for A that changes the number of dimensions (A "
    "then has as many columns as the data have features). If A has more rows than columns, the new covariance is "
    "singular.",
)
def linear_map(lab: Lab) -> Evidence:
    comparisons = []
    x = data(lab, 4, 50).exp().clamp_max(1e4)  # far from Gaussian: the statement does not need it
    for rows in (2, 4, 6):
        a = lab.normal(rows, 4, purpose=f"{rows}")
        mapped = fitted(Moments.of(x.mT)).mapped(a)
        refitted_mean, refitted = (a @ x).mean(1), torch.cov(a @ x)
        comparisons += [
            exact(f"mean of AX, A of {rows} × 4 (worst entry)", mapped.mean, refitted_mean),
            exact(f"covariance of AX, A of {rows} × 4 (worst entry)", mapped.covariance, refitted),
            exact(f"total variance of AX, A of {rows} × 4", mapped.covariance.trace(), refitted.trace()),
        ]
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-2.1n",
    section="2.1",
    statement="Along the principal axes the variance of the data is maximal.",
    formula=r"v_1 = \arg\max_{|v|=1} v^{\top} \Sigma v, \quad v_2 = \arg\max_{|v|=1,\ v \perp v_1} v^{\top} \Sigma v, "
    r"\ldots",
    lesson="The variance of the data along a unit vector v is vᵀΣv. In the eigenbasis it is an average of the "
    "eigenvalues, with weights that sum to 1, so it cannot exceed the largest, and it reaches it at the first axis. "
    "Each later axis is the best one perpendicular to those before it; the last one has the least variance of all.",
)
def maximal_variance(lab: Lab) -> Evidence:
    x = centred(data(lab, 3, 100))
    values, vectors = torch.linalg.eigh(torch.cov(x))
    angle = torch.linspace(0, math.pi, 20_001, dtype=torch.float64)
    comparisons = []
    for axis, plane in ((2, (2, 0)), (2, (2, 1)), (1, (1, 0))):
        # Turn within a plane of two axes and take the variance of the projected points.
        direction = angle.cos()[:, None] * vectors[:, plane[0]] + angle.sin()[:, None] * vectors[:, plane[1]]
        spread = (direction @ x).var(1)
        comparisons.append(Comparison(
            f"largest variance of the projected points in the plane of axes {3 - plane[0]} and {3 - plane[1]}",
            float(values[axis]), float(spread.max()), SCAN * float(values[axis])))  # fmt: skip
    several = torch.nn.functional.normalize(lab.normal(5000, 3, purpose="directions"), dim=1)
    spread = (several @ x).var(1)
    comparisons.append(fact("no one of 5000 random directions has more variance than the first axis or less than the "
                            "last", bool((spread <= values[2] * (1 + 1e-12)).all() and
                                         (spread >= values[0] * (1 - 1e-12)).all())))  # fmt: skip
    best = several[int(spread.argmax())]
    # The best of 5000 directions loses little variance, and by the gap of the eigenvalues it must be close to the axis.
    loss = float((values[2] - spread.max()) / (values[2] - values[1]))
    tilt = 1 - float(best @ vectors[:, 2]) ** 2
    comparisons.append(fact(f"squared sine of the best of them with the first axis, {tilt:.4f}, at most the share of "
                            f"the gap that it loses, {loss:.4f}", tilt <= loss * (1 + 1e-9)))  # fmt: skip
    return Evidence(tuple(comparisons))
