"""The bench compares what it says it compares. No test looks at a time."""

from dataclasses import replace

import pytest
import torch

import headscope.attention as attention
from headscope.attention.bench.mechanism_bench import Setting, bench, gaussian_call
from headscope.attention.bench.peers import PEERS, peers_of
from headscope.attention.bench.timing import interleaved, peak_bytes, ratio
from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism
from headscope.attention.mechanism_summary import growth
from tests.tolerances import MECHANISM_AGREEMENT

SMALL = Setting(heads=2, kv_heads=2, d_head=16, rounds=1)


def test_one_row_per_contender_and_length() -> None:
    frame = bench([attention.window(left=8, right=8), attention.dense()], [32, 64], SMALL)
    for n in (32, 64):
        names = frame.filter(frame["n"] == n)["contender"].to_list()
        assert names.count("dense SDPA of torch") == 1
        assert any(name.startswith("Window") for name in names)
        assert "transformers Longformer" in names
    ours = frame.filter(frame["kind"] == "headscope")
    assert ours["matmul_share"].null_count() == 0
    assert (ours["milliseconds"] > 0).all()
    assert (ours["extra_mib"] > 0).all()
    assert frame.filter(frame["kind"] == "peer")["ours_is_faster_by"].null_count() == 0


def test_backward_and_grouped_heads_run() -> None:
    setting = replace(SMALL, backward=True, causal=True, kv_heads=1)
    frame = bench([attention.window(left=8)], [32], setting)
    assert set(frame["kind"]) == {"baseline", "headscope"}  # the peers know no grouped heads


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer.note == "the same set of keys"], ids=lambda p: p.name)
def test_a_peer_that_says_it_does_the_same_does(peer) -> None:
    mechanism = attention.window(left=16, right=16)
    if peer not in peers_of(mechanism):
        pytest.skip(f"the package {peer.package} is not installed here")
    call = gaussian_call(96, SMALL)
    theirs = peer.prepare(mechanism, call)(call.q, call.k, call.v)
    exact = mechanism.definition(call).out
    assert float((theirs - exact).abs().max() / exact.abs().max()) <= MECHANISM_AGREEMENT


def test_a_call_that_is_refused_is_a_row_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Mechanism, call: Call) -> str:
        return "not today"

    monkeypatch.setattr(type(attention.dense()), "supports", refuse)
    row = bench([attention.dense()], [8], SMALL).row(0, named=True)
    assert (row["note"], row["milliseconds"]) == ("not today", None)


def test_ratio_is_the_median_within_rounds() -> None:
    assert ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == 3.0
    assert growth([1.0, 4.0, 64.0], [1, 2, 8]) == pytest.approx(2.0)


def test_interleaved_runs_in_turn() -> None:
    order: list[str] = []
    times = interleaved([lambda: order.append("a"), lambda: order.append("b")], 2)
    assert [len(each) for each in times] == [2, 2]
    last_a, last_b = (len(order) - order[::-1].index(name) for name in "ab")
    assert last_b > last_a


def test_peak_memory_counts_what_is_held_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    def two_then_one() -> None:
        for _ in range(3):
            torch.zeros(1 << 20)  # 4 MiB, let go at once

    assert 4 <= peak_bytes(two_then_one) / 2**20 < 5
    assert capfd.readouterr().out == ""
