"""Plans of gathered keys: any plan is the mask that it says, in bounded memory, with or without the flash operator."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.attention import Mechanism, bigbird, graph, longformer
from headscope.attention.call import Call, Output
from headscope.attention.sparse import gathered, kernel
from headscope.attention.sparse.band import Band, Banded
from headscope.attention.sparse.gathered import Gathered, Group, gathered_attention
from headscope.attention.sparse.parts import attention_over
from headscope.errors import UsageError
from tests.attention.calls import make
from tests.attention.masks import assert_same


def run_of(part: Gathered):
    def run(call: Call) -> Output:
        return Output(*gathered_attention(call.q, call.k, call.v, part))

    return run


def random_plan(seed: int, queries: int, keys: int, *, masked: bool) -> tuple[list[Group], torch.Tensor]:
    """Two groups of blocks of other shapes over some of the queries, and the mask that they are."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(queries, generator=generator)
    allowed = torch.zeros(queries, keys, dtype=torch.bool)
    groups = []
    for rows, run, taken in ((3, 5, order[:9]), (2, 7, order[9:17])):
        blocks = len(taken) // rows
        asked = taken[: blocks * rows].reshape(blocks, rows)
        given_keys = torch.stack([torch.randperm(keys, generator=generator)[:run] for _ in range(blocks)])
        mask = torch.rand(blocks, rows, run, generator=generator) < 0.6 if masked else None
        for b in range(blocks):
            for r in range(rows):
                allowed[asked[b, r], given_keys[b]] = True if mask is None else mask[b, r]
        groups.append(Group(asked, given_keys, mask))
    return groups, allowed


@given(seed=st.integers(0, 10_000), masked=st.booleans(), padded=st.booleans(), entries=st.sampled_from([1, 1 << 20]))
@settings(deadline=None, max_examples=30)
def test_any_plan_equals_the_dense_mask(seed: int, masked: bool, padded: bool, entries: int) -> None:
    """Queries in no block see nothing; blocks one at a time or all at once."""
    call = make(20, 13, d_head=4, d_value=6, right=None, dtype=torch.float64)
    plan, allowed = random_plan(seed, 20, 13, masked=masked)
    real = torch.ones(2, 13, dtype=torch.bool)
    real[1, 2:6] = not padded
    before, gathered.GROUP_ENTRIES = gathered.GROUP_ENTRIES, entries
    try:
        run = run_of(Gathered(plan, call.scale, real))
        assert_same(call, run, allowed[None, None] & real[:, None, None])
    finally:
        gathered.GROUP_ENTRIES = before


@pytest.mark.parametrize("masked", [False, True])
def test_plans_run_without_the_flash_operator(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    call = make(20, 13, d_head=4, d_value=6, right=None, dtype=torch.float64)
    plan, allowed = random_plan(1, 20, 13, masked=masked)
    monkeypatch.setattr(kernel, "has_flash", lambda: False)
    assert_same(call, run_of(Gathered(plan, call.scale)), allowed[None, None])


def test_every_key_needs_no_index() -> None:
    call = make(20, 13, d_head=4, right=None, dtype=torch.float64)
    group = Group(torch.tensor([[3, 1], [8, 9]]), None)
    allowed = torch.zeros(20, 13, dtype=torch.bool)
    allowed[[3, 1, 8, 9]] = True
    assert_same(call, run_of(Gathered([group], call.scale)), allowed[None, None])


def test_parts_equal_the_dense_mask() -> None:
    """A band and gathered pairs form one attention, and the band must come first."""
    call = make(60, d_head=4, d_value=6, right=None, dtype=torch.float64)
    ahead = torch.arange(60)[:, None] - torch.arange(60)
    inside = (ahead <= 4) & (ahead >= -2)
    queries, keys = torch.tensor([[0, 30], [59, 7]]), torch.tensor([[1, 20, 40], [2, 8, 58]])
    beside = ~inside[queries[..., None], keys[:, None]]
    allowed = inside.clone()
    allowed[queries[..., None], keys[:, None]] = True
    parts = [Banded(Band(4, 2, 0, call.scale)), Gathered([Group(queries, keys, beside)], call.scale)]
    assert_same(call, lambda c: Output(*attention_over(parts, c.q, c.k, c.v)), allowed[None, None])
    with pytest.raises(UsageError, match="first part"):
        attention_over(parts[::-1], call.q, call.k, call.v)


@pytest.mark.parametrize("n", [2000, 8000])
def test_gathered_keys_stay_bounded(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward never hold more gathered keys at a time than a fixed number, whatever n is."""
    monkeypatch.setattr(gathered, "GROUP_ENTRIES", 1 << 14)
    sizes, taken = [], gathered._taken_keys

    def counted(group, k, v, buffers):
        keys, values = taken(group, k, v, buffers)
        sizes.append(keys.numel())
        return keys, values

    monkeypatch.setattr(gathered, "_taken_keys", counted)
    call = make(n, batch=1, heads=2, kv_heads=1, d_head=8)
    leaf = call.k.clone().requires_grad_()
    keys = torch.arange(n).reshape(-1, 20).roll(1, 0).repeat(1, 3)
    out, _ = gathered_attention(call.q, leaf, call.v, Gathered([Group(torch.arange(n).reshape(-1, 20), keys)], 1.0))
    out.sum().backward()
    assert max(sizes) <= 1 << 14
    assert sum(sizes) == 2 * keys.numel() * 8


@pytest.mark.parametrize("mechanism", [bigbird(block=16), longformer(9, 6, (0, 70)), graph([[p] for p in range(400)])])
def test_plans_made_in_inference_mode_serve_training(mechanism: Mechanism) -> None:
    """Plans are kept; one that was made without autograd must not poison a later backward."""
    call = make(399, d_head=8)
    with torch.inference_mode():
        quiet = mechanism(call).out.clone()
    leaf = call.k.clone().requires_grad_()
    output = mechanism(replace(call, k=leaf)).out
    output.square().sum().backward()
    assert torch.equal(output.detach(), quiet)
    assert leaf.grad is not None
