r"""Bukatin, overview part: low rank, features, learning in context, experts."""

import math
from collections.abc import Callable

import numpy as np
import torch

from headscope.core.verdict import Comparison, Evidence
from headscope.maths.attention.hopfield import curl, hopfield_energy, hopfield_step
from headscope.maths.attention.in_context import DescentLayer, descent_loss, least_squares_attention, linear_attention
from headscope.theory.checks import Lab, counted, exact, fact, mean_of, order_of, trend_of
from headscope.theory.counted_products import Work
from headscope.theory.works import bukatin

CHAPTER = bukatin()
_PART = "overview part"


@CHAPTER.claim(
    "B-11",
    section=_PART,
    statement="LoRA fine-tunes by adding a matrix of low rank to the weights instead of changing them all.",
    formula=r"W' = W + B A, \quad \mathrm{rank}(B A) \leq r, \quad r (m + n) \ll m n\ \mathrm{parameters}",
    lesson="The change is a product of a tall and a flat matrix, so it has rank r and few numbers to train. Added to W "
    "it costs nothing at inference. What it cannot do is change W in more than r directions.",
)
def low_rank_adaptation(lab: Lab) -> Evidence:
    m, n, r = 64, 48, 4
    w, b, a = lab.normal(m, n, purpose="w"), lab.normal(m, r, purpose="b"), lab.normal(r, n, purpose="a")
    x = lab.normal(7, m, purpose="x")
    target = lab.normal(m, n, purpose="target")
    sigma = torch.linalg.svdvals(target)
    u, s, vh = torch.linalg.svd(target, full_matrices=False)
    best = (u[:, :r] * s[:r]) @ vh[:r]
    return Evidence(
        (
            exact("rank of the change", float(r), float(torch.linalg.matrix_rank(b @ a))),
            exact("merged weights against the two paths added", x @ w + (x @ b) @ a, x @ (w + b @ a)),
            exact("trained numbers: r(m + n) against the entries of both factors", float(r * (m + n)),
                  float(b.numel() + a.numel())),
            exact("what the best change of rank 4 misses of a full one: the other singular values",
                  float(sigma[r:].square().sum().sqrt()), float((target - best).norm())),
        )
    )  # fmt: skip


@CHAPTER.claim(
    "B-12",
    section=_PART,
    statement="The LoRA paper is cited as arXiv 2106.096851.",
    formula=r"\mathrm{arXiv{:}2106.096851}",
    correction="There is no such number: since 2015 the part after the point has five digits. The paper is 2106.09685.",
    corrected=r"\mathrm{arXiv{:}2106.09685}",
    lesson="An arXiv number is the year and month, a point, and a running number of five digits (four until the end of "
    "2014). A sixth digit, here probably a footnote mark that ran into the address, makes it invalid.",
    slip=True,
)
def arxiv_number(lab: Lab) -> Evidence:
    del lab
    five = "digits of the running number, five since January 2015, in"
    cited, right = "2106.096851", "2106.09685"
    return Evidence(
        (counted(f"{five} {cited}", 5, len(cited.split(".")[1])),),
        (counted(f"{five} {right}", 5, len(right.split(".")[1])),),
    )


@CHAPTER.claim(
    "B-13",
    section=_PART,
    statement="The features that a sparse autoencoder extracts are linear combinations of neurons.",
    formula=r"x = b + \sum_i f_i\, d_i, \quad d_i = \sum_j D_{ij}\, e_j \quad (e_j\ \mathrm{neurons})",
    correction="The directions are, by construction. The strengths are not linear combinations of neurons once there "
    "are more features than neurons, as in every such autoencoder: a linear reading mixes in the other active "
    "features, with a mean square of their squared strengths over the number m of neurons, so its relative error "
    "falls like m^(−1/2) for a fixed number of active ones. Bias and ReLU of the encoder are there to cut that off.",
    corrected=r"\langle x, d_i \rangle = f_i + \sum_{j \neq i} f_j \langle d_j, d_i \rangle, \quad "
    r"E \langle d_j, d_i \rangle^2 = \frac{1}{m}",
    lesson="A feature is a direction in the space of neurons: many neurons take part in it, and each neuron takes part "
    "in many features. As long as there are no more features than neurons, their strengths can be read off exactly. "
    "With three times as many, as here, directions cannot all be orthogonal, and what is read off one feature is "
    "disturbed by the others that are active. If few are active and neurons are many, little.",
)
def features(lab: Lab) -> Evidence:
    active, samples, sizes = 3, 4000, (64, 256, 1024)
    errors, spreads, corrected = [], [], []
    for neurons in sizes:
        # Three features are active at a time, out of three times as many as there are neurons.
        d = torch.nn.functional.normalize(lab.normal(3 * neurons, neurons, purpose=f"directions {neurons}"), dim=-1)
        active_features = (
            torch.rand(samples, 3 * neurons, generator=lab.generator(f"active {neurons}")).topk(active).indices
        )
        f = lab.uniform(samples, active, purpose=f"strength {neurons}") + 0.5
        x = (f[..., None] * d[active_features]).sum(1)
        off = (x * d[active_features[:, 0]]).sum(-1) - f[:, 0]
        size = float(f[:, 0].square().mean().sqrt())
        errors.append(float(off.square().mean().sqrt()) / size)
        spreads.append(float(off.square().std()) / samples**0.5 / (2 * errors[-1] * size**2))
        interference = f[:, 1:].square().sum(-1) / neurons
        corrected.append(mean_of(f"mean square of what other features add, {neurons} neurons, over that predicted", 1.0,
                                 off.square() / interference.mean()))  # fmt: skip
    few = torch.nn.functional.normalize(lab.normal(24, 40, purpose="few"), dim=-1)
    strengths = lab.uniform(200, 24, purpose="few strengths")
    corrected.append(exact("no more features than neurons: 24 read off 40 exactly", strengths,
                           strengths @ few @ torch.linalg.pinv(few), scale=100.0))  # fmt: skip
    name = "192 features on 64 neurons, three active: relative error of reading one along its direction"
    return Evidence(
        (Comparison(name, 0.0, errors[0], spreads[0]),),
        tuple(corrected),
        trend_of("relative error of a linear reading, three times as many features as neurons", "neurons m", sizes,
                 errors, -0.5, spreads),
    )  # fmt: skip


@CHAPTER.claim(
    "B-14",
    section=_PART,
    statement="Attention layers perform large steps of gradient descent during one pass.",
    formula=r"y \leftarrow y - \frac{\eta}{N} \sum_i \langle x, x_i \rangle (x_i W_0 - y_i) = x\,(W_0 - \eta \nabla "
    r"L(W_0))",
    lesson="Put examples (x, y) in the context and let linear attention compare a query with each x: the sum of errors "
    "weighted by that similarity is exactly the gradient of the squared error, applied to the query. So a layer can do "
    "a step, and weights that do it can be written down. Whether a trained softmax layer does so is another question.",
)
def gradient_step(lab: Lab) -> Evidence:
    n, d, e = 12, 5, 2
    x, y = lab.normal(n, d, purpose="x"), lab.normal(n, e, purpose="y")
    query, w = lab.normal(3, d, purpose="query"), lab.normal(d, e, purpose="w").requires_grad_(True)
    loss = 0.5 * (x @ w - y).square().sum() / n
    (gradient,) = torch.autograd.grad(loss, w)
    comparisons = []
    for rate in (0.3, 3.0):
        layer = DescentLayer(w.detach(), rate)
        out = layer(torch.cat((query, query @ w.detach()), -1), torch.cat((x, y), -1))[:, d:]
        comparisons.append(exact(f"linear attention against a gradient step of rate {rate}",
                                 query @ (w.detach() - rate * gradient), out))  # fmt: skip
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "B-15",
    section=_PART,
    statement="Softmax attention can be thought of as a single big gradient step of some energy function.",
    formula=r"\mathrm{softmax}(\beta\, \xi X^T) X = \xi - \nabla E(\xi), \quad "
    r"E(\xi) = -\frac{1}{\beta} \log \sum_i e^{\beta \langle x_i, \xi \rangle} + \frac{1}{2} |\xi|^2",
    correction="For values equal to keys, yes, exactly, and never uphill. With values of their own the output is in "
    "general not the gradient of any function of the query, because its derivative is not symmetric: its antisymmetric "
    "part grows in proportion to the distance of the values from the keys.",
    corrected=r"\mathrm{softmax}(\beta\, \xi X^T) X = \xi - \nabla E(\xi), \quad "
    r"\mathrm{values}\ V \neq X: \ \frac{\partial z}{\partial \xi} = \beta\, V^T (\mathrm{diag}(p) - p p^T) X",
    lesson="The gradient of a log-sum-exp is a softmax average, so a step of length 1 from the query lands exactly on "
    "the output of attention where values are keys. A vector field is a gradient only if its derivative is symmetric. "
    "The values of a trained head pass through a matrix of their own, and nothing makes the derivative symmetric then.",
)
def energy_step(lab: Lab) -> Evidence:
    patterns, beta = lab.normal(8, 5, purpose="patterns"), 1.5
    values = lab.normal(8, 5, purpose="values")
    state = (2 * lab.normal(6, 5, purpose="states")).requires_grad_(True)
    (gradient,) = torch.autograd.grad(hopfield_energy(state, patterns, beta).sum(), state)
    start = state.detach()
    out = torch.softmax(beta * start @ patterns.mT, -1) @ patterns
    lower = hopfield_energy(hopfield_step(start, patterns, beta), patterns, beta) < hopfield_energy(
        start, patterns, beta
    )
    asymmetries = [curl(start[0], patterns, patterns + step * values, beta) for step in (0.04, 0.02, 0.01)]
    p = torch.softmax(beta * start[0] @ patterns.mT, -1)
    formula = beta * values.mT @ (torch.diag(p) - torch.outer(p, p)) @ patterns
    differentiate: Callable[..., torch.Tensor] = torch.autograd.functional.jacobian
    derivative = differentiate(lambda x: torch.softmax(beta * x @ patterns.mT, -1) @ values, start[0])
    return Evidence(
        (Comparison("values of their own: antisymmetric part of the derivative by the query, 0 for a gradient", 0.0,
                    curl(start[0], patterns, values, beta), 1e-12),),
        (
            exact("values equal to keys: query minus gradient against attention", start - gradient, out),
            fact("values equal to keys: the energy falls", bool(lower.all())),
            exact("values equal to keys: 1 plus the antisymmetric part of the derivative", 1.0,
                  1.0 + curl(start[0], patterns, patterns, beta)),
            exact("values of their own: the derivative by differentiation against the formula", formula, derivative),
            order_of("power of the distance of values from keys in the antisymmetric part", "distance", 1.0,
                     (0.04, 0.02, 0.01), asymmetries),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "B-16",
    section=_PART,
    statement="Without softmax attention is associative.",
    formula=r"(Q K^T) V = Q (K^T V)",
    lesson="Three matrices can be multiplied in either order. The second order never forms the n × n map: its cost "
    "grows with n instead of n². A causal mask breaks it, since it acts on the map entry by entry; then running sums "
    "do the same work.",
)
def associativity(lab: Lab) -> Evidence:
    q, k, v = lab.normal(3, 30, 4)
    return Evidence((exact("both orders, worst entry", (q @ k.mT) @ v, linear_attention(q, k, v)),))


def _linear_layers(lab: Lab, x: torch.Tensor, depth: int) -> torch.Tensor:
    d = x.shape[-1]
    for layer in range(depth):
        w_q, w_k, w_v = lab.normal(3, d, d, purpose=f"layer {layer}") / d
        x = linear_attention(x @ w_q, x @ w_k, x @ w_v)
    return x


@CHAPTER.claim(
    "B-17",
    section=_PART,
    statement="A transformer of linear attention only is not a linear model but a polynomial one.",
    formula=r"f(t X) = t^{3^L} f(X) \quad (L\ \mathrm{layers\ without\ skip})",
    lesson="Queries, keys and values are each linear in X, and they are multiplied: one layer has degree 3. Layers "
    "compose, so degrees multiply: 3, 9, 27, … . With skip connections lower degrees are added.",
)
def polynomial(lab: Lab) -> Evidence:
    x, y = lab.normal(2, 5, 4, purpose="tokens")
    comparisons = []
    for depth in (1, 2, 3):
        t = 1.25
        comparisons.append(exact(f"{depth} layers: f(1.25 X) against 1.25^{3**depth} f(X)",
                                 t ** (3**depth) * _linear_layers(lab, x, depth),
                                 _linear_layers(lab, t * x, depth)))  # fmt: skip
    together = _linear_layers(lab, x + y, 1)
    sum_of_outputs = _linear_layers(lab, x, 1) + _linear_layers(lab, y, 1)
    comparisons.append(
        fact("f(X + Y) is not f(X) + f(Y)", float((together - sum_of_outputs).norm() / sum_of_outputs.norm()) > 0.1)
    )
    # Along a line a layer is a cubic: its fourth differences vanish, its third do not.
    line = torch.stack([_linear_layers(lab, x + s * y, 1) for s in range(5)])
    third, fourth = line.diff(n=3, dim=0), line.diff(n=4, dim=0)
    comparisons.append(fact("fourth differences along a line vanish, third do not",
                            float(fourth.norm()) < 1e-9 * float(third.norm())))  # fmt: skip
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "B-18",
    section=_PART,
    statement="Being polynomial, a transformer of linear attention is sufficiently expressive.",
    formula=r"f\ \mathrm{polynomial} \ \Rightarrow\ \mathrm{expressive}",
    correction="Only with growing depth. L layers give polynomials of degree at most 3^L, and at a fixed degree most "
    "functions are out of reach; the best approximation of |x| is off by a share that falls like degree^(−3/2) (in the "
    "mean square), so depth brings it down geometrically.",
    corrected=r"\min_{\deg p \leq 3^L} |p - f|_2 \rightarrow 0 \quad (L \rightarrow \infty), \quad "
    r"> 0\ \mathrm{for\ every\ fixed}\ L",
    lesson="Products build every polynomial step by step (with a constant coordinate in each token), and polynomials "
    "approximate every continuous function on bounded inputs. But that is a statement about unlimited depth. A given "
    "network has a bounded degree, grows without bound for large inputs, and cannot pick one of many keys sharply.",
)
def expressive(lab: Lab) -> Evidence:
    degrees = (3, 9, 27, 81)
    errors = tuple(_distance_to_polynomials(degree) for degree in degrees)
    values = tuple(float(degree) for degree in degrees)
    # One layer on the token (x, 1) with suitable weights does give x²: the step from which products are built.
    x = lab.normal(1, 1, purpose="x")
    token = torch.cat((x, torch.ones_like(x)), -1)
    pick_x, pick_one = (torch.tensor(v, dtype=torch.float64).reshape(2, 1) for v in ([1.0, 0.0], [0.0, 1.0]))
    square = linear_attention(token @ pick_x, token @ pick_one, token @ pick_x)
    return Evidence(
        (
            exact("x² from one layer on (x, 1)", float(x) ** 2, float(square)),
            exact("relative distance of |x| on [−1, 1] from what one layer (degree 3) can represent", 0.0, errors[0]),
        ),
        (exact("the same, 1/8 by the Legendre coefficients 1/2 and 5/8", 1 / 8, errors[0]),),
        trend=trend_of("relative distance of |x| from the polynomials of degree 3^L", "degree", values, errors, -1.5),
    )


def _distance_to_polynomials(degree: int) -> float:
    """Relative mean-square distance of |x| on [−1, 1] from polynomials of a degree.

    The distance comes from Legendre coefficients.
    """
    # On [0, 1] the integrands are polynomials, so enough Gauss nodes are exact.
    nodes, shares = np.polynomial.legendre.leggauss(degree + 8)
    x, share = (nodes + 1) / 2, shares / 2
    captured = 0.0
    for k in range(0, degree + 1, 2):
        values = np.polynomial.legendre.legval(x, [0.0] * k + [1.0])
        captured += (2 * k + 1) / 2 * float(2 * (share * x * values).sum()) ** 2
    return math.sqrt(max(2 / 3 - captured, 0.0) / (2 / 3))


@CHAPTER.claim(
    "B-19",
    section=_PART,
    statement="Intention is given by the formula Q [K Kᵀ + α I]⁻¹ Kᵀ V.",
    formula=r"Q\, [K K^T + \alpha I]^{-1} K^T V",
    correction="The transpose is on the wrong factor. With keys in rows, as in (Q Kᵀ) V, the matrix to invert is KᵀK + "
    "α I (d × d); with K Kᵀ (n × n) the inverse must stand to the right of Kᵀ.",
    corrected=r"Q\, [K^T K + \alpha I]^{-1} K^T V = Q K^T [K K^T + \alpha I]^{-1} V",
    lesson="Sizes decide: Q has d columns, K Kᵀ has n rows, so the stated product does not exist unless n = d, and "
    "then it gives something else. Moving Kᵀ through the inverse turns one Gram matrix into the other.",
    slip=True,
)
def intention_formula(lab: Lab) -> Evidence:
    n, alpha = 6, 0.5
    q, k, v = lab.normal(3, n, n)
    eye = torch.eye(n, dtype=torch.float64)
    truth = q @ _ridge(k, v, alpha)
    stated = q @ torch.linalg.solve(k @ k.mT + alpha * eye, k.mT @ v)
    long_k, long_v = lab.normal(20, n, purpose="long k"), lab.normal(20, n, purpose="long v")
    dual = q @ long_k.mT @ torch.linalg.solve(long_k @ long_k.mT + alpha * torch.eye(20, dtype=torch.float64), long_v)
    name = "regularised least squares at the queries"
    return Evidence(
        (exact(f"{name}, 6 keys of width 6 (elsewhere the product does not exist)", stated, truth),),
        (
            exact(f"{name}, 6 keys of width 6", least_squares_attention(q, k, v, alpha), truth),
            exact(f"{name}, 20 keys of width 6", least_squares_attention(q, long_k, long_v, alpha),
                  q @ _ridge(long_k, long_v, alpha)),
            exact(f"{name}, 20 keys, with K Kᵀ to the right of Kᵀ", dual, q @ _ridge(long_k, long_v, alpha)),
        ),
    )  # fmt: skip


def _ridge(k: torch.Tensor, v: torch.Tensor, alpha: float) -> torch.Tensor:
    """Regularised least squares as ordinary least squares with more rows.

    The keys get the rows √α·1, the values the rows 0.
    """
    d = k.shape[1]
    rows = torch.cat((k, math.sqrt(alpha) * torch.eye(d, dtype=torch.float64)))
    q, r = torch.linalg.qr(rows)
    right = torch.cat((v, torch.zeros(d, v.shape[1], dtype=torch.float64)))
    solution: torch.Tensor = torch.linalg.solve_triangular(r, q.mT @ right, upper=True)
    return solution


@CHAPTER.claim(
    "B-20",
    section=_PART,
    statement="Intention is the solution of a standard regularised least-squares problem (values fitted to keys), "
    "evaluated at the queries.",
    formula=r"Q W^*, \quad W^* = \mathrm{argmin}_W\, |K W - V|^2 + \alpha |W|^2",
    lesson="The keys and values of a context are the examples of a small regression problem, the queries its test "
    "points. Setting the gradient to zero gives (KᵀK + α I) W = KᵀV: so it holds for the formula with its transpose "
    "put right. Attention interpolates between values; Intention extrapolates linearly.",
)
def intention_solves(lab: Lab) -> Evidence:
    comparisons = []
    for n, d in ((20, 5), (4, 9)):
        q, k, v = (
            lab.normal(3, d, purpose=f"q{n}"),
            lab.normal(n, d, purpose=f"k{n}"),
            lab.normal(n, 2, purpose=f"v{n}"),
        )
        comparisons.append(exact(f"Intention against least squares, {n} keys of width {d}",
                                 q @ _ridge(k, v, 0.3), least_squares_attention(q, k, v, 0.3)))  # fmt: skip
    k, w = lab.normal(20, 5, purpose="linear keys"), lab.normal(5, 2, purpose="truth")
    far = 10 * lab.normal(3, 5, purpose="far")
    comparisons.append(exact("a linear rule is recovered far outside the keys (α = 10⁻¹⁰)", far @ w,
                             least_squares_attention(far, k, k @ w, 1e-10)))  # fmt: skip
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "B-21",
    section=_PART,
    statement="Intention is a strict generalisation of linear attention.",
    formula=r"Q K^T V \in \{\,\mathrm{Intention}\,\} \neq \{\,\mathrm{linear\ attention}\,\}",
    correction="It contains linear attention only as a limit: α times Intention tends to Q KᵀV as α grows, with a "
    "relative error of order 1/α. At a finite α both agree only if the keys are orthogonal and of one length "
    "(KᵀK a multiple of 1). The converse fails, so it is strict in this sense.",
    corrected=r"\alpha\, Q (K^T K + \alpha I)^{-1} K^T V = Q K^T V + \mathcal{O}(1/\alpha)",
    lesson="For large α the regularisation outweighs the Gram matrix of the keys, the inverse becomes 1/α, and what is "
    "left is linear attention. Small α is where Intention does something that linear attention cannot: it takes out "
    "the correlations between keys.",
)
def generalises(lab: Lab) -> Evidence:
    q, k, v = lab.normal(4, 5, purpose="q"), lab.normal(12, 5, purpose="k"), lab.normal(12, 3, purpose="v")
    linear = (q @ k.mT) @ v
    sizes = (100.0, 1_000.0, 10_000.0, 100_000.0)
    gaps = [a * least_squares_attention(q, k, v, a) - linear for a in sizes]
    errors = [float(gap.norm() / linear.norm()) for gap in gaps]
    next_term = q @ (k.mT @ k) @ (k.mT @ v)
    left = [float((gap + next_term / a).norm()) for gap, a in zip(gaps[:3], sizes[:3], strict=True)]
    even = 2 * torch.linalg.qr(lab.normal(12, 5, purpose="even")).Q
    even_v = lab.normal(12, 3, purpose="even values")
    return Evidence(
        (
            exact(
                "10 · Intention at α = 10 against linear attention", linear, 10 * least_squares_attention(q, k, v, 10.0)
            ),
        ),
        (
            exact(
                "keys with KᵀK = 4·1: (α + 4) · Intention at α = 10 is linear attention",
                (q @ even.mT) @ even_v,
                14 * least_squares_attention(q, even, even_v, 10.0),
            ),
            order_of("power of α in what is left after the next term, −Q KᵀK KᵀV/α", "α", -2.0, sizes[:3], left),
        ),
        trend=trend_of("relative difference of α · Intention and linear attention", "α", sizes, errors, -1.0),
    )


@CHAPTER.claim(
    "B-22",
    section=_PART,
    statement="The computational complexity of Intention is exactly that of attention.",
    formula=r"\mathrm{cost}(\mathrm{Intention}) = \mathrm{cost}(\mathrm{Attention})",
    correction="They scale differently: attention needs of the order of n²d multiplications, Intention nd² + d³. "
    "Intention is cheaper for texts longer than the head is wide, dearer for shorter ones.",
    corrected=r"\mathcal{O}(n^2 d)\ \mathrm{against}\ \mathcal{O}(n d^2 + d^3)",
    lesson="Attention compares every query with every key. Intention first condenses all keys and values into two d × "
    "d matrices, solves a d × d system, and applies the result to each query: linear in the length of the text. Both "
    "cost the same only when n is about d.",
)
def intention_cost(lab: Lab) -> Evidence:
    d = 32

    def attention(n: int) -> float:
        q, k, v = lab.normal(3, n, d)
        work = Work()
        work.product(torch.softmax(work.product(q, k.mT), -1), v)
        return work.multiplications

    def intention(n: int) -> float:
        q, k, v = lab.normal(3, n, d)
        work = Work()
        system = work.product(k.mT, k) + torch.eye(d, dtype=torch.float64)
        work.product(q, work.solve(system, work.product(k.mT, v)))
        return work.multiplications

    fixed = d**3 / 3 + d**3  # the system itself, which does not grow with the text
    name = "multiplications at 1024 tokens over those at 512"
    return Evidence(
        (exact("Intention at 512 tokens over attention, width 32", 1.0, intention(512) / attention(512)),
         exact(f"Intention: {name}", attention(1024) / attention(512), intention(1024) / intention(512))),
        (
            exact(f"attention: {name}", 4.0, attention(1024) / attention(512)),
            exact(f"Intention: {name}, but for the d × d system", 2.0,
                  (intention(1024) - fixed) / (intention(512) - fixed)),
            fact("Intention is cheaper at n = 512, d = 32", intention(512) < attention(512)),
            fact("and dearer at n = 8, d = 32", intention(8) > attention(8)),
        ),
    )  # fmt: skip


CHAPTER.of_a_model(
    "B-23",
    section=_PART,
    statement="(After von Oswald et al.) Early layers set up an optimisation task on the fly that later layers solve; "
    "a layer can be replaced by a least-squares solver.",
    lesson="Early layers can copy neighbouring tokens next to each other, so that each token holds an input and its "
    "target; later ones can then do steps of descent. That weights for it exist can be shown; that training finds "
    "them, and that a solver can stand in for them, has to be tried on trained models.",
    reason="a model trained on sequences of a linear system, and an experiment that puts least squares in the place of "
    "one of its attention layers; headscope has neither yet",
)


@CHAPTER.claim(
    "B-24",
    section=_PART,
    statement="Learning in context can work even in really small models.",
    formula=r"E|\hat{y} - y|^2 = \frac{d (d + 1)}{N + d + 1} \ < \ d",
    lesson="One layer of linear attention, with three small matrices, learns a linear rule from the examples in its "
    "context: its expected error falls with the number N of examples and can be computed exactly. No weight changes "
    "between contexts. Large models are needed for what is learnt, not for learning in context as such.",
)
def small_models(lab: Lab) -> Evidence:
    d, draws = 4, 20_000
    comparisons = []
    for n in (5, 40):
        x, w = lab.normal(draws, n, d, purpose=f"x{n}"), lab.normal(draws, d, 1, purpose=f"w{n}")
        query = lab.normal(draws, 1, d, purpose=f"query{n}")
        layer = DescentLayer(torch.zeros(d, 1, dtype=torch.float64), n / (n + d + 1))
        out = layer(torch.cat((query, 0 * query[..., :1]), -1), torch.cat((x, x @ w), -1))[..., d:]
        loss = (out - query @ w).square()
        comparisons.append(
            mean_of(f"squared error after {n} examples (without a context: {d})", descent_loss(d, n), loss)
        )
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "B-25",
    section=_PART,
    statement="A mixture of experts applies a sparse mask, computed on each run, to one large model.",
    formula=r"\sum_{e} g_e(x)\, W_e^{down} \phi(W_e^{up} x) = W^{down} \left(m(x) \odot \phi(W^{up} x)\right)",
    lesson="Put the experts side by side and they are one wide feed-forward layer; choosing experts means multiplying "
    "its hidden units by a mask that is mostly zero. The mask is computed per token and layer, and in practice it "
    "holds the weights of the gate, not just zeros and ones.",
)
def experts(lab: Lab) -> Evidence:
    count, experts_per_token, d, wide, n = 8, 2, 6, 10, 20
    up, down = lab.normal(count, d, wide, purpose="up"), lab.normal(count, wide, d, purpose="down")
    x = lab.normal(n, d, purpose="tokens")
    gate = x @ lab.normal(d, count, purpose="gate")
    best = gate.topk(experts_per_token, -1)
    shares = torch.zeros(n, count, dtype=torch.float64).scatter(-1, best.indices, torch.softmax(best.values, -1))
    routed = torch.zeros(n, d, dtype=torch.float64)
    for token in range(n):
        for e in best.indices[token].tolist():
            routed[token] += shares[token, e] * (torch.relu(x[token] @ up[e]) @ down[e])
    all_up, all_down = up.transpose(0, 1).reshape(d, count * wide), down.reshape(count * wide, d)
    mask = shares.repeat_interleave(wide, -1)
    return Evidence(
        (
            exact("two of eight experts per token against one wide layer with a mask", (mask * torch.relu(x @ all_up))
                  @ all_down, routed),
            exact("share of the mask that is not zero", experts_per_token / count, float((mask != 0).double().mean())),
            fact("different tokens get different masks", len({tuple(row.tolist()) for row in shares != 0}) > 1),
        )
    )  # fmt: skip


CHAPTER.untestable(
    "B-26",
    section=_PART,
    statement="People should experiment with a really large number of very low-dimensional heads.",
    lesson="More and narrower heads at the same cost mean more patterns, each of which compares fewer coordinates: the "
    "scores of a head have at most the rank of its width. Where the best trade lies depends on the task.",
    reason="it is advice on what to try, not a statement that could be true or false",
)

CHAPTER.untestable(
    "B-27",
    section=_PART,
    statement="Grokking is solved; GPT-4 is rumoured to be a mixture of experts; language models are simulators; "
    "fine-tuning GPT-4 is harder; blocks without skip connections train well; CRATE is fully interpretable.",
    lesson="These are reports of other people's work, positions and rumours of November 2023. They point to sources "
    "that can be read; a measurement on an open model does not decide them.",
    reason="opinions, rumours about closed models and results of others that would take their training runs to repeat",
)
