"""Conti, section 2.1.2: linear attention and its kernels."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from headscope.core.figure import Curves, Series
from headscope.core.verdict import Evidence
from headscope.theory.checks import Lab, exact, fact, order_of
from headscope.theory.works import conti

CHAPTER = conti()


def _features(x: Tensor) -> Tensor:
    """A positive feature map, elu(x) + 1: the one of the cited paper."""
    return torch.nn.functional.elu(x) + 1


@CHAPTER.claim(
    "C-8a",
    section="2.1.2",
    statement="Row i of softmax(QKᵀ/√d_k) V is the mean of the values weighted with exp(Q_i·K_j), a case of pooling "
    "with a normalised similarity.",
    formula=r"V'_i = \frac{\sum_j e^{Q_i^{\top} K_j} V_j}{\sum_j e^{Q_i^{\top} K_j}}, \quad "
    r"V' = \mathrm{softmax}\left(\frac{Q K^{\top}}{\sqrt{d_k}}\right) V",
    correction="The factor 1/√d_k is missing in the exponent (11). With it, softmax attention is the pooling (12) with "
    "the similarity exp(q·k/√d_k).",
    corrected=r"V'_i = \frac{\sum_j e^{Q_i^{\top} K_j / \sqrt{d_k}} V_j}{\sum_j e^{Q_i^{\top} K_j / \sqrt{d_k}}}",
    lesson="The idea is right: attention is a weighted mean, and the exponential of the score is only one choice of "
    "weight. But the scale is part of the weight. Leaving it out sharpens the attention as if the scores were √d_k "
    "times larger, unless it was put into Q before.",
    slip=True,
)
def similarity_pooling(lab: Lab) -> Evidence:
    n, d = 7, 9
    q, k, v = (lab.normal(n, d, purpose=name) for name in "qkv")
    measured = torch.softmax(q @ k.mT / math.sqrt(d), -1) @ v

    def pooled(scale: float) -> Tensor:
        rows = []
        for i in range(n):
            weights = torch.stack([torch.exp(scale * (q[i] @ k[j])) for j in range(n)])
            rows.append((weights[:, None] * v).sum(0) / weights.sum())
        return torch.stack(rows)

    name = "rows of softmax attention, d_k = 9"
    return Evidence(stated=(exact(name, pooled(1.0), measured),), corrected=(exact(name, pooled(d**-0.5), measured),))


@CHAPTER.claim(
    "C-8b",
    section="2.1.2",
    statement="If the similarity is an inner product of features, associativity lets the sums over keys be taken once "
    "for all queries, and the cost is O(n).",
    formula=r"V'_i = \frac{\varphi(Q_i)^{\top} \sum_j \varphi(K_j) V_j^{\top}}"
    r"{\varphi(Q_i)^{\top} \sum_j \varphi(K_j)}",
    lesson="(φ(Q) φ(K)ᵀ) V and φ(Q) (φ(K)ᵀ V) are the same product; the first goes through an n × n matrix, the "
    "second through one of the size features × d. The cost is linear in n for a fixed number of features. It pays "
    "once n exceeds that number; the softmax itself would need infinitely many.",
)
def associativity(lab: Lab) -> Evidence:
    d = 6
    comparisons = []
    for n in (32, 64, 128):
        q, k, v = (lab.normal(n, d, purpose=f"{name}{n}") for name in "qkv")
        with FlopCounterMode(display=False) as counter:
            state, total = _features(k).mT @ v, _features(k).sum(0)
            fast = (_features(q) @ state) / (_features(q) @ total[:, None])
        weights = _features(q) @ _features(k).mT
        slow = (weights / weights.sum(-1, keepdim=True)) @ v
        comparisons.append(exact(f"the two orders of the product, n = {n}", slow, fast))
        predicted = 4.0 * n * d * d + 2 * n * d
        comparisons.append(exact(f"operations, n = {n}", predicted, float(counter.get_total_flops())))
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "C-8c",
    section="2.1.2",
    statement="The causal version sums over keys up to i, so running sums give it in O(n) too.",
    formula=r"V'_i = \frac{\varphi(Q_i)^{\top} \sum_{j \leq i} \varphi(K_j) V_j^{\top}}"
    r"{\varphi(Q_i)^{\top} \sum_{j \leq i} \varphi(K_j)}",
    lesson="Each step adds one term φ(K)Vᵀ to a state of fixed size and reads it with the query: the transformer runs "
    "like a recurrent network. Softmax attention has no such state and must keep all keys.",
)
def running_sums(lab: Lab) -> Evidence:
    n, d = 40, 5
    q, k, v = (lab.normal(n, d, purpose=name) for name in "qkv")
    weights = (_features(q) @ _features(k).mT).tril()
    slow = (weights / weights.sum(-1, keepdim=True)) @ v
    state, total, rows = torch.zeros(d, d).double(), torch.zeros(d).double(), []
    for i in range(n):
        state = state + torch.outer(_features(k[i]), v[i])
        total = total + _features(k[i])
        rows.append((_features(q[i]) @ state) / (_features(q[i]) @ total))
    return Evidence(
        (
            exact("40 steps of the recurrence beside the masked map", slow, torch.stack(rows)),
            exact("numbers kept between steps, d = 5", float(d * d + d), float(state.numel() + total.numel())),
        )
    )


@CHAPTER.claim(
    "C-8d",
    section="2.1.2",
    statement="In a reproducing kernel Hilbert space all evaluations are bounded by a given constant: |f(x)| ≤ M ‖f‖ "
    "for all f.",
    formula=r"|f(x)| \leq M \|f\| \quad \forall f \in H",
    correction="The constant belongs to the point x: the best one is the square root of K(x, x). One constant for all "
    "points exists only where K(x, x) is bounded.",
    corrected=r"|f(x)| \leq M_x \|f\|, \quad M_x = \sqrt{K(x, x)}",
    lesson="Continuity is asked of each evaluation separately. The linear functions f(x) = a x with norm |a| form such "
    "a space, with K(x, y) = x y, and |f(x)|/‖f‖ = |x| has no common bound. The bound is reached by the function K_x "
    "itself.",
    slip=True,
)
def evaluation_constant(lab: Lab) -> Evidence:
    # Linear functions on the line: norm |a|, kernel x y.
    a = lab.normal(50, purpose="a")
    ratio = {x: float(((a * x).abs() / a.abs()).max()) for x in (1.0, 10.0, 100.0)}
    # A random kernel on eight points: f = K c has the norm √(cᵀ K c).
    root = lab.normal(8, 8, purpose="root")
    kernel = root @ root.mT
    c = lab.normal(2000, 8, purpose="c")
    f, norms = c @ kernel, torch.einsum("bi,ij,bj->b", c, kernel, c).sqrt()
    within = bool((f.abs() <= norms[:, None] * kernel.diagonal().sqrt() * (1 + 1e-9)).all())
    at_x = kernel / kernel.diagonal().sqrt()  # column x: K_x over its norm
    return Evidence(
        stated=(exact("largest |f(x)|/‖f‖ at x = 100, with the constant of x = 1", ratio[1.0], ratio[100.0]),),
        corrected=(
            *(exact(f"largest |f(x)|/‖f‖ at x = {x:g}", x, largest) for x, largest in ratio.items()),
            fact("2000 random functions keep the bound √K(x, x)", within),
            exact("K_x reaches it", kernel.diagonal().sqrt(), at_x.diagonal()),
        ),
    )


@CHAPTER.claim(
    "C-8e",
    section="2.1.2",
    statement="The reproducing property is an integral: f(x) is the integral of f against the kernel with respect to a "
    "given measure.",
    formula=r"f(x) = (f, K_x) = \int f(x') K(x, x')\, d\mu(x')",
    correction="The inner product is that of the space H, which in general is no integral of the product: on finitely "
    "many points it is fᵀ K⁻¹ g. The integral is right only where H is a closed subspace of L²(μ) with its inner "
    "product, so that the kernel is an orthogonal projection.",
    corrected=r"f(x) = (f, K_x)_H; \quad \int f K_x\, d\mu = f(x)\ \forall f \in H \Leftrightarrow "
    r"(f, g)_H = \int f g\, d\mu",
    lesson="Integrating against a kernel usually smooths: with a Gaussian kernel the integral of f K is a blurred f. "
    "Trigonometric polynomials with the Dirichlet kernel are a case where the integral does return f, since there the "
    "inner product is the integral.",
)
def reproducing_integral(lab: Lab) -> Evidence:
    # Gaussian kernel on 12 points with the counting measure.
    x = torch.sort(4 * lab.uniform(12, purpose="x")).values + 0.5 * torch.arange(12, dtype=torch.float64)
    kernel = torch.exp(-((x[:, None] - x[None, :]) ** 2) / 2)
    f = kernel @ lab.normal(12, purpose="f")
    integral = kernel @ f
    inner = kernel @ torch.linalg.solve(kernel, f)  # (f, K_x)_H = fᵀ K⁻¹ K_x
    # Trigonometric polynomials of degree 3 on 16 equal places: the kernel is a projection.
    t = 2 * math.pi * torch.arange(16, dtype=torch.float64) / 16
    dirichlet = (
        sum((2 * torch.cos(m * (t[:, None] - t[None, :])) for m in range(1, 4)), torch.ones(16, 16).double()) / 16
    )
    wave = 0.3 + 2 * torch.cos(t) - torch.sin(3 * t)
    return Evidence(
        stated=(exact("the integral beside f, Gaussian kernel on 12 points", f, integral),),
        corrected=(
            exact("the inner product of H beside f", f, inner, scale=1e4),
            exact("the integral beside f, trigonometric polynomials with the Dirichlet kernel", wave, dirichlet @ wave),
            exact("that kernel is a projection", dirichlet, dirichlet @ dirichlet),
        ),
    )


@CHAPTER.claim(
    "C-8f",
    section="2.1.2",
    statement="Every reproducing kernel induces one Hilbert space and every such space has one kernel; kernels are the "
    "inner products of feature maps, and every feature map defines a kernel.",
    formula=r"K(x, y) = \varphi(x)^{\top} \varphi(y)",
    lesson="On finitely many points a kernel is a positive semi-definite matrix, the space is its range with the "
    "inner product fᵀ K⁺ g, and K can be read off that inner product. The general theorem is Moore's and "
    "Aronszajn's, with φ(x) = K_x; Mercer's theorem, which the text cites, adds an expansion in eigenfunctions for "
    "continuous kernels. The kernel is unique, the feature map is not: any rotation of φ gives the same K.",
)
def kernels_and_features(lab: Lab) -> Evidence:
    n = 7
    phi = lab.normal(n, 4, purpose="phi")
    kernel = phi @ phi.mT  # rank 4: a proper subspace of all functions on the points
    pinv = torch.linalg.pinv(kernel, hermitian=True)
    values, vectors = torch.linalg.eigh(kernel)
    features = vectors * values.clamp_min(0).sqrt()
    turn = torch.linalg.qr(lab.normal(4, 4, purpose="turn")).Q
    f = kernel @ lab.normal(n, purpose="f")
    # The kernel of the space, from its inner product alone: orthonormal functions e give Σ e(x) e(y).
    basis = vectors[:, -4:] * values[-4:].sqrt()
    return Evidence(
        (
            fact(
                "a feature map gives a positive semi-definite kernel",
                float(values.min()) > -1e-10 * float(values.max()),
            ),
            exact("f(x) = (f, K_x) for f in the space", f, kernel @ pinv @ f, scale=100.0),
            exact("the kernel rebuilt from an orthonormal basis of the space", kernel, basis @ basis.mT, scale=100.0),
            exact("orthonormal in that inner product", torch.eye(4).double(), basis.mT @ pinv @ basis, scale=1e4),
            exact("features from the eigenvectors", kernel, features @ features.mT, scale=100.0),
            exact("a rotated feature map has the same kernel", kernel, (phi @ turn) @ (phi @ turn).mT),
        )
    )


@CHAPTER.claim(
    "C-8g",
    section="2.1.2",
    statement="To first order the exponential of the score is 1 plus the score, and normalising queries and keys to "
    "length 1 makes this non-negative.",
    formula=r"e^{Q_i^{\top} K_j} \approx 1 + Q_i^{\top} K_j, \quad -1 \leq Q_i^{\top} K_j \leq 1",
    lesson="By Cauchy and Schwarz unit vectors have inner products between −1 and 1, so the weights 1 + x are never "
    "negative. They are a first-order expansion and no exponential: what is left out is at most (e − 2)x², which is "
    "26 % at a score of 1 and everything at −1, where 1 + x is 0. The largest weight is at most 2, so such attention "
    "cannot be sharp.",
)
def first_order_exponential(lab: Lab) -> Evidence:
    q, k = (torch.nn.functional.normalize(lab.normal(400, 3, purpose=name), dim=-1) for name in "qk")
    scores = q @ k.mT
    sizes = (0.04, 0.02, 0.01)
    left = {sign: [abs(math.exp(sign * x) - 1 - sign * x) for x in sizes] for sign in (1, -1)}
    x = np.linspace(-1, 1, 41)
    figure = Curves(
        "first_order", "The exponential and its first order", "Weights of scores between −1 and 1.",
        "score", "weight",
        (Series("1 + x", x, 1 + x), Series("e^x", x, np.exp(x), role="theory")),
    )  # fmt: skip
    gap = (scores.exp() - 1 - scores).abs() - (math.e - 2) * scores.square()
    return Evidence(
        (
            fact("1 + q·k is never negative, 160,000 pairs of unit vectors", float(scores.min()) >= -1 - 1e-12),
            order_of("power of the score in what 1 + x leaves out, x > 0", "x", 2.0, sizes, left[1]),
            order_of("power of the score in what 1 + x leaves out, x < 0", "|x|", 2.0, sizes, left[-1]),
            fact("|e^x − 1 − x| ≤ (e − 2) x² on all pairs", float(gap.max()) <= 1e-12),
        ),
        figures=(figure,),
    )


@CHAPTER.claim(
    "C-8h",
    section="2.1.2",
    statement="With these weights the attention row has the numerator Σ_j (1 + q·Σ_j k_j) V_j over Σ_j (1 + q·k_j), "
    "for normalised q and k, simplified with n + q·Σ_j k_j below.",
    formula=r"V'_i = \frac{\sum_j \left(1 + \bar{Q}_i^{\top} \sum_j \bar{K}_j\right) V_j}"
    r"{\sum_j \left(1 + \bar{Q}_i^{\top} \bar{K}_j\right)}",
    correction="The second sum over j inside the numerator does not belong there: each value is weighted by its own "
    "key. In the simplified form the sum must enclose K_j V_j together.",
    corrected=r"V'_i = \frac{\sum_j V_j + \bar{Q}_i^{\top} \sum_j \bar{K}_j V_j^{\top}}"
    r"{n + \bar{Q}_i^{\top} \sum_j \bar{K}_j}",
    lesson="If every value had the weight 1 + q·Σk, the weight would be the same for all of them and the output "
    "would no longer look at the keys. The right form keeps key and value together in one matrix Σ k vᵀ, which all "
    "queries share: that is what makes it linear.",
    slip=True,
)
def taylor_attention(lab: Lab) -> Evidence:
    n, d = 8, 5
    q, k = (torch.nn.functional.normalize(lab.normal(n, d, purpose=name), dim=-1) for name in "qk")
    v = lab.normal(n, 4, purpose="v")
    weights = 1 + q @ k.mT
    measured = (weights / weights.sum(-1, keepdim=True)) @ v
    below = n + q @ k.sum(0)
    doubled = ((1 + q @ k.sum(0))[:, None] * v.sum(0)) / below[:, None]
    right = (v.sum(0) + q @ (k.mT @ v)) / below[:, None]
    name = "pooling with the weights 1 + q·k, 8 tokens"
    return Evidence(
        stated=(exact(name, doubled, measured),),
        corrected=(
            exact(name, right, measured),
            exact("the simplified denominator", weights.sum(-1), below),
        ),
    )


CHAPTER.untestable(
    "C-8i",
    section="2.1.2",
    statement="The linear transformer reaches the quality of the transformer on image generation and speech "
    "recognition and is up to three orders of magnitude faster at inference.",
    lesson="This is the cited paper's result on its own tasks. The speed at inference has a reason that can be "
    "checked: a step costs the same at every length, while softmax attention reads all keys again; so the factor "
    "grows with the length. The quality depends on the task.",
    reason="results of other authors' training runs and hardware, which would have to be repeated at their scale",
)
