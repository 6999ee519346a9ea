r"""Scores of several texts crossed: what dependence adds to mean and variance.

Text a gives a query $q_a$ and text b a key $k_b$, always at the same two positions. On the diagonal of
$S_{ab} = \langle q_a, k_b \rangle$ query and key belong to one text and may depend on each other; off it they are
independent and all else is equal. So every term of the moments of a bilinear form of two Gaussian vectors can be read
from S, without the covariances. Nothing that happens to q and k before their product matters (projections, biases,
normalisation, rotation by their positions).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import UsageError


@dataclass(frozen=True)
class CrossedMoments:
    r"""Mean and variance of independent pairs, and what dependence adds to them.

    The addition comes from the Gaussian formulas; `measured` is the variance of dependent pairs.

    Definition:
        With $q = \mu_q + u$, $k = \mu_k + v$: mean $\mu_q^\top \mu_k$, shift $\mathrm{Tr}\,\mathrm{Cov}(k, q)$, which
        is $\mathrm{Tr}(C\,\Sigma_{ji})$ for $q = w_q^\top x_i$, $k = w_k^\top x_j$, $C = w_q w_k^\top$;
        variance $\mathrm{Tr}(\Sigma_q \Sigma_k) + \mu_k^\top \Sigma_q \mu_k + \mu_q^\top \Sigma_k \mu_q$ of independent
        pairs; `added` $= \mathrm{Tr}(\Sigma_{qk} \Sigma_{qk}) + 2 \mu_k^\top \Sigma_{qk} \mu_q$; `measured`, the sample
        variance of the diagonal.
    Properties:
        - those of `bilinear` for Gaussian vectors  (tested: test_crossed_moments_are_those_of_the_form)
        - mean + shift is the mean of the diagonal, for any law  (tested: test_the_mean_is_an_identity)
        - unbiased for independent queries and keys  (tested: test_independent_pairs_are_not_shifted)
    Numerics:
        With n texts the terms of `added` have a bias of relative order 1/n. Needs n ≥ 2, variances n ≥ 4.
    Reference:
        Wertich, equations 6.2 and 6.3, as corrected in `headscope.maths.gaussians.bilinear_scores`.
    """

    mean: Float[Tensor, "*batch"]
    shift: Float[Tensor, "*batch"]
    variance: Float[Tensor, "*batch"]
    added: Float[Tensor, "*batch"]
    measured: Float[Tensor, "*batch"]


def crossed_means(scores: Float[Tensor, "*batch n n"]) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Means of independent pairs (off the diagonal) and of pairs of one text (on it)."""
    n = scores.shape[-1]
    if n < 2:
        raise UsageError(f"crossing needs at least 2 texts, got {n}")
    diagonal_sum = scores.diagonal(dim1=-2, dim2=-1).sum(-1)
    return (scores.sum((-2, -1)) - diagonal_sum) / (n * (n - 1)), diagonal_sum / n


def crossed_moments(scores: Float[Tensor, "*batch n n"]) -> CrossedMoments:
    """All moments of scores of queries (rows) and keys (columns) of n texts."""
    n = scores.shape[-1]
    if n < 4:
        raise UsageError(f"variances of crossed scores need at least 4 texts, got {n}")
    scores = scores.to(torch.float64)
    mean, together = crossed_means(scores)
    same_text = scores.diagonal(dim1=-2, dim2=-1)
    by_query = (scores.sum(-1) - same_text) / (n - 1)
    by_key = (scores.sum(-2) - same_text) / (n - 1)
    residuals = (
        scores - scores.mean(-1, keepdim=True) - scores.mean(-2, keepdim=True) + scores.mean((-2, -1), keepdim=True)
    )
    shrunk = (n / (n - 1)) ** 2
    off = n * (n - 1)
    diagonal = residuals.diagonal(dim1=-2, dim2=-1).square().sum(-1)
    noise = shrunk * (residuals.square().sum((-2, -1)) - diagonal) / off
    crossing = shrunk * ((residuals * residuals.mT).sum((-2, -1)) - diagonal) / off
    of_queries, of_keys = (x.var(-1) - noise / (n - 1) for x in (by_query, by_key))
    gap_q, gap_k = (x - x.mean(-1, keepdim=True) for x in (by_query, by_key))
    common = (gap_q * gap_k).sum(-1) / (n - 1)
    return CrossedMoments(mean, together - mean, noise + of_queries + of_keys, crossing + 2 * common, same_text.var(-1))
