"""Laws of `headscope.maths.linear_algebra.positive_kernel`."""

import pytest
import torch

from headscope.errors import UsageError
from headscope.maths.linear_algebra.positive_kernel import positive_features, positive_kernel


def attention(n: int, *, causal: bool, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    scores = 2 * torch.randn(3, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    visible = torch.ones(n, n, dtype=torch.bool).tril() if causal else torch.ones(n, n, dtype=torch.bool)
    return scores.masked_fill(~visible, -torch.inf).softmax(-1), visible


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("features", [1, 4, 40])
def test_a_kernel_keeps_sums_and_mask(causal: bool, features: int) -> None:
    pattern, visible = attention(12, causal=causal)
    pattern = 0.7 * pattern  # as with a sink
    kernel = positive_kernel(pattern, visible, features)
    assert torch.allclose(kernel.sum(-1), pattern.sum(-1), atol=1e-12)
    assert bool((kernel >= 0).all())
    assert not bool(kernel[:, ~visible].any())


@pytest.mark.parametrize("causal", [True, False])
def test_rounds_lower_the_divergence(causal: bool) -> None:
    pattern, visible = attention(16, causal=causal)
    divergences = []
    for rounds in (1, 2, 3, 5, 10, 20, 40):
        phi, psi = positive_features(pattern, visible, 5, rounds)
        kernel = phi @ psi.mT
        gaps = torch.special.xlogy(pattern, pattern / kernel) - pattern + kernel
        divergences.append(float((gaps * visible).sum()))
    assert divergences == sorted(divergences, reverse=True)
    assert divergences[-1] < divergences[0] / 2


def test_a_kernel_of_equal_rows_is_exact() -> None:
    row = torch.rand(9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pattern = (row / row.sum()).expand(9, 9)
    everything = torch.ones(9, 9, dtype=torch.bool)
    assert torch.allclose(positive_kernel(pattern, everything, 1), pattern, atol=1e-12)


def test_more_features_come_nearer() -> None:
    pattern, visible = attention(24, causal=True)
    gaps = [float((positive_kernel(pattern, visible, m) - pattern).abs().sum()) for m in (1, 4, 16)]
    assert gaps[0] > gaps[1] > gaps[2]


def test_a_map_without_weight_stays_empty() -> None:
    visible = torch.ones(4, 4, dtype=torch.bool)
    assert not bool(positive_kernel(torch.zeros(4, 4), visible, 2).any())


@pytest.mark.parametrize(("features", "rounds"), [(0, 3), (2, 0)])
def test_a_kernel_without_features_is_refused(features: int, rounds: int) -> None:
    visible = torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(UsageError, match=f"got {features} and {rounds}"):
        positive_kernel(torch.eye(2), visible, features, rounds)
