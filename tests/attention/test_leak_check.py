"""The check for leaks finds leaks of every kind, however they come about."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from headscope.attention import Call, Output, dense, top_blocks, vertical_slash
from headscope.attention.leak_check import leak_check
from headscope.attention.mechanism import Cost, Mechanism
from headscope.errors import UsageError
from tests.attention.calls import KINDS, make


@dataclass(frozen=True)
class Planted(Mechanism):
    """A mechanism with a leak."""

    leak: str
    name: ClassVar[str] = "planted"

    def attend(self, call: Call, *, lse: bool) -> Output:
        return LEAKS[self.leak](call, lse)

    def definition(self, call: Call) -> Output:
        return self.attend(call, lse=False)

    def cost(self, n: int, d: int) -> Cost:
        return Cost(n * d, n * d)


def sees_one_later_key(call: Call, lse: bool) -> Output:
    return dense()(replace(call, right=1), lse=lse)


def choice_of_all(mechanism: Mechanism, call: Call, lse: bool) -> Output:
    """Later queries choose the keys of earlier ones, which then see no later key."""
    chosen = mechanism.seen(replace(call, right=None))
    return dense()(replace(call, mask=chosen.mask), lse=lse)


def pooled_blocks(call: Call, lse: bool) -> Output:
    """Every query is the mean of its block of four, later ones too."""
    numbers = call.query_positions[0] // 4
    q = torch.stack([call.q[:, :, numbers == number].mean(dim=2) for number in numbers], dim=2)
    return dense()(replace(call, q=q), lse=lse)


def scaled_by_length(call: Call, lse: bool) -> Output:
    return dense()(replace(call, scale=call.scale * (1 + 0.01 * call.k.shape[2])), lse=lse)


def only_the_last_row(call: Call, lse: bool) -> Output:
    """The row before the last sees the last value."""
    output = dense()(call, lse=lse)
    out = output.out.clone()
    out[:, :, -2:-1] += 1e-3 * call.v[:, :, -1:].repeat_interleave(call.groups, dim=1)
    return Output(out, output.lse)


def only_the_log_sum_exp(call: Call, lse: bool) -> Output:
    output = dense()(call, lse=lse)
    return Output(output.out, None if output.lse is None else output.lse + 1e-3 * call.k[0, 0, -1, 0])


LEAKS = {
    "a later key": sees_one_later_key,
    "blocks chosen by later queries": lambda call, lse: choice_of_all(top_blocks(4, 1, 0), call, lse),
    "columns chosen by later queries": lambda call, lse: choice_of_all(vertical_slash(1, 1, 1, 4, 4), call, lse),
    "means of blocks": pooled_blocks,
    "the length": scaled_by_length,
    "the last row": only_the_last_row,
    "the log-sum-exp": only_the_log_sum_exp,
}


@pytest.mark.parametrize("right", [0, 2, -1])
@pytest.mark.parametrize("leak", LEAKS)
def test_planted_leaks_are_found(leak: str, right: int) -> None:
    call = make(37, right=right)
    if leak == "a later key" and right > 0:
        call = replace(call, right=0)
    check = leak_check(Planted(leak), call)
    assert check.leaks
    assert not check.is_clean
    assert check.largest == max(leak_found.size for leak_found in check.leaks) > check.allowed
    for leak_found in check.leaks:
        assert leak_found.position <= leak_found.cut


def test_the_place_of_a_leak_is_told() -> None:
    """The row before the last changes with the last token alone, in every sequence."""
    check = leak_check(Planted("the last row"), make(20, batch=3, heads=2, kv_heads=1))
    replaced = [(leak.cut, leak.sequence, leak.position) for leak in check.leaks if leak.change == "replaced"]
    assert replaced == [(18, 0, 18), (18, 1, 18), (18, 2, 18)]


def test_a_change_of_the_last_token_alone_is_tried() -> None:
    """Otherwise a leak of the last token into the row before it would stay hidden."""
    cuts = {leak.cut for leak in leak_check(Planted("a later key"), make(30, batch=1)).leaks}
    assert {0, 28} <= cuts
    assert len(cuts) == 8


def test_rows_that_see_nothing_are_no_leak() -> None:
    assert leak_check(dense(), KINDS["padding on the left"]()).is_clean


def test_one_token_has_nothing_to_compare() -> None:
    check = leak_check(dense(), make(1))
    assert check.rows == 0
    assert not check.leaks
    assert not check.is_clean


def test_a_call_without_a_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="right=None"):
        leak_check(dense(), make(right=None))
