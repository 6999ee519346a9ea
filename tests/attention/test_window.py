"""What is particular to the window."""

from dataclasses import replace

import pytest
import torch

import headscope.attention as attention
from headscope.attention.mechanisms.dense import Dense
from headscope.attention.sparse.band import BLOCK
from headscope.errors import UsageError
from tests.attention.calls import KINDS, make
from tests.attention.masks import assert_same


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_dilation_per_head(kind: str) -> None:
    call, mechanism = KINDS[kind](), attention.window(left=12, right=6, dilation=(1, 3, 1, 2))
    if call.q.shape[1] != 4:
        with pytest.raises(UsageError, match="dilations for 4 heads"):
            mechanism(call)
        return
    got = mechanism(call, lse=True)
    exact = mechanism.definition(call)
    assert got.lse is not None
    assert torch.allclose(got.out.double(), exact.out, atol=2e-5)
    assert torch.allclose(got.lse.double(), exact.lse, atol=2e-5)
    for head, step in enumerate((1, 3, 1, 2)):
        alone = attention.window(left=12, right=6, dilation=step)(call).out[:, head]
        assert torch.allclose(got.out[:, head], alone, atol=1e-6)
    seen = mechanism.seen(call)
    assert torch.allclose(attention.dense().definition(seen).out, exact.out)
    alone = [attention.window(left=12, right=6, dilation=step).cost(100, 8).flops for step in (1, 3, 1, 2)]
    assert mechanism.cost(100, 8).flops == pytest.approx(sum(alone) / 4)


@pytest.mark.parametrize("right", [None, 0])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("run", [(0, 600), (50, 600), (0, 400), (300, 301), (0, 0)])
def test_padding_at_the_ends_is_a_shorter_band(right: int | None, dilation: int, run: tuple[int, int]) -> None:
    """Exact with gradients, and padded keys are not even read: they may hold NaN."""
    call = make(600, d_head=4, right=right, dtype=torch.float64)
    real = torch.zeros(2, 600, dtype=torch.bool)
    real[0], real[1, run[0] : run[1]] = True, True
    v = call.v.masked_fill(~real[:, None, :, None], torch.nan)
    mechanism = attention.window(left=20, right=10, dilation=dilation)
    assert bool(mechanism(replace(call, v=v, key_padding=real)).out.isfinite().all())
    ahead = torch.arange(600)[:, None] - torch.arange(600)
    near = (ahead <= 20) & (ahead >= -10) & (ahead % dilation == 0)
    assert_same(replace(call, key_padding=real), lambda given: mechanism(given, lse=True), near[None, None])


@pytest.mark.parametrize("dilation", [1, 2])
def test_padding_between_real_keys_is_not_seen(dilation: int) -> None:
    """No band of a shorter matrix: the real keys of a sequence are not neighbours."""
    call = make(600, d_head=4, dtype=torch.float64)
    real = torch.ones(2, 600, dtype=torch.bool)
    real[1, 200:203], real[1, 350] = False, False
    mechanism = attention.window(left=20, dilation=dilation)
    ahead = torch.arange(600)[:, None] - torch.arange(600)
    near = (ahead <= 20) & (ahead % dilation == 0)
    assert_same(replace(call, key_padding=real), lambda given: mechanism(given, lse=True), near[None, None])


def test_one_end_is_enough_where_the_call_has_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dense, "attend", None)
    for call in (make(400), replace(make(400), key_padding=torch.ones(2, 400, dtype=torch.bool))):
        assert bool(attention.window(left=30)(call).out.isfinite().all())
    later = replace(make(400, right=None), query_positions=torch.arange(370, 770)[None])
    assert bool(attention.window(left=100)(later).out.isfinite().all())  # no key is further ahead than 29


@pytest.mark.parametrize(
    "given", [{"left": -1}, {"right": -2}, {"dilation": 0}, {"dilation": (1, 0)}, {"dilation": ()}]
)
def test_wrong_parameters(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="window"):
        attention.window(**given)


def test_names_come_from_the_folder() -> None:
    assert {"dense", "window"} <= set(dir(attention))
    with pytest.raises(AttributeError, match="wimdow"):
        attention.wimdow  # noqa: B018
