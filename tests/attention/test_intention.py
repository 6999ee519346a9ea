"""What is particular to intention: a regression, its limits, its steps."""

from dataclasses import replace

import pytest
import torch

import headscope.attention as attention
from headscope.attention.mechanisms.intention import CHUNK, ROWS
from headscope.errors import UsageError
from tests.attention.calls import make


def relative(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("right", [0, None])
def test_a_small_ridge_interpolates(right: int | None) -> None:
    """With no more keys than dimensions, asking for a key gives its value."""
    call = make(12, heads=2, kv_heads=2, right=right, dtype=torch.float64)
    out = attention.intention(ridge=1e-9)(replace(call, q=call.k)).out
    assert torch.allclose(out, call.v, atol=1e-6)


@pytest.mark.parametrize("right", [0, None])
def test_a_large_ridge_is_linear_attention(right: int | None) -> None:
    call = make(70, right=right, dtype=torch.float64)
    linear = attention.linear("identity", normalise=False)(call).out
    assert relative(attention.intention(ridge=1e9)(call).out * 1e9, linear) < 1e-6


def test_primal_and_dual_agree() -> None:
    """On both sides of the length at which the smaller system changes."""
    for n in (15, 16, 17):
        call = make(n, right=None, dtype=torch.float64)
        k, v = (x.repeat_interleave(2, dim=1) for x in (call.k, call.v))
        primal = call.q @ torch.linalg.solve(k.mT @ k + 0.3 * torch.eye(16, dtype=torch.float64), k.mT @ v)
        dual = call.q @ k.mT @ torch.linalg.solve(k @ k.mT + 0.3 * torch.eye(n, dtype=torch.float64), v)
        got = attention.intention(ridge=0.3)(call).out
        assert relative(got, primal) < 1e-11
        assert relative(got, dual) < 1e-11


def test_steps_equal_the_parallel_form_of_intention() -> None:
    whole = make(2 * CHUNK + 9, d_head=8, dtype=torch.float64)
    intention = attention.intention(ridge=0.5)
    exact = intention.definition(whole).out
    state, rows, start = None, [], 0
    for size in (1, 1, 70, 3, 1, 50):
        here = slice(start, start + size)
        state, output = intention.step(state, whole.take(here, here))
        rows.append(output.out)
        start += size
    assert relative(torch.cat(rows, dim=2), exact[:, :, :start]) < 1e-11


@pytest.mark.parametrize("n", [CHUNK - 1, CHUNK, CHUNK + 1, ROWS + 5])
@pytest.mark.parametrize("ridge", [1e-6, 1.0])
def test_chunks_of_every_length_and_a_tiny_ridge(n: int, ridge: float) -> None:
    call = make(n, batch=1, heads=2, kv_heads=1, d_head=8)
    intention = attention.intention(ridge=ridge)
    exact = torch.stack([_row(call, i, ridge) for i in range(n)], dim=2)
    # float64 inside: nothing but its rounding grows with the condition, which is at most n / ridge here.
    assert relative(intention(call).out, exact) < 1e-6


def _row(call: attention.Call, i: int, ridge: float) -> torch.Tensor:
    k, v = (x[:, :, : i + 1].double().repeat_interleave(call.groups, dim=1) for x in (call.k, call.v))
    fitted = torch.linalg.solve(k.mT @ k + ridge * torch.eye(k.shape[-1], dtype=torch.float64), k.mT @ v)
    return (call.q[:, :, i : i + 1].double() @ fitted)[:, :, 0]


def test_the_scale_is_not_used() -> None:
    call = make(20)
    assert torch.equal(attention.intention()(call).out, attention.intention()(replace(call, scale=7.0)).out)


def test_what_it_refuses() -> None:
    with pytest.raises(UsageError, match="exponential"):
        attention.intention()(replace(make(5), softcap=3.0))
    for call in (make(4, right=None), make(1, 5), make(4, left=1)):
        with pytest.raises(UsageError, match="step"):
            attention.intention().step(None, call)


@pytest.mark.parametrize("ridge", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_parameters(ridge: float) -> None:
    with pytest.raises(UsageError, match="ridge"):
        attention.intention(ridge=ridge)
