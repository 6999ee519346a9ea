"""The products of linear layers by oneDNN."""

import threading
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from headscope.model.transformers import linear_kernel
from headscope.model.transformers.linear_kernel import LARGE, ROWS, has_kernel, onednn_linear


@pytest.fixture
def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(576, 100), nn.Linear(100, 37, bias=False))


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, 576, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.skipif(not has_kernel(), reason="this build of torch has no oneDNN")
@pytest.mark.parametrize("shape", [(2, 50), (1, 1), (7,), (3, 1, 5)])
def test_the_product_up_to_rounding(layers: nn.Sequential, shape: tuple[int, ...]) -> None:
    exact = layers.double()(rows(*shape).double())
    layers.float()
    with onednn_linear(layers):
        by_kernel = layers(rows(*shape))
    assert by_kernel.shape == (*shape, 37)
    assert float((by_kernel - exact).abs().max() / exact.abs().max()) < 2e-6  # float32, 576 summands


@torch.no_grad()
@pytest.mark.skipif(not has_kernel(), reason="this build of torch has no oneDNN")
@pytest.mark.parametrize("n_rows", [1024, 1025])
def test_sharing_changes_no_byte(n_rows: int) -> None:
    layer = nn.Linear(576, 1024)
    parts: list[slice] = []

    def backwards(fill: linear_kernel.Fill, slices: Sequence[slice]) -> None:
        parts.extend(slices)
        for part in reversed(slices):
            fill(part)

    assert n_rows * layer.weight.numel() > LARGE
    x = rows(1, n_rows)
    with onednn_linear(layer):
        alone = layer(x)
    with onednn_linear(layer, backwards):
        shared = layer(x)
    assert torch.equal(alone, shared)
    assert len(parts) == -(-n_rows // ROWS)
    torch.testing.assert_close(shared, layer(x))


@torch.no_grad()
@pytest.mark.skipif(not has_kernel(), reason="this build of torch has no oneDNN")
def test_weights_are_read_when_the_layer_runs(layers: nn.Sequential) -> None:
    """A changed form of the model changes the weights in place; a transposed weight is not contiguous."""
    with onednn_linear(layers):
        layers[0].weight.zero_()
        layers[1].weight = nn.Parameter(torch.randn(100, 37).T)
        assert torch.equal(layers[0](rows(4)), layers[0].bias.expand(4, -1))
        torch.testing.assert_close(layers(rows(4)), layers[0].bias.expand(4, -1) @ layers[1].weight.T)


def test_what_the_kernel_does_not_serve_is_as_always(layers: nn.Sequential, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise AssertionError("the kernel was asked")

    has_kernel()
    monkeypatch.setattr(linear_kernel, "kernel", lambda: refuse)
    answers: list[Tensor] = []

    @torch.no_grad()
    def elsewhere() -> None:
        answers.append(layers(rows(4)))

    with onednn_linear(layers):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert layers(rows(4)).requires_grad
        with torch.no_grad():
            assert layers(rows(0)).shape == (0, 37)
            assert layers.double()(rows(4).double()).dtype == torch.float64
    assert torch.equal(answers[0], layers.float()(rows(4)))


def test_nothing_is_left(layers: nn.Sequential) -> None:
    with pytest.raises(KeyError), onednn_linear(layers):
        raise KeyError
    assert all("forward" not in vars(layer) for layer in layers)


def test_a_layer_with_a_forward_of_its_own_keeps_it(layers: nn.Sequential) -> None:
    layers[0].forward = lambda x: x[..., :100]
    with torch.no_grad(), onednn_linear(layers):
        assert torch.equal(layers[0](rows(3)), rows(3)[:, :100])
    assert "forward" in vars(layers[0])
