"""Counting by running."""

import torch

from headscope.theory.counted_products import Work


def test_products_and_systems_are_counted():
    work = Work()
    a, b = torch.eye(6, 6, dtype=torch.float64) * 2, torch.ones(6, 4, dtype=torch.float64)
    torch.testing.assert_close(work.product(a, b), a @ b)
    assert work.multiplications == 6 * 6 * 4
    torch.testing.assert_close(work.solve(a, b), b / 2)
    assert work.multiplications == 6 * 6 * 4 + 72 + 144
