r"""$\mathrm{Tr}(A^\top B)$, how far two matrices point the same way, beside what chance gives.

$\mathrm{Tr}(A^\top B) = \sum_i \langle a_i, b_i\rangle$ over the columns is the inner product of the two matrices.
Three nulls of growing strictness: independent entries (`independent_trace_variance`), the matrices' own spectra with
random singular bases (`haar_trace_variance`), and the bounds that no bases can exceed.
"""

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


def alignment_score(
    a: Float[Tensor, "*batch rows columns"], b: Float[Tensor, "*batch rows columns"]
) -> Float[Tensor, "*batch"]:
    r"""The trace in units of its standard deviation under random singular bases: 0 ± 1 for unrelated matrices.

    Definition:
        $\sqrt{rows \cdot columns}\ \mathrm{Tr}(A^\top B) / (\|A\|_F \|B\|_F)$; 0 where either matrix is 0.
    Properties:
        - mean 0 and variance 1 for Haar bases, whatever the spectra  (tested: test_score_is_standard_for_haar_bases)
        - $\pm\sqrt{rows \cdot columns}$ for B = ±A  (tested: test_score_of_equal_matrices)
    """
    trace = alignment(a, b)
    norms = a.to(torch.float64).square().sum((-2, -1)).sqrt() * b.to(torch.float64).square().sum((-2, -1)).sqrt()
    size = (a.shape[-2] * a.shape[-1]) ** 0.5
    return torch.where(norms > 0, size * trace / torch.where(norms > 0, norms, 1.0), 0.0)


def independent_trace_variance(rows: int, columns: int, variance_a: float, variance_b: float) -> float:
    r"""The variance of $\mathrm{Tr}(A^\top B)$ for independent entries of mean 0: rows·columns·v_a·v_b.

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
    r"""The variance of $\mathrm{Tr}(A^\top B)$ for given singular values and independent Haar singular bases.

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
    r"""The largest trace that any singular bases give: $\sum_i \sigma_{a,i}\sigma_{b,i}$, both sorted.

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
    r"""The largest trace when only the left singular bases may be chosen: the nuclear norm $\|B A^\top\|_*$.

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


def _check(a: Tensor, b: Tensor) -> None:
    if a.shape[-2:] != b.shape[-2:]:
        raise UsageError(f"two matrices of one shape are aligned, got {tuple(a.shape)} and {tuple(b.shape)}")
    if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise NumericsError("a matrix holds NaN or Inf, so it has no alignment")
