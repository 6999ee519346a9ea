"""Stored maps and scores."""

import pytest
import torch

from headscope.attention import maps
from headscope.attention.maps import (
    SAMPLED_ROWS,
    corner,
    early,
    pairs_of,
    pattern,
    pattern_pairs,
    query_run_rows,
    query_runs,
    query_runs_of,
    sampled_rows,
    sampled_runs,
    sampled_tokens,
    score_rows,
    scores,
)
from headscope.attention.sparse.explicit_softmax import explicit_attention
from tests.attention.calls import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_pattern_rows_sum(kind: str) -> None:
    call = KINDS[kind]()
    total = pattern(call).sum(-1)
    sees = call.visible().any(-1).expand_as(total)
    assert not bool(total[~sees].any())
    if call.sinks is None:
        assert torch.allclose(total[sees], torch.ones_like(total[sees]), atol=1e-5)
    else:
        assert float(total.max()) < 1.0


def test_pattern_of_a_masked_row_is_zero() -> None:
    call = KINDS["stray mask"]()
    p = pattern(call)
    assert not bool(p[:, :, 3].any())
    assert not bool(p.isnan().any())


@pytest.mark.parametrize("kind", KINDS)
def test_pattern_times_values_is_the_definition(kind: str) -> None:
    call = KINDS[kind]()
    mixed = pattern(call).double() @ call.v.double().repeat_interleave(call.groups, 1)
    assert torch.allclose(mixed, explicit_attention(call, call.visible()).out, atol=1e-5)


def test_scores_are_before_the_mask_and_after_softcap_and_bias() -> None:
    call = KINDS["everything"]()
    found = scores(call)
    assert bool(found.isfinite().all())
    assert call.bias is not None
    assert float((found - call.bias).abs().max()) <= 4.0  # the softcap
    head = 3
    by_hand = call.scale * call.q[0, head, 5] @ call.k[0, head // call.groups, 2]
    capped = 4.0 * torch.tanh(by_hand / 4.0) + call.bias[0, head, 5, 2]
    assert float(found[0, head, 5, 2]) == pytest.approx(float(capped), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_score_rows_are_rows_of_the_map(kind: str) -> None:
    call = KINDS[kind]()
    queries = call.q.shape[2]
    whole = scores(call).masked_fill(~call.visible(), -torch.inf)
    assert torch.allclose(score_rows(call), whole[:, :, sampled_rows(queries)], atol=1e-6)


def test_sampled_rows_are_few_and_spread() -> None:
    for n in (1, 2, 15, 16, 17, 33, 500, 512, 8192):
        rows = list(range(n))[sampled_rows(n)]
        assert rows == list(range(n)) if n <= SAMPLED_ROWS else SAMPLED_ROWS / 2 <= len(rows) <= SAMPLED_ROWS
        assert rows[-1] >= n - n // 8 - 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_corner_is_part_of_the_pattern(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = KINDS[kind]()
    monkeypatch.setattr(maps, "CORNER", 3)
    for size in (3, 5):  # in one and in two runs of rows
        assert torch.allclose(corner(call, size), pattern(call)[:, :, :size, :size], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_early_rows_are_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = KINDS[kind]()
    monkeypatch.setattr(maps, "CORNER", 3)
    found, whole = early(call), pattern(call)[:, :, :3]
    keys = found.shape[-1]
    assert torch.allclose(found, whole[..., :keys], atol=1e-6)
    assert not bool(whole[..., keys:].any())


@pytest.mark.parametrize("kind", KINDS)
def test_query_runs_are_rows_of_the_pattern(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = KINDS[kind]()
    assert torch.allclose(query_runs(call), query_runs_of(pattern(call)), atol=1e-6)
    # As if all were long: runs of one.
    monkeypatch.setattr(maps, "QUERIES_PER_RUN", 1)
    maps.query_run_slices.cache_clear()
    maps.query_run_rows.cache_clear()
    rows = query_runs(call)
    assert rows.shape[2] <= maps.QUERY_RUNS
    assert torch.allclose(rows, pattern(call)[:, :, list(query_run_rows(call.q.shape[2]))], atol=1e-6)
    maps.query_run_slices.cache_clear()
    maps.query_run_rows.cache_clear()


def test_query_runs_are_the_ends_of_equal_parts() -> None:
    assert query_run_rows(9) == tuple(range(9))
    assert query_run_rows(64) == tuple(range(64))
    assert query_run_rows(512) == tuple(row for end in (128, 256, 384, 512) for row in range(end - 16, end))
    # A window that is a little shorter has the same rows up to its end.
    assert query_run_rows(500) == tuple(row for row in query_run_rows(512) if row < 500)
    assert all(len(query_run_rows(n)) <= 64 for n in range(1, 9000, 97))


@pytest.mark.parametrize("kind", KINDS)
def test_pattern_pairs_are_a_part_of_the_pattern(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = KINDS[kind]()
    assert torch.allclose(pattern_pairs(call), pairs_of(pattern(call)), atol=1e-6)
    # As if all were long: runs of two.
    monkeypatch.setattr(maps, "SHORT", 3)
    monkeypatch.setattr(maps, "RUN", 2)
    sampled_runs.cache_clear()
    sampled_tokens.cache_clear()
    try:
        found = pattern_pairs(call)
        assert found.shape[2] < call.q.shape[2] or call.q.shape[2] <= 6
        assert torch.allclose(found, pairs_of(pattern(call)), atol=1e-6)
    finally:
        sampled_runs.cache_clear()
        sampled_tokens.cache_clear()


def test_sampled_tokens_stand_in_runs_at_every_distance() -> None:
    assert sampled_tokens(9) == tuple(range(9))
    for length in (57, 70, 512, 700, 8192):
        kept = sampled_tokens(length)
        assert {0, 7, length - 1, length - 16} <= set(kept)
        assert sorted(set(kept)) == list(kept)
        assert len(kept) <= 8 * (length.bit_length() - 1)
        distances = {length - 1 - position for position in kept}
        assert all(any(2**e <= distance < 2 ** (e + 1) for distance in distances) for e in range(3, 5))
