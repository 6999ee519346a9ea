r"""Wertich, section 7.2.1: is attention of low rank?"""

import math

import numpy as np
import torch

from headscope.core.figure import Curves, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.theory.checks import Lab, exact, fact, mean_of, trend_of
from headscope.theory.works import wertich

CHAPTER = wertich()


@CHAPTER.claim(
    "W-7.2a",
    section="7.2.1",
    statement="For every column w of the values there is a matrix of rank of order log n that acts on w like the "
    "softmax matrix P, up to a relative error ε, with high probability.",
    formula=r"\Pr\left(|\tilde{P} w - P w| < \epsilon\,|P w|\right) > 1 - o(1), \quad "
    r"\mathrm{rank}(\tilde{P}) \in \Theta(\log n)",
    lesson="As it stands, w is chosen before the matrix, and then the theorem is true and nearly empty: the rank-one "
    "matrix P w wᵀ/|w|² maps w to P w without any error. All d columns of the values are served exactly by P V V⁺, of "
    "rank d. What the theorem does not give is one matrix of rank log n for all w: for attention that looks at itself, "
    "P = 1, every such matrix misses most vectors almost entirely. The random projection P RᵀR of its proof is off by "
    "ε |P_i| |w| in row i, which may be far more than ε |P w|. So nothing about attention is said: a matrix of random "
    "numbers satisfies it just as well.",
    related=("W-7.2d", "C-9c"),
)
def acts_alike(lab: Lab) -> Evidence:
    n, d = 200, 16
    p, v = _softmax_matrix(lab, n, d, 1.0)
    noise = lab.normal(n, n, purpose="no attention at all")
    return Evidence(_served(lab, p, v, "softmax"), null=_served(lab, noise, v, "random numbers"))


def _served(lab: Lab, p: torch.Tensor, v: torch.Tensor, name: str) -> tuple[Comparison, ...]:
    """Matrices of rank log n that act like P, each on one column of the values."""
    n, d = v.shape
    rank = math.ceil(math.log(n))
    worst, ranks = 0.0, []
    for column in range(d):
        w = v[:, column : column + 1]
        near = p @ w @ w.mT / w.square().sum()
        # Directions at right angles to w bring the rank up to log n without touching P w.
        perpendicular = torch.linalg.qr(torch.cat((w, lab.normal(n, rank - 1, purpose=f"{name} {column}")), 1)).Q[:, 1:]
        near = near + p @ perpendicular @ perpendicular.mT
        worst = max(worst, float((near @ w - p @ w).norm() / (p @ w).norm()))
        ranks.append(int(torch.linalg.matrix_rank(near)))
    return (
        exact(f"{name}: rank of the matrix made for one w, n = {n}", float(rank), torch.tensor(ranks).double()),
        exact(f"{name}: its relative error on w, worst of {d} columns", 1.0, 1.0 + worst),
    )


@CHAPTER.claim(
    "W-7.2c",
    section="7.2.1",
    statement="The probability of success is about 1 − 2 exp(−(ε² + ε³) log(n)/4).",
    formula=r"1 - o(1) \approx 1 - 2 e^{-(\epsilon^2 + \epsilon^3) \log(n) / 4}",
    correction="The cubic term has a minus sign, and the exponent holds the number k of projected dimensions, which is "
    "5 log n/(ε² − ε³) and not log n. For one vector the bound is 1 − 2 exp(−(ε² − ε³) k/4), for all n rows together "
    "1 − 2 n^(−1/4).",
    corrected=r"\Pr \geq 1 - 2 e^{-(\epsilon^2 - \epsilon^3) k / 4}, \quad "
    r"k = \frac{5 \log n}{\epsilon^2 - \epsilon^3} \ \Rightarrow\ 1 - 2 n^{-1/4}\ \mathrm{for}\ n\ \mathrm{rows}",
    lesson="A random projection to k dimensions keeps the squared length of a vector up to a factor whose law is "
    "chi-squared with k degrees of freedom over k, so the chance of failure can be computed. It falls with k, and the "
    "stretching side falls slower than the square suggests: hence the minus. With log n in place of k the stated value "
    "is negative for every practical n.",
    slip=True,
)
def success_probability(lab: Lab) -> Evidence:
    epsilon = 0.5
    stated, corrected = [], []
    for k in (100, 200, 400):
        failure = _length_failure(k, epsilon)
        stated.append(fact(f"chance of failure at ε = ½, k = log n = {k} is at most the stated one",
                           failure <= 2 * math.exp(-(epsilon**2 + epsilon**3) * k / 4)))  # fmt: skip
    for eps in (0.1, 0.3, 0.5, 0.8):
        below = all(_length_failure(k, eps) <= 2 * math.exp(-(eps**2 - eps**3) * k / 4) for k in (3, 10, 100, 1000))
        corrected.append(fact(f"chance of failure at ε = {eps}, k = 3 to 1000 is at most the corrected one", below))
    value = 1 - 2 * math.exp(-(0.1**2 + 0.1**3) * math.log(1000) / 4)
    stated.append(fact(f"the stated value at ε = 0.1, n = 1000 ({value:.2f}) lies between 0 and 1", value >= 0))
    for n in (100, 10_000):
        k = math.ceil(5 * math.log(n) / (epsilon**2 - epsilon**3))
        corrected.append(fact(f"n = {n} rows, ε = ½, k = {k}: failure at most 2 n^(−1/4)",
                              n * _length_failure(k, epsilon) <= 2 * n**-0.25))  # fmt: skip
    # The chi-squared law itself, by projecting one vector.
    x = lab.normal(1, 60, purpose="vector")
    lengths = (x @ (lab.normal(4_000, 60, 20, purpose="projections") / math.sqrt(20))).square().sum(-1)
    share = ((lengths / x.square().sum() - 1).abs() > epsilon).to(torch.float64)
    chance = _length_failure(20, epsilon)
    corrected.append(Comparison("measured failures of random projections, ε = ½, k = 20", chance, float(share.mean()),
                                math.sqrt(chance * (1 - chance) / len(share))))  # fmt: skip
    return Evidence(tuple(stated), tuple(corrected))


@CHAPTER.claim(
    "W-7.2d",
    section="7.2.1",
    statement="Hence the rank of the softmax matrix itself is about log n, and its other singular values are close to "
    "zero.",
    formula=r"\mathrm{rank}(P) \approx \Theta(\log n)",
    correction="It does not follow. A softmax matrix has full rank n in general, and its singular values beyond log n "
    "can hold most of its energy; P = 1 has n singular values 1. Low rank needs nearly constant rows (then the rank is "
    "nearly 1), or concerns only the action on given vectors.",
    corrected=r"\mathrm{rank}(P) = n\ \mathrm{in\ general}, \quad "
    r"\min_{\mathrm{rank}\,\tilde{P} \leq k}\ \max_{|w| = 1} |P w - \tilde{P} w| = \sigma_{k+1}(P)",
    lesson="The theorem speaks about one vector at a time; rank speaks about all of them. The exponential raises rank "
    "rather than lowering it: scores of rank d_k become a matrix of full rank. How fast its singular values fall "
    "depends on the size of the scores: flat attention is close to rank one, sharp attention close to a permutation.",
)
def rank_of_softmax(lab: Lab) -> Evidence:
    stated, corrected, ranks = [], [], []
    for n in (64, 128, 256):
        p, _ = _softmax_matrix(lab, n, 64, 1.0)
        rank, few = int(torch.linalg.matrix_rank(p)), math.ceil(math.log(n))
        ranks.append(rank)
        energy = torch.linalg.svdvals(p).square()
        beyond = float(energy[few:].sum() / energy.sum())
        stated.append(exact(f"numerical rank of a softmax matrix, n = {n}", float(few), float(rank)))
        corrected.append(exact(f"numerical rank of a softmax matrix, n = {n}", float(n), float(rank)))
        corrected.append(fact(f"its singular values beyond the {few} largest hold over a third of its energy, n = {n}",
                              beyond > 1 / 3))  # fmt: skip
    sharp, _ = _softmax_matrix(lab, 128, 64, 30.0, diagonal=60.0)
    corrected.append(exact("smallest singular value of attention that looks at itself", 1.0,
                           torch.linalg.svdvals(sharp)[-1]))  # fmt: skip
    corrected += _one_matrix_for_all(lab)
    sizes = (64, 128, 256)
    trend = trend_of("relative error of log n as the rank", "n", sizes,
                     [(r - math.log(n)) / r for n, r in zip(sizes, ranks, strict=True)], 0.0)  # fmt: skip
    return Evidence(tuple(stated), tuple(corrected), trend, figures=(_spectra(lab),))


def _one_matrix_for_all(lab: Lab) -> list[Comparison]:
    """Error of rank log n for P = 1 on vectors that it does not know beforehand."""
    n, k, draws = 128, math.ceil(math.log(128)), 400
    w = lab.normal(draws, n, 1, purpose="unknown")
    basis = torch.linalg.qr(lab.normal(n, k, purpose="basis")).Q
    missed = (w - basis @ (basis.mT @ w)).square().sum((1, 2)) / w.square().sum((1, 2))
    r = lab.normal(draws, k, n, purpose="projections") / math.sqrt(k)
    off = (r.mT @ (r @ w) - w).square().sum((1, 2)) / w.square().sum((1, 2))
    return [
        mean_of(
            f"P = 1, n = {n}: squared share of an unknown w missed by a best matrix of rank {k}", 1 - k / n, missed
        ),
        mean_of(f"the same for a random projection RᵀR of rank {k}: (n + 1)/k", (n + 1) / k, off),
    ]


def _spectra(lab: Lab) -> Curves:
    n = 256
    series = []
    for scale in (0.1, 0.5, 1.0, 4.0):
        p, _ = _softmax_matrix(lab, n, 64, scale)
        sigma = torch.linalg.svdvals(p).numpy()
        series.append(Series(f"scores of spread {scale:g}", np.arange(1, n + 1, dtype=float), sigma))
    few = math.log(n)
    series.append(Series("log n", np.array([few, few]), np.array([1e-5, 2.0]), role="null"))
    return Curves(
        "softmax_spectra",
        "Singular values of softmax matrices",
        "256 random tokens, keys of width 64. Nothing happens at log n: there is one large value (the mean row), then "
        "a slope that depends on how large the scores are. Small scores show a step after 64, the rank of the scores "
        "themselves.",
        "number of the singular value",
        "singular value",
        tuple(series),
        log_x=True,
        log_y=True,
    )


def _softmax_matrix(lab: Lab, n: int, d: int, scale: float, diagonal: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """A softmax matrix of random scores of this spread, and the values."""
    q, k, v = lab.normal(3, n, d, purpose=f"{n} {d}")
    scores = scale * q @ k.mT / math.sqrt(d) if not diagonal else diagonal * torch.eye(n, dtype=torch.float64)
    return torch.softmax(scores, -1), v


def _length_failure(k: int, epsilon: float) -> float:
    """The chance that a projection to k dimensions changes a squared length by > ε.

    The projection is Gaussian, and ε is a share of the length.
    """
    half = torch.tensor(k / 2, dtype=torch.float64)
    below = torch.special.gammainc(half, half * (1 - epsilon))
    above = torch.special.gammaincc(half, half * (1 + epsilon))
    return float(below + above)
