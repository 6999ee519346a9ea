r"""Wertich, sections 6.1, 6.2.1, 6.2.4, B.1: the score of two Gaussian vectors."""

import torch
from torch import Tensor

from headscope.core.verdict import Comparison, Evidence
from headscope.maths.gaussians.bilinear_scores import GaussianPair, score_mean, score_variance
from headscope.maths.linear_algebra.alignment import alignment
from headscope.maths.random_matrices.haar import haar_frames
from headscope.theory.checks import Lab, exact, fact, mean_of, trend_of, variance_of
from headscope.theory.works import wertich

CHAPTER = wertich()
_DRAWS = 100_000


def dependent_pair(lab: Lab, n: int = 4) -> GaussianPair:
    """Two dependent Gaussian vectors with nonzero means.

    Their cross-covariance is not symmetric.
    """
    root = lab.normal(2 * n, 2 * n, purpose="root") / (2 * n) ** 0.5
    cov = root @ root.mT
    mean_x, mean_y = lab.normal(2, n, purpose="means") / 2
    shift = torch.zeros(n, n, dtype=torch.float64)
    shift[0, 1] = 0.5 * (cov[0, 0] * cov[n + 1, n + 1]).sqrt()
    wide = cov + 2 * torch.diag(cov.diagonal())
    return GaussianPair(mean_x, mean_y, wide[:n, :n], wide[n:, n:], cov[:n, n:] + shift)


def draws(lab: Lab, pair: GaussianPair, count: int = _DRAWS) -> tuple[Tensor, Tensor]:
    """Samples of the pair."""
    n = pair.mean_x.shape[-1]
    root = torch.linalg.cholesky(pair.joint_covariance)
    joint_draws = pair.joint_mean + lab.normal(count, root.shape[-1], purpose="draws") @ root.mT
    return joint_draws[:, :n], joint_draws[:, n:]


def alone(pair: GaussianPair) -> GaussianPair:
    """The same two vectors, independent."""
    return GaussianPair.independent(pair.mean_x, pair.cov_x, pair.mean_y, pair.cov_y)


def directed(lab: Lab, pair: GaussianPair) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and C = AᵀB for which Tr(CΣ_XY) and Tr(CΣ_YX) certainly differ."""
    n = pair.mean_x.shape[-1]
    a = lab.normal(n, n, purpose="A")
    asymmetric = pair.cov_xy - pair.cov_xy.mT
    c = lab.normal(n, n, purpose="C") / 2 + 2 * asymmetric / asymmetric.norm()
    return a, torch.linalg.solve(a.mT, c), c


@CHAPTER.claim(
    "W-6.1",
    section="6.1",
    statement="The score of a query x and a key y is a bilinear form with the matrix W_qᵀW_k, in general not "
    "symmetric.",
    formula=r"\langle W_q x, W_k y\rangle = x^T W_q^T W_k\, y",
    lesson="A score is linear in the query's token and linear in the key's token, so it is x, a matrix, y. Swapping "
    "the two tokens transposes that matrix, and W_qᵀW_k is its own transpose only by coincidence: 'it attends to me' "
    "and 'I attend to it' are two numbers.",
)
def bilinear(lab: Lab) -> Evidence:
    n, d = 6, 3
    w_q, w_k = lab.normal(2, d, n, purpose="weights")
    x, y, z = lab.normal(3, n, purpose="tokens")
    score = float((w_q @ x) @ (w_k @ y))
    sum_of_two = float((w_q @ (2 * x - 3 * z)) @ (w_k @ y))
    swapped = float((w_q @ y) @ (w_k @ x))
    form = w_q.mT @ w_k
    return Evidence(
        (
            exact("score against xᵀ(W_qᵀW_k)y", float(x @ form @ y), score),
            exact("score of 2x − 3z, by linearity", 2 * score - 3 * float((w_q @ z) @ (w_k @ y)), sum_of_two),
            exact("score of the swapped pair, by the transposed matrix", float(x @ form.mT @ y), swapped),
            fact("the score of (x, y) differs from that of (y, x)", abs(score - swapped) > 1e-6),
        )
    )


@CHAPTER.claim(
    "W-6.2",
    section="6.2.1, (6.2)",
    statement="For jointly Gaussian x and y the mean score is μ_XᵀCμ_Y plus the trace of C times the upper right "
    "block Σ_XY of the joint covariance.",
    formula=r"E\langle Ax, By\rangle = \mu_X^T C \mu_Y + \mathrm{Tr}(C\,\Sigma_{XY}), \quad C = A^T B",
    correction="The trace takes the other block, Σ_YX = Σ_XYᵀ. The two agree only if C or Σ_XY is symmetric. Beyond "
    "the thesis: for dependent x and y the variance has two terms more than (6.3), the second and the last below, "
    "with a = Cμ_Y and b = Cᵀμ_X.",
    corrected=r"E\langle Ax, By\rangle = \mu_X^T C \mu_Y + \mathrm{Tr}(C\,\Sigma_{YX}), \quad \mathrm{Var} = "
    r"\mathrm{Tr}(\Sigma_X C\Sigma_Y C^T) + \mathrm{Tr}((C\Sigma_{YX})^2) + a^T\Sigma_X a + b^T\Sigma_Y b + "
    r"2a^T\Sigma_{XY}b",
    lesson="Written out, the mean is the sum of C_ij times E[x_i y_j]: the first index of the covariance belongs to "
    "x, as in C, so the entries are multiplied in place. A trace of a product pairs C_ij with the entry (j, i) of "
    "the other matrix, which is why the transposed block must stand there. A quick check: C with a single entry C_12.",
    slip=True,
)
def mean_score(lab: Lab) -> Evidence:
    pair = dependent_pair(lab)
    a, b, c = directed(lab, pair)
    x, y = draws(lab, pair)
    score = ((x @ a.mT) * (y @ b.mT)).sum(-1)
    stated = float(pair.mean_x @ c @ pair.mean_y + torch.trace(c @ pair.cov_xy))
    return Evidence(
        (mean_of("mean of ⟨Ax, By⟩, 100,000 dependent pairs, n = 4", stated, score),),
        (
            mean_of("mean of ⟨Ax, By⟩ with Σ_YX", float(score_mean(c, pair)), score),
            variance_of("variance of ⟨Ax, By⟩, dependent x and y", float(score_variance(c, pair)), score),
        ),
    )


@CHAPTER.claim(
    "W-6.3",
    section="6.2.1, (6.3), and B.1, (B.2)",
    statement="For independent Gaussian x and y the variance of the score has three terms: one from both spreads, "
    "one from each spread with the other's mean.",
    formula=r"\mathrm{Var}\langle Ax, By\rangle = \mathrm{Tr}(\Sigma_X C \Sigma_Y C^T) + \mu_Y^T C^T \Sigma_X C "
    r"\mu_Y + \mu_X^T C \Sigma_Y C^T \mu_X",
    lesson="Write x and y as mean plus noise and multiply out: mean times noise gives the last two terms, noise "
    "times noise the first, and they do not interfere. It uses only means and covariances, so x and y need not be "
    "Gaussian, only independent. For dependent pairs two terms are missing (see 6.2).",
)
def independent_variance(lab: Lab) -> Evidence:
    pair = alone(dependent_pair(lab))
    a, b, c = directed(lab, dependent_pair(lab))
    x, y = draws(lab, pair)
    score = ((x @ a.mT) * (y @ b.mT)).sum(-1)
    stated = torch.trace(pair.cov_x @ c @ pair.cov_y @ c.mT)
    for mean, cov, form in ((pair.mean_y, pair.cov_x, c), (pair.mean_x, pair.cov_y, c.mT)):
        stated = stated + mean @ form.mT @ cov @ form @ mean
    return Evidence((variance_of("variance of ⟨Ax, By⟩, 100,000 independent pairs, n = 4", float(stated), score),))


@CHAPTER.claim(
    "W-6.4",
    section="6.2.1, (6.4)",
    statement="The score itself, not its mean, equals xᵀCy plus the trace of CΣ_XY.",
    formula=r"\langle Ax, By\rangle = x^T A^T B y = x^T C y + \mathrm{Tr}(C\,\Sigma_{XY})",
    correction="The trace term does not belong there: it appears when the mean is taken.",
    corrected=r"\langle Ax, By\rangle = x^T A^T B y = x^T C y",
    lesson="The score of two given vectors knows nothing of the distribution from which they came, so no covariance "
    "can stand in it. The term comes from the mean of the product yxᵀ one line later.",
    slip=True,
)
def score_itself(lab: Lab) -> Evidence:
    pair = dependent_pair(lab)
    a, b, c = directed(lab, pair)
    x, y = draws(lab, pair, 1000)
    score = ((x @ a.mT) * (y @ b.mT)).sum(-1)
    form = ((x @ c) * y).sum(-1)
    extra = torch.trace(c @ pair.cov_xy)
    return Evidence(
        (exact("score less xᵀCy, 1000 pairs (the worst one): Tr(CΣ_XY)", extra, score - form),),
        (exact("score against xᵀCy, 1000 pairs (the worst one)", form, score),),
    )


@CHAPTER.claim(
    "W-6.7",
    section="6.2.1, (6.7)",
    statement="The mean of the outer product yxᵀ is μ_Yμ_Xᵀ plus Σ_XY.",
    formula=r"E[y x^T] = \mu_Y \mu_X^T + \Sigma_{XY}",
    correction="The rows of yxᵀ belong to y, so the block is Σ_YX, the lower left one.",
    corrected=r"E[y x^T] = \mu_Y \mu_X^T + \Sigma_{YX}",
    lesson="The entry (i, j) of yxᵀ is y_i x_j. Its covariance is that of y_i with x_j, which is the entry (i, j) of "
    "Σ_YX. The slip travels into (6.2).",
    slip=True,
)
def outer_product(lab: Lab) -> Evidence:
    pair = dependent_pair(lab)
    x, y = draws(lab, pair, 4 * _DRAWS)
    means = pair.mean_y[:, None] * pair.mean_x[None, :]
    stated, corrected = [], []
    for i, j in ((0, 1), (1, 0)):
        name = f"mean of y_{i + 1} x_{j + 1}"
        stated.append(mean_of(name, float(means[i, j] + pair.cov_xy[i, j]), y[:, i] * x[:, j]))
        corrected.append(mean_of(name, float(means[i, j] + pair.cov_xy.mT[i, j]), y[:, i] * x[:, j]))
    return Evidence(tuple(stated), tuple(corrected))


@CHAPTER.claim(
    "W-6.B7",
    section="B.1, (B.6) to (B.13)",
    statement="For Σ_XY = 0 the mean of Tr(C yyᵀ Cᵀ xxᵀ) splits into Tr(C E[yyᵀ] Cᵀ E[xxᵀ]), which gives the "
    "variance; the reason given is Isserlis' theorem.",
    formula=r"E\,\mathrm{Tr}(C y y^T C^T x x^T) = \mathrm{Tr}(C\,E[y y^T]\,C^T E[x x^T])",
    lesson="The step is right because x and y are independent: the mean of a product of independent factors is the "
    "product of the means, and Isserlis' theorem is not needed. It is needed for dependent Gaussian vectors, where "
    "it adds Tr((CΣ_YX)²) and 2μ_YᵀCᵀΣ_XYCᵀμ_X to the variance.",
)
def split_mean(lab: Lab) -> Evidence:
    dependent = dependent_pair(lab)
    pair = alone(dependent)
    _, _, c = directed(lab, dependent)
    x, y = draws(lab, pair)
    squares = ((x @ c) * y).sum(-1).square()
    second_x = pair.cov_x + pair.mean_x[:, None] * pair.mean_x
    second_y = pair.cov_y + pair.mean_y[:, None] * pair.mean_y
    predicted = float(torch.trace(c @ second_y @ c.mT @ second_x))
    expanded = float(score_variance(c, pair) + score_mean(c, pair) ** 2)
    return Evidence(
        (
            mean_of("mean of the squared score, 100,000 independent pairs", predicted, squares),
            exact("the four terms of (B.11) against the trace", predicted, expanded),
        )
    )


@CHAPTER.claim(
    "W-6.10",
    section="6.2.1, (6.10)",
    statement="The trace of AᵀB is the sum of the inner products of the columns of A with those of B.",
    formula=r"\mathrm{Tr}(A^T B) = \sum_{i=1}^n \langle a_i, b_i \rangle",
    lesson="The entry (i, i) of AᵀB is row i of Aᵀ, which is column i of A, times column i of B. It is the inner "
    "product of the two matrices read as long vectors, so the same sum over rows gives the same number.",
)
def trace_of_columns(lab: Lab) -> Evidence:
    a, b = lab.normal(2, 7, 7)
    columns = sum(float(a[:, i] @ b[:, i]) for i in range(7))
    return Evidence(
        (
            exact("sum over columns, 7 × 7", columns, float(torch.trace(a.mT @ b))),
            exact("sum over all products of entries", columns, float(alignment(a, b))),
        )
    )


@CHAPTER.claim(
    "W-6.10b",
    section="6.2.1, after (6.10)",
    statement="For orthonormal A and B a trace of AᵀB near n means AᵀB near the identity; a trace near 0 means that "
    "the columns are pairwise nearly orthogonal.",
    formula=r"\mathrm{Tr}(A^T B) \approx n \Rightarrow A^T B \approx 1, \quad \mathrm{Tr}(A^T B) \approx 0 "
    r"\Rightarrow \langle a_i, b_i\rangle \approx 0",
    correction="The first half is right. The second is not: terms of both signs cancel, so a trace of 0 only says "
    "that the inner products average to 0. Pairwise orthogonality needs their sum of squares to be small.",
    corrected=r"\|A^T B - 1\|_F^2 = 2n - 2\,\mathrm{Tr}(A^T B), \quad \mathrm{Tr}(A^T B) = 0 \Leftrightarrow \sum_i "
    r"\langle a_i, b_i\rangle = 0",
    lesson="Each inner product of unit vectors is at most 1, so a sum near n forces all of them to be near 1. A sum "
    "near 0 forces nothing: flip the sign of half of the columns of A and take that as B, and every pair is parallel "
    "or antiparallel while the trace is 0. A small trace is therefore no proof that two matrices are unrelated.",
)
def trace_near_zero(lab: Lab) -> Evidence:
    n = 8
    a = haar_frames(1, n, generator=lab.generator())[0]
    signs = torch.tensor([1.0, -1.0] * (n // 2), dtype=torch.float64)
    b = a * signs
    near = torch.linalg.qr(a + 0.02 * lab.normal(n, n, purpose="near")).Q
    near = near * (near * a).sum(0).sign()
    trace = float(alignment(a, near))
    cosines = (a * b).sum(0)
    deviation = a.mT @ near - torch.eye(n)
    return Evidence(
        (
            exact("‖AᵀB − 1‖² against 2n − 2 Tr, B near A", 2 * n - 2 * trace, float(deviation.norm()) ** 2),
            fact(f"AᵀB is near the identity where the trace is {trace:.3f} of 8", float(deviation.abs().max()) < 0.2),
            fact("a pair of bases with trace 0 has all |⟨a_i, b_i⟩| below 0.2", float(cosines.abs().max()) < 0.2),
        ),
        (
            Comparison("the trace of that pair", 0.0, float(alignment(a, b)), 1e-9),
            exact(
                "sum of squares of its inner products: all n parallel or antiparallel",
                float(n),
                float(cosines.square().sum()),
            ),
            exact("‖AᵀB − 1‖² = 2n for a trace of 0", 2.0 * n, float((a.mT @ b - torch.eye(n)).norm()) ** 2),
            exact("‖AᵀB − 1‖² against 2n − 2 Tr, B near A", 2 * n - 2 * trace, float(deviation.norm()) ** 2),
        ),
    )


@CHAPTER.claim(
    "W-6.10c",
    section="6.2.1, after (6.10)",
    statement="The lengths of the columns of A correspond to its squared singular values.",
    formula=r"\|a_i\|_2 \leftrightarrow \sigma_i(A)^2",
    correction="Only the totals agree: the squared lengths and the squared singular values have the same sum. One by "
    "one the squared lengths are more even (the singular values majorise them); they coincide only if the columns "
    "are orthogonal.",
    corrected=r"\sum_i \|a_i\|^2 = \sum_i \sigma_i^2, \quad \sum_{i \leq k} \|a_i\|^2_{\downarrow} \leq \sum_{i \leq "
    r"k} \sigma_i^2",
    lesson="The squared lengths are the diagonal of AᵀA, the squared singular values its eigenvalues. In a random "
    "matrix all columns have nearly the same length, yet the squared singular values run from 0 to four times their "
    "mean: what makes the spectrum wide is the angles between the columns.",
)
def column_lengths(lab: Lab) -> Evidence:
    n = 200
    a = lab.normal(n, n) / n**0.5
    squares = torch.linalg.svdvals(a).square()
    lengths = a.square().sum(0).sort(descending=True).values
    excess = (lengths.cumsum(0) - squares.cumsum(0)).max()
    return Evidence(
        (exact("lengths of the columns against σ², sorted, n = 200 (the worst pair)", squares, lengths.sqrt()),),
        (
            exact("sum of squared lengths against sum of σ²", float(squares.sum()), float(lengths.sum())),
            fact(
                "every partial sum of the longest squared lengths is at most that of the largest σ²",
                float(excess) < 1e-9,
            ),
            mean_of("variance of a squared length, 2/n", 2 / n, (a.square().sum(0) - 1).square()),
        ),
    )


@CHAPTER.claim(
    "W-6.11",
    section="6.2.1, (6.11)",
    statement="The trace of CᵀC is the sum of the squared inner products of all columns of A with all columns of B, "
    "and the squared Frobenius norm of C.",
    formula=r"\mathrm{Tr}(C^T C) = \sum_{i,j} \langle a_i, b_j\rangle^2 = \|C\|_F^2",
    lesson="The entry (i, j) of C = AᵀB is the inner product of column i of A and column j of B, and the trace of "
    "CᵀC adds up the squares of all entries. It measures how much the two sets of columns overlap, whichever column "
    "meets which.",
)
def frobenius(lab: Lab) -> Evidence:
    a, b = lab.normal(2, 6, 6)
    c = a.mT @ b
    total = sum(float(a[:, i] @ b[:, j]) ** 2 for i in range(6) for j in range(6))
    return Evidence(
        (
            exact("sum of squared inner products, 6 × 6", total, float(torch.trace(c.mT @ c))),
            exact("squared Frobenius norm", total, float(torch.linalg.matrix_norm(c)) ** 2),
            exact("sum of squared singular values", total, float(torch.linalg.svdvals(c).square().sum())),
        )
    )


@CHAPTER.claim(
    "W-6.11b",
    section="6.2.1, (6.11)",
    statement="If the covariances of x and y are nearly diagonal, the variance of the score depends mainly on the "
    "Frobenius norm of C.",
    formula=r"\Sigma_X, \Sigma_Y \ \mathrm{diagonal} \Rightarrow \mathrm{Var}(x^T C y) \propto \|C\|_F^2",
    correction="Every entry of C is weighted by the variances of its row and its column, so for a given C diagonal is "
    "not enough: the Frobenius norm alone decides where both covariances are multiples of the identity (and the means "
    "are 0). For a generic C, with independent entries, it does decide in high dimensions: the variance is the norm "
    "times the mean product of the variances, up to a relative error of order 1/n (3.5/n for the variances measured "
    "here).",
    corrected=r"\mathrm{Var}(x^T C y) = \sum_{i,j} s_i\, t_j\, C_{ij}^2; \quad C\ \mathrm{generic}: \ = "
    r"\bar{s}\,\bar{t}\,\|C\|_F^2\,(1 + O(1/n)), \quad s_i = (\Sigma_X)_{ii}, \ t_j = (\Sigma_Y)_{jj}",
    lesson="A coordinate that hardly varies hardly contributes, however large its entries in C. Two forms of the "
    "same Frobenius norm can therefore have very different variances. A form without structure averages that out. "
    "Learned forms are not generic and embeddings far from isotropic, so the distinction matters in practice.",
)
def diagonal_covariances(lab: Lab) -> Evidence:
    n = 4
    s, t = torch.tensor([4.0, 1.0, 0.25, 0.04]).double(), torch.tensor([9.0, 1.0, 0.5, 0.1]).double()
    c = lab.normal(n, n) / 2
    turned = c.flip(0, 1)
    x, y = lab.normal(2, 200_000, n, purpose="draws")
    first = ((x * s.sqrt() @ c) * (y * t.sqrt())).sum(-1)
    # The second form has the same norm, all of it where both variances are smallest.
    corner = torch.zeros(n, n, dtype=torch.float64)
    corner[-1, -1] = c.norm()
    second = ((x * s.sqrt() @ corner) * (y * t.sqrt())).sum(-1)
    plain = ((x @ turned) * y).sum(-1)
    weights = s[:, None] * t[None, :]
    sizes, spreads, errors = (8, 32, 128), [], []
    for size, forms in zip(sizes, (8000, 4000, 1500), strict=True):
        off = _off_by(lab, weights.repeat(size // 4, size // 4), forms)
        spreads.append(float(off.mean().sqrt()))
        errors.append(float(off.std()) / forms**0.5 / (2 * spreads[-1]))
    return Evidence(
        (
            variance_of(
                "variance with another C of the same norm, same diagonal covariances", float(first.var()), second
            ),
        ),
        (
            variance_of("variance with the first C, weighted sum", float((weights * c.square()).sum()), first),
            variance_of("variance with the other C, weighted sum", float((weights * corner.square()).sum()), second),
            variance_of("variance for Σ_X = Σ_Y = 1: squared Frobenius norm", float(c.square().sum()), plain),
        ),
        trend_of("variance over the mean product of variances times ‖C‖², less 1 (root mean square), generic C", "n",
                 sizes, spreads, -1.0, errors),
    )  # fmt: skip


def _off_by(lab: Lab, weights: Tensor, forms: int) -> Tensor:
    """Squares of Var/(s̄ t̄ ‖C‖²) − 1 over generic C.

    A matrix holds the products of the variances.
    """
    relative, size, parts = weights / weights.mean(), len(weights), []
    for part in range(4):
        squares = lab.normal(forms // 4, size, size, purpose=f"generic {size} {part}").square()
        parts.append(((relative * squares).sum((1, 2)) / squares.sum((1, 2)) - 1).square())
    return torch.cat(parts)


@CHAPTER.claim(
    "W-6.24a",
    section="6.2.4",
    statement="A token that is matched with itself has the mean score Tr(CΣ_X) plus μ_XᵀCμ_X.",
    formula=r"E\langle Ax, Bx\rangle = \mathrm{Tr}(C\,\Sigma_X) + \mu_X^T C \mu_X",
    lesson="It is the general formula with y = x, and here the order of the indices does not matter because Σ_X is "
    "symmetric. Only the symmetric part of C counts. The variance is 2Tr(SΣSΣ) + 4μᵀSΣSμ with S the symmetric part, "
    "also checked.",
)
def self_score(lab: Lab) -> Evidence:
    pair = dependent_pair(lab)
    same = GaussianPair.identical(pair.mean_x, pair.cov_x)
    a, b, c = directed(lab, pair)
    x, _ = draws(lab, pair)
    score = ((x @ a.mT) * (x @ b.mT)).sum(-1)
    stated = float(torch.trace(c @ pair.cov_x) + pair.mean_x @ c @ pair.mean_x)
    return Evidence(
        (
            mean_of("mean of ⟨Ax, Bx⟩, 100,000 draws, n = 4", stated, score),
            variance_of("its variance", float(score_variance(c, same)), score),
        )
    )


@CHAPTER.claim(
    "W-6.24b",
    section="6.2.4",
    statement="If the covariance of x is dominated by its diagonal, the two sets of columns must be mainly "
    "orthogonal to each other to raise Tr(AᵀBΣ_X).",
    formula=r"\mathrm{Tr}(A^T B\,\Sigma_X) \ \mathrm{large} \Rightarrow \langle a_i, b_j\rangle \approx 0",
    correction="The opposite: for a diagonal covariance the trace is the sum of s_i⟨a_i, b_i⟩, so column i of A must "
    "be aligned with column i of B, most of all where s_i is large. Orthogonal columns give 0, and inner products of "
    "different columns do not enter.",
    corrected=r"\mathrm{Tr}(A^T B\,\Sigma_X) = \sum_i s_i \langle a_i, b_i\rangle \leq \sum_i s_i \|a_i\| \|b_i\|",
    lesson="A token meets itself, so what its query keeps of a coordinate must be what its key keeps of the same "
    "coordinate. Parallel columns do that best. Whether different columns are orthogonal changes the spread of the "
    "score, not its mean.",
    slip=True,
)
def orthogonal_columns(lab: Lab) -> Evidence:
    n = 5
    s = lab.uniform(n) + 0.5
    a = lab.normal(n, n, purpose="A")
    lengths = a.norm(dim=0)
    # Orthogonal: column i of B has no part along any column of A, in twice the dimensions.
    zeros = torch.zeros(n, n, dtype=torch.float64)
    high_a, orthogonal = torch.cat((a, zeros)), torch.cat((zeros, a))
    frame = torch.cat((haar_frames(1, n, generator=lab.generator("frame"))[0] * lengths, zeros))
    other = torch.linalg.solve(a.mT, torch.diag(lengths.square()))
    draws_x = s.sqrt() * lab.normal(50_000, n, purpose="x")
    score = ((draws_x @ a.mT) * (draws_x @ a.mT)).sum(-1)

    def trace(left: Tensor, right: Tensor) -> float:
        return float(torch.trace(left.mT @ right @ torch.diag(s)))

    best = float((s * lengths.square()).sum())
    return Evidence(
        (
            fact("columns orthogonal to each other raise the trace above 0", trace(high_a, orthogonal) > 1e-9),
            fact(
                "they raise it above that of aligned columns of the same lengths",
                trace(high_a, orthogonal) > trace(high_a, high_a),
            ),
        ),
        (
            Comparison("trace with columns orthogonal to each other", 0.0, trace(high_a, orthogonal), 1e-12),
            exact("trace with aligned columns, the sum of s_i‖a_i‖‖b_i‖", best, trace(a, a)),
            mean_of("mean score of a token with itself, aligned columns", best, score),
            exact("the same with ⟨a_i, b_j⟩ = 0 for i ≠ j: no more and no less", best, trace(a, other)),
            fact("other columns of the same lengths stay below", trace(high_a, frame) <= best + 1e-9),
        ),
    )


@CHAPTER.claim(
    "W-6.24c",
    section="6.2.4",
    statement="Dependent Gaussian vectors with larger singular values in their cross-covariance have a higher mean "
    "score.",
    formula=r"\sigma_i(\Sigma_{XY}) \ \mathrm{larger} \Rightarrow E\langle Ax, By\rangle \ \mathrm{larger}",
    correction="The shift is Tr(CΣ_YX); its sign is that of the alignment of C with Σ_XY. Larger singular values "
    "enlarge the shift in either direction: up to the sum of products of the ordered singular values, and for a "
    "random C with mean 0 and variance proportional to ‖Σ_XY‖².",
    corrected=r"|\mathrm{Tr}(C\,\Sigma_{YX})| \leq \sum_i \sigma_i(C)\,\sigma_i(\Sigma_{XY}), \quad C_{ij} \sim N(0, "
    r"v): \ \mathrm{Var}\,\mathrm{Tr}(C\,\Sigma_{YX}) = v\,\|\Sigma_{XY}\|_F^2",
    lesson="Strong dependence is only an opportunity. A head whose matrix C is aligned with the dependence raises "
    "related pairs, one with the opposite sign suppresses them, and one that looks elsewhere does not notice. That "
    "it shifts the mean up is something that training must do.",
)
def dependence_shifts(lab: Lab) -> Evidence:
    n = 4
    u, v = haar_frames(2, n, generator=lab.generator("bases"))
    cov_xy = 0.6 * (u * torch.tensor([1.0, 0.8, 0.5, 0.2]).double()) @ v.mT
    identity, zero = torch.eye(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    weak, strong = (GaussianPair(zero, zero, identity, identity, factor * cov_xy) for factor in (0.5, 1.0))
    forms = lab.normal(40_000, n, n, purpose="forms") / n**0.5
    shifts = (forms * cov_xy).sum((-2, -1))
    raised = (shifts > shifts / 2).double()
    against = -(u @ v.mT)
    x, y = draws(lab, strong, 50_000)
    score = ((x @ against) * y).sum(-1)
    bound = float(torch.linalg.svdvals(cov_xy).sum())
    return Evidence(
        (mean_of("share of random C for which doubling Σ_XY raises the mean score", 1.0, raised),),
        (
            mean_of("share of random C for which doubling Σ_XY raises the mean score", 0.5, raised),
            mean_of("mean shift over random C", 0.0, shifts),
            variance_of("variance of the shift over random C", float(cov_xy.square().sum() / n), shifts),
            mean_of("mean score for C aligned against the dependence: minus the bound", -bound, score),
            exact("the mean score halves there with Σ_XY", -bound / 2, float(score_mean(against, weak))),
        ),
    )
