"""Symmetric products and eigenvalues by numpy, whose libraries take less time for them than torch's.

torch computes every entry of a symmetric product and asks MKL, which is slow on other processors than Intel's. Both
work in float64, and their results differ by rounding alone.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def gram_matrix(c: Float[Tensor, "*batch samples d"]) -> Float[Tensor, "*batch d d"]:
    r"""The product of the columns of c with each other.

    Definition:
        $c^\top c$.
    Properties:
        - the product of torch up to rounding  (tested: test_the_gram_matrix_of_torch)
    Numerics:
        numpy computes half of the symmetric product.
    """
    array = c.cpu().numpy()
    return torch.from_numpy(np.swapaxes(array, -1, -2) @ array).to(c.device)


def symmetric_eigenvalues(lower: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n"]:
    r"""Eigenvalues of symmetric matrices in float64, the smallest first.

    Only the lower triangle is read.

    Definition:
        The zeros of $\det(A - \lambda 1)$ with $A_{ij} = A_{ji}$ = `lower`[i, j] for i ≥ j.
    Properties:
        - those of torch up to rounding  (tested: test_the_eigenvalues_of_torch)
        - what lies above the diagonal does not count  (tested: test_only_the_lower_triangle_is_read)
    """
    array = lower.to("cpu", torch.float64).numpy()
    return torch.from_numpy(np.linalg.eigvalsh(array)).to(lower.device)
