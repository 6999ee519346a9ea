"""Products of float32 matrices by oneDNN, which torch itself asks only for lower precision.

torch multiplies float32 matrices with MKL, whose fast kernels are for Intel's processors: on others that have AVX-512
oneDNN takes half the time. Both sum products of float32 in float32, in another order. The operator is private, so that
`has_kernel` guards it.
"""

from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# Products of fewer multiplications gain nothing.
SMALL = 2**22


def product(a: Float[Tensor, "rows inner"], b: Float[Tensor, "inner columns"]) -> Float[Tensor, "rows columns"]:
    r"""The product of two matrices; large ones in float32 by oneDNN.

    Properties:
        - the product of torch up to rounding  (tested: test_the_product_of_matrices_up_to_rounding)
        - other precisions, devices and gradients see torch's own product
          (tested: test_what_the_product_does_not_serve_is_as_always)
    """
    if a.numel() * b.shape[-1] < SMALL or not serves(a, b) or not has_kernel():
        return a @ b
    by_kernel: Tensor = kernel()(a, b.mT, None, "none", [], "")
    return by_kernel


def serves(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel computes this product: float32 on the CPU, without a graph."""
    is_float32 = x.dtype == weight.dtype == torch.float32
    is_on_cpu = x.device.type == weight.device.type == "cpu"
    is_plain = not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    return is_float32 and is_on_cpu and is_plain and x.numel() > 0


@cache
def has_kernel() -> bool:
    """Whether torch has the operator and it multiplies."""
    x, weight = torch.ones(2, 3), torch.ones(4, 3)
    try:
        return bool((kernel()(x, weight, torch.ones(4), "none", [], "") == 4).all())
    except (AttributeError, RuntimeError, TypeError):
        return False


def kernel() -> Any:
    """The private operator: (x, weight, bias, name of what follows, its numbers, its algorithm) → x weightᵀ + bias."""
    return torch.ops.mkldnn._linear_pointwise
