"""What is particular to the window."""

from dataclasses import replace

import pytest
import torch

import headscope.attention as attention
from headscope.attention.band import BLOCK
from headscope.errors import UsageError
from tests.attention.calls import KINDS, make


@pytest.mark.parametrize("kind", KINDS)
def test_infinite_window_is_dense(kind: str) -> None:
    call = KINDS[kind]()
    assert torch.allclose(attention.window()(call).out, attention.dense()(call).out, atol=1e-6)


def test_window_intersects_the_limits_of_the_call() -> None:
    call = make(60, left=10)
    narrow, wide = attention.window(left=3)(call).out, attention.window(left=30)(call).out
    assert torch.allclose(narrow, attention.dense()(make(60, left=3)).out, atol=1e-6)
    assert torch.allclose(wide, attention.dense()(call).out, atol=1e-6)
    encoder = make(60, right=None)
    assert torch.allclose(attention.window(right=0)(encoder).out, attention.dense()(make(60)).out, atol=1e-6)


@pytest.mark.parametrize("n", [600, 1000])
def test_window_touches_no_far_key(n: int) -> None:
    """Where the band is taken in tiles, keys and values beyond it may hold anything, even NaN: they are not read."""
    call = make(n, batch=1, d_head=8)
    k, v = call.k.clone(), call.v.clone()
    far = n // 2 - 20 - BLOCK  # a tile reads its own width beyond the window
    k[:, :, :far], v[:, :, :far] = 1e30, torch.nan
    poisoned = attention.window(left=20)(replace(call, k=k, v=v)).out
    clean = attention.window(left=20)(call).out
    assert torch.allclose(poisoned[:, :, n // 2 :], clean[:, :, n // 2 :], atol=1e-6)


def test_a_window_of_256_sees_257_keys() -> None:
    call = make(600, batch=1, heads=1, kv_heads=1, d_head=8)
    seen = attention.window(left=256).seen(call)
    assert seen is not None
    assert int(seen.visible()[0, 0, 599].sum()) == 257


@pytest.mark.parametrize("given", [{"left": -1}, {"right": -2}, {"dilation": 0}])
def test_wrong_parameters(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="window"):
        attention.window(**given)


def test_names_come_from_the_folder() -> None:
    assert {"dense", "window"} <= set(dir(attention))
    with pytest.raises(AttributeError, match="wimdow"):
        attention.wimdow  # noqa: B018
