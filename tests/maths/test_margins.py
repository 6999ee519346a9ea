"""Laws and known answers of `headscope.maths.attention.fixed_margins`."""

import pytest
import torch

from headscope.errors import NumericsError
from headscope.maths.attention.fixed_margins import with_margins


def matrices(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.rand(3, 7, 5, generator=generator, dtype=torch.float64) + 0.01 for _ in range(2))


def test_margins_are_reached():
    start, other = matrices()
    fitted = with_margins(start, other.sum(-1), other.sum(-2))
    torch.testing.assert_close(fitted.matrix.sum(-1), other.sum(-1), rtol=1e-12, atol=0)
    left = (fitted.matrix.sum(-2) - other.sum(-2)).abs().sum(-1) / (2 * other.sum((-2, -1)))
    torch.testing.assert_close(left, fitted.misplaced, rtol=1e-6, atol=1e-12)
    assert bool((fitted.misplaced <= 1e-3).all())


def test_zeros_stay():
    start, other = matrices()
    start, other = start.tril(), other.tril()
    fitted = with_margins(start, other.sum(-1), other.sum(-2))
    assert bool((fitted.matrix[start == 0] == 0).all())
    assert bool((fitted.misplaced <= 1e-3).all())


def test_fitting_changes_nothing_that_fits():
    start, _ = matrices()
    fitted = with_margins(start, start.sum(-1), start.sum(-2))
    torch.testing.assert_close(fitted.matrix, start, rtol=1e-12, atol=0)


def test_cross_ratios_stay():
    start, other = matrices()
    fitted = with_margins(start, other.sum(-1), other.sum(-2)).matrix

    def ratios(x: torch.Tensor) -> torch.Tensor:
        return x[:, :-1, :-1] * x[:, 1:, 1:] / (x[:, :-1, 1:] * x[:, 1:, :-1])

    torch.testing.assert_close(ratios(fitted), ratios(start), rtol=1e-9, atol=0)


def test_what_cannot_be_reached_is_told():
    """Both rows have their weight in the first column only, and the second wants half of it."""
    fitted = with_margins(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.ones(2), torch.ones(2))
    assert float(fitted.misplaced) == pytest.approx(0.5)


def test_wrong_input_is_refused():
    with pytest.raises(NumericsError, match="not negative"):
        with_margins(-torch.ones(2, 2), torch.ones(2), torch.ones(2))
