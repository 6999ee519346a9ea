"""What is particular to graphs: ragged lists and the plans made of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.attention import graph
from headscope.attention.sparse import kernel
from headscope.attention.sparse.neighbour_lists import Lists, plan
from headscope.errors import UsageError
from tests.attention.calls import make
from tests.attention.masks import assert_same


def random_mask(seed: int, n: int) -> torch.Tensor:
    """Rows of very different degrees, some empty, some alike."""
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(n, 1, generator=generator) ** 3
    mask = torch.rand(n, n, generator=generator) < chance
    mask[n // 2 :] |= (torch.arange(n) % 5 == 0) & (chance[n // 2 :] > 0.05)
    return mask


@given(seed=st.integers(0, 10_000), n=st.integers(1, 70), right=st.sampled_from([None, 0, 4]))
@settings(deadline=None, max_examples=30)
def test_any_graph_equals_the_mask_it_is(seed: int, n: int, right: int | None) -> None:
    mask = random_mask(seed, n)
    call = make(n, d_head=4, right=right, dtype=torch.float64)
    assert_same(call, lambda given: graph.of(mask)(given, lse=True), mask[None, None])


@given(seed=st.integers(0, 10_000), n=st.integers(1, 100))
@settings(deadline=None, max_examples=30)
def test_plans_hold_every_pair_once(seed: int, n: int) -> None:
    mask = random_mask(seed, n)
    counted = torch.zeros(n, n, dtype=torch.long)
    for group in plan(*Lists.of_mask(mask).pairs()):
        assert group.keys is not None
        shape = *group.queries.shape, group.keys.shape[1]
        allowed = torch.ones(shape, dtype=torch.bool) if group.allowed is None else group.allowed.expand(shape)
        rows, keys = group.queries[..., None].expand(shape)[allowed], group.keys[:, None].expand(shape)[allowed]
        counted.index_put_((rows, keys), torch.tensor(1), accumulate=True)
    assert torch.equal(counted, mask.long())


def test_lists_that_are_alike_share_their_keys() -> None:
    n = 4096
    near = [[max(p - step, 0) for step in range(64)] for p in range(n)]
    gathered = sum(group.keys.numel() for group in plan(*Lists.of(near, "near").pairs()) if group.keys is not None)
    assert gathered <= n * 64 / 8


def test_a_plan_grows_with_its_pairs() -> None:
    """The rectangles of the plan hold at most half as much again as there are pairs."""
    for n in (500, 2000):
        mask = torch.rand(n, n, generator=torch.Generator().manual_seed(0)) < 20 / n
        gathered = sum(group.keys.numel() for group in plan(*Lists.of_mask(mask).pairs()) if group.keys is not None)
        assert gathered <= 1.5 * int(mask.sum())


def test_a_query_without_neighbours() -> None:
    output = graph(((0,), (), (0, 1, 2)))(make(3), lse=True)
    assert output.lse is not None
    assert not bool(output.out[:, :, 1].any())
    assert bool((output.lse[:, :, 1] == -torch.inf).all())
    assert bool(output.lse[:, :, 2].isfinite().all())
    assert not bool(graph(((), ()))(make(2)).out.any())


def test_doubles_count_once() -> None:
    call = make(3)
    assert torch.equal(graph(((0, 0), (1, 0, 1), (2,)))(call).out, graph(((0,), (0, 1), (2,)))(call).out)


def test_a_query_beyond_the_lists_is_refused() -> None:
    with pytest.raises(UsageError, match="lists for 3 positions, and there is a query at position 3"):
        graph(((0,), (1,), (2,)))(make(4))


@pytest.mark.parametrize("neighbours", [(), ((0, -1),), ((0,), (2,))])
def test_wrong_parameters(neighbours: object) -> None:
    with pytest.raises(UsageError, match="graph: neighbours"):
        graph(neighbours)


def test_large_graphs_are_short_to_tell() -> None:
    n = 2048
    mechanism = graph([range(max(0, p - 63), p + 1) for p in range(n)])
    assert len(repr(mechanism)) < 60
    assert mechanism.lists[100] == tuple(range(37, 101))


def test_without_the_flash_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = random_mask(3, 40)
    monkeypatch.setattr(kernel, "has_flash", lambda: False)
    call = make(40, d_head=4, dtype=torch.float64)
    assert_same(call, lambda given: graph.of(mask)(given, lse=True), mask[None, None])
