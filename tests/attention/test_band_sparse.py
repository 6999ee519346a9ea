"""What is particular to band-sparse attention: columns that are only keys, and rows of their own."""

from dataclasses import replace

import pytest
import torch

from headscope.attention import band_sparse
from headscope.attention.mechanisms.band_sparse import rare_columns
from headscope.errors import UsageError
from tests.attention.calls import make
from tests.attention.masks import assert_same

COLUMNS = (0, 1, 64, 150, 299, 1000)


@pytest.mark.parametrize("right", [None, 0, 3])
@pytest.mark.parametrize("shape", [(300, 300), (150, 300)])
def test_columns_equal_the_mask_made_by_hand(right: int | None, shape: tuple[int, int]) -> None:
    call = make(*shape, d_head=4, right=right, dtype=torch.float64)
    positions = call.query_positions[0].tolist()
    mask = torch.tensor([[(-6 <= i - j <= 9) or j in COLUMNS for j in range(300)] for i in positions])
    assert_same(call, lambda given: band_sparse(9, 6, COLUMNS)(given, lse=True), mask[None, None])


@pytest.mark.parametrize("right", [None, 0])
def test_rows_of_their_own(right: int | None) -> None:
    """Ragged, some inside the band, some beyond the end, and fewer lists than queries."""
    lists = [[(7 * i + 31 * s) % 350 for s in range(i % 6)] for i in range(280)]
    call = make(300, d_head=4, right=right, dtype=torch.float64)
    real = torch.ones(2, 300, dtype=torch.bool)
    real[1, 220:] = False
    call = replace(call, key_padding=real)
    mask = torch.tensor([[(-6 <= i - j <= 9) or (i < 280 and j in lists[i]) for j in range(300)] for i in range(300)])
    assert_same(call, lambda given: band_sparse(9, 6, rows=lists)(given, lse=True), mask[None, None])


def test_columns_are_not_symmetric() -> None:
    seen = band_sparse(2, 2, (5,)).seen(make(30, right=None)).visible()[0, 0]
    assert bool(seen[:, 5].all())
    assert seen[5].nonzero()[:, 0].tolist() == [3, 4, 5, 6, 7]


def test_long_calls_take_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the dense mask was asked for")

    lists = [[p // 2] for p in range(300)]
    for mechanism in (band_sparse(9, 6, COLUMNS), band_sparse(9, rows=lists)):
        monkeypatch.setattr(type(mechanism), "allows", never)
        assert bool(mechanism(make(600)).out.isfinite().all())


@pytest.mark.parametrize("counts", [{5: 1000, 7: 3, 9: 40}, torch.tensor([0, 0, 0, 0, 0, 1000, 0, 3, 0, 40])])
def test_rare_columns(counts: object) -> None:
    tokens = torch.tensor([5, 7, 5, 9, 7, 11])
    assert rare_columns(tokens, counts, 1) == (5,)  # never seen
    assert rare_columns(tokens, counts, 3) == (1, 4, 5)
    assert rare_columns(tokens, counts, 0) == ()
    assert rare_columns(tokens, counts, 99) == tuple(range(6))
    with pytest.raises(UsageError, match="rare_columns"):
        rare_columns(tokens, counts, -1)


@pytest.mark.parametrize(
    "given", [{"left": -1}, {"right": -2}, {"columns": (-1,)}, {"columns": (1,), "rows": ((0,),)}, {"rows": ((-1,),)}]
)
def test_wrong_parameters(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="band_sparse"):
        band_sparse(**given)


def test_equal_parameters_are_equal_mechanisms() -> None:
    assert band_sparse(3, 3, (2, 1, 2)) == band_sparse(3, 3, (1, 2))
    assert hash(band_sparse(3, 3, (2, 1))) == hash(band_sparse(3, 3, (1, 2)))
