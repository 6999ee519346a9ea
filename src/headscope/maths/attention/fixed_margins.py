r"""A matrix with prescribed row and column sums: iterative proportional fitting."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from headscope.errors import NumericsError

Array = NDArray[np.float64]

TOLERANCE = 1e-3
ROUNDS = 200


class Fitted(NamedTuple):
    """A scaled matrix, and the share of its mass that is still in the wrong column."""

    matrix: Float[Tensor, "*batch rows columns"]
    misplaced: Float[Tensor, "*batch"]


def with_margins(
    matrix: Float[Tensor, "*batch rows columns"],
    rows: Float[Tensor, "*batch rows"],
    columns: Float[Tensor, "*batch columns"],
) -> Fitted:
    r"""Scale the rows and columns of a non-negative matrix until they have these sums.

    Definition:
        $X = \mathrm{diag}(a)\,M\,\mathrm{diag}(b)$. One round sets the column sums, then the row sums. Rounds end when
        $\frac12 \sum_j |\sum_i X_{ij} - c_j| / \sum_j c_j$ is at most 10⁻³, and after 200 rounds at the latest; what
        remains is `misplaced`. Row sums are exact. Of all matrices with these sums, X is the one nearest to M in
        relative entropy.
    Properties:
        - row sums are exact, column sums to the stated share  (tested: test_margins_are_reached)
        - zeros stay zeros  (tested: test_zeros_stay)
        - a matrix with these sums is not changed  (tested: test_fitting_changes_nothing_that_fits)
        - the product form: 2 × 2 cross ratios stay  (tested: test_cross_ratios_stay)
    Reference:
        Deming and Stephan (1940), Annals of Mathematical Statistics 11, 427. Csiszár (1975), Annals of Probability 3,
        146 (the projection in relative entropy).
    """
    matrix, rows, columns = (x.to(torch.float64) for x in (matrix, rows, columns))
    if not all(bool((x >= 0).all() and torch.isfinite(x).all()) for x in (matrix, rows, columns)):
        raise NumericsError("a matrix and its margins must be finite and not negative to be fitted to each other")
    flat = [x.cpu().numpy().reshape(-1, *x.shape[matrix.dim() - 2 :]) for x in (matrix, rows, columns)]
    # One matrix at a time: each needs its own number of rounds, and fits into the processor's cache.
    fitted = [_fitted(*parts) for parts in zip(*flat, strict=True)]
    scaled = torch.from_numpy(np.stack([part for part, _ in fitted])).reshape(matrix.shape)
    shares = torch.tensor([misplaced for _, misplaced in fitted], dtype=torch.float64)
    return Fitted(scaled.to(matrix.device), shares.reshape(matrix.shape[:-2]).to(matrix.device))


def _fitted(m: Array, rows: Array, columns: Array) -> tuple[Array, float]:
    """One scaled matrix and its misplaced share; numpy, since each of many rounds is small."""
    total = columns.sum()
    if not total > 0:
        return np.zeros_like(m), 0.0
    misplaced = np.inf
    column_sums = m.sum(0)  # of the matrix whose rows are scaled already
    for _ in range(ROUNDS):
        b = _over(columns, column_sums)
        a = _over(rows, m @ b)
        column_sums = a @ m
        misplaced = float(np.abs(column_sums * b - columns).sum() / (2 * total))
        if misplaced <= TOLERANCE:
            break
    return a[:, None] * m * b, misplaced


def _over(target_sums: Array, sums: Array) -> Array:
    """The factor that makes one sum the other; 0 where there is nothing to scale."""
    return np.divide(target_sums, sums, out=np.zeros_like(sums), where=sums > 0)
