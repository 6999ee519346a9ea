"""Weights on the keys that a repeated text singles out, pair by pair on the whole pattern."""

import pytest
import torch

from headscope.attention import token_repeats
from headscope.attention.maps import pattern
from headscope.attention.token_repeats import repeat_counts, repeat_masses, repeat_masses_of
from tests.attention.calls import KINDS

PERIOD = 6


def pairs(tokens: list[int]) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """The pairs whose key follows an earlier copy of the query's token, and their controls."""
    n = len(tokens)
    follow = {(i, j + 1) for i in range(n) for j in range(i - 1) if tokens[j] == tokens[i]}
    return follow, {(i + 1, j + 1) for i, j in follow if i + 1 < n} - follow


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [3, 128])
def test_repeat_masses_are_sums_of_the_pattern(kind: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_repeats, "BLOCK", block)
    call = KINDS[kind]()
    whole = pattern(call)
    batch, _, queries, keys = whole.shape
    tokens = torch.randint(max(3, keys // 8), (batch, keys), generator=torch.Generator().manual_seed(1))
    if queries != keys:  # the tokens of all queries are not known
        masses = repeat_masses(call, PERIOD)
        assert bool(masses[..., 6:8].isnan().all())
    else:
        masses = repeat_masses(call, PERIOD, tokens)
        for b in range(batch):
            for column, chosen in enumerate(pairs(tokens[b].tolist()), start=6):
                expected = torch.zeros_like(whole[b, :, :, 0])
                # Positions say what is earlier.
                ahead = call.query_positions.expand(batch, -1)[b], call.key_positions.expand(batch, -1)[b]
                for i, k in chosen:
                    if ahead[0][i] > ahead[1][k]:
                        expected[:, i] += whole[b, :, i, k]
                if bool((ahead[0] == torch.arange(queries) + ahead[0][0]).all()):
                    assert torch.allclose(masses[b, :, :, column], expected, atol=1e-6)
    for column, distance in {**dict(enumerate((1, 2, 3, 4, PERIOD - 1, PERIOD))), 8: 0}.items():
        is_there = call.query_positions[:, :, None] - call.key_positions[:, None, :] == distance
        assert torch.allclose(masses[..., column], (whole * is_there[:, None]).sum(-1), atol=1e-6)
    for b in range(batch):
        places = call.key_positions.expand(batch, -1)[b].tolist()
        is_real = [True] * keys if call.key_padding is None else call.key_padding.expand(batch, -1)[b].tolist()
        first = min((place, key) for key, place in enumerate(places) if is_real[key])[1]
        assert torch.allclose(masses[b, :, :, 9], whole[b, :, :, first], atol=1e-6)
    count = call.visible().expand(batch, *whole.shape[1:]).sum(-1)
    assert torch.allclose(masses[..., 10] * count, (count > 0).to(masses), atol=1e-6)


def test_counts_are_those_of_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_repeats, "BLOCK", 4)
    tokens = torch.randint(4, (3, 19), generator=torch.Generator().manual_seed(2))
    counts = repeat_counts(tokens)
    for row, window in zip(counts, tokens.tolist(), strict=True):
        for column, chosen in enumerate(pairs(window)):
            assert row[:, column].tolist() == [sum(i == query for i, _ in chosen) for query in range(19)]


def test_a_stored_map_gives_the_same() -> None:
    call = KINDS["causal"]() if "causal" in KINDS else next(iter(KINDS.values()))()
    whole = pattern(call)
    tokens = torch.randint(3, (whole.shape[0], whole.shape[3]), generator=torch.Generator().manual_seed(1))
    of_map = repeat_masses_of(whole, PERIOD, tokens)
    assert torch.allclose(of_map[..., :-1], repeat_masses(call, PERIOD, tokens)[..., :-1], atol=1e-6)
    assert bool(of_map[..., -1].isnan().all()), "which keys are visible is not known"
