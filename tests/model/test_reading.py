"""From transformers' masks to bands, padding and masks: exactly, or not at all."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from headscope.errors import CaptureError
from headscope.model.transformers.call_reader import RawCall, Reader


def raw(mask: Tensor | None, queries: int, keys: int, *, is_causal: bool = True, **options: object) -> RawCall:
    module = nn.Module()
    module.is_causal = is_causal  # type: ignore[assignment]
    q, kv = torch.zeros(2, 4, queries, 8), torch.zeros(2, 2, keys, 8)
    return RawCall(module, q, kv, kv, mask, None, dict(options))


def band(queries: int, keys: int, left: int | None, right: int | None) -> Tensor:
    ahead = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)[None]
    allowed = torch.ones(queries, keys, dtype=torch.bool)
    allowed &= True if left is None else ahead <= left
    allowed &= True if right is None else ahead >= -right
    return allowed[None, None].clone()


def test_without_a_mask_the_flag_decides() -> None:
    assert Reader().call(raw(None, 5, 5)).right == 0
    assert Reader().call(raw(None, 5, 5, is_causal=False)).right is None
    assert Reader().call(raw(None, 1, 7)).right == 0  # one query at the end sees every key, and none comes after it
    assert Reader().call(raw(None, 1, 7), query_offset=3).right is None  # here some do
    assert Reader().call(raw(None, 5, 5, is_causal=False), cross=True).offset == 0


def test_a_longer_cache_without_a_mask_is_aligned_at_its_start() -> None:
    call = Reader().call(raw(None, 3, 8))
    assert torch.equal(call.visible()[0, 0], torch.ones(3, 8).tril().bool())


@given(
    queries=st.integers(1, 9),
    before=st.integers(0, 6),
    left=st.none() | st.integers(0, 9),
    right=st.none() | st.integers(0, 3),
    padded=st.integers(0, 3),
    additive=st.booleans(),
    on_the_left=st.booleans(),
)
def test_visible_is_always_the_mask(
    queries: int, before: int, left: int | None, right: int | None, padded: int, additive: bool, on_the_left: bool
) -> None:
    keys = queries + before
    mask = band(queries, keys, left, right).repeat(2, 1, 1, 1)
    if padded:
        mask[1, :, :, :padded] = mask[1, :, :, :padded] & (not on_the_left)
        mask[1, :, :, keys - padded :] = mask[1, :, :, keys - padded :] & on_the_left
    given_mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min) if additive else mask
    call = Reader().call(raw(given_mask, queries, keys), query_offset=before)
    assert torch.equal(call.visible().expand(2, 1, queries, keys), mask)


@pytest.mark.parametrize(("left", "right"), [(None, 0), (3, 0), (2, 2), (None, None)])
def test_regular_masks_become_bands(left: int | None, right: int | None) -> None:
    call = Reader().call(raw(band(9, 9, left, right), 9, 9))
    assert (call.left, call.right, call.mask, call.key_padding) == (left, right, None, None)


def test_padding_becomes_key_padding() -> None:
    mask = band(6, 6, None, 0).repeat(2, 1, 1, 1)
    mask[1, :, :, 4:] = False
    call = Reader().call(raw(mask, 6, 6))
    assert (call.right, call.mask) == (0, None)
    assert call.key_padding is not None
    assert call.key_padding.tolist() == [[True] * 6, [True] * 4 + [False] * 2]


def test_a_strange_mask_stays_a_mask() -> None:
    mask = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)) > 0.5
    call = Reader().call(raw(mask, 6, 6))
    assert torch.equal(call.visible(), mask)
    assert call.mask is not None


def test_an_additive_mask_with_other_values_is_a_bias_too() -> None:
    added = torch.zeros(1, 1, 4, 4)
    added[..., 0], added[..., 3] = 1.5, torch.finfo(torch.float32).min
    call = Reader().call(raw(added, 4, 4))
    assert call.bias is not None
    assert call.bias[0, 0, 0].tolist() == [1.5, 0.0, 0.0, 0.0]
    assert call.visible()[0, 0, :, 3].any().item() is False


def test_the_memory_of_masks_does_not_mix_them_up() -> None:
    reader = Reader()
    first, second = band(5, 5, None, 0), band(5, 5, 1, 0)
    assert reader.call(raw(first, 5, 5)).left is None
    assert reader.call(raw(second, 5, 5)).left == 1
    assert reader.call(raw(first, 5, 5)).left is None
    first[...] = True  # changed in place: a new mask
    assert reader.call(raw(first, 5, 5)).right is None


def test_attention_over_chosen_keys_is_refused() -> None:
    with pytest.raises(CaptureError, match="selects keys by content"):
        Reader().call(raw(None, 4, 4, indices=torch.zeros(1)))


def test_a_sliding_cache_holds_the_last_keys() -> None:
    call = Reader().call(raw(None, 1, 4), query_offset=9)
    assert call.query_positions.tolist() == [[9]]
    assert call.key_positions.tolist() == [[6, 7, 8, 9]]
