"""The readme of Conti's thesis: attention as structured matrix and sparse error."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from headscope.core.figure import HeatMap
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.linear_algebra.projections import distance, nearest_band_and_entries, nearest_on_support
from headscope.maths.linear_algebra.structured_maps import (
    positional_head,
    rare_token_head,
    syntactic_head,
    with_sparse_error,
)
from headscope.maths.linear_algebra.supports import band
from headscope.theory.checks import Lab, exact, fact
from headscope.theory.works import conti_readme

CHAPTER = conti_readme()


@CHAPTER.claim(
    "R-1",
    section="Contents",
    statement="Attention is at a high level the identity times a structured matrix plus an error.",
    formula=r"I_n P + \tilde{E}, \quad P \in \Sigma",
    lesson="The identity changes nothing, and with an error that may be anything the formula fits every matrix: take "
    "the error to be the rest. A matrix of random numbers is of this form as well. It says something only if the error "
    "is small or sparse, and since a softmax has no zeros it can never be exactly sparse. How far trained heads are "
    "from each family, beside what the zero matrix and random maps give, is the question that is left (R-8).",
    related=("R-8",),
)
def structure_and_rest(lab: Lab) -> Evidence:
    n = 16
    families = (
        ("positional", positional_head(n)),
        ("syntactic", syntactic_head(n, 2, 0.3, lab.generator("syntactic"))),
        ("rare token", rare_token_head(n, 4, 2, lab.generator("rare"))),
    )
    eye = torch.eye(n, dtype=torch.float64)

    def fits(name: str, a: Tensor) -> tuple[Comparison, ...]:
        """Each family of maps; the difference to the map is its error."""
        return tuple(exact(f"{name} as {family} matrix plus error", a, eye @ p + (a - p)) for family, p in families)

    attention = torch.softmax(lab.normal(n, n, purpose="scores"), -1)
    return Evidence(fits("attention", attention), null=fits("random numbers", 100 * lab.normal(n, n, purpose="noise")))


@CHAPTER.claim(
    "R-2",
    section="Contents",
    statement="The set of all sums of a band matrix of fixed width and a sparse matrix is a convex, closed, non-empty "
    "subspace of the square matrices.",
    formula=r"\mathcal{X} = \{B + E_{rr}\}: \quad A, A' \in \mathcal{X} \Rightarrow (A + A')/2 \in \mathcal{X}",
    correction="It is closed and not empty, but neither convex nor a subspace: sums of sparse matrices are less "
    "sparse. It is a finite union of subspaces, one for each choice of the places of the sparse entries; each of "
    "these is convex.",
    corrected=r"\mathcal{X} = \bigcup_{|S| \leq s} \{A: a_{ij} = 0 \ \mathrm{for}\ |i-j| > w,\ (i,j) \notin S\}",
    lesson="Two matrices with one entry each outside the band have a midpoint with two: it left the set if one was "
    "allowed. Only with the places fixed in advance can one add without leaving. If sparse is given no number at all "
    "the set is all matrices, and the statement is empty.",
)
def band_plus_sparse_is_not_convex(lab: Lab) -> Evidence:
    n, width, entries = 8, 1, 2
    inside = band(n, width)
    outside = (~inside).nonzero()[torch.randperm(int((~inside).sum()), generator=lab.generator())]

    def member(purpose: str, places: Tensor) -> Tensor:
        a = lab.normal(n, n, purpose=purpose) * inside
        a[places[:, 0], places[:, 1]] = 1.0
        return a

    def away(a: Tensor) -> float:
        return float(distance(a, nearest_band_and_entries(a, width, entries)))

    a, b = member("a", outside[:entries]), member("b", outside[entries : 2 * entries])
    same = member("c", outside[:entries])
    midpoint = (a + b) / 2
    # Closed: the distance is 0 for members only. Outside it is the sum of the entries beyond the s largest.
    other = lab.normal(n, n, purpose="other")
    excess = other[~inside].abs().sort().values[:-entries].sum()
    generator = lab.generator("families")
    labels = tuple(str(i) for i in range(16))
    families = {
        "positional": positional_head(16),
        "syntactic": syntactic_head(16, 2, 0.3, generator),
        "rare_token": rare_token_head(16, 4, 2, generator),
    }
    titles = {
        "positional": "Positional: the identity",
        "syntactic": "Syntactic: a band of half-width 2 with entries dropped",
        "rare_token": "Rare token: two blocks of 4 tokens look at one",
    }
    figures = tuple(
        HeatMap(
            f"family_{name}", titles[name],
            "A member of one family of structured maps, with 8 random entries as sparse error and rows normalised.",
            with_sparse_error(p, 8, 0.5, generator).numpy(), labels, labels, "query", "key", limits=(0.0, 1.0),
        )
        for name, p in families.items()
    )  # fmt: skip
    return Evidence(
        stated=(exact("distance of the midpoint of two members from the set, s = 2", 0.0, away(midpoint)),),
        corrected=(
            exact("distance of the members themselves", 0.0, away(a) + away(b)),
            exact("distance of the midpoint: the two entries too many, of size 1/2", 1.0, away(midpoint)),
            exact("midpoint of members with the same places", 0.0, away((a + same) / 2)),
            exact("three times one less twice the other, same places", 0.0, away(3 * a - 2 * same)),
            exact("distance of a random matrix: the entries beyond the two largest", float(excess), away(other)),
            fact("the zero matrix is a member", away(torch.zeros_like(a)) == 0),
        ),
        figures=figures,
    )


@CHAPTER.claim(
    "R-3",
    section="Contents",
    statement="The square matrices with the sum of absolute entries as norm are a Hilbert space.",
    formula=r"|A| = \sum_{i,j} |a_{ij}|, \quad |A+B|^2 + |A-B|^2 = 2|A|^2 + 2|B|^2",
    correction="They are a Banach space: complete, as every normed space of finite dimension, but with no inner "
    "product behind the norm. With the Frobenius norm they are a Hilbert space.",
    corrected=r"\|A\|_F^2 = \sum_{i,j} a_{ij}^2 = \mathrm{tr}(A^{\top} A)",
    lesson="A norm comes from an inner product exactly if it obeys the parallelogram law (Jordan and von Neumann). "
    "Two units in different places have |A+B| = |A−B| = 2, so the left side is 8 and the right side 4. The unit ball "
    "of this norm has corners and flat faces, where a Hilbert space has a round ball.",
)
def l1_is_no_hilbert_space(lab: Lab) -> Evidence:
    zero = torch.zeros(4, 4, dtype=torch.float64)

    def sides(a: Tensor, b: Tensor, norm: str) -> tuple[float, float]:
        size = [float(distance(x, zero, norm)) ** 2 for x in (a + b, a - b, a, b)]  # type: ignore[arg-type]
        return size[0] + size[1], 2 * (size[2] + size[3])

    a, b = zero.clone(), zero.clone()
    a[0, 0] = b[1, 2] = 1.0
    random = lab.normal(4, 4, purpose="a"), lab.normal(4, 4, purpose="b")
    left, right = sides(a, b, "l1")
    polar = sides(*random, "frobenius")
    inner = (float(distance(random[0] + random[1], zero, "frobenius")) ** 2
             - float(distance(random[0] - random[1], zero, "frobenius")) ** 2) / 4  # fmt: skip
    return Evidence(
        stated=(exact("|A+B|² + |A−B|² for two units", right, left),),
        corrected=(
            exact("the same in the Frobenius norm, two units", *reversed(sides(a, b, "frobenius"))),
            exact("and for two random matrices", polar[1], polar[0]),
            exact("its inner product is the trace of AᵀB", float((random[0].mT @ random[1]).trace()), inner),
        ),
    )


@CHAPTER.claim(
    "R-4",
    section="Contents",
    statement="Hence the projection onto the set of band plus sparse matrices is well-posed and unique.",
    formula=r"\exists!\, X^* \in \mathcal{X}: \ |A - X^*| = \min_{X \in \mathcal{X}} |A - X|",
    correction="A nearest matrix always exists, since the set is closed. It keeps the band and the s largest entries "
    "outside, and is unique exactly if the s-th largest is larger than the next one (or the next is 0). On a tie there "
    "are several.",
    corrected=r"X^* \ \mathrm{unique} \Leftrightarrow |a|_{(s)} > |a|_{(s+1)} \ \mathrm{outside\ the\ band,\ or}\ "
    r"|a|_{(s+1)} = 0",
    lesson="The theorem that gives one nearest point needs a convex set in a Hilbert space, and both are missing "
    "here. With two equal entries outside the band and room for one, either may stay, at the same distance, and a "
    "small change of A makes the answer jump. The norm alone already breaks uniqueness: all points (t, t) with 0 ≤ t "
    "≤ 1 are nearest to (1, 0) in the sum of absolute differences. For fixed places the answer is unique in both "
    "norms.",
)
def projection_is_not_unique(lab: Lab) -> Evidence:
    n, width, entries = 6, 1, 3
    a = lab.normal(n, n, purpose="a") * band(n, width)
    a[0, 4], a[5, 1], a[0, 5], a[4, 0] = 3.0, 2.0, 1.0, 1.0  # the third and fourth largest are equal
    nearest = nearest_band_and_entries(a, width, entries)
    other = nearest.clone()
    other[0, 5], other[4, 0] = nearest[4, 0], nearest[0, 5]
    least = float(distance(a, nearest))
    ahead, behind = a.clone(), a.clone()
    ahead[4, 0] -= 1e-6
    behind[0, 5] -= 1e-6
    jump = float(
        distance(nearest_band_and_entries(ahead, width, entries), nearest_band_and_entries(behind, width, entries))
    )
    # No other choice of places is nearer where there is no tie, and only one is as near.
    away = ((~band(n, width)) & (ahead != 0)).nonzero().tolist()
    choices = [
        float(
            distance(
                ahead,
                nearest_on_support(ahead, _with_places(band(n, width), [place for place in away if place != left])),
            )
        )
        for left in away
    ]
    best = min(choices)
    segment = [abs(1 - t) + abs(0 - t) for t in (0.0, 0.25, 0.5, 1.0)]
    return Evidence(
        stated=(
            fact("one nearest matrix: the other choice is farther", float(distance(a, other)) > least + 1e-12),
            fact("well-posed: a change of 0.000001 moves the answer by less than 0.01", jump < 0.01),
        ),
        corrected=(
            exact("distance of the one and of the other, which differ", least, float(distance(a, other))),
            exact("a distance of 2 between both", 2.0, float(distance(nearest, other))),
            exact(
                "without the tie: the nearest found",
                best,
                float(distance(ahead, nearest_band_and_entries(ahead, width, entries))),
            ),
            exact("without the tie: choices that are as near", 1.0, float(sum(c <= best + 1e-9 for c in choices))),
            exact("the line (t, t): distance from (1, 0) at t = 0, 1/4, 1/2, 1", 1.0, torch.tensor(segment)),
        ),
    )


def _with_places(support: Tensor, places: list[list[int]]) -> Tensor:
    wider = support.clone()
    for i, j in places:
        wider[i, j] = True
    return wider


@CHAPTER.claim(
    "R-6",
    section="Contents",
    statement="Forcing queries and keys to attend in this form reduces the complexity of the architecture.",
    formula=r"n (2w + 1) - w (w + 1) + s \ll n^2",
    lesson="A band of half-width w and s further entries hold about n(2w+1) + s weights in place of n², and mixing "
    "the values costs as many products. The saving is real if the form is fixed beforehand; if the full map is "
    "computed first and only then brought into this form, all n² scores are paid for.",
)
def structured_form_is_cheaper(lab: Lab) -> Evidence:
    width, d = 3, 8
    comparisons = []
    for n in (64, 256):
        entries = n // 4
        p = torch.softmax(lab.normal(n, n, purpose=f"p{n}"), -1)
        x = nearest_band_and_entries(p, width, entries)
        counted = int((x != 0).sum())
        comparisons.append(
            exact(
                f"weights left, n = {n}, w = 3, s = n/4",
                float(n * (2 * width + 1) - width * (width + 1) + entries),
                float(counted),
            )
        )
        values = lab.normal(n, d, purpose=f"v{n}")
        i, j = x.nonzero(as_tuple=True)
        mixed = torch.zeros(n, d, dtype=torch.float64).index_add(0, i, x[i, j, None] * values[j])
        comparisons.append(exact(f"mixing by these weights alone, n = {n}", x @ values, mixed))
        comparisons.append(fact(f"fewer than a quarter of n² weights, n = {n}", counted < n * n / 4))
    return Evidence(tuple(comparisons))  # fmt: skip


@CHAPTER.claim(
    "R-7",
    section="Contents",
    statement="Sparse attention, linear attention and matrix factorisation let the complexity of transformers scale "
    "linearly.",
    formula=r"O(n w), \quad O(n\, m\, d), \quad O(n k)",
    lesson="Each of them fixes one number while the text grows: the neighbours per token, the features, or the "
    "length k to which the keys are shortened. For a fixed number the count of operations is exactly proportional to "
    "n. That the quality stays at a fixed number is not part of it; for the factorisation it needs k to grow with n "
    "in general.",
)
def three_ways_are_linear(lab: Lab) -> Evidence:
    d, width, shortened = 8, 3, 16

    def sparse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        near = (torch.arange(len(q))[:, None] + torch.arange(-width, width + 1)).clamp(0, len(q) - 1)
        return torch.softmax(q[:, None] @ k[near].mT / math.sqrt(d), -1) @ v[near]

    def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q.exp() @ (k.exp().mT @ v)) / (q.exp() @ k.exp().sum(0)[:, None])

    def factorised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shorten = lab.normal(shortened, len(q), purpose="shorten")
        return full(q, shorten @ k, shorten @ v)

    def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / math.sqrt(d), -1) @ v

    def operations(way: Callable[[Tensor, Tensor, Tensor], Tensor], n: int) -> float:
        q, k, v = (lab.normal(n, d, purpose=f"{name}{n}") for name in "qkv")
        with FlopCounterMode(display=False) as counter:
            way(q, k, v)
        return float(counter.get_total_flops())

    ways = {"sparse": sparse, "linear": linear, "factorised": factorised}
    return Evidence(
        (
            *(
                exact(
                    f"operations at n = {n} over those at n = 64, {name}",
                    n / 64,
                    operations(way, n) / operations(way, 64),
                )
                for name, way in ways.items()
                for n in (128, 256)
            ),
            exact(
                "beside them full attention, n = 256 over n = 64", 16.0, operations(full, 256) / operations(full, 64)
            ),
        )
    )


CHAPTER.of_a_model(
    "R-8",
    section="Contents",
    statement="Experiments on a translation task validate the formula: it approximates the attention maps with a small "
    "error, and the window and the number of rare positions carry information about the language.",
    lesson="An error is small only beside something. For maps of 16 tokens whose rows sum to at most about 1 the "
    "zero matrix is at most about 16 away in the sum of absolute differences, so a random member of a family that is "
    "farther than that explains nothing, while the exact nearest band is several times closer. The experiment must "
    "therefore show the zero matrix, random maps and the exact projection side by side.",
    reason="a trained translation model, whose maps an experiment projects onto the families and sets beside the zero "
    "matrix and random maps; headscope has neither yet",
)
