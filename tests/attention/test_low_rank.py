"""What is particular to attention through a map of low rank."""

from dataclasses import replace

import pytest
import torch

import headscope.attention as attention
from headscope.attention.maps import pattern
from headscope.errors import UsageError
from tests.attention.calls import make


def map_of(mechanism: attention.Mechanism, call: attention.Call) -> torch.Tensor:
    """The map that a mechanism applies: its output for the unit vectors as values."""
    units = torch.eye(call.k.shape[2], dtype=call.v.dtype).expand(*call.k.shape[:2], -1, -1)
    return mechanism(replace(call, v=units)).out


@pytest.mark.parametrize("segment", [4, 8])
def test_the_svd_is_the_best_of_its_rank(segment: int) -> None:
    call = make(32, right=None, dtype=torch.float64)
    exact = pattern(call)
    rank = 32 // segment
    best = (map_of(attention.low_rank("svd", rank=rank), call) - exact).norm(dim=(-1, -2))
    nystrom = (map_of(attention.low_rank(segment=segment), call) - exact).norm(dim=(-1, -2))
    linformer = (map_of(attention.linformer(rank=rank), call) - exact).norm(dim=(-1, -2))
    values = torch.linalg.svdvals(exact)[..., rank:]
    assert torch.allclose(best, values.norm(dim=-1), atol=1e-10)
    assert bool((best <= nystrom).all())
    assert bool((best <= linformer).all())


def test_a_map_of_full_rank_is_the_whole_map() -> None:
    call = make(20, right=None, dtype=torch.float64)
    assert torch.allclose(map_of(attention.low_rank("svd", rank=20), call), pattern(call), atol=1e-12)


@pytest.mark.parametrize("segment", [3, 5])
def test_the_map_has_as_many_dimensions_as_landmarks(segment: int) -> None:
    for right, marks in ((None, -(-20 // segment)), (0, 1 + 19 // segment)):
        call = make(20, right=right, dtype=torch.float64)
        found = map_of(attention.low_rank(segment=segment), call)
        assert int(torch.linalg.matrix_rank(found[0, 0], rtol=1e-9)) <= marks


def test_examples_have_fewer_dimensions_than_tokens() -> None:
    """A few landmarks, twice as many, and the reference at the rank of these."""
    call = make(64, right=None, dtype=torch.float64)
    ranks = [torch.linalg.matrix_rank(map_of(m, call)[0, 0], rtol=1e-9) for m in attention.low_rank.examples(64)]
    assert [int(rank) for rank in ranks] == [4, 8, 8]


def test_tokens_alike_in_runs_are_exact() -> None:
    """Where the tokens of a run are one, its mean loses nothing."""
    call = make(6, right=None, dtype=torch.float64)
    wide = make(24, right=None, dtype=torch.float64)
    q, k = (x.repeat_interleave(4, dim=2) for x in (call.q, call.k))
    repeated = replace(wide, q=q, k=k)
    exact = attention.dense()(repeated).out
    assert torch.allclose(attention.low_rank(segment=4)(repeated).out, exact, atol=1e-8)


def test_the_first_token_answers_itself() -> None:
    call = make(20)
    out = attention.low_rank(segment=7)(call).out
    assert torch.allclose(out[:, :, 0], call.v[:, :, 0].repeat_interleave(2, dim=1), atol=1e-6)


def test_what_it_refuses() -> None:
    with pytest.raises(UsageError, match="a query for every key"):
        attention.low_rank()(make(1, 9))
    with pytest.raises(UsageError, match="mix later rows"):
        attention.low_rank("svd")(make(9))


@pytest.mark.parametrize("given", [{"method": "lu"}, {"segment": 0}, {"rank": 0}], ids=str)
def test_wrong_parameters(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="low_rank"):
        attention.low_rank(**given)
