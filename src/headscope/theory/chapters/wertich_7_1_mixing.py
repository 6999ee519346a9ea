r"""Wertich, section 7.1: attention averages Gaussians."""

import math

import numpy as np
import torch
from torch import nn

from headscope.core.figure import Histogram, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.attention.token_collapse import layer_norm
from headscope.maths.gaussians.linear_mixing import (
    feedback_covariance,
    mixed_covariance,
    mixed_mean,
    mixture_covariance,
    mutual_informations,
    token_entropies,
)
from headscope.theory.checks import Lab, exact, fact, mean_of, trend_of, variance_of
from headscope.theory.works import wertich

CHAPTER = wertich()


@CHAPTER.claim(
    "W-7.1a",
    section="7.1.1",
    statement="The value matrix does not alter the linear combinations that attention forms: mapping and averaging can "
    "be done in either order.",
    formula=r"A\,(X W_v) = (A X)\,W_v",
    lesson="The weights act on the tokens (from the left), the value matrix acts on the coordinates of each token "
    "(from the right). Acting on different sides, they do not interfere. Without biases this is exact.",
)
def values_commute(lab: Lab) -> Evidence:
    a = torch.softmax(lab.normal(7, 7, purpose="scores"), -1)
    x, w = lab.normal(7, 5, purpose="tokens"), lab.normal(5, 3, purpose="values")
    mapped = x @ w
    by_sums = torch.stack([sum((a[j, i] * mapped[i] for i in range(7)), torch.zeros(3)) for j in range(7)])
    return Evidence((exact("averages of mapped tokens against mapped averages", (a @ x) @ w, by_sums),))


@CHAPTER.claim(
    "W-7.1b",
    section="7.1.1",
    statement="With constant weights the averaged tokens are jointly Gaussian; their means are the weighted means and "
    "their covariance blocks are the doubly weighted sums of all blocks.",
    formula=r"\mu_k = \sum_{i} \lambda_i^{(k)} \mu_i, \quad "
    r"\mathrm{Cov}(\hat{X}_k, \hat{X}_l) = \sum_{i,j} \lambda_i^{(k)} \lambda_j^{(l)} \Sigma_{ij}",
    lesson="A linear map of a Gaussian vector is Gaussian, and covariance is bilinear: each pair of tokens contributes "
    "the product of its two weights. In one line it is (Λ ⊗ 1) Σ (Λ ⊗ 1)ᵀ, and it can be computed without that large "
    "matrix.",
)
def mixed_moments(lab: Lab) -> Evidence:
    n, d, draws = 3, 2, 60_000
    sigma, mu, weights = _covariance(lab, n, d), lab.normal(n, d, purpose="means"), _weights(lab, n)
    x = _draws(lab, sigma, draws) + mu
    mixed = weights @ x
    mean, covariance = mixed_mean(weights, mu), mixed_covariance(weights, sigma)
    comparisons = [mean_of("mean of output 2, coordinate 1", float(mean[1, 0]), mixed[:, 1, 0])]
    for k, a, other, b in ((0, 0, 0, 0), (0, 1, 2, 0), (1, 0, 2, 1)):
        products = (mixed[:, k, a] - mean[k, a]) * (mixed[:, other, b] - mean[other, b])
        name = f"covariance of coordinate {a + 1} of output {k + 1} and coordinate {b + 1} of output {other + 1}"
        comparisons.append(mean_of(name, float(covariance[k, a, other, b]), products))
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-7.1c",
    section="7.1.1",
    statement="The weight of token i in the output at position j is the entry in row i and column j of the attention "
    "matrix.",
    formula=r"\lambda_i^{(j)} = A_{ij}, \quad \hat{X}_j = \sum_i \lambda_i^{(j)} X_i",
    correction="The indices are swapped: the weights of output j stand in row j.",
    corrected=r"\lambda_i^{(j)} = A_{ji}",
    lesson="Softmax normalises rows: row j holds the shares with which query j divides its attention, and they sum to "
    "one. A column does not: it says how much token i is attended to by all queries.",
    slip=True,
)
def weight_indices(lab: Lab) -> Evidence:
    a = torch.softmax(lab.normal(6, 6, purpose="scores"), -1)
    # What output j takes from token i is read off by feeding the tokens one at a time.
    shares = torch.stack([a @ torch.eye(6, dtype=torch.float64)[:, i : i + 1] for i in range(6)])[..., 0]  # [i, j]
    return Evidence(
        (
            exact("share of token i in output j, worst pair", a, shares),
            exact("sum of the weights of one output", 1.0, a.sum(0)),
        ),
        (exact("share of token i in output j, worst pair", a.mT, shares), exact("sum of the weights", 1.0, a.sum(1))),
    )


@CHAPTER.claim(
    "W-7.1d",
    section="7.1.1",
    statement="The outputs of attention are Gaussian mixture models.",
    formula=r"\hat{X}_j = \sum_i \lambda_i X_i \ \sim\ \sum_i \lambda_i\, \mathcal{N}(\mu_i, \Sigma_{ii})",
    correction="A weighted sum of jointly Gaussian variables is one Gaussian. A mixture adds densities, attention adds "
    "variables; only the mean is the same.",
    corrected=r"\hat{X}_j \ \sim\ \mathcal{N}\left(\sum_i \lambda_i \mu_i,\ "
    r"\sum_{i,k} \lambda_i \lambda_k \Sigma_{ik}\right)",
    lesson="To draw from a mixture, pick one token at random and take it: two tokens with different means give two "
    "humps. Attention takes the average of both, every time: one hump in the middle, narrower than either. The "
    "thesis itself writes down the right Gaussian; the name for it is wrong.",
)
def not_a_mixture(lab: Lab) -> Evidence:
    draws = 60_000
    mu = torch.tensor([[-2.0], [2.0]], dtype=torch.float64)
    sigma = torch.zeros(2, 1, 2, 1, dtype=torch.float64)
    sigma[0, 0, 0, 0] = sigma[1, 0, 1, 0] = 0.25
    weights = torch.full((1, 2), 0.5, dtype=torch.float64)
    out = (weights @ (_draws(lab, sigma, draws) + mu))[:, 0, 0]
    mixture = float(mixture_covariance(weights, mu, sigma[[0, 1], :, [0, 1]])[0, 0, 0])
    average = float(mixed_covariance(weights, sigma)[0, 0, 0, 0])
    inside = (out.abs() < 1).to(torch.float64)
    cdf = torch.special.ndtr
    two_humps = float(cdf(torch.tensor(6.0)) - cdf(torch.tensor(2.0)))
    one_hump = float(2 * cdf(torch.tensor(1 / math.sqrt(average), dtype=torch.float64)) - 1)
    return Evidence(
        (variance_of("variance of the average of two tokens", mixture, out),
         mean_of("share of outputs between −1 and 1", two_humps, inside)),
        (variance_of("variance of the average of two tokens", average, out),
         mean_of("mean fourth power over that of a Gaussian", 1.0, out.pow(4) / (3 * average**2)),
         Comparison("share of outputs between −1 and 1", one_hump, float(inside.mean()),
                    math.sqrt(one_hump * (1 - one_hump) / draws))),
        figures=(_humps(out.numpy(), average),),
    )  # fmt: skip


def _humps(out: np.ndarray, variance: float) -> Histogram:
    density, edges = np.histogram(out, bins=40, range=(-1.6, 1.6), density=True)
    x = np.linspace(-4, 4, 321)

    def bell(mean: float, v: float) -> np.ndarray:
        return np.asarray(np.exp(-((x - mean) ** 2) / (2 * v)) / math.sqrt(2 * math.pi * v))

    return Histogram(
        "average_or_mixture",
        "An average of two Gaussian tokens is not a mixture",
        "Two tokens N(−2, ¼) and N(2, ¼) with weights ½ and ½. Bars: the output of attention. A mixture of the two "
        "would have two humps.",
        "output",
        edges,
        density,
        laws=(
            Series("Gaussian of the average", x, bell(0.0, variance), role="theory"),
            Series("mixture of both", x, 0.5 * bell(-2.0, 0.25) + 0.5 * bell(2.0, 0.25), role="null"),
        ),
    )


@CHAPTER.claim(
    "W-7.1e",
    section="7.1.1",
    statement="Gaussians can be propagated with the attention weights treated as constants; the influence of fourth "
    "moments (the weights depend on the tokens) is left out.",
    formula=r"\mathrm{Cov}(\hat{X}_k, \hat{X}_l) \approx \sum_{i,j} \lambda_i^{(k)} \lambda_j^{(l)} \Sigma_{ij}",
    correction="Right as the scores tend to 0, with a relative error of first order in them that does not shrink with "
    "the number of tokens. For independent standard normal tokens and scores x C yᵀ the next term is known.",
    corrected=r"\mathrm{Cov}(\hat{X}_k, \hat{X}_l) = \frac{1}{n} 1 + \frac{n-1}{n^2} (C + C^T) + \mathcal{O}(C^2)",
    lesson="The weights are made from the tokens that they average: a token that points where the query looks gets "
    "more weight, so outputs are larger along the symmetric part of W_qᵀW_k than constant weights say. The missing "
    "term is indeed a fourth moment. It is negligible for nearly uniform attention only; more tokens do not help.",
)
def constant_weights(lab: Lab) -> Evidence:
    n, d, draws = 6, 4, 160_000
    x = lab.normal(draws, n, d, purpose="tokens")
    plain = x.mean(1).square().sum(-1)
    eye = torch.eye(d, dtype=torch.float64)
    first = (torch.softmax(0.05 * x[:, :1] @ x.mT, -1) @ x)[:, 0].square().sum(-1)
    scales, gaps = (0.008, 0.004, 0.002), []
    for scale in scales:
        out = (torch.softmax(scale * x[:, :1] @ x.mT, -1) @ x)[:, 0].square().sum(-1)
        gaps.append((out - plain).reshape(40, -1).mean(-1) / (d / n))  # the mean of each of 40 batches
    errors = [abs(float(gap.mean())) for gap in gaps]
    # The tokens are the same at every size of the scores, so what counts is the spread of gap over size.
    slopes = [gap / scale - gaps[0] / scales[0] for gap, scale in zip(gaps, scales, strict=True)]
    spreads = [scale * float(slope.std()) / 40**0.5 for slope, scale in zip(slopes, scales, strict=True)]
    stated = mean_of("squared length of an output, scores ⟨x, y⟩/20, 6 tokens of width 4", d / n, first)
    # Half the difference between small scores and their negatives: what is even in them cancels, and most noise.
    small = 0.005
    plus, minus = ((torch.softmax(s * x[:, :1] @ x.mT, -1) @ x)[:, 0].square().sum(-1) for s in (small, -small))
    added = float(torch.diagonal(feedback_covariance(small * eye, n)).sum()) - d / n
    gap = mean_of("what the weights add to it at first order, scores ⟨x, y⟩/200", added, (plus - minus) / 2)
    trend = trend_of("relative error of constant weights", "size of the scores", scales, errors, 1.0, spreads)
    return Evidence((stated,), (gap,), trend)


@CHAPTER.claim(
    "W-7.1f",
    section="7.1.2",
    statement="After mixing with constant weights, entropy and mutual information follow from the determinants of the "
    "mixed blocks, and mutual information is not preserved.",
    formula=r"I(\hat{X}_k; \hat{X}_l) = \frac{1}{2} \log "
    r"\frac{|\hat\Sigma_{kk}|\,|\hat\Sigma_{ll}|}{|\hat\Sigma_{kl}|}, \quad \hat\Sigma_{kl} = \sum_{i,j} "
    r"\lambda_i^{(k)} \lambda_j^{(l)} \Sigma_{ij}",
    lesson="The mixed tokens are Gaussian, so the Gaussian formulas apply with the new covariances. Mixing makes "
    "tokens share ingredients, so their mutual information usually grows, without bound as two rows of weights become "
    "equal; an invertible map of each token alone would have left it as it was.",
)
def information_after_mixing(lab: Lab) -> Evidence:
    n, d, batches, size = 3, 2, 40, 2_000
    sigma, weights = _covariance(lab, n, d), _weights(lab, n)
    after = mixed_covariance(weights, sigma)
    out = (weights @ _draws(lab, sigma, batches * size)).reshape(batches, size, n * d)
    out = out - out.mean(1, keepdim=True)
    sampled = (out.mT @ out / (size - 1)).reshape(batches, n, d, n, d)
    # Estimates from few draws are biased by about (d² or d(d+1)/2) / size, far below their spread.
    entropies, information = token_entropies(sampled), mutual_informations(sampled)
    before, mixed = mutual_informations(sigma), mutual_informations(after)
    return Evidence(
        (
            mean_of("entropy of output 1 (from sampled covariances)", float(token_entropies(after)[0]),
                    entropies[:, 0]),
            mean_of("mutual information of outputs 1 and 2", float(mixed[0, 1]), information[:, 0, 1]),
            fact("mutual information of tokens 1 and 2 has changed by more than a tenth",
                 abs(float(mixed[0, 1] - before[0, 1])) > 0.1 * float(before[0, 1])),
        )
    )  # fmt: skip


@CHAPTER.claim(
    "W-7.1g",
    section="7.1.3",
    statement="A transformer block computes LayerNorm of ReLU of the up-projection of attention plus skip, then "
    "LayerNorm of ReLU of the down-projection of that.",
    formula=r"y = \mathrm{LN}(\mathrm{ReLU}(W_{up}(\mathrm{Attn}(x) + x))), \quad "
    r"z = \mathrm{LN}(\mathrm{ReLU}(W_{down}\, y))",
    correction="The norm stands after each sum, there is a second skip around both projections, and no ReLU after the "
    "second one. (Llama and Mistral put an RMS norm before attention and before the projections instead, and gate the "
    "first one.)",
    corrected=r"h = \mathrm{LN}(x + \mathrm{Attn}(x)), \quad z = \mathrm{LN}(h + W_{down}\, \mathrm{ReLU}(W_{up} h))",
    lesson="The two projections form one unit: widen, rectify, narrow, add to the stream. With a ReLU at the end a "
    "layer could never lower a coordinate, and without the second skip a token could not pass the block unchanged.",
)
def block_order(lab: Lab) -> Evidence:
    d, wide, n = 16, 32, 5
    layer = nn.TransformerEncoderLayer(d, 2, wide, dropout=0.0, batch_first=True, device="meta", dtype=torch.float64)
    layer = layer.to_empty(device="cpu").eval()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(0.3 * lab.normal(*parameter.shape, purpose=name))
        x = lab.normal(1, n, d, purpose="tokens")
        truth = layer(x)
        attended = layer.self_attn(x, x, x, need_weights=False)[0]
        y = nn.functional.layer_norm(torch.relu(layer.linear1(attended + x)), (wide,))
        stated = layer.norm2(torch.relu(layer.linear2(y)))
        h = layer.norm1(x + attended)
        corrected = layer.norm2(h + layer.linear2(torch.relu(layer.linear1(h))))
    return Evidence(
        (exact("outputs of torch's encoder layer, worst entry", stated, truth),),
        (exact("outputs of torch's encoder layer, worst entry", corrected, truth),),
    )


@CHAPTER.claim(
    "W-7.1h",
    section="7.1.3",
    statement="After LayerNorm the logits of Xavier matrices behave like a normal variable of variance l/n with radius "
    "l = 1.",
    formula=r"\langle W_q x,\, W_k y \rangle \sim \mathcal{N}(0,\ l/n), \quad l = 1",
    correction="LayerNorm gives every coordinate variance 1, so a token has length √n, not 1. The variance of a logit "
    "is the product of both squared lengths over n: n before the scale, 1 after division by √n.",
    corrected=r"\mathrm{Var}\,\langle W_q x,\, W_k y \rangle = |x|^2 |y|^2 / n = n, \quad "
    r"\mathrm{Var}\,\frac{\langle W_q x,\, W_k y \rangle}{\sqrt{n}} = 1",
    lesson="A vector of n coordinates of variance 1 has squared length n. That is why scores are divided by the root "
    "of the width: it brings their spread back to 1. A spread of 1 is not flat: the most attended of many keys gets "
    "several times its equal share.",
)
def logits_after_norm(lab: Lab) -> Evidence:
    n, draws = 32, 6_000
    x, y = layer_norm(lab.normal(2, 1, n, purpose="tokens"))
    w_q, w_k = (lab.normal(draws, n, n, purpose=name) / math.sqrt(n) for name in ("w_q", "w_k"))
    logits = ((x @ w_q) * (y @ w_k)).sum(-1)
    return Evidence(
        (variance_of("variance of a logit, n = 32", 1 / n, logits),),
        (
            variance_of("variance of a logit, n = 32", float(n), logits),
            variance_of("variance after division by √n", 1.0, logits / math.sqrt(n)),
            exact("squared length of a token after LayerNorm", float(n), x.square().sum()),
        ),
    )


def _weights(lab: Lab, n: int) -> torch.Tensor:
    scores = lab.normal(n, n, purpose="scores")
    return torch.softmax(scores, -1)


def _covariance(lab: Lab, n: int, d: int) -> torch.Tensor:
    a = lab.normal(n * d, 2 * n * d, purpose="covariance")
    return (a @ a.mT / (2 * n * d)).reshape(n, d, n, d)


def _draws(lab: Lab, sigma: torch.Tensor, draws: int) -> torch.Tensor:
    n, d = sigma.shape[:2]
    root: torch.Tensor = torch.linalg.cholesky(sigma.reshape(n * d, n * d))
    return (lab.normal(draws, n * d, purpose="draws") @ root.mT).reshape(draws, n, d)
