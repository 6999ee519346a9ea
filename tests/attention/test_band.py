"""The tiles of a band: every query once, every key that is near, and the same numbers however they are cut."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.attention import window
from headscope.attention.sparse import band
from headscope.attention.sparse.band import Band, tiles
from tests.attention.calls import make


@given(
    queries=st.integers(1, 300),
    keys=st.integers(1, 300),
    left=st.integers(0, 80),
    right=st.integers(0, 80),
    offset=st.integers(-350, 350),
)
def test_tiles_cover_the_band(queries: int, keys: int, left: int, right: int, offset: int) -> None:
    seen = torch.zeros(queries, keys, dtype=torch.long)
    rows = torch.zeros(queries, dtype=torch.long)
    for tile in tiles(queries, keys, Band(left, right, offset, 1.0)):
        for block in range(tile.count):
            query, key = tile.query + block * tile.rows, tile.key + block * tile.rows
            assert 0 <= key <= key + tile.width <= keys
            rows[query : query + tile.rows] += 1
            seen[query : query + tile.rows, key : key + tile.width] += 1
    ahead = torch.arange(queries)[:, None] + offset - torch.arange(keys)
    assert bool((rows == 1).all())
    assert bool((seen[(ahead <= left) & (ahead >= -right)] == 1).all())


@pytest.mark.parametrize("shape", [(700, 700), (300, 500), (500, 300)])
@pytest.mark.parametrize("widths", [(40, 0), (3, 50), (0, 0)])
def test_window_in_tiles_equals_definition(
    shape: tuple[int, int], widths: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients too, of out and of lse, with the backward cut into many small groups; in float64, so to rounding."""
    monkeypatch.setattr(band, "GROUP_ENTRIES", 1 << 12)
    call = make(*shape, heads=4, kv_heads=2, d_head=8, d_value=12, right=None, dtype=torch.float64)
    leaf = {name: getattr(call, name).clone().requires_grad_() for name in ("q", "k", "v")}
    mechanism = window(left=widths[0], right=widths[1])
    grads = []
    for run in (lambda given: mechanism(given, lse=True), mechanism.definition):
        output = run(replace(call, **leaf))
        assert output.lse is not None
        seen = output.lse != -torch.inf
        total = output.out.square().sum() + output.lse[seen].sin().sum()
        grads.append((output.out, *torch.autograd.grad(total, list(leaf.values()))))
    for got, exact in zip(*grads, strict=True):
        assert torch.allclose(got, exact, atol=1e-12)


@given(
    n=st.integers(1, 230),
    left=st.none() | st.integers(0, 60),
    right=st.none() | st.integers(0, 60),
    dilation=st.integers(1, 4),
    offset=st.integers(-50, 50),
    size=st.sampled_from([0.0, 1.0, 50.0]),
    sunk=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_any_window_equals_its_definition(
    n: int, left: int | None, right: int | None, dilation: int, offset: int, size: float, sunk: bool
) -> None:
    call = make(n, batch=1, heads=2, kv_heads=1, d_head=4, right=None, size=size, dtype=torch.float64)
    call = replace(call, query_positions=call.query_positions + offset)
    call = replace(call, sinks=torch.tensor([0.5, -2.0], dtype=torch.float64)) if sunk else call
    mechanism = window(left=left, right=right, dilation=dilation)
    got, exact = mechanism(call, lse=True), mechanism.definition(call)
    assert got.lse is not None
    assert exact.lse is not None
    assert torch.allclose(got.out, exact.out, atol=1e-12)
    assert torch.allclose(got.lse, exact.lse, atol=1e-12)


def test_masks_made_in_inference_mode_serve_training() -> None:
    """The small masks are cached; one that was made without autograd must not poison a later backward."""
    band._band_mask.cache_clear()
    call = make(400, d_head=8)
    mechanism = window(left=30)
    with torch.inference_mode():
        quiet = mechanism(call).out.clone()
    leaf = call.q.clone().requires_grad_()
    output = mechanism(replace(call, q=leaf)).out
    output.sum().backward()
    assert torch.equal(output.detach(), quiet)
    assert leaf.grad is not None
