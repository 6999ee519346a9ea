"""Symmetric products and eigenvalues against torch."""

import pytest
import torch

from headscope.maths.linear_algebra.symmetric import gram_matrix, symmetric_eigenvalues

SHAPES = [(5, 3), (1, 4), (2, 7, 7), (2, 3, 40, 33), (0, 3)]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gram_matrix_of_torch(shape: tuple[int, ...]) -> None:
    c = drawn(*shape)
    torch.testing.assert_close(gram_matrix(c), c.mT @ c, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gram_matrix(c.mT), c @ c.mT, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_eigenvalues_of_torch(shape: tuple[int, ...]) -> None:
    c = drawn(*shape)
    gram = c.mT @ c
    torch.testing.assert_close(symmetric_eigenvalues(gram), torch.linalg.eigvalsh(gram), rtol=0, atol=1e-12)


def test_only_the_lower_triangle_is_read() -> None:
    c = drawn(3, 6, 6)
    symmetric = c + c.mT
    assert torch.equal(symmetric_eigenvalues(symmetric.tril()), symmetric_eigenvalues(symmetric))
