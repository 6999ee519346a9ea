"""Patterns that queries and keys choose: who chooses, what is chosen, and that every chosen pair counts once."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headscope.attention import Call, Output, dense, top_blocks, vertical_slash, window
from headscope.attention.mechanism import Mechanism
from headscope.attention.sparse.best_blocks import BlockSizes, best_block_plans, best_blocks
from headscope.attention.sparse.columns_and_diagonals import (
    FAR,
    Sizes,
    chosen_pairs,
    chosen_sets,
    column_and_diagonal_plans,
    estimating_rows,
)
from headscope.attention.sparse.gathered import Gathered, Group
from headscope.attention.sparse.head_plans import HeadPlans
from headscope.attention.sparse.parts import attention_over
from headscope.attention.sparse.query_blocks import missing_query, query_blocks, sequences
from headscope.attention.sparse.ranking import NONE, largest
from headscope.errors import UsageError
from tests.attention.calls import make
from tests.attention.masks import assert_same

CHOICES = [vertical_slash(12, 3, 5, 20, 4), vertical_slash(5, 0, 1, 30, 2), vertical_slash(0, 4, 8, 17, 17)]
CHOICES += [top_blocks(16, 3, 1), top_blocks(9, 5, 0), top_blocks(40, 1, 2)]
every_choice = pytest.mark.parametrize("mechanism", CHOICES, ids=repr)


def padded(call: Call, start: int, stop: int) -> Call:
    real = torch.zeros(call.q.shape[0], call.k.shape[2], dtype=torch.bool)
    real[0], real[1:, start:stop] = True, True
    return replace(call, key_padding=real)


def count_of(plans: list[list[Gathered]], call: Call) -> Tensor:
    """How often each head's plan has each pair."""
    count = torch.zeros(len(plans), call.q.shape[2], call.k.shape[2], dtype=torch.long)
    for head, parts in enumerate(plans):
        for group in (group for part in parts for group in part.plan):
            shape = (*group.queries.shape, group.keys.shape[1])
            allowed = torch.ones(shape) if group.allowed is None else group.allowed.expand(shape)
            at = group.queries[:, :, None].expand(shape), group.keys[:, None].expand(shape)
            count[head].index_put_(at, allowed.long(), accumulate=True)
    return count


@pytest.mark.parametrize("shape", ["causal", "full", "padding inside a batch", "padding in front", "a window", "sinks"])
@every_choice
def test_long_calls_equal_the_definition(mechanism: Mechanism, shape: str) -> None:
    """Where the fast path is taken, in float64, with gradients."""
    call = make(230, d_head=4, dtype=torch.float64, right=None if shape == "full" else 0)
    if shape == "padding inside a batch":
        call = padded(call, 0, 201)
    if shape == "padding in front":
        call = padded(call, 77, 230)
    if shape == "a window":
        call = replace(call, left=90)
    if shape == "sinks":
        call = replace(call, sinks=torch.ones(4, dtype=torch.float64))
    allowed = mechanism.seen(call).visible()
    exact = mechanism.definition(call)
    got = mechanism(call, lse=True)
    assert torch.allclose(got.out, exact.out, atol=1e-12)
    if shape != "sinks":
        assert_same(call, lambda changed: mechanism(changed, lse=True), allowed)


@every_choice
def test_long_calls_make_no_mask_of_all_pairs(mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the dense mask was asked for")

    monkeypatch.setattr(type(mechanism), "chosen", never)
    for call in (make(300), make(300, right=None), padded(make(300), 7, 280), replace(make(300), sinks=torch.ones(4))):
        assert bool(mechanism(call).out.isfinite().all())


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(150, 260),
    sizes=st.builds(Sizes, st.integers(0, 9), st.integers(0, 4), st.integers(1, 12), st.integers(4, 30), st.just(3)),
    right=st.sampled_from([None, 0, 4]),
    left=st.sampled_from([None, 60]),
)
@settings(deadline=None, max_examples=40)
def test_plans_hold_every_chosen_pair_once(
    seed: int, n: int, sizes: Sizes, right: int | None, left: int | None
) -> None:
    call = make(n, batch=1, heads=2, kv_heads=1, d_head=4, size=3.0, seed=seed, right=right, left=left)
    count = count_of(column_and_diagonal_plans(call, sizes), call)
    places = torch.arange(n)
    band = (places[:, None] - places).abs() <= sizes.near
    wanted = (chosen_pairs(call, sizes) & call.visible() & ~band)[0].long()
    assert torch.equal(count * call.visible()[0, 0], wanted)
    assert not bool((count * ~call.visible()[0, 0]).any())


@pytest.mark.parametrize("right", [None, 0])
@pytest.mark.parametrize(
    "sizes", [BlockSizes(16, 3, 1), BlockSizes(7, 4, 0), BlockSizes(50, 1, 2), BlockSizes(300, 2, 1)]
)
def test_block_plans_hold_every_pair_once(sizes: BlockSizes, right: int | None) -> None:
    call = make(230, batch=1, d_head=4, right=right)
    seen = top_blocks(sizes.block, sizes.blocks, sizes.near).seen(call).visible()[0]
    assert torch.equal(count_of(best_block_plans(call, sizes), call), seen.long())


@pytest.mark.parametrize("right", [None, 0, 3, -1])
def test_choosers_come_before_their_block(right: int | None) -> None:
    """Queries of the block before, in order; of the own block where nothing limits what comes after a query."""
    call = padded(make(23, right=right), 4, 20)
    for sequence, real in zip(sequences(call), ([*range(23)], [*range(4, 20)]), strict=True):
        for block in query_blocks(sequence, 6):
            queries = [i for i in range(23) if i // 6 == block.number]
            source = block.number if right is None else block.number - 1
            assert block.queries.tolist() == queries
            assert block.choosers.tolist() == [i for i in real if i // 6 == source]


def test_choosers_go_by_position() -> None:
    order = torch.tensor([5, 0, 3, 1, 4, 2])
    call = replace(make(6, batch=1), query_positions=order[None], key_positions=order[None])
    blocks = {block.number: block for block in query_blocks(call, 3)}
    assert order[blocks[1].choosers].tolist() == [0, 1, 2]
    assert order[blocks[1].queries].tolist() == [3, 4, 5]
    assert not len(blocks[0].choosers)


@pytest.mark.parametrize(
    ("count", "evenly", "rows"),
    [(2, False, [9, 10]), (20, False, [*range(11)]), (2, True, [2, 8]), (3, True, [1, 5, 9])],
)
def test_rows_of_the_estimate(count: int, evenly: bool, rows: list[int]) -> None:
    assert estimating_rows(torch.arange(11), count, evenly=evenly).tolist() == rows
    assert not len(estimating_rows(torch.arange(0), count, evenly=evenly))


@given(
    st.lists(st.sampled_from([-2.0, -0.0, 0.0, 0.5, 0.5 + 1e-12, 1.0, 3e-50, -torch.inf]), max_size=12),
    st.integers(0, 14),
)
def test_largest_is_a_stable_sort(values: list[float], count: int) -> None:
    rounded = torch.tensor(values, dtype=torch.float64).float().tolist()
    order = [i for i in sorted(range(len(values)), key=lambda i: -rounded[i]) if rounded[i] > -1.0][:count]
    got = largest(torch.tensor(values, dtype=torch.float64), count, above=-1.0).tolist()
    assert got == order + [NONE] * (count - len(order))


def test_rounding_does_not_decide() -> None:
    values = torch.rand(50, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values[:, 200:] = values[:, :200]  # equal values: the earlier place counts
    noise = 1 + 4e-16 * torch.randn(50, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(largest(values, 37), largest(values * noise, 37))


def test_head_plans_equal_the_dense_masks() -> None:
    """Another plan for every sequence and head, heads that share keys, with gradients."""
    call = make(12, 9, heads=4, kv_heads=2, d_head=4, right=None, dtype=torch.float64)
    allowed = torch.zeros(2, 4, 12, 9, dtype=torch.bool)
    plans = []
    for sequence in range(2):
        plans.append([])
        for head in range(4):
            first, second = (head + sequence) % 9, (2 * head + 5) % 9
            parts = [[Group(torch.arange(12)[None], torch.tensor([[first, second]]))]] if first != second else []
            parts.append([Group(torch.tensor([[3, head]]), torch.tensor([[(first + 1) % 9]]))] if head != 3 else [])
            for groups in parts:
                for group in groups:
                    for key in group.keys[0].tolist():
                        allowed[sequence, head, group.queries[0], key] = True
            if parts[0] and (first + 1) % 9 in (first, second):
                parts.pop()
                allowed[sequence, head] = False
                allowed[sequence, head][:, [first, second]] = True
            plans[-1].append([Gathered(groups, call.scale) for groups in parts])
    assert_same(call, lambda made: Output(*attention_over([HeadPlans(plans)], made.q, made.k, made.v)), allowed)


def planted(n: int, columns: tuple[int, ...], distance: int) -> Call:
    """Keys that every query matches, and a key that each query matches at one distance."""
    d, generator = 64, torch.Generator().manual_seed(4)
    own = torch.nn.functional.normalize(torch.randn(n, d - 1, generator=generator), dim=-1) * 12.0
    q, k = torch.cat([own, torch.full((n, 1), 12.0)], dim=1), torch.zeros(n, d)
    k[: n - distance, : d - 1] = own[distance:]
    k[list(columns)] = torch.nn.functional.one_hot(torch.tensor(d - 1), d) * 12.5
    positions = torch.arange(n)[None]
    v = torch.randn(1, 1, n, 8, generator=generator)
    return Call(q[None, None], k[None, None], v, d**-0.5, positions, positions, right=0)


def test_planted_columns_and_diagonals() -> None:
    """What is chosen is what was planted, and attention to it is all but dense attention; the band alone is not."""
    call = planted(600, (3, 41, 77), 130)
    sets = [chosen for chosen in chosen_sets(call, Sizes(3, 1, 4, 32, 4)) if chosen.block.number >= 6]
    for chosen in sets:
        assert sorted(chosen.columns[0].tolist()) == [3, 41, 77]
        assert int(chosen.distances[0, 0]) <= 130 < int(chosen.distances[0, 0]) + 4
    full = dense()(call).out
    late = slice(192, None)
    nearly = vertical_slash(3, 1, 4, 32, 4)(call).out
    assert float((nearly - full)[:, :, late].abs().max()) < 0.02 * float(full.abs().max())
    assert float((window(left=32)(call).out - full)[:, :, late].abs().max()) > 0.2 * float(full.abs().max())


def test_a_heavy_column_chooses_no_diagonal() -> None:
    """Its mass lies on other diagonals for other rows; without the column none of it is left."""
    call = planted(300, (0,), 299)
    last = chosen_sets(call, Sizes(1, 1, 16, 32, 4))[-1]
    assert last.columns.tolist() == [[0]]
    only_diagonals = chosen_sets(call, Sizes(0, 1, 16, 32, 4))[-1]
    assert int(only_diagonals.distances) <= 287 < int(only_diagonals.distances) + 16
    assert int(last.distances) != int(only_diagonals.distances)


def test_planted_blocks() -> None:
    """Queries of each block point at the keys of a block far before it."""
    n, size, generator = 512, 32, torch.Generator().manual_seed(0)
    names = torch.nn.functional.normalize(torch.randn(n // size, 64, generator=generator), dim=-1) * 8
    k = names.repeat_interleave(size, dim=0)
    wanted = torch.tensor([max(0, i // 2) for i in range(n // size)])
    q = names[wanted].repeat_interleave(size, dim=0)
    positions = torch.arange(n)[None]
    call = Call(q[None, None], k[None, None], k[None, None], 0.125, positions, positions)
    for best in best_blocks(call, BlockSizes(size, 1, 1)):
        if best.queries.number >= 4:
            assert best.numbers.tolist() == [[int(wanted[best.queries.number])]]
    # On a causal call the block before chooses.
    for best in best_blocks(replace(call, right=0), BlockSizes(size, 1, 0)):
        if best.queries.number >= 5:
            assert best.numbers.tolist() == [[int(wanted[best.queries.number - 1])]]


@every_choice
def test_heads_and_sequences_choose_for_themselves(mechanism: Mechanism) -> None:
    call = make(400)
    seen = mechanism.seen(call).visible().expand(2, 4, -1, -1)
    assert len({seen[sequence, head].numpy().tobytes() for sequence in range(2) for head in range(4)}) == 8


@every_choice
def test_choices_have_no_gradient(mechanism: Mechanism) -> None:
    """The mask holds no graph, whatever the tensors."""
    call = make(150)
    leaves = replace(call, q=call.q.requires_grad_(), k=call.k.requires_grad_())
    assert mechanism.seen(leaves).mask is not None
    assert not mechanism.seen(leaves).mask.requires_grad


@every_choice
def test_a_step_without_past_queries_is_refused(mechanism: Mechanism) -> None:
    step = make(1, 120)
    reason = mechanism.supports(step)
    assert reason is not None
    assert "has no query at position" in reason
    with pytest.raises(UsageError, match="has no query at position"):
        mechanism.seen(step)
    assert (
        mechanism.supports(make(1, 120, right=None)) is None
    )  # nothing limits what comes after: its own block chooses
    assert mechanism.supports(make(1, 5)) is None  # in the first block nothing is chosen


def test_padding_that_no_query_stands_at_is_not_missing() -> None:
    call = make(6, 30)
    real = torch.ones(2, 30, dtype=torch.bool)
    real[:, :24] = False
    assert missing_query(call, 8) is not None
    assert missing_query(replace(call, key_padding=real), 8) is None


def test_the_second_block_may_choose_the_first_key() -> None:
    """The rows before it have the first key in their band, and its own queries have not."""
    call = planted(40, (0,), 39)
    assert chosen_sets(call, Sizes(1, 0, 1, 16, 4))[1].columns.tolist() == [[0]]


def test_few_columns_with_mass_leave_places_empty() -> None:
    """Of the rows of the first block three have keys farther than half the band, and these are three keys."""
    second = chosen_sets(make(16, batch=1), Sizes(6, 2, 1, 8, 8))[1]
    assert second.columns.sort(dim=1).values.tolist() == [[NONE, NONE, NONE, 0, 1, 2]] * 4
    assert bool((second.distances == FAR).all())


@pytest.mark.parametrize("mechanism", [top_blocks(16, 0, 1), top_blocks(9, 0, 0), vertical_slash(0, 0, 1, 20, 1)])
def test_without_a_choice_the_cost_is_that_of_the_pairs(mechanism: Mechanism) -> None:
    """Of the band or of the first and near blocks, also where the last block is short."""
    call = make(75, batch=1, heads=1, kv_heads=1, d_head=8, right=None)
    assert mechanism.cost(75, 8).flops == 4 * 8 * int(mechanism.seen(call).visible().sum())


@pytest.mark.parametrize(("n", "rows"), [(75, 8 * 4), (72, 7 * 4 + 2)])
def test_the_cost_of_columns_and_diagonals(n: int, rows: int) -> None:
    """Two columns and a run of three diagonals for every query, and the rows of the estimate over all keys."""
    d, band = 8, vertical_slash(0, 0, 1, 10, 4).seen(make(n, right=None)).visible()[0, 0].sum(dim=-1)
    stated = vertical_slash(columns=2, diagonals=1, width=3, near=10, rows=4).cost(n, d).flops
    assert stated == 4 * d * int((band + 5).clamp(max=n).sum()) + 2 * d * n * rows


def test_the_cost_of_blocks() -> None:
    """The first query block has three key blocks and the others four, one of them the last, short one."""
    pairs = 10 * (2 * 10 + 5) + 65 * (3 * 10 + 5)
    assert top_blocks(block=10, blocks=2, near=0).cost(75, 8).flops == 4 * 8 * pairs + 2 * 8 * 8 * 8


@pytest.mark.parametrize(
    "wrong", [{"columns": -1}, {"diagonals": -1}, {"width": 0}, {"near": 0}, {"rows": 0}, {"rows": 300}]
)
def test_wrong_parameters_of_vertical_slash(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="vertical_slash"):
        vertical_slash(**wrong)


@pytest.mark.parametrize("wrong", [{"block": 0}, {"blocks": -1}, {"near": -1}])
def test_wrong_parameters_of_top_blocks(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="top_blocks"):
        top_blocks(**wrong)
