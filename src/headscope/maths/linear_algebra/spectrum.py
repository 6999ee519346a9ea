r"""Singular values of matrices and of factored products, and numbers of a spectrum.

Every function takes leading batch axes and answers in float64 for every dtype of the input.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError
from headscope.maths.linear_algebra.symmetric import gram_matrix, symmetric_eigenvalues

# Rows of the long side that are turned to float64 at a time: the matrix itself is never copied whole.
_ROWS = 1024
# Columns of the Gram matrix computed at a time: only those below the diagonal are needed.
_COLUMNS = 256
# A share that is missed by less is reached.
_REACHED = 1e-9


def singular_values(w: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch rank"]:
    r"""All singular values, largest first; rank is the smaller side.

    Definition:
        $\sigma_i = \sqrt{\lambda_i(w\,w^\top)}$ (of $w^\top w$ where w is tall).
    Properties:
        - equals the singular values of the SVD  (tested: test_singular_values_equal_svd)
        - $\sigma(\alpha w) = |\alpha|\,\sigma(w)$, also at 1e±150  (tested: test_singular_values_scale)
        - unchanged by rotations on either side  (tested: test_singular_values_ignore_rotations)
        - the same for $w^\top$  (tested: test_singular_values_of_the_transpose)
    Numerics:
        Gram matrix of the smaller side, accumulated in float64 over blocks of the longer side, each matrix
        first divided by its largest entry. Error at most about $\sqrt{\epsilon}\,\sigma_1 = 2\cdot10^{-8}
        \sigma_1$ (for values that are exactly 0). Cheaper than the bidiagonalisation of an SVD, because most
        of the work is one matrix product.
    Reference:
        Golub and Van Loan (2013), Matrix Computations, section 8.6.
    Example:
        >>> singular_values(torch.diag(torch.tensor([1.0, -3.0])))
        tensor([3., 1.], dtype=torch.float64)
    """
    scale = _largest_entry(w)
    squares = symmetric_eigenvalues(_lower_gram(w if w.shape[-2] >= w.shape[-1] else w.mT, scale))
    return squares.flip(-1).clamp_min(0.0).sqrt() * scale[..., 0]


def _lower_gram(
    tall: Float[Tensor, "*batch rows columns"], scale: Float[Tensor, "*batch 1 1"]
) -> Float[Tensor, "*batch columns columns"]:
    """The lower triangle of the Gram matrix of tall / scale in float64.

    The entries above the diagonal have no meaning.
    """
    rows, size = tall.shape[-2:]
    if rows <= _ROWS and size <= _COLUMNS:
        return gram_matrix(tall.to(torch.float64) / scale)  # a third less time than a sum of one product
    gram = tall.new_zeros(*tall.shape[:-2], size, size, dtype=torch.float64)
    for first in range(0, rows, _ROWS):
        block = tall[..., first : first + _ROWS, :].to(torch.float64) / scale
        for column in range(0, size, _COLUMNS):
            below = slice(column, None), slice(column, column + _COLUMNS)
            gram[..., *below] += block[..., below[0]].mT @ block[..., below[1]]
    return gram


def triangular_factor(a: Float[Tensor, "*batch rows d"]) -> Float[Tensor, "*batch core d"]:
    r"""R of the reduced QR decomposition of a.

    A product $a\,b^\top$ keeps R of a, up to a rotation.

    Definition:
        $a = Q R$ with $Q^\top Q = 1$; core = min(rows, d).
    Properties:
        - $R^\top R = a^\top a$  (tested: test_triangular_factor_keeps_the_gram_matrix)
    Numerics:
        Householder, float64, O(rows·d²).
    """
    r: Tensor = torch.linalg.qr(a.to(torch.float64), mode="r").R
    return r


def form_singular_values(
    a: Float[Tensor, "*batch rows d"], b: Float[Tensor, "*batch columns d"]
) -> Float[Tensor, "*batch rank"]:
    r"""Singular values of $a\,b^\top$ without forming it, largest first.

    Their number is min(rows, columns, d).

    Definition:
        $\sigma(a\,b^\top) = \sigma(R_a R_b^\top)$ with $a = Q_a R_a$, $b = Q_b R_b$.
    Properties:
        - equals the SVD of the dense product  (tested: test_form_equals_the_dense_product)
        - unchanged by $a \to aG$, $b \to bG^{-\top}$  (tested: test_form_ignores_the_inner_basis)
        - scales with either factor, also at 1e±150  (tested: test_form_scales)
    Numerics:
        Two QR and one SVD of a d × d core, float64, each factor first divided by its largest entry: error
        about $10^{-15}\,\sigma_1(a)\,\sigma_1(b)$. O((rows + columns)·d²), where a dense SVD is cubic.
    Reference:
        Golub and Van Loan (2013), Matrix Computations, section 5.4.
    """
    scale_a, scale_b = _largest_entry(a), _largest_entry(b)
    r_a = triangular_factor(a.to(torch.float64) / scale_a)
    r_b = triangular_factor(b.to(torch.float64) / scale_b)
    sigma: Tensor = torch.linalg.svdvals(r_a @ r_b.mT)
    return sigma * scale_a[..., 0] * scale_b[..., 0]


def stable_rank(sigma: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch"]:
    r"""Number of directions of the largest size that would hold the whole energy.

    Definition:
        $\sum_i \sigma_i^2 / \sigma_1^2$; 0 for the zero matrix.
    Properties:
        - 1 ≤ stable rank ≤ participation ratio ≤ effective rank ≤ rank  (tested: test_ranks_are_ordered)
        - r for r equal singular values  (tested: test_ranks_of_a_flat_spectrum)
        - 0 for the zero matrix  (tested: test_ranks_of_zero)
    Reference:
        Rudelson and Vershynin (2007), Sampling from large matrices. https://doi.org/10.1145/1255443.1255449
    """
    return _inverse(_energy_shares(sigma).amax(-1))


def participation_ratio(sigma: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch"]:
    r"""Number of equal directions with the same purity.

    Definition:
        $1 / \sum_i p_i^2$ with $p_i = \sigma_i^2 / \sum_j \sigma_j^2$; 0 for the zero matrix.
    Properties:
        - between stable and effective rank  (tested: test_ranks_are_ordered)
        - r for r equal singular values  (tested: test_ranks_of_a_flat_spectrum)
    """
    return _inverse(_energy_shares(sigma).square().sum(-1))


def effective_rank(sigma: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch"]:
    r"""Number of equal directions with the same entropy of energy.

    Definition:
        $\exp\left(-\sum_i p_i \ln p_i\right)$ with $p_i = \sigma_i^2 / \sum_j \sigma_j^2$; 0 for the zero
        matrix. Roy and Vetterli take $\sigma_i$ in place of $\sigma_i^2$. With squares it is the member of
        order 1 of the Rényi family to which stable rank (order ∞) and participation ratio (order 2) belong.
    Properties:
        - r for r equal singular values  (tested: test_ranks_of_a_flat_spectrum)
        - unchanged by a factor  (tested: test_ranks_ignore_scale)
    Numerics:
        0·ln 0 = 0.
    Reference:
        Roy and Vetterli (2007), The effective rank: a measure of effective dimensionality, section 2.
    """
    p = _energy_shares(sigma)
    return torch.where(p.sum(-1) > 0, torch.special.entr(p).sum(-1).exp(), 0.0)


def components_for(sigma: Float[Tensor, "*batch rank"], share: float, *, power: int = 2) -> Float[Tensor, "*batch"]:
    r"""Number of the largest singular values that carry a share of the whole.

    Definition:
        The smallest k with $\sum_{i \leq k} \sigma_i^m \geq s \sum_i \sigma_i^m$: of the energy for m = 2, of the
        nuclear norm for m = 1; 0 for the zero matrix.
    Properties:
        - ⌈s r⌉ for r equal singular values  (tested: test_components_of_a_flat_spectrum)
        - more for a larger share, and for the nuclear norm than for the energy
          (tested: test_components_are_ordered)
    Numerics:
        A share that is missed by less than 1e-9 is reached: rounding must not ask for one more.
    """
    parts = _shares(sigma, power)
    reached = parts.cumsum(-1) >= share - _REACHED
    # All components before the first that reaches the share, and that one.
    components = (~reached).sum(-1) + reached.any(-1).to(torch.int64)
    return torch.where(parts.sum(-1) > 0, components.to(torch.float64), 0.0)


def energy_beyond(sigma: Float[Tensor, "*batch rank"], k: int) -> Float[Tensor, "*batch"]:
    r"""The share of the energy that the best matrix of rank k misses.

    Definition:
        $\sum_{i > k} \sigma_i^2 / \sum_i \sigma_i^2$; 0 for the zero matrix.
    Properties:
        - the squared relative error of the truncated SVD  (tested: test_energy_beyond_is_what_truncation_misses)
    Reference:
        Eckart and Young (1936), The approximation of one matrix by another of lower rank.
    """
    return _shares(sigma, 2)[..., k:].sum(-1)


def _energy_shares(sigma: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch rank"]:
    return _shares(sigma, 2)


def _shares(sigma: Float[Tensor, "*batch rank"], power: int) -> Float[Tensor, "*batch rank"]:
    # Divided by the largest first: squares of tiny or huge values must not leave the range of float64.
    top = sigma.to(torch.float64).amax(-1, keepdim=True)
    parts = (sigma / torch.where(top > 0, top, 1.0)) ** power
    total = parts.sum(-1, keepdim=True)
    return parts / torch.where(total > 0, total, 1.0)


def _inverse(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    # The inner choice keeps the gradient finite where x is 0.
    return torch.where(x > 0, 1 / torch.where(x > 0, x, 1.0), 0.0)


def _largest_entry(w: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch 1 1"]:
    """The largest absolute entry of each matrix (1 for a zero matrix), in float64."""
    # Not w.abs(): that would be a copy of the whole matrix.
    top = torch.maximum(w.amax((-2, -1), keepdim=True), -w.amin((-2, -1), keepdim=True)).to(torch.float64)
    if not bool(torch.isfinite(top).all()):
        raise NumericsError(
            f"a matrix of shape {tuple(w.shape)} holds NaN or Inf, so it has no singular values",
            hint="look for the tensor in the checkpoint: it was damaged, or training diverged",
        )
    return torch.where(top > 0, top, 1.0)
