"""Heads of one call that several threads compute."""

import threading
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from headscope.attention.sparse import shared_heads
from headscope.attention.sparse.kernel import fused
from headscope.attention.sparse.shared_heads import Fill, heads_shared

N = 37


@pytest.fixture(autouse=True)
def every_call_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_heads, "LARGE", 1)


def qkv(kv_heads: int, d_value: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, N, heads, d, generator=generator).transpose(1, 2)
        for heads, d in ((6, 16), (kv_heads, 16), (kv_heads, d_value))
    )
    return q, k, v


class Backwards:
    """Fills the last part first, and remembers the parts."""

    def __init__(self) -> None:
        self.parts: list[slice] = []

    def __call__(self, fill: Fill, slices: Sequence[slice]) -> None:
        self.parts += slices
        for part in reversed(slices):
            fill(part)


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [2, 3, 6])
@pytest.mark.parametrize("d_value", [16, 8, 24])
@pytest.mark.parametrize("mask_heads", [None, 1, 6])
def test_sharing_heads_changes_no_byte(kv_heads: int, d_value: int, mask_heads: int | None) -> None:
    q, k, v = qkv(kv_heads, d_value)
    mask = None
    if mask_heads is not None:
        mask = torch.rand(2, mask_heads, N, N, generator=torch.Generator().manual_seed(1)) < 0.7
        mask[..., 0] = True
    alone = fused(q, k, v, scale=0.3, mask=mask, causal=mask is None)
    share = Backwards()
    with heads_shared(share):
        shared = fused(q, k, v, scale=0.3, mask=mask, causal=mask is None)
    assert len(share.parts) == kv_heads
    assert torch.equal(shared, alone)


@torch.no_grad()
def test_one_key_head_is_not_shared() -> None:
    share = Backwards()
    with heads_shared(share):
        fused(*qkv(1), scale=1.0, causal=True)
    assert not share.parts


@torch.no_grad()
def test_small_calls_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = qkv(2)
    share = Backwards()
    with heads_shared(share):
        monkeypatch.setattr(shared_heads, "LARGE", q.numel() * N + 1)
        fused(q, k, v, scale=1.0)
        assert not share.parts
        monkeypatch.setattr(shared_heads, "LARGE", q.numel() * N)
        fused(q, k, v, scale=1.0)
        assert len(share.parts) == 2


def test_gradients_are_not_shared() -> None:
    q, k, v = qkv(2)
    share = Backwards()
    with heads_shared(share):
        fused(q.requires_grad_(), k, v, scale=1.0).sum().backward()
    assert not share.parts
    assert q.grad is not None


@torch.no_grad()
def test_only_the_thread_that_asked_shares_and_only_for_a_while() -> None:
    q, k, v = qkv(2)
    share = Backwards()
    with heads_shared(share):
        thread = threading.Thread(target=lambda: fused(q, k, v, scale=1.0))
        thread.start()
        thread.join()
    fused(q, k, v, scale=1.0)
    assert not share.parts
