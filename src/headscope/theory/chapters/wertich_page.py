r"""The page that presents Wertich's thesis."""

import torch

from headscope.core.verdict import Evidence
from headscope.maths.gaussians.linear_mixing import mixed_covariance, mixture_covariance
from headscope.theory.checks import Lab, exact, mean_of, variance_of
from headscope.theory.works import wertich_page

CHAPTER = wertich_page()


@CHAPTER.claim(
    "P-1",
    section="summary",
    statement="Attention is a combiner of marginal probability distributions, influenced by their dependence, through "
    "a bilinear form.",
    formula=r"p_{\hat{X}} = \sum_i \lambda_i\, p_{X_i}, \quad \lambda = \mathrm{softmax}\langle W_q x,\, W_k x_i "
    r"\rangle",
    correction="The weights do come from a bilinear form. What they combine are the token vectors, not their "
    "distributions: the law of the output is that of a weighted sum and needs the joint distribution. Marginals alone "
    "fix its mean only.",
    corrected=r"\hat{X} = \sum_i \lambda_i X_i, \quad E[\hat{X}] = \sum_i \lambda_i \mu_i, \quad "
    r"\mathrm{Cov}(\hat{X}) = \sum_{i,j} \lambda_i \lambda_j \Sigma_{ij}",
    lesson="Two pairs of tokens can have the same two marginal distributions and yet give outputs of different spread: "
    "if they vary together the average varies as much as they do, if they vary oppositely it hardly varies. A "
    "combination of the marginal distributions could not tell the two cases apart.",
)
def combiner(lab: Lab) -> Evidence:
    weights = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    stated, corrected = [], []
    for rho in (0.8, -0.8):
        sigma = torch.tensor([[1.0, rho], [rho, 1.0]], dtype=torch.float64)
        x = lab.normal(40_000, 2, purpose=f"{rho}") @ torch.linalg.cholesky(sigma).mT
        out = x @ weights[0]
        blocks = sigma.reshape(2, 1, 2, 1)
        marginals = mixture_covariance(weights, torch.zeros(2, 1, dtype=torch.float64), blocks[[0, 1], :, [0, 1]])
        name = f"variance of the output, two standard normal tokens of correlation {rho}"
        stated.append(variance_of(name, float(marginals), out))
        corrected.append(variance_of(name, float(mixed_covariance(weights, blocks)), out))
        corrected.append(mean_of(f"its mean, correlation {rho}", 0.0, out))
    d = 6
    x, y, z = lab.normal(3, d, purpose="tokens")
    w_q, w_k = lab.normal(2, d, d, purpose="weights")
    score = (2 * x + y) @ w_q @ w_k.mT @ z
    parts = 2 * (x @ w_q @ w_k.mT @ z) + y @ w_q @ w_k.mT @ z
    corrected.append(exact("scores are linear in the query", parts, score))
    return Evidence(tuple(stated), tuple(corrected))
