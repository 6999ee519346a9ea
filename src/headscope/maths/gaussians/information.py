r"""Entropy, divergence and mutual information in nats.

Gaussians have closed forms, finite distributions have sums.

The entropy of a Gaussian is a differential one: it depends on the units, may be negative, and is no limit of discrete
entropies. Divergences and mutual information carry over from sums to integrals unchanged.

The Jensen–Shannon divergence of two Gaussians has no closed form, because their mixture is no Gaussian. It is computed
in one dimension, by an integral.
"""

from collections.abc import Sequence
from math import log

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import UsageError
from headscope.maths.gaussians.gaussian import LOG_2PI, Gaussian, cholesky, log_determinant

LN_2 = log(2.0)
# The share of a variance that another block leaves unexplained: below it the rest is rounding.
_DETERMINED = 1e-13


def entropy(p: Gaussian) -> Float[Tensor, "*batch"]:
    r"""Differential entropy in nats.

    Definition:
        $\frac{1}{2} \ln\left((2\pi e)^d |\Sigma|\right)$.
    Properties:
        - scipy's multivariate_normal.entropy  (tested: test_entropy_equals_scipy)
        - grows by ln|det L| under a linear map L  (tested: test_entropy_under_a_linear_map)
        - a singular covariance is an error  (tested: test_singular_has_no_entropy)
    Numerics:
        Cholesky.
    Reference:
        Cover and Thomas (2006), Elements of Information Theory, theorem 8.4.1.
    """
    return 0.5 * (p.d * (1 + LOG_2PI) + log_determinant(p.covariance))


def cross_entropy(p: Gaussian, q: Gaussian) -> Float[Tensor, "*batch"]:
    r"""Mean of −ln q under p, in nats.

    Definition:
        $H(p, q) = \frac{1}{2}\ln\left((2\pi)^d |\Sigma_q|\right) + \frac{1}{2}\mathrm{Tr}(\Sigma_q^{-1}\Sigma_p)
        + \frac{1}{2}(\mu_q - \mu_p)^\top \Sigma_q^{-1} (\mu_q - \mu_p)$.
    Properties:
        - H(p, p) = H(p)  (tested: test_cross_entropy_with_itself)
        - the integral of −p ln q  (tested: test_cross_entropy_is_the_integral)
    Numerics:
        Cholesky of $\Sigma_q$ only: p may be degenerate.
    Reference:
        The first term has (2π)^d, not (2πe)^d as in Wertich, section 2.2: the e of the entropy comes from the trace.
    """
    _same_space(p, q)
    factor = cholesky(q.covariance)
    log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * (p.d * LOG_2PI + log_det + _stretch(p, factor) + _shift(p, q, factor))


def kl(p: Gaussian, q: Gaussian) -> Float[Tensor, "*batch"]:
    r"""Kullback–Leibler divergence D(p‖q) in nats.

    Definition:
        $\frac{1}{2}\left(\mathrm{Tr}(\Sigma_q^{-1}\Sigma_p) - d - \ln|\Sigma_q^{-1}\Sigma_p|
        + (\mu_q - \mu_p)^\top \Sigma_q^{-1} (\mu_q - \mu_p)\right) = H(p, q) - H(p)$.
    Properties:
        - at least 0, and 0 for equals  (tested: test_kl_is_not_negative)
        - torch's kl_divergence  (tested: test_kl_equals_torch)
        - unchanged by an invertible affine map of both  (tested: test_kl_ignores_the_basis)
    Numerics:
        With the eigenvalues $s_i$ of $L_q^{-1}\Sigma_p L_q^{-\top}$ the first three terms are
        $\sum_i (s_i - 1 - \ln s_i)$, each at least 0: no cancellation between near equals.
    """
    _same_space(p, q)
    factor = cholesky(q.covariance)
    half: Tensor = torch.linalg.solve_triangular(factor, cholesky(p.covariance), upper=False)
    excess: Tensor = torch.linalg.svdvals(half).square() - 1
    return 0.5 * ((excess - torch.log1p(excess)).clamp_min(0.0).sum(-1) + _shift(p, q, factor))


def mutual_information(joint: Gaussian, a: Sequence[int], b: Sequence[int]) -> Float[Tensor, "*batch"]:
    r"""Mutual information of two blocks of coordinates of one Gaussian, in nats.

    Definition:
        $I = \frac{1}{2}\ln\frac{|\Sigma_a||\Sigma_b|}{|\Sigma_{ab}|} = -\frac{1}{2}\sum_k \ln(1 - \rho_k^2)$, with the
        canonical correlations $\rho_k$.
    Properties:
        - the ratio of determinants  (tested: test_mutual_information_is_the_ratio_of_determinants)
        - H(a) + H(b) − H(a, b), and KL from the joint to the product  (tested: test_mutual_information_identities)
        - 0 for independent blocks, never negative  (tested: test_mutual_information_of_independent_blocks)
        - unchanged by invertible maps of either block  (tested: test_mutual_information_ignores_the_bases)
        - never grows under a map that loses something  (tested: test_data_processing)
    Numerics:
        Singular values of the whitened cross-covariance: small values keep their digits. A pair of coordinates that
        determine each other has infinite information, and that is an error.
    Reference:
        Cover and Thomas (2006), section 8.5; Hotelling (1936), Relations between two sets of variates.
    """
    return _information(canonical_correlations(joint, a, b))


def pointwise_information(
    joint: Gaussian, a: Sequence[int], b: Sequence[int], z: Float[Tensor, "*batch samples d"]
) -> Float[Tensor, "*batch samples"]:
    r"""How much more likely two blocks are jointly than independently, per sample.

    The unit is nats.

    Definition:
        $i(z) = \ln\frac{p(z_a, z_b)}{p(z_a)\,p(z_b)}$; its mean over the joint Gaussian is the mutual information.
    Properties:
        - the difference of scipy's log-densities  (tested: test_pointwise_information_equals_scipy)
        - its mean is the mutual information  (tested: test_pointwise_information_has_the_mean_it_should)
    Numerics:
        $I - \frac{1}{2} c^\top (\Sigma^{-1} - \Sigma_a^{-1} \oplus \Sigma_b^{-1})\,c$, c the deviation from the mean;
        inverses by Cholesky.
    Reference:
        Fano (1961), Transmission of Information, section 2.
    """
    first, second = [int(i) for i in a], [int(i) for i in b]
    order = [*first, *second]
    blocks_ab, n = joint.marginal(order), len(first)
    joint_factor, factor_a, factor_b = (
        cholesky(cov)
        for cov in (blocks_ab.covariance, blocks_ab.covariance[..., :n, :n], blocks_ab.covariance[..., n:, n:])
    )
    form = torch.cholesky_inverse(joint_factor)
    form[..., :n, :n] -= torch.cholesky_inverse(factor_a)
    form[..., n:, n:] -= torch.cholesky_inverse(factor_b)
    logs = [factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) for factor in (joint_factor, factor_a, factor_b)]
    c = z.to(torch.float64)[..., order] - blocks_ab.mean.unsqueeze(-2)
    return (logs[1] + logs[2] - logs[0]).unsqueeze(-1) - 0.5 * ((c @ form) * c).sum(-1)


def canonical_correlations(joint: Gaussian, a: Sequence[int], b: Sequence[int]) -> Float[Tensor, "*batch k"]:
    r"""Correlations of the most correlated directions of two blocks, largest first.

    Definition:
        Singular values of $\Sigma_a^{-1/2}\,\Sigma_{ab}\,\Sigma_b^{-1/2}$; k is the smaller block's size.
    Properties:
        - between 0 and 1; one coordinate each: |correlation|  (tested: test_canonical_correlations_known)
        - unchanged by invertible maps of either block  (tested: test_mutual_information_ignores_the_bases)
    Reference:
        Hotelling (1936), Biometrika 28, 321.
    """
    first, second = [int(i) for i in a], [int(i) for i in b]
    if set(first) & set(second):
        raise UsageError(f"the blocks overlap in coordinates {sorted(set(first) & set(second))}")
    covariance = joint.marginal([*first, *second]).covariance
    n = len(first)
    return _whitened_correlations(covariance[..., :n, :n], covariance[..., :n, n:], covariance[..., n:, n:])


def jensen_shannon(p: Gaussian, q: Gaussian, *, nodes: int = 4001) -> Float[Tensor, "*batch"]:
    r"""Jensen–Shannon divergence of two Gaussians on the line, in nats.

    Definition:
        $\frac{1}{2} D(p\|m) + \frac{1}{2} D(q\|m)$ with the mixture $m = (p + q)/2$, which is no Gaussian.
    Properties:
        - an independent quadrature  (tested: test_jensen_shannon_equals_scipy)
        - between 0 and ln 2, symmetric  (tested: test_jensen_shannon_is_symmetric_and_bounded)
        - its square root obeys the triangle inequality  (tested: test_root_of_jensen_shannon_is_a_metric)
    Numerics:
        Each half is integrated over its own Gaussian, ± 12 standard deviations, by the trapezoidal rule, which
        converges faster than any power for such integrands as long as the other's width exceeds a few steps; where
        one is more than 10 times narrower the nodes grow with the ratio (to 2 million at most).
    Reference:
        Lin (1991), IEEE Trans. Inf. Theory 37, 145; Endres and Schindelin (2003), same journal 49, 1858 (the metric).
    """
    if p.d != 1 or q.d != 1:
        raise UsageError(f"quadrature is for one dimension, got {p.d} and {q.d}")
    widths = [g.covariance[..., 0, 0].sqrt() for g in (p, q)]
    if not bool((widths[0] > 0).all()) or not bool((widths[1] > 0).all()):
        raise UsageError("a Gaussian without variance has no density to integrate")
    ratio = float(torch.maximum(widths[0] / widths[1], widths[1] / widths[0]).max())
    nodes = int(min(nodes * max(1.0, ratio / 10), 2_000_000)) | 1
    t = torch.linspace(-12.0, 12.0, nodes, dtype=torch.float64)
    weight = (-0.5 * (t.square() + LOG_2PI)).exp() * (t[1] - t[0])
    total = torch.zeros((), dtype=torch.float64)
    for (integrated, width), (other, other_width) in (
        ((p, widths[0]), (q, widths[1])),
        ((q, widths[1]), (p, widths[0])),
    ):
        x = integrated.mean + width.unsqueeze(-1) * t
        log_integrated = -0.5 * t.square() - width.log().unsqueeze(-1)
        log_other = -0.5 * ((x - other.mean) / other_width.unsqueeze(-1)).square() - other_width.log().unsqueeze(-1)
        total = total + (weight * _log_share(log_integrated, log_other)).sum(-1)
    return (total / 2).clamp(0.0, LN_2)


def discrete_entropy(p: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""Shannon entropy of probabilities in nats; 0·ln 0 = 0.

    Properties:
        - between 0 and ln n; scipy's entropy  (tested: test_discrete_numbers_equal_scipy)
    """
    terms: Tensor = torch.special.entr(_distribution(p))
    return terms.sum(-1)


def discrete_cross_entropy(p: Float[Tensor, "*batch n"], q: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""Cross-entropy $-\sum_i p_i \ln q_i$; infinite where q excludes what p allows.

    Properties:
        - entropy plus divergence  (tested: test_discrete_identities)
    """
    terms: Tensor = torch.special.xlogy(_distribution(p), _distribution(q))
    return -terms.sum(-1)


def discrete_kl(p: Float[Tensor, "*batch n"], q: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""Kullback–Leibler divergence of probabilities in nats.

    It is infinite where q excludes what p allows.

    Properties:
        - scipy's rel_entr; at least 0  (tested: test_discrete_numbers_equal_scipy)
    """
    p, q = _distribution(p), _distribution(q)
    terms: Tensor = torch.special.xlogy(p, p) - torch.special.xlogy(p, q)
    return terms.sum(-1).clamp_min(0.0)


def discrete_mutual_information(joint: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch"]:
    r"""Mutual information of two variables from their joint probabilities, in nats.

    Properties:
        - H(X) + H(Y) − H(X, Y); 0 for a product  (tested: test_discrete_identities)
    """
    joint = _distribution(joint.flatten(-2)).reshape(joint.shape)
    product = joint.sum(-1, keepdim=True) * joint.sum(-2, keepdim=True)
    return discrete_kl(joint.flatten(-2), product.flatten(-2))


def _distribution(p: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    p = p.to(torch.float64)
    total = p.sum(-1, keepdim=True)
    if bool((p < 0).any()) or not bool(((total - 1).abs() <= 1e-5).all()):
        raise UsageError("probabilities are at least 0 and sum to 1")
    return p / total


def _same_space(p: Gaussian, q: Gaussian) -> None:
    if p.d != q.d:
        raise UsageError(f"two Gaussians of {p.d} and {q.d} dimensions cannot be compared")


def _stretch(p: Gaussian, factor: Tensor) -> Tensor:
    """The trace of Σ_q⁻¹ Σ_p, with the Cholesky factor of Σ_q."""
    turned: Tensor = torch.cholesky_solve(p.covariance, factor)
    return turned.diagonal(dim1=-2, dim2=-1).sum(-1)


def _shift(p: Gaussian, q: Gaussian, factor: Tensor) -> Tensor:
    """The squared Mahalanobis distance of the means.

    `factor` is the Cholesky factor of the covariance.
    """
    gap: Tensor = torch.linalg.solve_triangular(factor, (q.mean - p.mean).unsqueeze(-1), upper=False)
    return gap.squeeze(-1).square().sum(-1)


def _information(rho: Tensor) -> Tensor:
    """Mutual information from canonical correlations.

    A correlation that is 1 up to rounding is an error.
    """
    unexplained = (1 - rho) * (1 + rho)
    if bool((unexplained <= _DETERMINED).any()):
        raise UsageError("one block determines part of the other: their mutual information is infinite")
    return -0.5 * torch.log1p(-rho.square()).sum(-1)


def _whitened_correlations(a: Tensor, cross: Tensor, b: Tensor) -> Tensor:
    left: Tensor = torch.linalg.solve_triangular(cholesky(a), cross, upper=False)
    whitened: Tensor = torch.linalg.solve_triangular(cholesky(b), left.mT, upper=False)
    rho: Tensor = torch.linalg.svdvals(whitened)
    return rho.clamp(0.0, 1.0)


def _log_share(log_own: Tensor, log_other: Tensor) -> Tensor:
    """ln(2 own / (own + other)), without overflow."""
    return LN_2 - torch.nn.functional.softplus(log_other - log_own)
