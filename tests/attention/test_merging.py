"""Parts of attention put together by their log-sum-exps."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headscope.attention import dense, merge
from headscope.attention.call import Call, Output
from headscope.errors import UsageError
from tests.attention.calls import make


def parts(call: Call, owner: torch.Tensor, n: int) -> list[Output]:
    """Attention over the keys of each owner alone."""
    rows = call.q.shape[2]
    masks = [(owner == part).expand(1, 1, rows, -1) for part in range(n)]
    return [dense()(replace(call, mask=mask), lse=True) for mask in masks]


@given(seed=st.integers(0, 10_000), n=st.integers(1, 5), size=st.sampled_from([0.1, 1.0, 30.0]))
def test_merge_of_any_split_is_the_whole(seed: int, n: int, size: float) -> None:
    call = make(13, seed=seed, size=size)
    owner = torch.randint(0, n, (13,), generator=torch.Generator().manual_seed(seed))
    merged, whole = merge(parts(call, owner, n)), dense()(call, lse=True)
    assert merged.lse is not None
    assert whole.lse is not None
    assert torch.allclose(merged.out, whole.out, atol=5e-6)
    assert torch.allclose(merged.lse, whole.lse, atol=5e-6, rtol=1e-6)


def test_merge_with_rows_that_see_nothing() -> None:
    call = make(9)
    owner = torch.zeros(9, dtype=torch.long)
    owner[0] = 1  # part 0 lacks the first key, so the first query sees nothing there
    first, second = parts(call, owner, 2)
    assert first.lse is not None
    assert bool((first.lse[:, :, 0] == -torch.inf).all())
    merged = merge([first, second])
    assert torch.allclose(merged.out, dense()(call).out, atol=1e-6)
    nothing = Output(torch.zeros(1, 1, 2, 4), torch.full((1, 1, 2), -torch.inf))
    both = merge([nothing, nothing])
    assert both.lse is not None
    assert not bool(both.out.any())
    assert bool((both.lse == -torch.inf).all())


def test_gradients_pass_through_a_merge() -> None:
    call = make(9)
    leaf = call.q.clone().requires_grad_()
    owner = torch.arange(9) % 2
    (got,) = torch.autograd.grad(merge(parts(replace(call, q=leaf), owner, 2)).out.square().sum(), leaf)
    (expected,) = torch.autograd.grad(dense()(replace(call, q=leaf)).out.square().sum(), leaf)
    assert torch.allclose(got, expected, atol=1e-5)


def test_outputs_without_a_log_sum_exp_do_not_merge() -> None:
    with pytest.raises(UsageError, match="log-sum-exp"):
        merge([dense()(make(3))])
    with pytest.raises(UsageError, match="nothing to merge"):
        merge([])
