"""What is particular to Longformer: global positions, where they meet the window."""

from dataclasses import replace

import pytest
import torch

from headscope.attention import Call, longformer, window
from headscope.attention.sparse import band_and_rest
from headscope.errors import UsageError
from tests.attention.calls import make
from tests.attention.masks import assert_same

SPOTS = (0, 1, 64, 150, 299, 1000)


def by_hand(queries: int, keys: int, first: int = 0, spots: tuple[int, ...] = SPOTS) -> torch.Tensor:
    """Window of 9 before and 6 after, one entry after the other."""
    rows = [
        [(-6 <= i - j <= 9) or i in spots or j in spots for j in range(keys)] for i in range(first, first + queries)
    ]
    return torch.tensor(rows)[None, None]


def padded(call: Call, start: int, stop: int) -> Call:
    real = torch.zeros(call.q.shape[0], call.k.shape[2], dtype=torch.bool)
    real[0], real[1:, start:stop] = True, True
    return replace(call, key_padding=real)


@pytest.mark.parametrize("right", [None, 0, 3])
@pytest.mark.parametrize("run", [(0, 300), (20, 300), (0, 170), (90, 95)])
def test_parts_equal_the_mask_made_by_hand(right: int | None, run: tuple[int, int]) -> None:
    call = padded(make(300, d_head=4, right=right, dtype=torch.float64), *run)
    assert_same(call, lambda given: longformer(9, 6, SPOTS)(given, lse=True), by_hand(300, 300))


def test_a_chunk_after_a_cache() -> None:
    call = make(150, 300, batch=1, d_head=4, dtype=torch.float64)
    assert_same(call, lambda given: longformer(9, 6, SPOTS)(given, lse=True), by_hand(150, 300, 150))


def test_global_positions_are_symmetric() -> None:
    seen = longformer(2, 2, (5,)).seen(make(30, right=None)).visible()[0, 0]
    assert bool(seen[5].all())
    assert bool(seen[:, 5].all())
    assert torch.equal(seen, seen.T)
    assert seen[20].nonzero()[:, 0].tolist() == [5, 18, 19, 20, 21, 22]


def test_no_global_position_is_the_window() -> None:
    call = make(400, right=None)
    assert torch.allclose(longformer(20, 20, ())(call).out, window(left=20, right=20)(call).out, atol=1e-6)


def test_long_calls_take_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mask of the whole map is made where the fast way serves: in encoders, decoders, with padding, with sinks."""

    def never(*_: object) -> None:
        raise AssertionError("the dense mask was asked for")

    mechanism = longformer(9, 6, SPOTS)
    monkeypatch.setattr(type(mechanism), "allows", never)
    for call in (make(300), make(300, right=None), padded(make(300), 7, 280), replace(make(300), sinks=torch.ones(4))):
        assert bool(mechanism(call).out.isfinite().all())


def test_most_columns_need_no_mask() -> None:
    """Blocks of queries that are far from every column see all of it."""
    outside = band_and_rest.Outside(band_and_rest.Band(9, 6, 0, 1.0), (None, 0), (8192, 8192), (0, 0))
    groups = band_and_rest.columns(outside, tuple(range(64)))
    masked = sum(group.queries.numel() for group in groups if group.allowed is not None)
    assert masked == band_and_rest.COLUMN_ROWS
    assert sum(group.queries.numel() for group in groups) == 8192


@pytest.mark.parametrize("given", [{"left": -1}, {"right": -2}, {"global_positions": (3, -1)}])
def test_wrong_parameters(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="longformer"):
        longformer(**given)
