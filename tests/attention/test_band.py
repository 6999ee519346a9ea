"""The tiles of a band: every query once, every key that is near, and the same numbers however they are cut."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headscope.attention import band, window
from headscope.attention.band import Band, tiles
from tests.attention.calls import make
from tests.tolerances import MECHANISM_AGREEMENT


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
    """Gradients too, of out and of lse, with the backward cut into many small groups."""
    monkeypatch.setattr(band, "GROUP_ENTRIES", 1 << 12)
    call = make(*shape, heads=4, kv_heads=2, d_head=8, d_value=12, right=None)
    leaf = {name: getattr(call, name).clone().requires_grad_() for name in ("q", "k", "v")}
    mechanism = window(left=widths[0], right=widths[1])
    grads = []
    for run in (lambda given: mechanism(given, lse=True), mechanism.definition):
        output = run(replace(call, **leaf))
        assert output.lse is not None
        seen = output.lse != -torch.inf
        total = output.out.double().square().sum() + output.lse[seen].double().sin().sum()
        grads.append((output.out, *torch.autograd.grad(total, list(leaf.values()))))
    for got, exact in zip(*grads, strict=True):
        assert float((got.double() - exact).abs().max()) <= MECHANISM_AGREEMENT * float(exact.abs().max())


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
