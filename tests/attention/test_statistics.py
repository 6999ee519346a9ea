"""Streaming statistics against the stored map in float64, in hostile ranges."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headscope.attention import dense
from headscope.attention.call import Call
from headscope.attention.maps import pattern
from headscope.attention.statistics import (
    Request,
    RowStatistics,
    observe,
    pattern_statistics,
    row_statistics,
    uniform_statistics,
)
from headscope.errors import UsageError
from tests.attention.calls import KINDS, make
from tests.tolerances import STREAMED_STATISTICS

REQUEST = Request(bands=(0, 1, 4))


def stored(call: Call) -> Tensor:
    """The map in float64, by the plain formula."""
    wide = replace(call, q=call.q.double(), k=call.k.double(), v=call.v.double())
    wide = replace(wide, bias=None if call.bias is None else call.bias.double())
    return pattern(replace(wide, sinks=None if call.sinks is None else call.sinks.double()))


def worst(got: RowStatistics, want: RowStatistics, call: Call) -> dict[str, float]:
    """The largest error of each quantity as a share of its range; NaN must be in the same places."""
    span = float(max(call.query_positions.max(), call.key_positions.max())) + 1
    ranges = {"entropy_nats": math.log(max(call.k.shape[2], 2)), "distance": span, "distance_sd": span}
    names = (*ranges, "participation", "diagonal", "first")
    pairs = {name: (getattr(got, name), getattr(want, name)) for name in names}
    pairs |= {f"band {width}": (got.bands[width], want.bands[width]) for width in REQUEST.bands}
    errors = {}
    for name, (a, b) in pairs.items():
        a, b = torch.broadcast_tensors(a, b)
        assert torch.equal(a.isnan(), b.isnan()), name
        difference = (a - b)[~b.isnan()].abs()
        errors[name] = float(difference.max()) / ranges.get(name, 1.0) if difference.numel() else 0.0
    return errors


@pytest.mark.parametrize("kind", KINDS)
def test_streaming_equals_stored_map(kind: str) -> None:
    call = KINDS[kind]()
    positional = kind != "cross"
    want = pattern_statistics(stored(call), call, REQUEST, positional=positional)
    got = row_statistics(call, REQUEST, positional=positional)
    errors = worst(got, want, call)
    assert max(errors.values()) <= STREAMED_STATISTICS, errors
    assert torch.equal(got.n_visible.expand_as(want.n_visible), want.n_visible)
    assert got.method


@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([0.0, 1e-3, 1.0, 10.0, 100.0]),
    offset=st.sampled_from([0.0, 1.0, 30.0]),
    n=st.integers(1, 90),
    right=st.sampled_from([0, None]),
)
def test_streaming_in_hostile_ranges(seed: int, size: float, offset: float, n: int, right: int | None) -> None:
    """Scores up to hundreds, and keys with a large common part: entropies of peaked rows must not drown."""
    call = make(n, batch=1, heads=2, kv_heads=1, d_head=8, seed=seed, size=size, right=right)
    call = replace(call, k=call.k + offset)
    want = pattern_statistics(stored(call), call, REQUEST)
    errors = worst(row_statistics(call, REQUEST), want, call)
    assert max(errors.values()) <= STREAMED_STATISTICS, errors


@given(seed=st.integers(0, 1000), size=st.sampled_from([0.0, 1.0, 20.0, 300.0]), n=st.integers(1, 60))
def test_entropy_bounds(seed: int, size: float, n: int) -> None:
    call = make(n, batch=1, heads=2, kv_heads=1, d_head=8, seed=seed, size=size)
    rows = row_statistics(call, REQUEST)
    assert float(rows.entropy_nats.min()) >= 0.0
    assert bool((rows.entropy_nats <= rows.n_visible.double().log() + 1e-6).all())
    assert bool((rows.participation <= 1 + 1e-9).all())
    assert bool((rows.participation >= 1 / rows.n_visible.double() - 1e-6).all())
    assert bool((rows.bands[1] <= rows.bands[4] + 1e-9).all())
    assert torch.allclose(rows.bands[0], rows.diagonal)


def test_common_offsets_do_not_matter() -> None:
    call = make(50)
    shifted = replace(call, k=call.k + 20.0 * torch.randn(1, 2, 1, 16, generator=torch.Generator().manual_seed(1)))
    errors = worst(row_statistics(shifted, REQUEST), row_statistics(call, REQUEST), call)
    assert max(errors.values()) <= STREAMED_STATISTICS


@pytest.mark.parametrize("kind", KINDS)
def test_observed_output_is_dense(kind: str) -> None:
    call = KINDS[kind]()
    seen = observe(call, REQUEST, positional=kind != "cross").output
    exact = dense().definition(call)
    assert float((seen.out.double() - exact.out).abs().max()) <= 2e-6 * float(exact.out.abs().max())
    assert seen.lse is not None
    assert exact.lse is not None
    assert torch.equal(seen.lse == -torch.inf, exact.lse == -torch.inf)


def test_observing_keeps_gradients() -> None:
    call = make(20)
    leaf = call.q.clone().requires_grad_()
    (got,) = torch.autograd.grad(observe(replace(call, q=leaf), REQUEST).output.out.square().sum(), leaf)
    (expected,) = torch.autograd.grad(dense()(replace(call, q=leaf)).out.square().sum(), leaf)
    assert torch.allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "sinks" not in kind and kind != "everything"])
def test_uniform_is_attention_of_queries_that_are_zero(kind: str) -> None:
    call = KINDS[kind]()
    blank = replace(call, q=torch.zeros_like(call.q), bias=None)
    positional = kind != "cross"
    want = pattern_statistics(stored(blank), blank, REQUEST, positional=positional)
    errors = worst(uniform_statistics(call, REQUEST, positional=positional), want, call)
    assert max(errors.values()) <= 1e-9, errors


def test_padding_rows_are_left_out() -> None:
    call = KINDS["padding on the right"]()
    real = torch.ones(2, 37, dtype=torch.bool)
    real[1, -5:] = False
    rows = row_statistics(call, REQUEST, real_queries=real)
    assert bool(rows.entropy_nats[1, :, -5:].isnan().all())
    assert bool(rows.entropy_nats[0].isfinite().all())
    assert not bool(rows.n_visible[1, :, -5:].any())


def test_known_answers() -> None:
    """Attention that sits on the previous token: entropy 0, distance 1, no spread."""
    n = 12
    call = make(n, batch=1, heads=1, kv_heads=1, d_head=16)
    bias = torch.full((1, 1, n, n), -1e4)
    bias[0, 0, torch.arange(1, n), torch.arange(n - 1)] = 0.0
    bias[0, 0, 0, 0] = 0.0
    rows = row_statistics(replace(call, bias=bias), REQUEST)
    assert float(rows.entropy_nats.abs().max()) < 1e-6
    assert torch.allclose(rows.distance[0, 0, 1:], torch.ones(n - 1, dtype=torch.float64))
    assert float(rows.distance_sd.abs().max()) < 1e-6
    assert rows.first[0, 0, 1] == pytest.approx(1.0)
    assert rows.diagonal[0, 0, 5] == pytest.approx(0.0)
    assert rows.bands[1][0, 0, 5] == pytest.approx(1.0)


def test_groups_of_heads_join_in_order() -> None:
    call = make(20)
    whole = row_statistics(call, REQUEST)
    halves = [row_statistics(call.heads(heads), REQUEST) for heads in ((2, 0), (3, 1))]
    joined = RowStatistics.of_heads(halves, [1, 3, 0, 2])
    assert max(worst(joined, whole, call).values()) <= 1e-9


def test_negative_bands_are_refused() -> None:
    with pytest.raises(UsageError, match="half-widths"):
        Request(bands=(-1,))
