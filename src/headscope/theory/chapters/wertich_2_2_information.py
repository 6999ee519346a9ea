r"""Wertich, section 2.2: entropy, divergence and mutual information."""

import math

import numpy as np
import scipy.linalg
import scipy.spatial.distance
import scipy.stats
import torch
from torch import Tensor

from headscope.core.figure import Curves, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.gaussians.gaussian import Gaussian
from headscope.maths.gaussians.information import (
    LN_2,
    cross_entropy,
    discrete_cross_entropy,
    discrete_entropy,
    discrete_kl,
    discrete_mutual_information,
    entropy,
    jensen_shannon,
    kl,
    mutual_information,
)
from headscope.theory.checks import Lab, exact, fact, mean_of, order_of
from headscope.theory.works import wertich

CHAPTER = wertich()

DRAWS = 200_000


def gaussian(lab: Lab, d: int, purpose: str) -> Gaussian:
    root = lab.normal(d, d, purpose=f"root {purpose}") + torch.eye(d)
    return Gaussian(0.7 * lab.normal(d, purpose=f"mean {purpose}"), root @ root.mT / d + 0.5 * torch.eye(d))


def log_density(g: Gaussian, x: Tensor) -> Tensor:
    """The log-density by scipy, independent of headscope's own."""
    law = scipy.stats.multivariate_normal(g.mean.numpy(), g.covariance.numpy())
    return torch.as_tensor(law.logpdf(x.numpy()))


def draws(lab: Lab, g: Gaussian, purpose: str, count: int = DRAWS) -> Tensor:
    factor: Tensor = torch.linalg.cholesky(g.covariance)
    return g.mean + lab.normal(count, g.d, purpose=purpose) @ factor.mT


def on_the_line(mean: float, sd: float) -> Gaussian:
    return Gaussian(torch.tensor([mean], dtype=torch.float64), torch.tensor([[sd**2]], dtype=torch.float64))


def line(low: float, high: float, nodes: int) -> tuple[Tensor, float]:
    """Nodes and step of a sum that replaces an integral.

    The sum is exact for a smooth integrand that vanishes at both ends.
    """
    x = torch.linspace(low, high, nodes, dtype=torch.float64)
    return x, float(x[1] - x[0])


@CHAPTER.claim(
    "W-2.2a",
    section="2.2",
    statement="The Kullback–Leibler divergence is cross-entropy minus entropy, and the joint entropy of two variables "
    "is the sum of their entropies minus their mutual information.",
    formula=r"D(p\|q) = H(p,q) - H(p), \qquad H(X,Y) = H(X) + H(Y) - I(X;Y)",
    lesson="Cross-entropy is the mean code length when the code was made for q but the data come from p; entropy is "
    "what the right code would need, and the divergence is the surplus. Two variables that tell something about each "
    "other need less together than apart: what is saved is the mutual information.",
)
def discrete_identities(lab: Lab) -> Evidence:
    p, q = (torch.softmax(1.5 * lab.normal(6, purpose=name), 0) for name in "pq")
    joint = torch.softmax(1.5 * lab.normal(12, purpose="joint"), 0).reshape(3, 4)
    divergence = sum(float(a) * math.log(float(a / b)) for a, b in zip(p, q, strict=True))
    x, y = joint.sum(1), joint.sum(0)
    shared = sum(float(joint[i, j]) * math.log(float(joint[i, j] / (x[i] * y[j]))) for i in range(3) for j in range(4))
    together = -sum(float(v) * math.log(float(v)) for v in joint.flatten())
    return Evidence(
        (
            exact("Σ p ln(p/q)", discrete_cross_entropy(p, q) - discrete_entropy(p), divergence),
            exact("joint entropy", discrete_entropy(x) + discrete_entropy(y) - shared, together),
        )
    )


@CHAPTER.claim(
    "W-2.2b",
    section="2.2",
    statement="The continuous case is the discrete one with the sum replaced by an integral; the content of the "
    "formulas stays the same.",
    formula=r"-\sum_x p(x) \log p(x) \ \rightarrow\ -\int p(x) \log p(x)\,dx",
    correction="It is so for divergence and mutual information, which are limits of their discrete values. The "
    "integral for entropy is not the limit of the sums, which diverges; it can be negative and changes with the unit "
    "of x.",
    corrected=r"H(X_\Delta) = h(X) - \ln\Delta + o(1), \quad h(aX) = h(X) + \ln|a|, \quad "
    r"D(p_\Delta\|q_\Delta) \rightarrow D(p\|q), \quad I(X_\Delta;Y_\Delta) \rightarrow I(X;Y)",
    lesson="To write down a continuous value exactly takes infinitely many digits, so its entropy counted in steps of "
    "Δ grows without bound as the steps get finer. The integral is what remains after −ln Δ is taken away, and it is "
    "relative to the unit of length. In divergence and mutual information the two −ln Δ cancel.",
)
def sums_and_integrals(lab: Lab) -> Evidence:
    del lab  # nothing here is random
    p, q = on_the_line(0.0, 0.1), on_the_line(0.05, 0.2)

    def in_steps(g: Gaussian, step: float) -> Tensor:
        edges = np.arange(-3.0, 3.0 + step, step)
        law = scipy.stats.norm(float(g.mean), float(g.covariance) ** 0.5)
        return torch.as_tensor(np.diff(law.cdf(edges))).clamp_min(1e-300)

    step = 1e-3
    counted, h = float(discrete_entropy(in_steps(p, step))), float(entropy(p))
    x, width = line(-8.0, 8.0, 321)
    rho = 0.7
    form = (x[:, None] ** 2 - 2 * rho * x[:, None] * x + x**2) / (1 - rho**2)
    table = (-form / 2).exp() * width**2 / (2 * math.pi * math.sqrt(1 - rho**2))
    pair = Gaussian(torch.zeros(2), torch.tensor([[1.0, rho], [rho, 1.0]], dtype=torch.float64))
    # Steps of Δ widen a bell by about Δ²/12, so what is left of each limit below must fall like Δ².
    sizes = (0.02, 0.01, 0.005)
    wide = on_the_line(0.0, 0.5)
    left: dict[str, list[float]] = {"entropy": [], "divergence": [], "units": []}
    for size in sizes:
        p_size, q_size = in_steps(p, size), in_steps(q, size)
        rounded_entropy = float(discrete_entropy(p_size))
        left["entropy"].append(abs(rounded_entropy + math.log(size) - h))
        left["divergence"].append(abs(float(discrete_kl(p_size, q_size) - kl(p, q))))
        left["units"].append(abs(float(discrete_entropy(in_steps(wide, size))) - rounded_entropy - math.log(5)))
    steps = np.geomspace(0.3, 0.001, 12)
    values = np.array([float(discrete_entropy(in_steps(p, float(s)))) for s in steps])
    figure = Curves(
        "w22b_steps", "Entropy of a normal variable in steps of Δ",
        "A normal variable with standard deviation 0.1, rounded to steps of Δ. Its entropy grows without bound as the "
        "steps get finer and follows h − ln Δ, not the integral h, which is negative here.",
        "step Δ", "nats",
        (
            Series("entropy of the rounded variable", steps, values),
            Series("h − ln Δ", steps, h - np.log(steps), role="theory"),
            Series("as stated: h", steps, np.full(len(steps), h), role="null"),
        ),
        log_x=True,
    )  # fmt: skip
    return Evidence(
        stated=(exact("entropy of N(0, 0.1²) in steps of 0.001, from the integral", h, counted),),
        corrected=(
            order_of("power of Δ in the entropy in steps of Δ, less h − ln Δ", "Δ", 2.0, sizes, left["entropy"]),
            order_of("power of Δ in the divergence of N(0, 0.1²) from N(0.05, 0.2²) in steps, less the integral", "Δ",
                     2.0, sizes, left["divergence"]),
            exact("mutual information at correlation 0.7, from a table of cells", mutual_information(pair, [0], [1]),
                  discrete_mutual_information(table / table.sum())),
            order_of("power of Δ in the entropy of 5 X less that of X, both in steps of Δ, less ln 5", "Δ", 2.0, sizes,
                     left["units"]),
        ),
        figures=(figure,),
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.2c",
    section="2.2",
    statement="The entropy of a Gaussian in d dimensions is half the logarithm of (2πe)^d times the determinant.",
    formula=r"H(p) = \frac{1}{2} \log\left((2\pi e)^d |\Sigma|\right)",
    lesson="Entropy is the mean of −ln p. The prefactor of the density gives the logarithm of (2π)^d|Σ|, and the mean "
    "of the exponent is d/2, because each of the d standardised coordinates has variance 1; this is where the e comes "
    "from. The mean μ plays no part: moving a distribution does not make it more uncertain.",
)
def gaussian_entropy(lab: Lab) -> Evidence:
    comparisons = []
    for d in (1, 2, 5):
        p = gaussian(lab, d, f"{d}")
        x = draws(lab, p, f"draws {d}")
        formula = 0.5 * (d * math.log(2 * math.pi * math.e) + float(torch.logdet(p.covariance)))
        comparisons.append(mean_of(f"mean of −ln p over 200,000 draws, d = {d}", formula, -log_density(p, x)))
    p = on_the_line(0.3, 0.8)
    x, step = line(-10.0, 10.0, 2001)
    f = log_density(p, x)
    comparisons.append(exact("−∫ p ln p on the line", entropy(p), -(f.exp() * f).sum() * step))
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-2.2d",
    section="2.2",
    statement="The determinant of Σ, the product of its singular values, is the volume of the Gaussian's ellipsoid.",
    formula=r"V = |\Sigma| = \prod_i \sigma_i(\Sigma)",
    correction="The determinant is the product of the squared half-axes. The volume is its square root times the "
    "volume of the unit ball, so in the entropy ½ ln|Σ| is the logarithm of the volume up to a constant.",
    corrected=r"V = \frac{\pi^{d/2}}{\Gamma(d/2+1)} \sqrt{|\Sigma|}, \qquad "
    r"H(p) = \ln V + \mathrm{const}(d)",
    lesson="The eigenvalues of Σ are variances, that is squared lengths; their product is a squared volume. The "
    "argument that entropy measures the volume survives the repair and becomes exact, because of the ½ in front of the "
    "logarithm. Section 2.1 of the thesis states the inverse of the volume, so the two sections disagree.",
    slip=True,
)
def determinant_and_volume(lab: Lab) -> Evidence:
    stated, corrected = [], []
    for d in (2, 3):
        sigma = gaussian(lab, d, f"{d}").covariance
        half = sigma.diagonal().sqrt()
        points = (2 * lab.uniform(DRAWS, d, purpose=f"{d}") - 1) * half
        inside = (torch.einsum("ki,ij,kj->k", points, torch.linalg.inv(sigma), points) <= 1).double()
        volumes = inside * float((2 * half).prod())
        determinant = float(torch.linalg.svdvals(sigma).prod())
        ball = math.pi ** (d / 2) / math.gamma(d / 2 + 1)
        name = f"volume of the ellipsoid by counting random points, d = {d}"
        stated.append(mean_of(name, determinant, volumes))
        corrected.append(mean_of(name, ball * math.sqrt(determinant), volumes))
    return Evidence(tuple(stated), tuple(corrected))


def cross_entropies(lab: Lab, d: int) -> tuple[Gaussian, Gaussian, Tensor]:
    """Two Gaussians and draws of −ln q under p."""
    p, q = gaussian(lab, d, "p"), gaussian(lab, d, "q")
    return p, q, -log_density(q, draws(lab, p, "draws"))


def stretch_and_shift(p: Gaussian, q: Gaussian) -> tuple[float, float]:
    """The second and third term of the cross-entropy, by the formula."""
    inverse, gap = torch.linalg.inv(q.covariance), q.mean - p.mean
    return float((inverse @ p.covariance).trace()) / 2, float(gap @ inverse @ gap) / 2


@CHAPTER.claim(
    "W-2.2e",
    section="2.2",
    statement="The cross-entropy of two Gaussians is half the logarithm of (2πe)^d|Σ₂|, plus half the trace of Σ₂⁻¹Σ₁, "
    "plus half the quadratic form of the difference of the means.",
    formula=r"H(p,q) = \frac{1}{2}\log\left((2\pi e)^d|\Sigma_2|\right) + \frac{1}{2}\mathrm{Tr}(\Sigma_2^{-1}\Sigma_1)"
    r" + \frac{1}{2}(\mu_2-\mu_1)^{\top}\Sigma_2^{-1}(\mu_2-\mu_1)",
    correction="The first term has (2π)^d without the e: as stated the value is too large by d/2.",
    corrected=r"H(p,q) = \frac{1}{2}\log\left((2\pi)^d|\Sigma_2|\right) + \frac{1}{2}\mathrm{Tr}(\Sigma_2^{-1}\Sigma_1)"
    r" + \frac{1}{2}(\mu_2-\mu_1)^{\top}\Sigma_2^{-1}(\mu_2-\mu_1)",
    lesson="Test it with p = q: the trace is then d, its half is d/2, and the result must be the entropy with its "
    "(2πe)^d. The e of the entropy is this d/2 already, so writing it into the first term counts it twice. With the "
    "stated formula the divergence of a distribution from itself would be d/2 instead of 0.",
    slip=True,
)
def gaussian_cross_entropy(lab: Lab) -> Evidence:
    d = 3
    p, q, samples = cross_entropies(lab, d)
    formula = float(entropy(q)) + sum(stretch_and_shift(p, q))
    name = "mean of −ln q over 200,000 draws of p, d = 3"
    itself = float(entropy(p)) + sum(stretch_and_shift(p, p))
    return Evidence(
        stated=(mean_of(name, formula, samples), exact("H(p, p), beside H(p)", itself, entropy(p))),
        corrected=(
            mean_of(name, float(cross_entropy(p, q)), samples),
            exact("the same", formula - d / 2, cross_entropy(p, q)),
            exact("H(p, p), beside H(p)", itself - d / 2, entropy(p)),
        ),
    )


@CHAPTER.claim(
    "W-2.2f",
    section="2.2",
    statement="The first term of the cross-entropy is the entropy of the second Gaussian.",
    formula=r"H(p,q) = H(q) + \frac{1}{2}\mathrm{Tr}(\Sigma_2^{-1}\Sigma_1) + \frac{1}{2}"
    r"(\mu_2-\mu_1)^{\top}\Sigma_2^{-1}(\mu_2-\mu_1)",
    correction="The true first term is the entropy of q less d/2. The entropy of q is the first term together with "
    "the value d/2 that the trace has when the shapes agree.",
    corrected=r"H(p,q) = H(q) + \frac{1}{2}\left(\mathrm{Tr}(\Sigma_2^{-1}\Sigma_1) - d\right) + \frac{1}{2}"
    r"(\mu_2-\mu_1)^{\top}\Sigma_2^{-1}(\mu_2-\mu_1)",
    lesson="This follows the e that the formula has in excess: the printed term is H(q), but the printed term is "
    "wrong. Regrouped, the idea can be kept: the cross-entropy is H(q), corrected for how much wider p is than q and "
    "for how far apart they lie, and both corrections vanish when p = q.",
    slip=True,
)
def first_term(lab: Lab) -> Evidence:
    d = 3
    p, q, samples = cross_entropies(lab, d)
    first_terms = samples - sum(stretch_and_shift(p, q))
    name = "mean of −ln q over draws of p, less the second and third term"
    return Evidence(
        stated=(mean_of(name, float(entropy(q)), first_terms),),
        corrected=(mean_of(name, float(entropy(q)) - d / 2, first_terms),),
    )


@CHAPTER.claim(
    "W-2.2g",
    section="2.2",
    statement="The third term of the cross-entropy is the Mahalanobis distance between the means.",
    formula=r"\frac{1}{2}(\mu_2-\mu_1)^{\top}\Sigma_2^{-1}(\mu_2-\mu_1) = d_M(\mu_1, \mu_2)",
    correction="It is half the square of the Mahalanobis distance, which is the root of the quadratic form.",
    corrected=r"\frac{1}{2}(\mu_2-\mu_1)^{\top}\Sigma_2^{-1}(\mu_2-\mu_1) = \frac{1}{2}\, d_M(\mu_1, \mu_2)^2",
    lesson="A distance must double when the gap doubles; the quadratic form grows fourfold. For one dimension it is "
    "the gap in standard deviations, squared and halved, as in the exponent of the bell curve.",
    slip=True,
)
def mahalanobis(lab: Lab) -> Evidence:
    stated, corrected = [], []
    for d in (1, 4):
        p, q = gaussian(lab, d, f"p {d}"), gaussian(lab, d, f"q {d}")
        inverse = torch.linalg.inv(q.covariance)
        for times in (1.0, 2.0):
            gap = times * (q.mean - p.mean)
            distance = float(
                scipy.spatial.distance.mahalanobis((p.mean + gap).numpy(), p.mean.numpy(), inverse.numpy())
            )
            term = cross_entropy(p, Gaussian(p.mean + gap, q.covariance)) - cross_entropy(
                p, Gaussian(p.mean, q.covariance)
            )
            name = f"third term, d = {d}, means {times:g} × apart"
            stated.append(exact(name, distance, term))
            corrected.append(exact(name, distance**2 / 2, term))
    return Evidence(tuple(stated), tuple(corrected))


@CHAPTER.claim(
    "W-2.2h",
    section="2.2",
    statement="The trace of Σ₂⁻¹Σ₁ adds up the alignment (cosine) between the columns aᵢ of Σ₁ and bᵢ of Σ₂, times the "
    "length of bᵢ over the length of aᵢ.",
    formula=r"\mathrm{Tr}(\Sigma_2^{-1}\Sigma_1) = \sum_i \cos(a_i, b_i)\, \frac{|b_i|}{|a_i|}",
    correction="The columns of Σ₁ meet those of the inverse Σ₂⁻¹, the dual basis of the bᵢ, and not the bᵢ. The trace "
    "is the sum of the stretches from q to p: the variances of p in the coordinates in which q is round.",
    corrected=r"\mathrm{Tr}(\Sigma_2^{-1}\Sigma_1) = \sum_i a_i \cdot b^i = \sum_i s_i, \quad b^i \cdot b_j = "
    r"\delta_{ij}, \quad \Sigma_1 v_i = s_i \Sigma_2 v_i",
    lesson="Inverting a matrix does not invert its columns one by one, so lengths and angles of the bᵢ do not appear. "
    "Even for round Gaussians the stated ratio is upside down: with Σ₁ = 4·1 and Σ₂ = 1 the trace is 4d, and the "
    "stated sum is d/4. The picture that works is to make q round and to ask how far p then spreads.",
)
def trace_term(lab: Lab) -> Evidence:
    d = 3
    cov_p, cov_q = gaussian(lab, d, "p").covariance, gaussian(lab, d, "q").covariance

    def as_stated(a: Tensor, b: Tensor) -> float:
        cosines = torch.nn.functional.cosine_similarity(a, b, dim=0)
        return float((cosines * b.norm(dim=0) / a.norm(dim=0)).sum())

    trace = float(torch.linalg.solve(cov_q, cov_p).trace())
    dual = torch.linalg.inv(cov_q)
    stretches = scipy.linalg.eigh(cov_p.numpy(), cov_q.numpy(), eigvals_only=True)
    eye = torch.eye(d).double()
    whitening = torch.linalg.inv(torch.linalg.cholesky(cov_q))
    spread = draws(lab, Gaussian(torch.zeros(d), cov_p), "draws") @ whitening.mT
    return Evidence(
        stated=(
            exact("trace of Σ₂⁻¹Σ₁, two covariances in 3 dimensions", as_stated(cov_p, cov_q), trace),
            exact("trace where Σ₁ = 4·1 and Σ₂ = 1", as_stated(4 * eye, eye), float((4 * eye).trace())),
        ),
        corrected=(
            exact("trace, from the columns of Σ₁ and of Σ₂⁻¹", (cov_p * dual).sum(), trace),
            exact("trace, from the stretches s of Σ₁v = sΣ₂v", float(stretches.sum()), trace),
            mean_of("squared length of draws of p where q is round", trace, spread.square().sum(1)),
        ),
    )


@CHAPTER.claim(
    "W-2.2i",
    section="2.2",
    statement="The divergence of two Gaussians is cross-entropy minus entropy; it is zero when they are equal and "
    "otherwise measures the effort to get from q to p, differently in the two directions.",
    formula=r"D(p\|q) = H(p,q) - H(p), \qquad D(p\|q) = 0 \Longleftrightarrow p = q, \qquad D(p\|q) \neq D(q\|p)",
    lesson="Because ln x ≤ x − 1 the surplus of the wrong code is never negative, and it vanishes only if the code is "
    "right everywhere. The directions differ because the mean is taken under p: a narrow p inside a wide q costs "
    "little, a wide p is punished heavily where a narrow q has no mass.",
)
def divergence(lab: Lab) -> Evidence:
    p, q = on_the_line(0.0, 1.0), on_the_line(0.7, 2.0)
    x, step = line(-30.0, 30.0, 6001)
    a, b = log_density(p, x), log_density(q, x)
    pairs = [(gaussian(lab, 3, f"a {i}"), gaussian(lab, 3, f"b {i}")) for i in range(100)]
    divergences = torch.tensor([[float(kl(u, v)), float(kl(v, u))] for u, v in pairs])
    u, v = pairs[0]
    sampled = log_density(u, draws(lab, u, "draws")) - log_density(v, draws(lab, u, "draws"))
    return Evidence(
        (
            exact("∫ p ln(p/q) on the line", cross_entropy(p, q) - entropy(p), (a.exp() * (a - b)).sum() * step),
            exact("∫ q ln(q/p)", cross_entropy(q, p) - entropy(q), (b.exp() * (b - a)).sum() * step),
            mean_of("mean of ln(p/q) over draws of p, d = 3", float(cross_entropy(u, v) - entropy(u)), sampled),
            Comparison("divergence of a Gaussian from itself, d = 3", 0.0, float(kl(u, u)), 1e-12),
            fact("100 pairs of different Gaussians: positive in both directions", bool((divergences > 0).all())),
            fact("and different in the two directions",
                 bool(((divergences @ torch.tensor([1.0, -1.0])).abs() > 1e-9).all())),
        )
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.2j",
    section="2.2",
    statement="The Jensen–Shannon divergence, the mean of the divergences of p and q from their mixture m, is "
    "symmetric and repairs the asymmetry; its square root is a distance.",
    formula=r"\mathrm{JSD}(p\|q) = \frac{1}{2}\left(D(p\|m) + D(q\|m)\right), \qquad m = \frac{p+q}{2}",
    lesson="The mixture m is half p and half q: a density with possibly two peaks, and not a Gaussian. So the closed "
    "formulas for Gaussians do not apply to D(p‖m), and the divergence must be integrated or sampled. It equals the "
    "information that one draw gives about which of the two it came from, so it never exceeds ln 2.",
)
def jensen_shannon_divergence(lab: Lab) -> Evidence:
    p, q = on_the_line(-0.5, 1.0), on_the_line(1.5, 0.6)
    by_definition = float(jensen_shannon(p, q))
    # Draws of the mixture, as many from each: JSD = h(m) − (h(p) + h(q))/2.
    halves = [draws(lab, g, name, DRAWS // 2) for g, name in ((p, "p"), (q, "q"))]

    def log_m(x: Tensor) -> Tensor:
        return torch.logaddexp(log_density(p, x), log_density(q, x)) - LN_2

    estimate = -(log_m(halves[0]) + log_m(halves[1])) / 2 - float(entropy(p) + entropy(q)) / 2
    x, step = line(-12.0, 12.0, 4801)
    a, b, m = log_density(p, x), log_density(q, x), log_m(x)
    label = torch.stack([a.exp(), b.exp()]) * step / 2
    mixture = Gaussian(torch.tensor([0.5]), torch.tensor([[(1.0 + 0.36) / 2 + 1.0]]))  # same mean and variance as m
    matched = float(kl(p, mixture) + kl(q, mixture)) / 2
    return Evidence(
        (
            mean_of("h(m) − (h(p) + h(q))/2 by 100,000 draws of each", by_definition, estimate),
            exact("∫ p ln(p/m) + ∫ q ln(q/m), halved", by_definition,
                  (a.exp() * (a - m) + b.exp() * (b - m)).sum() * step / 2),
            exact("information of a draw about its origin", by_definition, discrete_mutual_information(label)),
            exact("the other order", by_definition, jensen_shannon(q, p)),
            fact("below ln 2", by_definition < LN_2),
            fact("m is no Gaussian: with one of the same mean and variance in its place the value is another",
                 abs(matched - by_definition) > 0.01),
        )
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.2k",
    section="2.2",
    statement="The square root of the Jensen–Shannon divergence is a metric: it obeys the triangle inequality.",
    formula=r"\sqrt{\mathrm{JSD}(p\|r)} \leq \sqrt{\mathrm{JSD}(p\|q)} + \sqrt{\mathrm{JSD}(q\|r)}",
    lesson="Symmetry alone does not make a distance; a detour must not be shorter than the direct way. The root of the "
    "divergence has this property for all distributions (Endres and Schindelin 2003). The divergence itself does not: "
    "for three bells in a row two small steps together cost less than the one large step.",
)
def triangle(lab: Lab) -> Evidence:
    means, widths = 2 * lab.normal(3, 200, 1), 0.4 + 2 * lab.uniform(3, 200, 1)
    p, q, r = (Gaussian(mean, width.square().unsqueeze(-1)) for mean, width in zip(means, widths, strict=True))
    direct, first, second = jensen_shannon(p, r), jensen_shannon(p, q), jensen_shannon(q, r)
    broken = int((direct.sqrt() > first.sqrt() + second.sqrt() + 1e-9).sum())
    without_root = int((direct > first + second + 1e-9).sum())
    row = [on_the_line(t, 1.0) for t in (0.0, 0.5, 1.0)]
    steps = [float(jensen_shannon(row[i], row[j])) for i, j in ((0, 2), (0, 1), (1, 2))]
    return Evidence(
        (
            Comparison("triangles among 200 that the root breaks", 0.0, float(broken), 0.0),
            fact("without the root some of them are broken", without_root > 0),
            fact("bells at 0, 0.5 and 1: the direct one exceeds both steps together", steps[0] > steps[1] + steps[2]),
            fact("their roots do not", steps[0] ** 0.5 <= steps[1] ** 0.5 + steps[2] ** 0.5),
        )
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.2l",
    section="2.2",
    statement="The mutual information of two jointly Gaussian variables is half the logarithm of the product of their "
    "determinants over the joint determinant.",
    formula=r"I(X;Y) = \frac{1}{2}\log\frac{|\Sigma_X||\Sigma_Y|}{|\Sigma|}",
    lesson="It is H(X) + H(Y) − H(X,Y) with the entropies put in; the constants cancel. In suitable coordinates X and "
    "Y are pairs of numbers with correlations ρ, and the formula becomes −½ Σ ln(1 − ρ²): it is zero without "
    "correlation and grows without bound as one variable determines the other.",
)
def gaussian_mutual_information(lab: Lab) -> Evidence:
    joint = gaussian(lab, 5, "joint")
    c = joint.covariance
    formula = 0.5 * math.log(float(torch.det(c[:2, :2]) * torch.det(c[2:, 2:]) / torch.det(c)))
    x = draws(lab, joint, "draws")
    ratio = (
        log_density(joint, x)
        - log_density(joint.marginal([0, 1]), x[:, :2])
        - log_density(joint.marginal([2, 3, 4]), x[:, 2:])
    )
    axis, step = line(-9.0, 9.0, 361)
    pair = Gaussian(torch.zeros(2), torch.tensor([[1.0, -0.8], [-0.8, 1.0]], dtype=torch.float64))
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    table = log_density(pair, grid).exp().reshape(361, 361) * step**2
    return Evidence(
        (
            mean_of("mean of ln p(x,y)/(p(x)p(y)) over 200,000 draws, blocks of 2 and 3", formula, ratio),
            exact("the same integral at correlation −0.8", 0.5 * math.log(1 / (1 - 0.64)),
                  discrete_mutual_information(table)),
            exact("from the canonical correlations", formula, mutual_information(joint, [0, 1], [2, 3, 4])),
        )
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.2m",
    section="2.2",
    statement="With the data points as columns, X = [X₁ … Xₙ] and Y = [Y₁ … Yₙ], the covariances are XᵀX, YᵀY and XᵀY, "
    "each divided by n − 1.",
    formula=r"\Sigma_X = \frac{1}{n-1} X^{\top} X, \quad \Sigma_Y = \frac{1}{n-1} Y^{\top} Y, \quad "
    r"\Sigma_{XY} = \frac{1}{n-1} X^{\top} Y",
    correction="With points as columns the transpose stands on the right, and the data must be centred first. XᵀX is "
    "n × n: it compares points, not features.",
    corrected=r"\Sigma_X = \frac{1}{n-1} \bar X \bar X^{\top}, \quad \Sigma_Y = \frac{1}{n-1} \bar Y \bar Y^{\top}, "
    r"\quad \Sigma_{XY} = \frac{1}{n-1} \bar X \bar Y^{\top}",
    lesson="A covariance has one row and one column per feature, however many points there are; check the size of the "
    "product. XᵀX has rank at most d, so for n > d its determinant is zero and the formula for the mutual information "
    "would divide zero by zero. Section 2.1 of the thesis has the right order for the same layout.",
    slip=True,
)
def covariance_layout(lab: Lab) -> Evidence:
    d, n = 3, 8
    x = lab.normal(d, n, purpose="x") + 2
    y = 0.5 * x + lab.normal(d, n, purpose="y") - 1
    joint = torch.cov(torch.cat([x, y]))
    gram = x.mT @ x / (n - 1)
    centred = [z - z.mean(1, keepdim=True) for z in (x, y)]
    return Evidence(
        stated=(
            Comparison("rows of the covariance of 3 features, from those of XᵀX", float(len(gram)), float(d), 0.0),
            exact("variance of the first feature, from entry 11 of XᵀX/(n − 1)", gram[0, 0], joint[0, 0]),
            exact("covariance of x₁ and y₂, from XᵀY/(n − 1)", (x.mT @ y)[0, 1] / (n - 1), joint[0, d + 1]),
        ),
        corrected=(
            exact("covariance, from X Xᵀ/(n − 1), centred", centred[0] @ centred[0].mT / (n - 1), joint[:d, :d]),
            exact("cross-covariance, from X Yᵀ/(n − 1)", centred[0] @ centred[1].mT / (n - 1), joint[:d, d:]),
            exact("rank of XᵀX", float(d), float(torch.linalg.matrix_rank(gram, hermitian=True))),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-2.2n",
    section="2.2",
    statement="If X and Y are statistically independent, their mutual information is zero.",
    formula=r"p(x,y) = p(x)\,p(y) \ \Longrightarrow\ I(X;Y) = 0",
    lesson="For independent variables the logarithm of p(x,y)/(p(x)p(y)) is zero everywhere. The converse holds for "
    "the true mutual information, but not for the Gaussian formula put on other data: y = x² with symmetric x is fully "
    "determined by x and yet uncorrelated, and the formula says 0.",
)
def independence(lab: Lab) -> Evidence:
    blocks = [gaussian(lab, 2, name).covariance for name in "xy"]
    sigma = torch.zeros(4, 4, dtype=torch.float64)
    sigma[:2, :2], sigma[2:, 2:] = blocks
    ratio = torch.logdet(blocks[0]) + torch.logdet(blocks[1]) - torch.logdet(sigma)
    p, q = (torch.softmax(lab.normal(n, purpose=f"{n}"), 0) for n in (4, 5))
    dependent = torch.tensor([[0.0, 0.25], [0.5, 0.0], [0.0, 0.25]], dtype=torch.float64)  # x = −1, 0, 1 and y = x²
    return Evidence(
        (
            Comparison("information of two independent Gaussian blocks", 0.0, float(ratio) / 2, 1e-12),
            Comparison("information of independent discrete variables", 0.0,
                       float(discrete_mutual_information(p[:, None] * q)), 1e-12),
            exact("y = x², x = −1, 0, 1: information is the entropy of y, not 0", LN_2,
                  discrete_mutual_information(dependent)),
            Comparison("although x and y are uncorrelated", 0.0,
                       float((dependent[:, 1] * torch.tensor([-1.0, 0.0, 1.0])).sum()), 1e-12),
        )
    )  # fmt: skip
