"""Muon: its orthogonalisation against the singular values, its steps against torch's."""

import pytest
import torch

from headscope.training.muon import COEFFICIENTS, ITERATIONS, Muon, orthogonalised
from headscope.training.optimiser import optimiser_tensors, restore_optimisers

SHAPES = [(8, 8), (5, 20), (20, 5), (1, 7), (7, 1)]


def matrix(shape: tuple[int, int], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_muon_changes_singular_values_alone(shape: tuple[int, int]) -> None:
    original = matrix(shape).double()
    left, values, right = torch.linalg.svd(original, full_matrices=False)
    a, b, c = COEFFICIENTS
    values = values / values.square().sum().sqrt()
    for _ in range(ITERATIONS):
        values = a * values + b * values**3 + c * values**5
    expected = left @ values.diag() @ right
    torch.testing.assert_close(orthogonalised(original), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(orthogonalised(original.float()), expected.float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_muon_makes_singular_values_alike(shape: tuple[int, int], scale: float) -> None:
    left, values, right = torch.linalg.svd(matrix(shape, seed=3), full_matrices=False)
    spread = left @ torch.linspace(1.0, 0.05, len(values)).diag() @ right
    alike = torch.linalg.svdvals(orthogonalised(scale * spread))
    assert alike.min() > 0.6
    assert alike.max() < 1.25


def test_a_gradient_of_zero_moves_nothing() -> None:
    assert not orthogonalised(torch.zeros(3, 4)).any()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_steps_as_torch_does() -> None:
    ours, theirs = (torch.nn.Parameter(matrix((12, 30))) for _ in range(2))
    optimisers = (
        Muon([ours], lr=0.02, weight_decay=0.1),
        torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    )
    start = ours.detach().clone()
    for step in range(3):
        for parameter, optimiser in zip((ours, theirs), optimisers, strict=True):
            parameter.grad = matrix((12, 30), seed=step)
            optimiser.step()
    # torch multiplies in bfloat16, with eight bits.
    ours, theirs = ours.detach() - start, theirs.detach() - start
    largest = float(ours.abs().max())
    torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.02 * largest)


def test_the_state_of_muon_is_put_back() -> None:
    parameter = torch.nn.Parameter(matrix((4, 6)))
    optimiser = Muon([parameter], lr=0.1)
    parameter.grad = matrix((4, 6), seed=1)
    optimiser.step()
    other = torch.nn.Parameter(parameter.detach().clone())
    again = Muon([other], lr=0.1)
    restore_optimisers([again], optimiser_tensors([optimiser]))
    for step in range(2):
        for weights, mover in ((parameter, optimiser), (other, again)):
            weights.grad = matrix((4, 6), seed=2 + step)
            mover.step()
    assert torch.equal(parameter, other)
