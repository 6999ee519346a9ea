"""Conti, section 2.1.3: low rank, random projections and the Linformer."""

import math

import numpy as np
import polars as pl
import torch
from scipy.stats import chi2
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from headscope.core import Finding
from headscope.core.figure import Curves, Series
from headscope.core.verdict import STANDARD_ERRORS, Evidence
from headscope.theory.checks import Lab, counted, exact, fact, less_than, mean_of, order_of, trend_of
from headscope.theory.finding_reader import errors, numbers, rows_of
from headscope.theory.works import conti

CHAPTER = conti()


def _attention_map(lab: Lab, n: int, d: int, purpose: str = "") -> Tensor:
    q, k = lab.normal(n, d, purpose=f"q{purpose}"), lab.normal(n, d, purpose=f"k{purpose}")
    return torch.softmax(q @ k.mT / math.sqrt(d), -1)


@CHAPTER.claim(
    "C-9g",
    section="2.1.3",
    statement="The matrix of self-attention is assumed to have low rank: n × n can be reduced to n × k with k < n "
    "without significant loss.",
    formula=r"\mathrm{rank}(P) \ll n",
    correction="The scores QKᵀ have a rank of at most d_k, but their softmax P has in general the full rank n. Low "
    "rank is an approximation: for random queries and keys of a fixed width the stable rank of P stays finite as n "
    "grows, so its share of n falls like 1/n. How far that goes in a trained model must be measured.",
    corrected=r"\mathrm{rank}(P) = n\ \mathrm{in\ general}, \quad \|P\|_F^2 / \sigma_1^2 = O(1) \quad "
    r"(n \rightarrow \infty,\ d_k\ \mathrm{fixed})",
    lesson="The softmax works entry by entry and does not respect rank: the exponential of a matrix of rank 8 has "
    "terms of all powers of its entries. Yet few of its singular values are large, since keys of 8 numbers cannot "
    "differ in more than a limited number of ways that matter. So P can be rebuilt from few directions with an "
    "error, and that error, in trained heads, is what the lens lowrank measures (C-9f).",
    related=("C-9f", "W-7.2d"),
)
def rank_of_attention(lab: Lab) -> Evidence:
    d, sizes, draws = 8, (32, 96, 288), 40
    q, k = lab.normal(64, d, purpose="q"), lab.normal(64, d, purpose="k")
    scores = q @ k.mT / math.sqrt(d)
    rank = int(torch.linalg.matrix_rank(torch.softmax(scores, -1)))
    shares = {
        n: torch.stack([_stable_rank(_attention_map(lab, n, d, f"{n} {i}")) / n for i in range(draws)]) for n in sizes
    }
    return Evidence(
        stated=(counted("rank of P over n, n = 64, d_k = 8: next to nothing", 0.0, rank / 64),),
        corrected=(
            counted("rank of the scores", float(d), float(torch.linalg.matrix_rank(scores))),
            counted("rank of P", 64.0, float(rank)),
        ),
        trend=trend_of("stable rank of P over n, d_k = 8", "n", sizes, [float(x.mean()) for x in shares.values()], -1.0,
                       [float(x.std()) / draws**0.5 for x in shares.values()]),
    )  # fmt: skip


def _stable_rank(p: Tensor) -> Tensor:
    """Squared Frobenius norm over squared spectral norm."""
    largest: Tensor = torch.linalg.eigvalsh(p.mT @ p)[-1]
    return p.square().sum() / largest


@CHAPTER.claim(
    "C-9a",
    section="2.1.3",
    statement="The row-wise softmax of a square matrix of order n has the complexity o(n²).",
    formula=r"o(n^2)",
    correction="It is O(n²), and no less: every one of the n² entries must be read. The small o says that the cost "
    "over n² goes to 0.",
    corrected=r"\Theta(n^2)",
    lesson="Small o means strictly smaller growth, capital O at most the same growth. Every entry moves its whole row "
    "of the result, so an algorithm that skipped one could not be right: n² entries have to be read, and three "
    "operations on each are enough.",
    slip=True,
)
def softmax_cost(lab: Lab) -> Evidence:
    sizes = (8, 16, 32)
    needed = []
    for n in sizes:
        x = lab.normal(n, n, purpose=f"{n}")
        before = torch.softmax(x, -1)
        # An entry must be read if changing it alone changes the result.
        moved = torch.eye(n * n, dtype=torch.float64).reshape(n * n, n, n)
        after = torch.softmax(x + moved, -1)
        needed.append(float(((after - before).abs().amax((1, 2)) > 1e-9).sum()))
    share = needed[-1] / sizes[-1] ** 2
    return Evidence(
        stated=(counted("entries that must be read, over n², n = 32 and beyond: 0 in the limit", 0.0, share),),
        corrected=(
            *(
                counted(f"entries that must be read, n = {n}", n * n, entries)
                for n, entries in zip(sizes, needed, strict=True)
            ),
            order_of("power of n in that number", "n", 2.0, sizes, needed),
        ),
    )


def _few_components(finding: Finding) -> Evidence | None:
    """Components for 90 % of the energy in each head, against a shuffled map.

    The shuffled map has the same sharpness and random keys.
    """
    rows = rows_of(finding, "components", ("value", "low", "high", "shuffled", "tokens"), quantity="components_90")
    if rows is None or numbers(rows, "tokens").max() < 64:
        return None
    size = int(numbers(rows, "tokens").max())
    longest = rows.filter(pl.col("tokens") == size)
    needed, null, spread = numbers(longest), numbers(longest, "shuffled"), errors(longest)
    no_fewer = int((needed - null > STANDARD_ERRORS * spread).sum())
    return Evidence(
        (
            less_than(f"components that hold 90 % of the energy of a {size} × {size} map, mean over heads, beside maps "
                      "of the same sharpness with keys at random", float(null.mean()), float(needed.mean()),
                      float(spread.mean())),
            counted(f"heads of {len(needed)} that clearly need more of them than such maps", 0, no_fewer),
        )
    )  # fmt: skip


CHAPTER.of_a_model(
    "C-9f",
    section="2.1.3",
    statement="The singular values of trained attention maps have a long tail: the first few carry most of the "
    "information, in all layers, heads and tasks.",
    formula=r"\sum_{i \leq k} \sigma_i^2(P) \approx \sum_i \sigma_i^2(P), \quad k \ll n",
    lesson="A long tail means that few singular values are large and many small. One large one is no surprise: rows "
    "that sum to 1 force a singular value of at least 1, also for a random map. So the question is how fast the "
    "others fall, beside maps of the same sharpness whose rows look at keys at random. A head that looks at itself "
    "or at a neighbour needs nearly all components, more than a map with keys at random.",
    lens="lowrank",
    reason="the singular values of the attention maps of a trained model, beside maps of the same sharpness",
    judge=_few_components,
)


@CHAPTER.claim(
    "C-9b",
    section="2.1.3",
    statement="The softmax of A is exp(A) times the inverse of a diagonal matrix from the right.",
    formula=r"P = \exp(A) \cdot D_A^{-1}",
    correction="The diagonal matrix of row sums must stand on the left: from the right it would scale columns.",
    corrected=r"P = D_A^{-1} \exp(A), \quad (D_A)_{ii} = \sum_j e^{A_{ij}}",
    lesson="A diagonal matrix from the left multiplies rows, from the right columns. The softmax normalises each "
    "row, so its factors stand on the left. With the factors on the right the rows do not sum to 1. (The exponential "
    "is taken entry by entry; it is not the matrix exponential.)",
    slip=True,
)
def row_normalisation(lab: Lab) -> Evidence:
    a = lab.normal(6, 6)
    p = torch.softmax(a, -1)
    inverse = torch.diag(1 / a.exp().sum(-1))
    name = "softmax of a random 6 × 6 matrix"
    return Evidence(
        stated=(exact(name, a.exp() @ inverse, p),),
        corrected=(exact(name, inverse @ a.exp(), p), exact("row sums", 1.0, (inverse @ a.exp()).sum(-1))),
    )


@CHAPTER.claim(
    "C-9c",
    section="2.1.3",
    statement="With R a k × n matrix of independent entries, P RᵀR is near P in its action on any vector of values, "
    "with a probability that tends to 1, for k smaller than n.",
    formula=r"\Pr(\|\tilde{P} w - P w\| < \epsilon \|P w\|) > 1 - o(1) \ \forall w, \quad \tilde{P} = P R^{\top} R",
    correction="No R with k < n serves every w: on its null space the result is 0. For one fixed w, drawn without "
    "knowledge of R, with entries of mean 0 and variance 1/k, the mean squared error is known exactly; it is small "
    "against ‖Pw‖² only if k is large against ρ = ‖P‖²_F ‖w‖² / ‖Pw‖², which is of the order n for random w.",
    corrected=r"E \|\tilde{P} w - P w\|^2 = \frac{\|P\|_F^2 \|w\|^2 + \|P w\|^2}{k}",
    lesson="A random projection keeps lengths, and inner products up to an error of size ‖x‖‖w‖/√k. That is small "
    "against the lengths, but not against the inner product itself when the vectors are nearly orthogonal, and "
    "averaging values makes P w much shorter than w. The number of dimensions that one needs is then of the order n, "
    "not ln n.",
)
def projected_attention(lab: Lab) -> Evidence:
    n, d, epsilon = 512, 16, 0.5
    p = _attention_map(lab, n, d)
    w = lab.normal(n, purpose="w")
    pw = p @ w
    enough = math.ceil(5 * math.log(n) / (epsilon**2 - epsilon**3))  # the number of the cited paper's proof
    draws = [lab.normal(enough, n, purpose=f"R{i}") / math.sqrt(enough) for i in range(12)]
    ratios = torch.stack([(p @ (r.mT @ (r @ w)) - pw).norm() / pw.norm() for r in draws])
    null = torch.linalg.qr(draws[0].mT, mode="complete").Q[:, -1]
    null_space_error = float((p @ (draws[0].mT @ (draws[0] @ null)) - p @ null).norm() / (p @ null).norm())
    # The law of the squared error, at a smaller size so that many matrices can be drawn.
    size, corrected = 64, []
    small = _attention_map(lab, size, d, "small")
    means, predicted = [], []
    sizes = (4, 16, 64)
    vectors = {"random w": lab.normal(size, purpose="small w"), "constant w": torch.ones(size, dtype=torch.float64)}
    for name, vector in vectors.items():
        for k in sizes:
            r = lab.normal(2000, k, size, purpose=f"{name}{k}") / math.sqrt(k)
            away = ((r.mT @ (r @ vector)[..., None])[..., 0] - vector) @ small.mT
            squared = away.square().sum(-1)
            mean = float((small.square().sum() * vector.square().sum() + (small @ vector).square().sum()) / k)
            corrected.append(mean_of(f"mean squared error, {name}, n = 64, k = {k}", mean, squared))
            if name == "random w":
                length = float((small @ vector).square().sum())
                means.append(math.sqrt(float(squared.mean()) / length))
                predicted.append(math.sqrt(mean / length))
    x = np.array(sizes, dtype=np.float64)
    figure = Curves(
        "projection", "How far a random projection of the keys moves the output",
        "Root mean squared error over the length of Pw, n = 64, one random w, 2000 random projections.",
        "dimension k of the projection", "relative error",
        (Series("measured", x, np.array(means)), Series("√((ρ + 1)/k)", x, np.array(predicted), role="theory")),
        log_x=True, log_y=True,
    )  # fmt: skip
    return Evidence(
        stated=(
            fact(
                f"a random w, n = 512, ε = 0.5, k = {enough}: all 12 projections succeed",
                bool((ratios < epsilon).all()),
            ),
            fact("a w in the null space of R keeps a relative error below 0.5", null_space_error < epsilon),
        ),
        corrected=(*corrected, exact("relative error for w in the null space of R", 1.0, null_space_error)),
        figures=(figure,),
    )


def _rate(x: Tensor) -> Tensor:
    """Chernoff's rate: P(χ²_n/n beyond x) ≤ exp(−n·rate)."""
    return (x - 1 - x.log()) / 2


@CHAPTER.claim(
    "C-9d",
    section="2.1.3",
    statement="Johnson and Lindenstrauss: m points can be mapped linearly into any dimension n > 8 ln(m)/ε² so that "
    "all squared distances are kept up to the factors 1 ± ε, for 0 < ε < 1.",
    formula=r"n > 8 \ln(m) / \epsilon^2 \Rightarrow (1-\epsilon) \|u-v\|^2 \leq \|f(u)-f(v)\|^2 \leq "
    r"(1+\epsilon) \|u-v\|^2",
    lesson="A Gaussian map, divided by √n, proves this only from 8 ln(m)/(ε² − 2ε³/3) dimensions on, since squared "
    "lengths that are too large are likelier than ones that are as much too small. But the map may be scaled: with "
    "the factor c² = 2ε/ln((1+ε)/(1−ε)) both tails fall at a rate of at least ε²/4, so that all m(m−1)/2 pairs are "
    "good at once with positive probability, and a good map exists. The stated constant 8 is right.",
)
def johnson_lindenstrauss(lab: Lab) -> Evidence:
    epsilon = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    square = 2 * epsilon / torch.log((1 + epsilon) / (1 - epsilon))
    above, below = _rate((1 + epsilon) / square), _rate((1 - epsilon) / square)
    bounds = []
    for m in (2, 10, 1000, 10**6):
        for e in (0.05, 0.3, 0.6, 0.9, 0.99):
            n = math.floor(8 * math.log(m) / e**2) + 1
            c = 2 * e / math.log((1 + e) / (1 - e))
            tails = float(chi2.sf(n * (1 + e) / c, n) + chi2.cdf(n * (1 - e) / c, n))
            bounds.append(m * (m - 1) / 2 * tails)
    # An explicit map: 40 points in 300 dimensions, ε = 0.6.
    m, e = 40, 0.6
    n = math.floor(8 * math.log(m) / e**2) + 1
    c = 2 * e / math.log((1 + e) / (1 - e))
    points = lab.normal(m, 300, purpose="points") * (3 * lab.normal(300, purpose="spread")).exp()
    pairs = torch.triu_indices(m, m, 1)
    away = points[pairs[0]] - points[pairs[1]]
    successes = []
    for draw in range(12):
        ratio = (away @ lab.normal(300, n, purpose=f"map{draw}")).square().sum(-1) * c / n / away.square().sum(-1)
        successes.append(bool(((ratio >= 1 - e) & (ratio <= 1 + e)).all()))
    return Evidence(
        (
            fact(
                "both rates are at least ε²/4 at 999 values of ε",
                bool((torch.minimum(above, below) >= epsilon**2 / 4).all()),
            ),
            exact("the scale makes them equal", above, below, scale=100.0),
            fact("expected number of bad pairs below 1 for m = 2 … 10⁶, ε = 0.05 … 0.99", max(bounds) < 1),
            fact(f"a map of 40 points into {n} dimensions with ε = 0.6 found in 12 draws", any(successes)),
        )
    )


@CHAPTER.claim(
    "C-9e",
    section="2.1.3",
    statement="A Linformer head is an n × k softmax times projected values of the size k × d, with d the width of the "
    "head's values, as in the cited paper.",
    formula=r"\mathrm{head}_i = \mathrm{softmax}\left(\frac{Q W_i^Q (E_i K W_i^K)^{\top}}{\sqrt{d_k}}\right)"
    r"_{n \times k} (F_i V W_i^V)_{k \times d}",
    lesson="Keys and values are shortened along the sequence, and the cost falls from n² to nk. The letter d is "
    "Linformer's own for the width of a head; elsewhere in this text it is the width of the model, and read so the "
    "size would fit only a single head. With E = F = the identity the head is ordinary attention.",
)
def linformer_head(lab: Lab) -> Evidence:
    n, d, heads, k = 20, 12, 3, 5
    d_k = d // heads
    x = lab.normal(n, d, purpose="x")
    w_q, w_k, w_v = (lab.normal(d, d, purpose=name)[:, :d_k] for name in "qkv")
    e, f = lab.normal(k, n, purpose="e"), lab.normal(k, n, purpose="f")

    def head(shorten_keys: Tensor, shorten_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights = torch.softmax((x @ w_q) @ (shorten_keys @ x @ w_k).mT / math.sqrt(d_k), -1)
        values = shorten_values @ (x @ w_v)
        return weights, values, weights @ values

    weights, values, _ = head(e, f)
    eye = torch.eye(n, dtype=torch.float64)
    dense = torch.softmax((x @ w_q) @ (x @ w_k).mT / math.sqrt(d_k), -1) @ (x @ w_v)
    with FlopCounterMode(display=False) as counter:
        (x @ w_q) @ (e @ (x @ w_k)).mT
    projections = 2 * (2 * n * d * d_k) + 2 * k * n * d_k
    return Evidence(
        (
            counted("rows of the softmax", n, weights.shape[0]),
            counted("columns of the softmax", k, weights.shape[1]),
            counted("rows of the projected values", k, values.shape[0]),
            counted("columns of the projected values: the width of a head, 4 of 12", d_k, values.shape[1]),
            exact("with E = F = 1 it is dense attention", dense, head(eye, eye)[2]),
            counted("operations for the scores: 2 n k d_k", 2 * n * k * d_k, counter.get_total_flops() - projections),
        )
    )
