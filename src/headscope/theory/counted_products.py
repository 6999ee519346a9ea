"""Counts the multiplications that an algorithm does, by running it."""

import torch
from torch import Tensor


class Work:
    """Matrix products and linear systems that go through it are computed, and their multiplications added up."""

    def __init__(self) -> None:
        self.multiplications = 0.0

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """The matrix product: rows × inner × columns multiplications."""
        self.multiplications += a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b

    def solve(self, a: Tensor, b: Tensor) -> Tensor:
        """The solution of a linear system: d³/3 multiplications to factor it, d² for each column."""
        d = a.shape[0]
        self.multiplications += d**3 / 3 + d * d * b.shape[1]
        solution: Tensor = torch.linalg.solve(a, b)
        return solution
