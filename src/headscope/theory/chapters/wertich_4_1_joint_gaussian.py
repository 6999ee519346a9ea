r"""Wertich, sections 4.1 and 4.2: a sentence as one joint Gaussian.

Linear maps act on it, and the last token conditions it.
"""

import math

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from headscope.core.figure import Curves, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.gaussians.gaussian import Gaussian, blocks, fitted, joined, map_tokens, rank
from headscope.maths.gaussians.information import (
    canonical_correlations,
    discrete_entropy,
    discrete_mutual_information,
    entropy,
    kl,
    mutual_information,
)
from headscope.maths.gaussians.moments import Moments
from headscope.theory.checks import Lab, exact, fact, mean_of
from headscope.theory.works import wertich

CHAPTER = wertich()


def sequences(lab: Lab, count: int, tokens: int, d: int) -> Tensor:
    """Sequences whose tokens depend on their predecessors."""
    noise = lab.normal(count, tokens, d, purpose="noise")
    mixing = lab.normal(d, d, purpose="mixing") / math.sqrt(d)
    x = [noise[:, 0]]
    for i in range(1, tokens):
        x.append(0.8 * x[-1] @ mixing + noise[:, i] + 0.3)
    return torch.stack(x, 1)


def joint_gaussian(lab: Lab, d: int) -> Gaussian:
    """Two dependent tokens of d features."""
    root = lab.normal(2 * d, 2 * d, purpose="root")
    return Gaussian(lab.normal(2 * d, purpose="mean"), root @ root.mT / (2 * d) + 0.3 * torch.eye(2 * d))


def invertible(lab: Lab, d: int, purpose: str = "map") -> Tensor:
    u, v = (torch.linalg.qr(lab.normal(d, d, purpose=f"{purpose} {side}")).Q for side in "uv")
    result: Tensor = u @ torch.diag(torch.linspace(0.5, 3.0, d).double()) @ v
    return result


def determinant_information(sigma: Tensor, d: int) -> float:
    """The mutual information of two tokens as the thesis writes it."""
    return 0.5 * math.log(float(torch.det(sigma[:d, :d]) * torch.det(sigma[d:, d:]) / torch.det(sigma)))


@CHAPTER.claim(
    "W-4.1",
    section="4.1.2",
    statement="The joint covariance of all tokens, fitted to the sentences, is positive definite, and its blocks are "
    "transposes of each other.",
    formula=r"\Sigma_X \succ 0, \qquad \Sigma_{ij} = \Sigma_{ji}^{\top}",
    correction="A fitted covariance is only positive semi-definite: from m sentences its rank is at most m − 1, and a "
    "feature that never changes, such as padding, adds nothing. It is positive definite only for m > nd without such "
    "features. The blocks are transposes of each other in any case.",
    corrected=r"\Sigma_X \succeq 0, \qquad \mathrm{rank}\,\Sigma_X \leq \min(nd,\ m-1), \qquad "
    r"\Sigma_{ij} = \Sigma_{ji}^{\top}",
    lesson="Each sentence is one point in a space of n·d dimensions, and m points span at most m − 1 directions around "
    "their mean. Ten tokens of 768 features already need more than 7680 sentences. Without them the determinant is "
    "zero and every entropy formula of the chapter breaks down, unless the covariance is shrunk towards a full one.",
)
def joint_covariance(lab: Lab) -> Evidence:
    tokens, d = 4, 6
    sentences = sequences(lab, 300, tokens, d)
    padded = sentences.clone()
    padded[:, -1] = 0.7  # every sentence ends in the same padding
    covariances = {
        name: fitted(Moments.of(joined(x)), singular=True).covariance
        for name, x in (("20 sentences", sentences[:20]), ("300, the last token padding", padded), ("300", sentences))
    }
    ranks = {name: float(rank(sigma)) for name, sigma in covariances.items()}
    expected = {"20 sentences": 19.0, "300, the last token padding": float((tokens - 1) * d), "300": float(tokens * d)}
    parts = blocks(covariances["300"], tokens)
    shrunk = fitted(Moments.of(joined(sentences[:20])), "ledoit-wolf").covariance
    return Evidence(
        stated=tuple(
            Comparison(f"directions with positive variance of 4 tokens × 6 features, {name}", float(tokens * d), r, 0.0)
            for name, r in ranks.items()
        ),
        corrected=(
            *(
                Comparison(f"rank for 4 tokens × 6 features, {name}", expected[name], r, 0.0)
                for name, r in ranks.items()
            ),
            exact("blocks and transposed blocks (worst entry)", parts.transpose(0, 1).mT, parts),
            Comparison(
                "rank for 20 sentences after Ledoit–Wolf shrinkage", float(tokens * d), float(rank(shrunk)), 0.0
            ),
        ),
    )


@CHAPTER.claim(
    "W-4.2a",
    section="4.2",
    statement="Every marginal of the joint Gaussian is Gaussian: that of each token and that of each single feature.",
    formula=r"X_i \sim N(\mu_i, \Sigma_{ii}), \qquad X_{ik} \sim N(\mu_{ik}, \sigma_{ik}^2)",
    lesson="A marginal is a linear map that drops coordinates, and linear maps of Gaussians are Gaussian: one reads "
    "off the block of the covariance. The converse is false. Features that are Gaussian one by one need not be jointly "
    "Gaussian, so checking single features does not justify the model.",
)
def marginals(lab: Lab) -> Evidence:
    root = lab.normal(3, 3)
    p = Gaussian(lab.normal(3, purpose="mean") / 2, root @ root.mT / 3 + 0.4 * torch.eye(3))
    joint = scipy.stats.multivariate_normal(p.mean.numpy(), p.covariance.numpy())
    axis = np.linspace(-16, 16, 257)
    step = axis[1] - axis[0]
    y, z = np.meshgrid(axis, axis, indexing="ij")
    comparisons = []
    for x in (-1.0, 0.2, 1.5):
        slab = joint.pdf(np.stack([np.full_like(y, x), y, z], -1))
        marginal = scipy.stats.norm(float(p.mean[0]), float(p.covariance[0, 0]) ** 0.5)
        comparisons.append(exact(f"density of one feature at {x:g}, the others integrated out", float(marginal.pdf(x)),
                                 float(slab.sum() * step**2)))  # fmt: skip
        pair = p.marginal([0, 1]).log_density(torch.tensor([x, 0.5], dtype=torch.float64)).exp()
        column = joint.pdf(np.stack([np.full_like(axis, x), np.full_like(axis, 0.5), axis], -1))
        comparisons.append(exact(f"density of two features at ({x:g}, 0.5)", pair, float(column.sum() * step)))
    # Gaussian one by one, and yet not together: the sign of the second is that of the first.
    a, b = lab.normal(2, 100_000, purpose="signs")
    together = b.abs() * a.sign()
    comparisons.append(mean_of("b made to share the sign of a is Gaussian alone: fourth moment", 3.0, together.pow(4)))
    comparisons.append(
        fact("but with a it is not: a and b are never of opposite sign", bool((a * together >= 0).all()))
    )
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-4.2b",
    section="4.2",
    statement="As the distance of two tokens grows, the determinant of their cross-covariance gets smaller, and their "
    "mutual information falls with it.",
    formula=r"|\Sigma_{ij}| \downarrow \ \Longrightarrow\ I(X_i;X_j) \downarrow",
    correction="The mutual information is given by the canonical correlations ρ of the two tokens, the determinant "
    "only by their product. It bounds the information from below and not from above: one strong correlation "
    "beside a missing one gives determinant 0 and any amount of information.",
    corrected=r"I = -\frac{1}{2}\sum_k \ln(1-\rho_k^2) \geq -\frac{d}{2}\ln\left(1 - \left("
    r"\frac{|\Sigma_{ij}|^2}{|\Sigma_{ii}||\Sigma_{jj}|}\right)^{1/d}\right)",
    lesson="A determinant is zero as soon as one direction carries nothing, however much the others carry; two words "
    "may share their topic completely and nothing else. It also changes with the units of the embedding, and "
    "information does not. In one dimension with fixed variances the statement is right, since then there is one ρ "
    "only.",
)
def determinant_of_the_cross_covariance(lab: Lab) -> Evidence:
    def pair(rho: tuple[float, ...]) -> Gaussian:
        d = len(rho)
        sigma = torch.eye(2 * d).double()
        sigma[:d, d:] = sigma[d:, :d] = torch.diag(torch.tensor(rho, dtype=torch.float64))
        return Gaussian(torch.zeros(2 * d), sigma)

    one_strong, both_weak = pair((0.95, 0.0)), pair((0.3, 0.3))
    informed = [float(mutual_information(p, [0, 1], [2, 3])) for p in (one_strong, both_weak)]
    d = 3
    joint = joint_gaussian(lab, d)
    sigma = joint.covariance
    rho = canonical_correlations(joint, range(d), range(d, 2 * d))
    ratio = torch.det(sigma[:d, d:]).square() / (torch.det(sigma[:d, :d]) * torch.det(sigma[d:, d:]))
    bound = -0.5 * d * math.log(1 - float(ratio) ** (1 / d))
    scaled = sigma.clone()
    scaled[d:] *= 10
    scaled[:, d:] *= 10
    t = np.linspace(0.0, 1.0, 41)
    family = [(0.9 * math.sqrt(1 - x), 0.3 + 0.6 * x) for x in t]
    # ρ moves from (0.9, 0.3) to (0, 0.9): along it the determinant falls to 0 and the information does not.
    values = np.array([float(mutual_information(pair(r), [0, 1], [2, 3])) for r in family])
    determinants = np.array([r[0] * r[1] for r in family])
    figure = Curves(
        "w42b_determinant", "Determinant and information are not tied",
        "Two tokens of two features, canonical correlations moving from (0.9, 0.3) to (0, 0.9): the determinant of "
        "the cross-covariance and the mutual information. The bound is what the determinant guarantees.",
        "way from (0.9, 0.3) to (0, 0.9)", "determinant; nats",
        (
            Series("mutual information", t, values),
            Series("determinant of the cross-covariance", t, determinants),
            Series("lower bound from the determinant", t, -np.log(1 - determinants), role="theory"),
        ),
    )  # fmt: skip
    return Evidence(
        stated=(
            fact("ρ = (0.95, 0), determinant 0: less information than ρ = (0.3, 0.3), determinant 0.09",
                 informed[0] < informed[1]),
            fact("one token in other units (determinant × 1000): more information",
                 determinant_information(scaled, d) > determinant_information(sigma, d) * (1 + 1e-6)),
        ),
        corrected=(
            exact("information from the canonical correlations", -0.5 * float((1 - rho**2).log().sum()),
                  determinant_information(sigma, d), scale=10.0),
            exact("the same in other units", determinant_information(sigma, d), determinant_information(scaled, d),
                  scale=10.0),
            fact("the determinant's lower bound is kept", determinant_information(sigma, d) >= bound),
            exact("and reached where all correlations are equal (0.3, 0.3)", -math.log(1 - 0.09), informed[1]),
            exact("one dimension: −½ ln(1 − ρ²) at ρ = 0.6", -0.5 * math.log(0.64),
                  mutual_information(pair((0.6,)), [0], [1])),
        ),
        figures=(figure,),
    )  # fmt: skip


@CHAPTER.claim(
    "W-4.2c",
    section="4.2.1",
    statement="A linear map L of every token turns each block of the joint covariance into L Σᵢⱼ Lᵀ, and each mean "
    "into Lμᵢ.",
    formula=r"\Sigma_{ij} \rightarrow L\, \Sigma_{ij} L^{\top}, \qquad \mu_i \rightarrow L \mu_i",
    lesson="Applying L to each token is one large linear map of the whole sequence, with L repeated along its "
    "diagonal, and the rule for linear maps can be read block by block. The formula needs neither that L is invertible "
    "nor that the data are Gaussian.",
)
def tokenwise_map(lab: Lab) -> Evidence:
    tokens, d = 3, 4
    x = sequences(lab, 100, tokens, d)
    joint = fitted(Moments.of(joined(x)))
    comparisons = []
    for rows in (4, 2):
        linear = lab.normal(rows, d, purpose=f"{rows}")
        mapped = map_tokens(joint, linear, tokens)
        refitted = joined(x @ linear.mT)
        measured = torch.cov(refitted.mT)
        comparisons += [
            exact(f"mean of the mapped sequences, L of {rows} × 4 (worst entry)", mapped.mean, refitted.mean(0)),
            exact(f"joint covariance of them (worst entry), L of {rows} × 4", mapped.covariance, measured),
        ]
        block = linear @ blocks(joint.covariance, tokens)[0, 2] @ linear.mT
        comparisons.append(exact(f"block of tokens 1 and 3, L of {rows} × 4", block, measured[:rows, 2 * rows :]))
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-4.2d",
    section="4.2.2",
    statement="A linear map L changes the entropy of a token by the logarithm of |det L|, the sum of the logarithms of "
    "its singular values.",
    formula=r"H(L X_i) = H(X_i) + \log|\det L| = H(X_i) + \sum_k \log\sigma_k(L)",
    lesson="The map multiplies every volume by |det L| and thins the density out by the same factor, so −ln p grows by "
    "the same amount everywhere. It holds for any density, not only for Gaussians, and fails when L is not invertible: "
    "then the image has no density in d dimensions and the entropy is minus infinity.",
)
def entropy_under_a_map(lab: Lab) -> Evidence:
    d = 2
    p = joint_gaussian(lab, d).marginal([0, 1])
    comparisons = []
    axis = np.linspace(-40, 40, 801)
    step = axis[1] - axis[0]
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    for name, sign in (("det L > 0", 1.0), ("det L < 0", -1.0)):
        linear = invertible(lab, d, name)
        linear[0] *= sign * float(torch.det(linear).sign())
        law = scipy.stats.multivariate_normal((linear @ p.mean).numpy(), (linear @ p.covariance @ linear.mT).numpy())
        density = law.logpdf(grid)
        measured = float(-(np.exp(density) * density).sum() * step**2)
        sigma = torch.linalg.svdvals(linear)
        comparisons += [
            exact(f"−∫ p ln p after the map, {name}", float(entropy(p)) + float(sigma.log().sum()), measured),
            exact(f"sum of the logarithms of the singular values, {name}", torch.linalg.slogdet(linear).logabsdet,
                  sigma.log().sum()),
        ]  # fmt: skip
    # Not Gaussian: a box of volume 1 becomes a parallelepiped of volume |det L| and has entropy ln |det L|.
    linear = invertible(lab, 2, "box")
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]).double() @ linear.mT
    turned = corners.roll(-1, 0)
    area = 0.5 * abs(float((corners[:, 0] * turned[:, 1] - corners[:, 1] * turned[:, 0]).sum()))
    comparisons.append(exact("entropy of a uniform box after the map: logarithm of its new area",
                             torch.linalg.svdvals(linear).log().sum(), math.log(area)))  # fmt: skip
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-4.2e",
    section="4.2.2",
    statement="The joint covariance of two mapped tokens has det(L)⁴ times the determinant, and their mutual "
    "information is unchanged by an invertible L.",
    formula=r"\det\Sigma_L = \det(L)^4 \det\Sigma, \qquad I(L X_i; L X_j) = I(X_i; X_j)",
    lesson="The joint map has L twice on its diagonal, so its determinant is det(L)², and a covariance takes the map "
    "from both sides. The two separate covariances give det(L)² each, and everything cancels. What X tells about Y "
    "cannot depend on the coordinates in which they are written.",
)
def information_under_a_map(lab: Lab) -> Evidence:
    d = 3
    joint, linear = joint_gaussian(lab, d), invertible(lab, d)
    mapped = map_tokens(joint, linear, 2)
    before, after = (determinant_information(g.covariance, d) for g in (joint, mapped))
    x = joint.mean + lab.normal(100_000, 2 * d, purpose="draws") @ torch.linalg.cholesky(joint.covariance).mT
    y = (x.reshape(-1, 2, d) @ linear.mT).flatten(1)
    parts = [
        torch.as_tensor(scipy.stats.multivariate_normal(g.mean.numpy(), g.covariance.numpy()).logpdf(z.numpy()))
        for g, z in ((mapped, y), (mapped.marginal(range(d)), y[:, :d]), (mapped.marginal(range(d, 2 * d)), y[:, d:]))
    ]
    return Evidence(
        (
            exact("joint determinant after the map", torch.det(linear) ** 4 * torch.det(joint.covariance),
                  torch.det(mapped.covariance)),
            exact("mutual information after the map", before, after, scale=10.0),
            mean_of("the same by 100,000 mapped draws", before, parts[0] - parts[1] - parts[2]),
        )
    )  # fmt: skip


def cubic(u: Tensor) -> Tensor:
    """The inverse of x → x + x³/10."""
    scale = math.sqrt(10 / 3)
    return 2 * scale * torch.sinh(torch.asinh(1.5 * u / scale) / 3)


@CHAPTER.claim(
    "W-4.2f",
    section="4.2.2",
    statement="Linear layers keep the mutual dependence of tokens; only non-linear transformations alter it.",
    formula=r"I(L X_i; L X_j) = I(X_i; X_j), \qquad f\ \mathrm{nonlinear}:\ I(f(X_i); f(X_j)) \neq I(X_i; X_j)",
    correction="What counts is whether the map of each token can be undone, not whether it is linear. An invertible "
    "map keeps the information, linear or not; one that loses something, such as a projection to d/h dimensions, can "
    "only lower it; a map that mixes tokens, such as attention, can change it either way.",
    corrected=r"I(f(X_i); g(X_j)) \leq I(X_i; X_j), \quad \mathrm{with\ equality\ for\ invertible}\ f, g",
    lesson="Renaming every value, by a formula straight or curved, hides nothing. The projections of an attention head "
    "are linear and go from d to d/h dimensions: they can lose what tokens say about each other. That no processing of "
    "single tokens can create information is the data-processing inequality.",
)
def linear_and_nonlinear(lab: Lab) -> Evidence:
    d = 3
    joint = joint_gaussian(lab, d)
    before = float(mutual_information(joint, range(d), range(d, 2 * d)))
    projected = map_tokens(joint, lab.normal(1, d, purpose="projection"), 2)
    projected_information = float(mutual_information(projected, [0], [1]))
    # Two numbers with correlation 0.7, each bent by u = x + x³/10: the information is integrated over u and v.
    rho, true = 0.7, -0.5 * math.log(1 - 0.49)
    u = torch.arange(-42, 42.05, 0.12, dtype=torch.float64)
    x = cubic(u)
    slope = 1 / (1 + 0.3 * x**2)
    form = (x[:, None] ** 2 - 2 * rho * x[:, None] * x + x**2) / (1 - rho**2)
    bent = (-form / 2).exp() * slope[:, None] * slope * 0.12**2 / (2 * math.pi * math.sqrt(1 - rho**2))
    information = float(discrete_mutual_information(bent / bent.sum()))
    mixing = torch.eye(2 * d).double()
    mixing[d:, :d] = -joint.covariance[d:, :d] @ torch.linalg.inv(joint.covariance[:d, :d])  # takes token 1 out of 2
    unmixed = float(mutual_information(joint.mapped(mixing), range(d), range(d, 2 * d)))
    return Evidence(
        stated=(
            exact(
                "information of two tokens of 3 features after a linear map to 1 dimension",
                before,
                projected_information,
            ),
            fact("bending every feature by x + x³/10 alters the information", abs(information - true) > 1e-6),
        ),
        corrected=(
            exact("information of two features with correlation 0.7 after bending both", true, information),
            fact("after a linear map to 1 dimension there is less", projected_information < before),
            Comparison("linear, but across tokens: token 2 less its prediction from token 1", 0.0, unmixed, 1e-9),
        ),
    )


@CHAPTER.claim(
    "W-4.2g",
    section="4.2.2",
    statement="The divergence of two Gaussians does not change under an invertible linear map of both; L cancels in "
    "each term.",
    formula=r"D(L p\,\|\,L q) = D(p\|q)",
    lesson="The trace of Σ₂⁻¹Σ₁, the ratio of the determinants and the Mahalanobis distance of the means are each free "
    "of the coordinates, so L cancels term by term. More is true: any invertible map of both leaves the divergence as "
    "it is, for any two distributions. The two entropies change, by the same amount.",
)
def divergence_under_a_map(lab: Lab) -> Evidence:
    d = 3
    joint = joint_gaussian(lab, d)
    p, q, linear = joint.marginal(range(d)), joint.marginal(range(d, 2 * d)), invertible(lab, d)

    def terms(a: Gaussian, b: Gaussian) -> tuple[float, float, float]:
        inverse, gap = torch.linalg.inv(b.covariance), b.mean - a.mean
        determinants = torch.det(b.covariance) / torch.det(a.covariance)
        return float((inverse @ a.covariance).trace()), math.log(float(determinants)), float(gap @ inverse @ gap)

    mapped = p.mapped(linear), q.mapped(linear)
    names = "trace of Σ₂⁻¹Σ₁", "log-ratio of the determinants", "squared Mahalanobis distance"
    comparisons = [
        exact(f"{name} after the map", before, after, scale=10.0)
        for name, before, after in zip(names, terms(p, q), terms(*mapped), strict=True)
    ]
    x = (p.mean + lab.normal(100_000, d, purpose="draws") @ torch.linalg.cholesky(p.covariance).mT) @ linear.mT
    logs = [
        torch.as_tensor(scipy.stats.multivariate_normal(g.mean.numpy(), g.covariance.numpy()).logpdf(x.numpy()))
        for g in mapped
    ]
    comparisons.append(mean_of("mean of ln(p/q) over 100,000 mapped draws", float(kl(p, q)), logs[0] - logs[1]))
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-4.2h",
    section="4.2.2",
    statement="Scaling the weights of a linear layer down turns a chaotic distribution into a more meaningful and "
    "ordered one, because the entropy falls.",
    formula=r"|\det L| < 1:\quad H(L X) < H(X)",
    correction="The entropy of a density falls by d ln c under x → x/c, but that is a change of units: nothing becomes "
    "more ordered. The entropy of the tokens themselves, the divergences between them and their mutual information "
    "are all unchanged, and a layer normalisation that follows removes the factor (up to its small ε).",
    corrected=r"h(cX) = h(X) + d \ln c, \quad H_{\mathrm{tokens}},\ D,\ I\ \mathrm{unchanged}, \quad "
    r"\mathrm{LN}(cX) = \mathrm{LN}(X)",
    lesson="A length is not better known when it is given in metres instead of centimetres, although the number, and "
    "with it the differential entropy, is smaller. Order would show in relations: how well clusters can be told apart, "
    "what one token says about another. Uniform scaling leaves all of these as they are.",
)
def scaling_down(lab: Lab) -> Evidence:
    d, c = 3, 0.5
    joint = joint_gaussian(lab, d)
    p, q = joint.marginal(range(d)), joint.marginal(range(d, 2 * d))
    half = torch.eye(d).double() * c
    smaller = p.mapped(half), q.mapped(half)
    # Words are points: a distribution over 8 embeddings keeps its probabilities when the embeddings are scaled.
    probability = torch.softmax(lab.normal(8, purpose="words"), 0)
    embedding = lab.normal(8, d, purpose="embeddings")
    scaled, counted = embedding @ half, torch.zeros(8, dtype=torch.float64)
    for word in range(8):
        counted[int((scaled[word] - scaled).norm(dim=1).argmin())] += probability[word]
    change = float(discrete_entropy(counted) - discrete_entropy(probability))
    normalise = torch.nn.functional.layer_norm
    told_apart = float(kl(*smaller))
    mapped = map_tokens(joint, half, 2)
    return Evidence(
        stated=(
            Comparison("change of the entropy of the distribution over 8 words, scaled by ½ (from d ln ½)",
                       d * math.log(c), change, 1e-9),
            fact("two tokens can be told apart better: their divergence grows",
                 told_apart > float(kl(p, q)) * (1 + 1e-9)),
        ),
        corrected=(
            exact("differential entropy after scaling by ½", entropy(p) + d * math.log(c), entropy(smaller[0])),
            exact("divergence of two tokens after scaling", kl(p, q), told_apart),
            exact("mutual information after scaling", mutual_information(joint, range(d), range(d, 2 * d)),
                  mutual_information(mapped, range(d), range(d, 2 * d))),
            Comparison("change of the entropy over the 8 words", 0.0, change, 1e-9),
            exact("layer normalisation of the scaled embeddings (worst entry)", normalise(embedding, (d,), eps=0.0),
                  normalise(scaled, (d,), eps=0.0)),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-4.2i",
    section="4.2.3",
    statement="A model that puts the next token given the last one in the place of the next token given the whole past "
    "is called a 1-gram model.",
    formula=r"P(X_{i+1} | X_i): \quad \mathrm{1-gram}",
    correction="Conditioning on one previous token is a 2-gram (bigram) model, a Markov chain of order 1. A 1-gram "
    "model uses no context at all. What the approximation loses per token is the information that the older past still "
    "has about the next token.",
    corrected=r"\mathrm{2-gram}:\ P(X_{i+1}|X_i), \qquad E\left[-\ln P(X_{i+1}|X_i)\right] - H(X_{i+1}|\mathrm{past}) "
    r"= I(X_{i+1}; X_{i-1}, \ldots | X_i)",
    lesson="An n-gram is a run of n tokens, so a model of pairs is a bigram model, and its table has V² entries. In "
    "the chain checked here the difference is large: the 1-gram model knows only how frequent each token is. The "
    "idea of the section, to fit a Gaussian to the few likely successors, needs the bigram. That a few tokens could "
    "then hold most of the probability is put there as a possibility; the lens preconditioning measures it on a text.",
    slip=True,
)
def order_of_the_model(lab: Lab) -> Evidence:
    v, count = 5, 60_000
    table = torch.softmax(2.0 * lab.normal(v, v, v, purpose="table"), -1)  # next token given the last two
    chain = torch.zeros(v * v, v * v, dtype=torch.float64)  # states: the last two tokens
    for a in range(v):
        for b in range(v):
            chain[a * v + b, b * v : (b + 1) * v] = table[a, b]
    pairs = torch.linalg.matrix_power(chain, 4096)[0].reshape(v, v)
    triples = pairs[:, :, None] * table
    single, bigram = pairs.sum(0), triples.sum(0) / triples.sum((0, 2))[:, None]
    h_single = float(discrete_entropy(single / single.sum()))
    h_bigram = float((single * discrete_entropy(bigram)).sum())
    h_past = float((pairs.reshape(-1) * discrete_entropy(table.reshape(v * v, v))).sum())
    # I(next; last but one | last), as a sum over the last token.
    within = triples.transpose(0, 1) / single[:, None, None]
    beyond = float((single * discrete_mutual_information(within / within.sum((1, 2), keepdim=True))).sum())
    samples = torch.multinomial(triples.reshape(-1), count, replacement=True, generator=lab.generator("triples"))
    last, following = samples // v % v, samples % v
    surprise = -bigram[last, following].log()
    name = "mean of −ln P(next | last) over 60,000 independent draws of a chain"
    return Evidence(
        stated=(
            mean_of(f"{name}, from the 1-gram entropy", h_single, surprise),
        ),
        corrected=(
            mean_of(f"{name}, from the bigram entropy", h_bigram, surprise),
            exact("what the older past would have added, from I(next; last but one | last)", beyond, h_bigram - h_past,
                  scale=100.0),
        ),
    )  # fmt: skip
