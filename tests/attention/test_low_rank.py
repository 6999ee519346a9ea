"""What is particular to attention through a map of low rank."""

from dataclasses import replace

import pytest
import torch

import headscope.attention as attention
from headscope.attention.maps import pattern
from headscope.errors import UsageError
from tests.attention.calls import make
from tests.attention.counted_work import counted_bytes, counted_flops


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


def test_the_svd_has_the_gradients_of_its_definition() -> None:
    """A rank above the number of heads, and one above the number of keys."""
    for rank in (5, 20):
        call = make(11, heads=2, kv_heads=2, right=None, dtype=torch.float64)
        mechanism, gradients = attention.low_rank("svd", rank=rank), []
        for run in (mechanism, mechanism.definition):
            leaves = [x.clone().requires_grad_() for x in (call.q, call.k, call.v)]
            run(replace(call, q=leaves[0], k=leaves[1], v=leaves[2])).out.square().sum().backward()
            gradients.append([leaf.grad for leaf in leaves])
        for fast, exact in zip(*gradients, strict=True):
            # Between neighbouring singular values the gradient of the definition loses digits.
            torch.testing.assert_close(fast, exact, rtol=1e-6, atol=1e-8)


def test_cost_counts_the_systems_of_many_landmarks() -> None:
    """A landmark for every two tokens: the matrices among landmarks outweigh the copies of queries and keys."""
    call = make(512, batch=1, heads=1, kv_heads=1, d_head=8, right=None)
    mechanism = attention.low_rank(segment=2)
    counted = counted_bytes(lambda: mechanism(call))
    assert counted / 2 <= mechanism.cost(512, 8).bytes <= counted * 2, counted
    assert counted_flops(lambda: mechanism(call)) == pytest.approx(mechanism.cost(512, 8).flops, rel=1e-9)


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
