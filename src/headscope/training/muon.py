r"""Muon: momentum whose singular values are all made alike before each step.

Definition:
    With gradient G, momentum $M \leftarrow \mu M + (1 - \mu) G$ and Nesterov's look ahead
    $N = (1 - \mu) G + \mu M$, a matrix of m × n numbers changes by
    $-\eta \cdot 0.2 \sqrt{\max(m, n)} \cdot O(N)$ after it was multiplied by $1 - \eta \lambda$. O(N) divides N by its
    Frobenius norm and iterates $X \leftarrow a X + b X X^T X + c (X X^T)^2 X$ five times, a = 3.4445, b = −4.775,
    c = 2.0315: it has the singular vectors of N, and singular values near 1.
Properties:
    - the iteration applies its polynomial to the singular values  (tested: test_muon_changes_singular_values_alone)
    - singular values end near 1  (tested: test_muon_makes_singular_values_alike)
    - steps are those of torch's Muon  (tested: test_muon_steps_as_torch_does)
Numerics:
    float32: on the CPU products of bfloat16 are slower.
Reference:
    Jordan et al. (2024), Muon: an optimizer for hidden layers in neural networks; the factor 0.2 √max(m, n), by which
    a rate means what it does for AdamW: Liu et al. (2025), Muon is scalable for LLM training.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

COEFFICIENTS = (3.4445, -4.775, 2.0315)
ITERATIONS = 5
_SMALLEST = 1e-7  # norm


def orthogonalised(matrix: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """A matrix with the same singular vectors and singular values near 1."""
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=_SMALLEST)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.T if is_tall else x
    return result


class Muon(torch.optim.Optimizer):
    """Muon on matrices."""

    def __init__(
        self, matrices: Iterable[Tensor], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Change every matrix once; nothing is computed again, so that there is no closure."""
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum"] = torch.zeros_like(matrix)
                average = state["momentum"].lerp_(matrix.grad, 1.0 - momentum)
                direction = orthogonalised(matrix.grad.lerp(average, momentum))
                matrix.mul_(1.0 - rate * group["weight_decay"])
                matrix.add_(direction, alpha=-0.2 * rate * math.sqrt(max(matrix.shape)))
