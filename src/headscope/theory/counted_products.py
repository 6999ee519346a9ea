"""Counts the multiplications that an algorithm does, by running it."""

import torch
from torch import Tensor


class Work:
    """Computes matrix products and linear systems, and adds up the multiplications."""

    def __init__(self) -> None:
        self.multiplications = 0.0

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """The matrix product: rows × inner × columns multiplications."""
        self.multiplications += a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b

    def solve(self, a: Tensor, b: Tensor) -> Tensor:
        """Solves a linear system.

        The factor costs d³/3 multiplications, each column d².
        """
        d = a.shape[0]
        self.multiplications += d**3 / 3 + d * d * b.shape[1]
        solution: Tensor = torch.linalg.solve(a, b)
        return solution
