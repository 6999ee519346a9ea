"""What is particular to BigBird: its plan."""

import pytest
import torch

from headscope.attention import bigbird
from headscope.attention.mechanisms.bigbird import _groups
from headscope.attention.sparse import kernel
from headscope.errors import UsageError
from tests.attention.calls import KINDS, make
from tests.attention.masks import assert_same


def test_a_plan_made_by_hand() -> None:
    """Five blocks of four, no random ones: ends see all and are seen by all, the others see one block around."""
    wanted = torch.tensor(
        [[1, 1, 1, 1, 1], [1, 1, 1, 0, 1], [1, 1, 1, 1, 1], [1, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool
    )
    mechanism = bigbird(block=4, random=0)
    assert torch.equal(mechanism.plan(18).table(), wanted)
    mask = wanted.repeat_interleave(4, 0).repeat_interleave(4, 1)[:18, :18]
    call = make(18, right=None, d_head=4, dtype=torch.float64)
    assert_same(call, lambda given: mechanism(given, lse=True), mask[None, None])


def test_a_causal_plan_made_by_hand() -> None:
    wanted = torch.tensor(
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]], dtype=torch.bool
    )
    mechanism = bigbird(block=4, random=0)
    assert torch.equal(mechanism.plan(18, causal=True).table(), wanted)
    mask = wanted.repeat_interleave(4, 0).repeat_interleave(4, 1)[:18, :18]
    assert_same(make(18, d_head=4, dtype=torch.float64), lambda given: mechanism(given, lse=True), mask[None, None])


def test_eight_blocks_of_64() -> None:
    plan = bigbird().plan(4096)
    assert {len(row.blocks) for row in plan.rows[2:-2]} == {8}
    assert all(len(row.random) == 3 and not set(row.random) & {*row.near, *row.everywhere} for row in plan.rows[1:-1])
    assert plan.rows[0].blocks == plan.rows[-1].blocks == tuple(range(64))


@pytest.mark.parametrize("seed", [0, 7])
def test_causal_plans_do_not_look_ahead(seed: int) -> None:
    mechanism = bigbird(block=8, seed=seed)
    long = mechanism.plan(1000, causal=True)
    assert all(max(row.blocks) == i for i, row in enumerate(long.rows))
    for n in (1, 7, 8, 9, 500):
        short = mechanism.plan(n, causal=True)
        assert short.rows == long.rows[: len(short.rows)]


def test_the_seed_draws() -> None:
    assert bigbird(seed=1).plan(4096) == bigbird(seed=1).plan(4096)
    assert bigbird(seed=1).plan(4096) != bigbird(seed=2).plan(4096)
    drawn = {block for row in bigbird().plan(4096).rows for block in row.random}
    assert len(drawn) > 50  # all over the place


def test_a_plan_can_be_read() -> None:
    assert str(bigbird(block=4, random=0).plan(18)).splitlines()[:3] == [
        "18 positions in 5 blocks of 4",
        "block 0: global 0 1 2 3 4",
        "block 1: global 0 4; near 1 2",
    ]
    assert "; random " in str(bigbird(block=4).plan(100, causal=True))


@pytest.mark.parametrize("n", [1, 3, 8, 9, 63, 130])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_any_length_equals_its_definition(n: int, causal: bool, padded: bool) -> None:
    call = make(n, right=0 if causal else None, d_head=4, dtype=torch.float64)
    real = torch.ones(2, n, dtype=torch.bool)
    real[1, n // 2 : n // 2 + 3] = not padded  # a hole is fine, too
    object.__setattr__(call, "key_padding", real)
    mechanism = bigbird(block=8, random=1)
    table = mechanism.plan(n, causal).table().repeat_interleave(8, 0).repeat_interleave(8, 1)[:n, :n]
    assert_same(call, lambda given: mechanism(given, lse=True), table[None, None])


def test_what_is_gathered_grows_like_n() -> None:
    def gathered(n: int) -> int:
        return sum(group.keys.numel() for group in _groups(bigbird(), n, True) if group.keys is not None)

    assert gathered(65536) <= 4.4 * gathered(16384) <= 4.4 * 4.4 * gathered(4096)


def test_without_the_flash_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "has_flash", lambda: False)
    mechanism = bigbird(block=4)
    for kind in ("causal", "full", "padding on the left"):
        call = KINDS[kind]()
        assert torch.allclose(mechanism(call).out.double(), mechanism.definition(call).out, atol=2e-6)


@pytest.mark.parametrize("given", [{"block": 0}, {"window": 2}, {"window": 0}, {"first": -1}, {"random": -1}])
def test_wrong_parameters(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="bigbird"):
        bigbird(**given)


def test_positions_before_the_first_are_refused() -> None:
    call = make(9)
    object.__setattr__(call, "query_positions", call.query_positions - 3)
    with pytest.raises(UsageError, match="position 0"):
        bigbird()(call)
