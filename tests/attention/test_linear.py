"""What is particular to linear attention, its features and the running sum under it."""

from dataclasses import replace

import pytest
import torch

import headscope.attention as attention
from headscope.attention.mechanisms.linear import Linear
from headscope.attention.sparse.feature_maps import random_directions
from headscope.attention.sparse.running_sum import CHUNK, ROWS, running_sum
from headscope.errors import UsageError
from tests.attention.calls import make
from tests.tolerances import MECHANISM_AGREEMENT

every_map = pytest.mark.parametrize("linear", Linear.examples(37), ids=lambda linear: linear.feature)


def masked_product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *, reverse: bool) -> torch.Tensor:
    out = 0.0
    for other in range(b.shape[1]):
        products = a @ b[:, other : other + 1].transpose(-1, -2)
        out = out + (products.triu() if reverse else products.tril()) @ c[:, other : other + 1]
    return torch.as_tensor(out)


def operands(n: int, groups: int, others: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    shapes = ((3, groups, n, 5), (3, others, n, 5), (3, others, n, 7))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("groups", [(1, 1), (3, 1), (1, 3)])
@pytest.mark.parametrize("n", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, ROWS + 1, ROWS + CHUNK + 3])
def test_running_sum_is_the_masked_product(n: int, groups: tuple[int, int], reverse: bool) -> None:
    a, b, c = operands(n, *groups, torch.float32)
    exact = masked_product(a.double(), b.double(), c.double(), reverse=reverse)
    got = running_sum(a, b, c, reverse=reverse)
    assert float((got - exact).abs().max()) <= MECHANISM_AGREEMENT * float(exact.abs().max())


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_the_running_sum(reverse: bool) -> None:
    given = [x.requires_grad_() for x in operands(CHUNK + 3, 2, 1, torch.float64)]
    weights = torch.randn(3, 2, CHUNK + 3, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = []
    for run in (running_sum, masked_product):
        first = torch.autograd.grad((run(*given, reverse=reverse) * weights).sum(), given, create_graph=True)
        second = torch.autograd.grad(sum((x**2).sum() for x in first), given)
        found.append([*first, *second])
    assert all(torch.allclose(got, exact, rtol=1e-9, atol=1e-9) for got, exact in zip(*found, strict=True))


def test_identity_features_are_a_product_of_three_matrices() -> None:
    call = make(50, heads=2, kv_heads=2, right=None, dtype=torch.float64)
    got = attention.linear("identity", normalise=False)(call).out
    assert torch.allclose(got, (call.q @ call.k.transpose(-1, -2)) @ call.v, atol=1e-11)
    assert torch.allclose(got, call.q @ (call.k.transpose(-1, -2) @ call.v), atol=1e-11)


def test_taylor_is_the_first_order_of_the_exponential() -> None:
    """For unit vectors at a small scale, 1 + s q·k differs from the softmax by terms of s²."""
    call = make(30, heads=2, kv_heads=2, right=None, dtype=torch.float64)
    unit = replace(
        call, q=torch.nn.functional.normalize(call.q, dim=-1), k=torch.nn.functional.normalize(call.k, dim=-1)
    )
    exact = attention.dense()(replace(unit, scale=1.0)).out
    uniform = attention.dense()(replace(unit, scale=0.0)).out
    got = attention.linear("taylor")(call).out
    assert float((got - exact).norm()) < 0.5 * float((uniform - exact).norm())


def test_random_features_converge_to_the_softmax() -> None:
    call = replace(make(40, batch=1, heads=2, kv_heads=2, dtype=torch.float64), scale=0.05)
    exact = attention.dense()(call).out
    errors = []
    for count in (16, 256, 4096):
        runs = [attention.linear("random", count=count, seed=seed)(call).out - exact for seed in range(4)]
        errors.append(float(torch.stack(runs).norm()))
    # The error falls like one over the root of the count: by 4 each time, less what chance adds.
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 2


def test_random_directions_are_orthogonal_and_seeded() -> None:
    w = random_directions(10, 8, 3)
    assert w.shape == (10, 8)
    gram = w[:8] @ w[:8].T
    assert torch.allclose(gram, torch.diag(gram.diagonal()), atol=1e-10)
    assert not torch.equal(w, random_directions(10, 8, 4))


@every_map
def test_steps_equal_the_parallel_form(linear: Linear) -> None:
    whole = make(2 * CHUNK + 5, d_head=8)
    exact = linear.definition(whole).out
    state, rows, start = None, [], 0
    for size in (1, 1, 70, 3, 1, CHUNK - 5, 2):
        here = slice(start, start + size)
        state, output = linear.step(state, whole.take(here, here))
        rows.append(output.out)
        start += size
    got = torch.cat(rows, dim=2)
    assert float((got - exact[:, :, :start]).abs().max()) <= MECHANISM_AGREEMENT * float(exact.abs().max())


def test_a_step_refuses_what_it_cannot_mean() -> None:
    for call in (make(4, right=None), make(1, 5), make(4, left=1)):
        with pytest.raises(UsageError, match="step"):
            attention.linear().step(None, call)


@pytest.mark.parametrize("kind", ["causal", "full", "window"])
def test_rows_without_weight_are_zero(kind: str) -> None:
    call = make(20, right=None if kind == "full" else 0, left=3 if kind == "window" else None)
    q = call.q.clone()
    q[:, :, 7] = -1.0  # no positive component: relu leaves nothing
    q.requires_grad_()
    out = attention.linear("relu")(replace(call, q=q)).out
    assert not bool(out[:, :, 7].any())
    (grad,) = torch.autograd.grad(out.sum(), q)
    assert bool(grad.isfinite().all())


@every_map
def test_long_streams_agree_with_the_definition(linear: Linear) -> None:
    """Without gradients a long call takes another way."""
    call = make(ROWS + 200, batch=1, heads=2, kv_heads=1, d_head=8)
    real = torch.ones(1, ROWS + 200, dtype=torch.bool)
    real[:, 3:9] = False
    causal = (call, replace(call, key_padding=real))
    for given in (*causal, *(replace(one, right=None) for one in causal)):
        exact = linear.definition(given).out
        assert float((linear(given).out - exact).abs().max()) <= MECHANISM_AGREEMENT * float(exact.abs().max())


def test_large_keys_leave_earlier_rows_alone() -> None:
    """Random features are stabilised by what does not depend on the other keys."""
    call = make(30)
    k = call.k.clone()
    k[:, :, 20:] = 8.0
    before, after = (attention.linear("random")(given).out for given in (call, replace(call, k=k)))
    assert torch.allclose(before[:, :, :20], after[:, :, :20], atol=1e-6)


@pytest.mark.parametrize(
    "given",
    [{"feature": "gelu"}, {"feature": "identity"}, {"feature": "random", "normalise": False}, {"count": 0}],
    ids=str,
)
def test_wrong_parameters(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="linear"):
        attention.linear(**given)
