r"""$\mathrm{Tr}(A^\top B)$, the alignment of two matrices, against chance.

$\mathrm{Tr}(A^\top B) = \sum_i \langle a_i, b_i\rangle$ over the columns is the inner product of the two matrices.
Nulls of growing strictness: independent entries (`independent_trace_variance`), the matrices' own spectra with random
singular bases (`haar_trace_variance`), a known form $W = a\,b^\top$ with one side turned at random
(`turned_trace_variance`, `turned_symmetric_share`, `turned_overlap`), and the bounds that no bases can exceed.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError


def alignment(
    a: Float[Tensor, "*batch rows columns"], b: Float[Tensor, "*batch same_rows same_columns"]
) -> Float[Tensor, "*batch"]:
    r"""The trace $\mathrm{Tr}(A^\top B)$.

    Properties:
        - sum of inner products of columns, or of rows  (tested: test_alignment_sums_columns_and_rows)
        - unchanged by one rotation of both  (tested: test_alignment_ignores_common_rotations)
    """
    _check(a, b)
    return (a.to(torch.float64) * b.to(torch.float64)).sum((-2, -1))


def independent_trace_variance(rows: int, columns: int, variance_a: float, variance_b: float) -> float:
    r"""The variance of $\mathrm{Tr}(A^\top B)$ for independent entries of mean 0.

    It is rows·columns·v_a·v_b.

    Properties:
        - 1 for square matrices with v = 1/n  (tested: test_trace_of_independent_matrices)
    Reference:
        Wertich, eq. 6.17 (the square case).
    """
    if rows < 1 or columns < 1 or variance_a < 0 or variance_b < 0:
        raise UsageError(f"no matrix is {rows} × {columns} with variances {variance_a} and {variance_b}")
    return rows * columns * variance_a * variance_b


def haar_trace_variance(
    sigma_a: Float[Tensor, "*batch rank_a"], sigma_b: Float[Tensor, "*batch rank_b"], rows: int, columns: int
) -> Float[Tensor, "*batch"]:
    r"""The variance of $\mathrm{Tr}(A^\top B)$ for fixed spectra and Haar bases.

    Definition:
        $\frac{1}{rows \cdot columns} \sum_i \sigma_{a,i}^2 \sum_j \sigma_{b,j}^2$; the mean is 0.
    Properties:
        - that of samples  (tested: test_trace_of_haar_bases)
        - does not change when a spectrum is permuted  (tested: test_trace_of_haar_bases)
    Reference:
        $\mathbb{E}[Q_{ij}Q_{kl}] = \delta_{ik}\delta_{jl}/n$ for Haar Q: Collins and Śniady (2006), Commun. Math. Phys.
        264, 773. Wertich, eq. 6.34, has $\frac1n\sum_i\sigma_{a,i}^2\sigma_{b,i}^2$, which is right only where one
        spectrum is flat.
    """
    if max(sigma_a.shape[-1], sigma_b.shape[-1]) > min(rows, columns):
        raise UsageError(
            f"a {rows} × {columns} matrix has {min(rows, columns)} singular values, got {sigma_a.shape[-1]} and "
            f"{sigma_b.shape[-1]}"
        )
    energies = (sigma.to(torch.float64).square().sum(-1) for sigma in (sigma_a, sigma_b))
    return next(energies) * next(energies) / (rows * columns)


def largest_alignment(
    sigma_a: Float[Tensor, "*batch rank"], sigma_b: Float[Tensor, "*batch rank"]
) -> Float[Tensor, "*batch"]:
    r"""The largest trace of any bases: $\sum_i \sigma_{a,i}\sigma_{b,i}$, both sorted.

    Properties:
        - no pair of bases exceeds it; equal bases reach it  (tested: test_no_bases_exceed_the_bounds)
    Reference:
        von Neumann (1937), Tomsk Univ. Rev. 1, 286.
    """
    a, b = (sigma.to(torch.float64).sort(-1, descending=True).values for sigma in (sigma_a, sigma_b))
    return (a * b).sum(-1)


def largest_alignment_of_left_bases(
    a: Float[Tensor, "*batch rows columns"], b: Float[Tensor, "*batch rows columns"]
) -> Float[Tensor, "*batch"]:
    r"""The largest trace over all left singular bases: $\|B A^\top\|_*$.

    Definition:
        $\max_Q \mathrm{Tr}(D_A Q D_B V_B^\top V_A)$ over orthogonal Q is the sum of the singular values of
        $D_B V_B^\top V_A D_A$.
    Properties:
        - no left bases exceed it; the polar factor reaches it  (tested: test_no_bases_exceed_the_bounds)
        - at most `largest_alignment`  (tested: test_no_bases_exceed_the_bounds)
        - 3/4 of n²v for two independent square Gaussian matrices  (tested: test_three_quarters_for_random_matrices)
    """
    _check(a, b)
    values: Tensor = torch.linalg.svdvals(b.to(torch.float64) @ a.to(torch.float64).mT)
    return values.sum(-1)


@dataclass(frozen=True)
class FormMoments:
    r"""Energy $\|W\|_F^2$, purity and symmetric share of a form.

    The purity is $\sum_i\sigma_i^4/(\sum_i\sigma_i^2)^2$.
    """

    energy: Float[Tensor, "*batch"]
    purity: Float[Tensor, "*batch"]
    symmetric_share: Float[Tensor, "*batch"]


def form_moments(a: Float[Tensor, "*batch n d"], b: Float[Tensor, "*batch n d"]) -> FormMoments:
    r"""Energy, purity and symmetric share of $W = a\,b^\top$ without forming it.

    Definition:
        $S_2 = \sum_i\sigma_i^2 = \mathrm{Tr}\,X$ and $S_4/S_2^2$, $S_4 = \sum_i\sigma_i^4 = \mathrm{Tr}\,X^2$, with
        $X = a^\top a\,b^\top b$. The symmetric share is
        $\|(W + W^\top)/2\|_F^2 / \|W\|_F^2 = \frac12 + \mathrm{Tr}(W^2) / (2 S_2)$, with
        $\mathrm{Tr}(W^2) = \mathrm{Tr}((b^\top a)^2)$; the rest is antisymmetric. The zero form has purity 0 and
        share 1/2.
    Properties:
        - those of the singular values  (tested: test_form_moments_are_those_of_singular_values)
        - the share of the dense form  (tested: test_symmetric_share_of_the_dense_form)
        - share 1 for b = ±a, 0 for an antisymmetric form, unchanged by the inner basis
          (tested: test_symmetric_share_at_its_ends)
    Numerics:
        Four products of the inner size, each factor first divided by its largest entry.
    """
    _check(a, b)
    tops = [_largest(x) for x in (a, b)]
    a, b = (x.to(torch.float64) / top for x, top in zip((a, b), tops, strict=True))
    x = (a.mT @ a) @ (b.mT @ b)
    core = b.mT @ a
    energy = x.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(0.0)
    unit = torch.where(energy > 0, energy, 1.0)
    purity = torch.where(energy > 0, (x * x.mT).sum((-2, -1)) / unit.square(), 0.0)
    share = torch.where(energy > 0, (1 + (core * core.mT).sum((-2, -1)) / unit) / 2, 0.5)
    return FormMoments(energy * (tops[0] * tops[1]).square()[..., 0, 0], purity.clamp(0.0, 1.0), share.clamp(0.0, 1.0))


def turned_trace_variance(energy: Float[Tensor, "*batch"], n: int) -> Float[Tensor, "*batch"]:
    r"""The variance of $\mathrm{Tr}(O W)$ for a fixed W and a Haar rotation O.

    W is n × n, and the mean is 0.

    Definition:
        $\|W\|_F^2/n$. With $W = a\,b^\top$ the rotation turns what a reads against what b reads and leaves both as
        they are, so the null ignores $a \to aG$, $b \to bG^{-\top}$.
    Properties:
        - that of samples  (tested: test_turned_traces_of_samples)
        - the mean over Gaussian factors is `independent_trace_variance`
          (tested: test_turned_trace_of_gaussian_factors)
    """
    return energy.to(torch.float64) / n


def turned_symmetric_share(purity: Float[Tensor, "*batch"], n: int) -> tuple[float, Float[Tensor, "*batch"]]:
    r"""Mean and variance of the symmetric share of $O W$ for a Haar rotation O.

    W is fixed and has n ≥ 2 dimensions.

    Definition:
        Mean $\frac12 + \frac{1}{2n}$ exactly, for every W; so also for Gaussian factors of any size. With the purity
        $\pi = \sum_i\sigma_i^4/(\sum_i\sigma_i^2)^2$ of W, the variance is
        $\frac14\left[\frac{3\pi}{n(n+2)} + \frac{3(n+1)(1 - \pi)}{(n-1)\,n\,(n+2)} - \frac{1}{n^2}\right]$,
        about $\frac{1}{2n^2}$.
    Properties:
        - those of samples  (tested: test_turned_symmetric_share_of_samples)
        - $\mathrm{Tr}(O^2)$ has mean 1 and variance 2  (tested: test_trace_of_a_squared_rotation)
        - the mean for Gaussian factors  (tested: test_symmetric_share_of_gaussian_factors)
    Reference:
        $\mathrm{Tr}(OWOW) = \sum_{ij}\sigma_i\sigma_j z_{ij}z_{ji}$, z a block of a Haar matrix. Signs of rows leave
        only $z_{ii}^4$, $z_{ii}^2 z_{jj}^2$, $z_{ij}^2 z_{ji}^2$: Collins and Śniady (2006), Commun. Math. Phys. 264,
        773.
    """
    if n < 2:
        raise UsageError("a form of one dimension has no antisymmetric part")
    purity = purity.to(torch.float64)
    second = 3 * purity / (n * (n + 2)) + 3 * (n + 1) * (1 - purity) / ((n - 1) * n * (n + 2))
    return 0.5 + 0.5 / n, (second - 1 / n**2) / 4


def turned_overlap(
    spectrum_a: Float[Tensor, "*batch rank_a"], spectrum_b: Float[Tensor, "*batch rank_b"], n: int
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    r"""Mean and variance of $\mathrm{Tr}(A\,O B\,O^\top)$ for a Haar rotation O.

    A and B are symmetric with these eigenvalues.

    Definition:
        Eigenvalues not listed are 0. Mean $\mathrm{Tr}A\,\mathrm{Tr}B/n$; variance
        $\frac{2}{(n-1)(n+2)}\left(\mathrm{Tr}A^2 - \frac{(\mathrm{Tr}A)^2}{n}\right)
        \left(\mathrm{Tr}B^2 - \frac{(\mathrm{Tr}B)^2}{n}\right)$.
    Properties:
        - those of samples  (tested: test_turned_overlap_of_samples)
        - `subspace_overlap` for projections  (tested: test_turned_overlap_of_projections)
    Reference:
        Schur's lemma: traceless symmetric matrices are an irreducible representation of dimension (n − 1)(n + 2)/2.
    """
    _check_rank(spectrum_a, n)
    _check_rank(spectrum_b, n)
    a, b = spectrum_a.to(torch.float64), spectrum_b.to(torch.float64)
    spreads = [(x.square().sum(-1) - x.sum(-1).square() / n).clamp_min(0.0) for x in (a, b)]
    variance = 2 * spreads[0] * spreads[1] / ((n - 1) * (n + 2)) if n > 1 else 0 * spreads[0] * spreads[1]
    return a.sum(-1) * b.sum(-1) / n, variance


def _largest(x: Tensor) -> Tensor:
    top = x.abs().amax((-2, -1), keepdim=True).to(torch.float64)
    return torch.where(top > 0, top, 1.0)


def _check_rank(sigma: Tensor, n: int) -> None:
    if sigma.shape[-1] > n:
        raise UsageError(f"a form of {n} dimensions has at most {n} singular values, got {sigma.shape[-1]}")


def _check(a: Tensor, b: Tensor) -> None:
    if a.shape[-2:] != b.shape[-2:]:
        raise UsageError(f"two matrices of one shape are aligned, got {tuple(a.shape)} and {tuple(b.shape)}")
    if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise NumericsError("a matrix holds NaN or Inf, so it has no alignment")
