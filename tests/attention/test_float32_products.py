"""Products of float32 matrices by oneDNN."""

import pytest
import torch
from torch import Tensor

from headscope.attention import float32_products
from headscope.attention.float32_products import SMALL, has_kernel, product


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
@pytest.mark.parametrize("turned", [False, True])
def test_the_product_of_matrices_up_to_rounding(turned: bool) -> None:
    a, b = drawn(300, 256), drawn(64, 256).T if turned else drawn(256, 64)
    exact = a.double() @ b.double()
    assert a.numel() * b.shape[-1] > SMALL
    assert float((product(a, b) - exact).abs().max() / exact.abs().max()) < 2e-6  # float32, 256 summands


@pytest.mark.skipif(not has_kernel(), reason="this build of torch has no oneDNN")
def test_what_the_product_does_not_serve_is_as_always(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise AssertionError("the kernel was asked")

    monkeypatch.setattr(float32_products, "kernel", lambda: refuse)
    a, b = drawn(300, 256), drawn(256, 64)
    with torch.no_grad():
        assert torch.equal(product(a.double(), b.double()), a.double() @ b.double())
        assert torch.equal(product(a[:20], b), a[:20] @ b)
        with pytest.raises(AssertionError, match="the kernel was asked"):
            product(a, b)
    assert torch.equal(product(a.requires_grad_(), b), a @ b)
