"""Norms of the stream as linear maps, beside the norm itself."""

import pytest
import torch

from headscope.core import StreamNorm
from headscope.lenses.shared.stream_norms import normed_rows, read_through, written_through

D = 7


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.7


def norm_of(centred: bool) -> StreamNorm:
    return StreamNorm(centred, gain=normal(D, seed=1), bias=torch.zeros(D))


def normed(norm: StreamNorm, row: torch.Tensor) -> tuple[torch.Tensor, float]:
    """LayerNorm or RMSNorm of one vector, by its formula, and its scale."""
    mean = float(sum(row)) / D if norm.centred else 0.0
    scale = (sum((float(x) - mean) ** 2 for x in row) / D) ** 0.5
    return (row - mean) / scale * norm.gain, scale


@pytest.mark.parametrize("centred", [True, False])
def test_a_matrix_behind_a_norm_reads_the_stream_through_another_matrix(centred: bool) -> None:
    norm, rows, w = norm_of(centred), normal(4, D, seed=2), normal(D, 3, seed=3)
    for row in rows:
        behind, scale = normed(norm, row)
        assert torch.allclose(behind @ w, row / scale @ read_through(norm, w))


@pytest.mark.parametrize("centred", [True, False])
def test_what_is_written_before_a_norm_leaves_it_up_to_a_scale(centred: bool) -> None:
    norm, inner, w = norm_of(centred), normal(4, 3, seed=4), normal(3, D, seed=5)
    for row in inner:
        behind, scale = normed(norm, row @ w)
        assert torch.allclose(behind, row / scale @ written_through(norm, w))


@pytest.mark.parametrize("centred", [True, False])
def test_rows_at_the_scale_of_a_norm(centred: bool) -> None:
    norm, rows = norm_of(centred), normal(4, D, seed=6)
    scaled = normed_rows(norm, rows)
    for row, wanted in zip(rows, scaled, strict=True):
        assert torch.allclose(normed(norm, row)[0], wanted * norm.gain)
    assert torch.allclose(scaled.square().mean(-1), torch.ones(4, dtype=torch.float64))
    assert not normed_rows(norm, torch.zeros(2, D)).any()


def test_without_a_norm_nothing_changes() -> None:
    w = normal(D, D)
    assert all(torch.equal(change(None, w), w) for change in (read_through, written_through, normed_rows))
