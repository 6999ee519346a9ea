"""Conti, sections 1.2.2 and 1.2.3: heads, softmax, the scale of the scores."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from headscope.attention.layer import MultiHead
from headscope.core.figure import Curves, Series
from headscope.core.verdict import Evidence
from headscope.theory.checks import Lab, exact, fact, variance_of
from headscope.theory.works import conti

CHAPTER = conti()


@CHAPTER.claim(
    "C-3a",
    section="1.2.2",
    statement="Cutting Q' = Q W^Q into blocks of d_k columns gives the projections of the heads, Q times the blocks of "
    "columns of W^Q.",
    formula=r"(Q W^Q)_{[:,\,(i-1) d_k : i d_k]} = Q W_i^Q",
    lesson="Column j of a product uses column j of the right factor only. So it makes no difference whether one "
    "multiplies and then cuts, or cuts and then multiplies: the heads share one large matrix product.",
)
def columns_are_heads(lab: Lab) -> Evidence:
    n, d, d_k = 7, 12, 4
    x, w = lab.normal(n, d, purpose="x"), lab.normal(d, d, purpose="w")
    return Evidence(
        tuple(
            exact(f"head {i + 1} of 3", x @ w[:, i * d_k : (i + 1) * d_k], (x @ w)[:, i * d_k : (i + 1) * d_k])
            for i in range(d // d_k)
        )
    )


@CHAPTER.claim(
    "C-3b",
    section="1.2.2",
    statement="Each of the matrices of a head has the dimensions (n, d_k), so that it looks at the whole sentence.",
    formula=r"W_i^Q, W_i^K, W_i^V \in \mathbb{R}^{n \times d_k}",
    correction="They have the dimensions (d, d_k): d rows, one per entry of the embedding. The product Q W_i is what "
    "has n rows.",
    corrected=r"W_i^Q, W_i^K, W_i^V \in \mathbb{R}^{d \times d_k}, \quad Q W_i^Q \in \mathbb{R}^{n \times d_k}",
    lesson="Weights cannot depend on the length n of the sentence, or the model would work for one length only. A head "
    "looks at the whole sentence because the softmax runs over all keys, and at some attributes because its matrix "
    "reads the embedding in d_k directions.",
    slip=True,
)
def head_dimensions(lab: Lab) -> Evidence:
    d, heads, d_k = 12, 3, 4
    with torch.random.fork_rng(devices=[]):  # only its shapes are looked at
        layer = MultiHead(d, heads)
    # Linear layers store the transpose: columns of W_i are rows of the stored matrix.
    w_1 = layer.state_dict()["projections.q.weight"][:d_k].T
    lengths = [layer(lab.normal(1, n, d, purpose=f"{n}").float()).shape[1] for n in (5, 9)]
    return Evidence(
        stated=(exact("rows of W_1^Q in a layer of width 12 that reads 9 tokens", 9.0, float(w_1.shape[0])),),
        corrected=(
            exact("rows of W_1^Q in a layer of width 12 that reads 9 tokens", float(d), float(w_1.shape[0])),
            exact("columns of W_1^Q", float(d_k), float(w_1.shape[1])),
            exact("the same weights read 5 and 9 tokens", torch.tensor([5.0, 9.0]), torch.tensor(lengths).double()),
        ),
    )


@CHAPTER.claim(
    "C-3c",
    section="1.2.2",
    statement="The heads side by side times a d × d matrix W^O give an output of n rows and d columns.",
    formula=r"\mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h)\, W^O \in \mathbb{R}^{n \times d}",
    lesson="h heads of width d/h laid side by side fill the width d again, so the output can be added to the input. "
    "Equivalently each head writes through its own block of rows of W^O and the heads are summed.",
)
def concatenated_heads(lab: Lab) -> Evidence:
    n, d, heads = 6, 12, 3
    d_k = d // heads
    x = lab.normal(n, d, purpose="x")
    w = {name: lab.normal(d, d, purpose=name) for name in "qkvo"}
    mixed = []
    for i in range(heads):
        q, k, v = (x @ w[name][:, i * d_k : (i + 1) * d_k] for name in "qkv")
        mixed.append(torch.softmax(q @ k.mT / math.sqrt(d_k), -1) @ v)
    joined = torch.cat(mixed, -1) @ w["o"]
    summed = sum((z @ w["o"][i * d_k : (i + 1) * d_k] for i, z in enumerate(mixed)), torch.zeros(n, d).double())
    with torch.random.fork_rng(devices=[]):  # its first weights are replaced
        layer = MultiHead(d, heads).double()
    with torch.no_grad():
        weights = {f"projections.{name}.weight": w[name].T for name in "qkv"}
        layer.load_state_dict({**weights, "out.weight": w["o"].T})
        by_layer = layer(x[None])[0]
    return Evidence(
        (
            exact("rows of the output, n = 6, d = 12", float(n), float(joined.shape[0])),
            exact("columns of the output", float(d), float(joined.shape[1])),
            exact("the sum of what the heads write", joined, summed),
            exact("the same through a layer of the library", joined, by_layer),
        )
    )


def _jacobian(z: Tensor) -> Tensor:
    differentiate: Callable[..., Tensor] = torch.autograd.functional.jacobian
    return differentiate(lambda x: torch.softmax(x, -1), z)


@CHAPTER.claim(
    "C-3d",
    section="1.2.3",
    statement="The derivative of a softmax entry by its own score is s(1 − s), by another score −s s'.",
    formula=r"\partial s_i / \partial z_i = s_i (1 - s_i), \quad \partial s_i / \partial z_k = -s_i s_k",
    lesson="Raising one score raises its own share and lowers all others in proportion to what they hold, so that the "
    "sum stays 1. Shares near 0 or 1 hardly move.",
)
def softmax_derivatives(lab: Lab) -> Evidence:
    z = lab.normal(6)
    s, h = torch.softmax(z, -1), 1e-6
    bumped = [(torch.softmax(z + h * e, -1) - torch.softmax(z - h * e, -1)) / (2 * h) for e in torch.eye(6).double()]
    by_differences = torch.stack(bumped, -1)
    jacobian = _jacobian(z)
    off = ~torch.eye(6, dtype=torch.bool)
    return Evidence(
        (
            exact("own derivatives by differentiation", s * (1 - s), jacobian.diagonal()),
            exact("cross derivatives by differentiation", (-s[:, None] * s[None, :])[off], jacobian[off]),
            exact("all of them by central differences", torch.diag(s) - torch.outer(s, s), by_differences, scale=1.0),
        )
    )


@CHAPTER.claim(
    "C-3e",
    section="1.2.3",
    statement="The Jacobian of the softmax has the diagonal s₁(1 − s₁), −s₂(1 − s₂), …, −sₙ(1 − sₙ).",
    formula=r"(J_s)_{11} = s_1 (1 - s_1), \quad (J_s)_{ii} = -s_i (1 - s_i)\ (i \geq 2), \quad (J_s)_{ik} = -s_i s_k",
    correction="All entries of the diagonal are positive: the minus signs from the second on are wrong.",
    corrected=r"J_s = \mathrm{diag}(s) - s s^{\top}",
    lesson="Every share grows with its own score, so the diagonal cannot be negative. Each column must sum to 0, since "
    "the shares always sum to 1: with the stated signs the columns from the second on do not.",
    slip=True,
)
def jacobian_signs(lab: Lab) -> Evidence:
    z = lab.normal(5)
    s = torch.softmax(z, -1)
    right = torch.diag(s) - torch.outer(s, s)
    wrong = right.clone()
    wrong.diagonal()[1:] *= -1
    jacobian = _jacobian(z)
    return Evidence(
        stated=(exact("the Jacobian at a random point, n = 5", wrong, jacobian),),
        corrected=(
            exact("the Jacobian at a random point, n = 5", right, jacobian),
            exact("largest sum of a column, as all shares sum to 1", 1.0, 1.0 + float(jacobian.sum(0).abs().max())),
        ),
    )


@CHAPTER.claim(
    "C-3f",
    section="1.2.3",
    statement="The Jacobian is zero where the softmax is a unit vector.",
    formula=r"s = e_i \Rightarrow J_s = 0",
    lesson="With all the mass in one place there is nothing left to move. The softmax reaches such a point only in the "
    "limit of infinite scores, so gradients do not stop but become as small as one likes: they fall like e^(−gap) with "
    "the gap between the largest score and the next.",
)
def jacobian_at_the_corners(lab: Lab) -> Evidence:
    n = 6
    corners = torch.eye(n, dtype=torch.float64)
    at_corners = torch.diag_embed(corners) - corners[:, :, None] * corners[:, None, :]
    z = lab.normal(n)
    far = z * 0 + 40.0 * corners[2]
    near = torch.softmax(z, -1)
    trace = 1 - float(near.square().sum())
    return Evidence(
        (
            exact("largest entry of diag(s) − s sᵀ at the six unit vectors", 0.0, float(at_corners.abs().max())),
            fact(
                "the derivative with one score 40 above the others is below 1e-15",
                float(_jacobian(far).abs().max()) < 1e-15,
            ),
            exact("its trace is 1 − Σ s², which is 0 at unit vectors only", trace, float(_jacobian(z).trace())),
        )
    )


@CHAPTER.claim(
    "C-3g",
    section="1.2.3",
    statement="The softmax is not scale invariant: the more the inputs are scaled up, the more the largest dominates.",
    formula=r"\frac{d}{d\beta} \ln s_{\max}(\beta z) = z_{\max} - \sum_j s_j z_j > 0",
    lesson="The growth rate of the largest share is the gap between the largest score and the mean score, which is "
    "positive unless all scores are equal. In the limit the largest takes everything (or tied ones share it). Adding a "
    "constant to all scores, in contrast, changes nothing.",
)
def scale_lets_the_largest_win(lab: Lab) -> Evidence:
    z = lab.normal(8)
    top = int(z.argmax())

    def share(beta: float) -> float:
        return float(torch.softmax(beta * z, -1)[top])

    shares = [share(beta) for beta in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)]
    h = 1e-5
    slope = (math.log(share(1 + h)) - math.log(share(1 - h))) / (2 * h)
    predicted = float(z[top] - (torch.softmax(z, -1) * z).sum())
    return Evidence(
        (
            fact(
                "the largest share grows from scale 1/4 to 8",
                all(a < b for a, b in pairwise(shares)),
            ),
            exact("growth rate of its logarithm at scale 1", predicted, slope, scale=10.0),
            exact("its limit", 1.0, share(1e5)),
        )
    )


@CHAPTER.claim(
    "C-3h",
    section="1.2.3",
    statement="The larger the dimension of queries and keys, the larger their dot products tend to be; dividing by the "
    "square root of the dimension keeps the gradient of the softmax from vanishing.",
    formula=r"\mathrm{Var}(q \cdot k) = d_k, \quad \mathrm{Var}(q \cdot k / \sqrt{d_k}) = 1",
    lesson="For independent entries of variance 1 each of the d products adds 1 to the variance, so scores grow like "
    "√d. Unscaled scores of size √d push the softmax to a corner, where its derivative, whose trace is 1 − Σ s², is "
    "nearly 0. Divided by √d the spread is 1 for every width. Trained queries and keys need not be independent: the "
    "argument is about the start of training.",
)
def scores_grow_with_dimension(lab: Lab) -> Evidence:
    comparisons = []
    dims = (4, 16, 64, 256, 1024)
    scaled, plain = [], []
    for d in dims:
        q, k = lab.normal(60, d, purpose=f"q{d}"), lab.normal(60, 32, d, purpose=f"k{d}")
        scores = torch.einsum("bd,bnd->bn", q, k)
        scaled.append(float((1 - torch.softmax(scores / math.sqrt(d), -1).square().sum(-1)).mean()))
        plain.append(float((1 - torch.softmax(scores, -1).square().sum(-1)).mean()))
        if d <= 64:
            # One key per query: products with a common query are not independent.
            single = (lab.normal(10_000, d, purpose=f"a{d}") * lab.normal(10_000, d, purpose=f"b{d}")).sum(-1)
            comparisons.append(variance_of(f"variance of q·k, d = {d}", float(d), single))
            comparisons.append(variance_of(f"variance of q·k/√d, d = {d}", 1.0, single / math.sqrt(d)))
    comparisons.append(
        fact("unscaled, the trace of the derivative falls by a third from d = 4 to 1024", plain[-1] < plain[0] * 2 / 3)
    )
    comparisons.append(fact("scaled, it stays within a tenth", min(scaled) > 0.9 * max(scaled)))
    x = np.array(dims, dtype=np.float64)
    figure = Curves(
        "gradient", "What the factor 1/√d saves",
        "Trace of the derivative of the softmax over 32 keys, 1 − Σ s², for random queries and keys of growing width. "
        "0 is a softmax that no longer learns.",
        "dimension of queries and keys", "trace of the Jacobian",
        (Series("divided by √d", x, np.array(scaled)), Series("not divided", x, np.array(plain))),
        log_x=True,
    )  # fmt: skip
    return Evidence(tuple(comparisons), figures=(figure,))


@CHAPTER.claim(
    "C-3i",
    section="1.2.3",
    statement="The softmax makes all coefficients of the combination of tokens positive with sum 1.",
    formula=r"a_i > 0, \quad \sum_i a_i = 1",
    lesson="Exponentials are positive and are divided by their sum. Each new token is therefore a convex "
    "combination, a weighted mean, of the values of all tokens, itself included, and cannot leave their convex hull. "
    "In float64 a score 745 below the largest rounds to 0.",
)
def convex_combination(lab: Lab) -> Evidence:
    scores, values = 5 * lab.normal(20, 9, purpose="scores"), lab.normal(9, 4, purpose="values")
    a = torch.softmax(scores, -1)
    out = a @ values
    inside = (out <= values.max(0).values + 1e-12) & (out >= values.min(0).values - 1e-12)
    return Evidence(
        (
            exact("sums of 20 rows", 1.0, a.sum(-1)),
            fact("the smallest coefficient is positive", float(a.min()) > 0),
            fact("no coordinate of the result leaves the range of the values", bool(inside.all())),
        )
    )
