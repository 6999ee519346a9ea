"""Laws of `headscope.maths.linear_algebra.factored`, `induction`, `in_context` and `hopfield`."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import NumericsError, UsageError
from headscope.maths.attention.hopfield import curl, hopfield_energy, hopfield_step
from headscope.maths.attention.in_context import DescentLayer, descent_loss, least_squares_attention, linear_attention
from headscope.maths.attention.induction import Induction
from headscope.maths.linear_algebra.factored import Factored, composition, composition_null, kronecker, moved

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 10_000)
sizes = st.integers(1, 6)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def factored(m, r, n, seed=0):
    return Factored(normal(m, r, seed=seed), normal(r, n, seed=seed + 1))


def rotation(n, seed):
    q, r = torch.linalg.qr(normal(n, n, seed=seed))
    return q * torch.sign(torch.diagonal(r))


close = torch.testing.assert_close


@quick
@given(m=sizes, r=sizes, s=sizes, n=sizes, seed=seeds)
def test_factored_equals_dense(m, r, s, n, seed):
    a, b, c = factored(m, r, n, seed), factored(n, s, m, seed + 2), factored(m, s, n, seed + 4)
    tolerance = {"rtol": 1e-9, "atol": 1e-9}
    close((a @ b).dense(), a.dense() @ b.dense(), **tolerance)
    close((a + c).dense(), a.dense() + c.dense(), **tolerance)
    close((a @ b).trace(), (a.dense() @ b.dense()).trace(), **tolerance)
    close(a.inner(c), (a.dense() * c.dense()).sum(), **tolerance)
    close(a.norm(), a.dense().norm(), **tolerance)
    close(a.mT.dense(), a.dense().mT, **tolerance)
    rank = min(m, r, n)
    close(a.singular_values(), torch.linalg.svdvals(a.dense())[:rank], **tolerance)


def test_factored_eigenvalues():
    a = factored(7, 3, 7)
    dense = torch.linalg.eigvals(a.dense())
    dense = dense[dense.abs().argsort(descending=True)]
    close(a.eigenvalues().abs(), dense.abs()[:3], rtol=1e-9, atol=1e-9)
    close(a.eigenvalues().real.sum(), a.trace(), rtol=1e-9, atol=1e-9)
    eye = torch.eye(4, dtype=torch.float64)
    assert float(Factored(eye, eye).copying()) == 1.0
    assert float(Factored(eye, -eye).copying()) == -1.0
    assert float(Factored(0 * eye, eye).copying()) == 0.0


def test_factored_ignores_the_inner_basis():
    a, g = factored(5, 3, 5), normal(3, 3, seed=9)
    b = Factored(a.left @ g, torch.linalg.solve(g, a.right))
    close(a.singular_values(), b.singular_values(), rtol=1e-9, atol=1e-12)
    close(a.trace(), b.trace(), rtol=1e-9, atol=1e-12)


def test_factored_sizes_must_fit():
    with pytest.raises(UsageError, match="do not fit"):
        factored(3, 2, 4) @ factored(3, 2, 4)
    with pytest.raises(UsageError, match="do not fit"):
        factored(3, 2, 4).trace()
    with pytest.raises(NumericsError, match="NaN"):
        Factored(torch.full((2, 2), torch.nan), torch.ones(2, 2))


def test_heads_add_up():
    heads, n, d, d_head = 3, 5, 8, 2
    x, w_v, w_o = normal(n, d), normal(heads, d, d_head, seed=1), normal(heads, d_head, d, seed=2)
    patterns = torch.softmax(normal(heads, n, n, seed=3), -1)
    joined = torch.cat([patterns[h] @ x @ w_v[h] for h in range(heads)], -1) @ w_o.reshape(-1, d)
    close(sum(moved(patterns[h], x, Factored(w_v[h], w_o[h])) for h in range(heads)), joined)


@quick
@given(q=sizes, n=sizes, d=sizes, e=sizes, seed=seeds)
def test_kronecker_form_of_a_head(q, n, d, e, seed):
    a, x, w = normal(q, n, seed=seed), normal(n, d, seed=seed + 1), normal(d, e, seed=seed + 2)
    expected = a @ x @ w
    close((kronecker(a, w) @ x.reshape(-1)).reshape(q, e), expected)
    by_columns = torch.tensor(np.kron(w.mT.numpy(), a.numpy())) @ x.mT.reshape(-1)
    close(by_columns.reshape(e, q).mT, expected)
    close(kronecker(a, w), torch.tensor(np.kron(a.numpy(), w.mT.numpy())))
    close(moved(a, x, Factored(torch.eye(d, dtype=torch.float64), w)), expected)


def test_virtual_heads():
    a_1, a_2, w_1, w_2 = normal(4, 4), normal(4, 4, seed=1), normal(3, 3, seed=2), normal(3, 3, seed=3)
    close(kronecker(a_2, w_2) @ kronecker(a_1, w_1), kronecker(a_2 @ a_1, w_1 @ w_2))


def test_composition_of_known_maps():
    eye = torch.eye(6, dtype=torch.float64)
    write = Factored(eye[:, :2], eye[:2])
    read_it, read_other = Factored(eye[:, :2], eye[2:4]), Factored(eye[:, 3:5], eye[:2])
    assert float(composition(write, read_other)) == 0.0
    assert float(composition(write, read_it)) == pytest.approx(1 / math.sqrt(2))
    first, second, g = factored(6, 2, 6), factored(6, 2, 6, 3), normal(2, 2, seed=8)
    other = Factored(3 * first.left @ g, torch.linalg.solve(g, first.right))
    close(composition(other, second), composition(first, second))
    with pytest.raises(NumericsError, match="is 0"):
        composition(Factored(0 * first.left, first.right), second)


def test_composition_of_random_maps():
    first, second = factored(12, 3, 12), factored(12, 2, 12, 3)
    scores = torch.stack(
        [composition(Factored(first.left, first.right @ rotation(12, s)), second) for s in range(10, 1010)]
    ).square()
    error = float(scores.std()) / math.sqrt(len(scores))
    assert abs(float(scores.mean()) - composition_null(12) ** 2) < 4 * error
    with pytest.raises(UsageError, match="d_model"):
        composition_null(0)


def repeated(symbols=12, half=10, seed=0):
    order = torch.randperm(symbols - 1, generator=torch.Generator().manual_seed(seed))[:half] + 1
    return torch.cat((torch.zeros(1, dtype=torch.int64), order, order))


@quick
@given(seed=seeds)
def test_induction_continues_a_repetition(seed):
    tokens = repeated(seed=seed)
    trace = Induction(12, 24).run(tokens)
    assert torch.equal(trace.prediction[11:-1].argmax(-1), tokens[12:])
    assert float(trace.prediction[11:-1].amax(-1).min()) > 1 - 1e-9
    # The map: position i looks at the one after the earlier copy of its symbol.
    assert bool((trace.induction[torch.arange(11, 20), torch.arange(2, 11)] > 1 - 1e-9).all())


def test_induction_needs_both_layers():
    tokens = repeated()
    alone = Induction(12, 24).run(tokens, first_layer=False).prediction[11:-1]
    assert float(alone.amax(-1).max()) < 0.5


def test_induction_is_key_composition():
    circuit = Induction(5, 8)
    assert float(composition(circuit.previous_ov, circuit.induction_qk.mT)) > composition_null(circuit.d_model)
    assert float(composition(circuit.previous_ov, circuit.induction_qk)) == 0.0
    assert float(composition(circuit.previous_ov, circuit.induction_ov)) == 0.0


def test_induction_refuses_what_it_cannot_read():
    with pytest.raises(UsageError, match="positions"):
        Induction(5, 4).run(torch.zeros(6, dtype=torch.int64))
    with pytest.raises(UsageError, match="symbols"):
        Induction(5, 4).run(torch.tensor([9]))
    with pytest.raises(UsageError, match="two symbols"):
        Induction(1, 4)


def test_linear_attention_is_associative():
    q, k, v = normal(2, 7, 3), normal(2, 5, 3, seed=1), normal(2, 5, 4, seed=2)
    close(linear_attention(q, k, v), (q @ k.mT) @ v)


@quick
@given(n=st.integers(1, 8), d=sizes, e=st.integers(1, 3), seed=seeds)
def test_the_layer_is_a_gradient_step(n, d, e, seed):
    x, y, query = normal(n, d, seed=seed), normal(n, e, seed=seed + 1), normal(1, d, seed=seed + 2)
    w = normal(d, e, seed=seed + 3).requires_grad_(True)
    (0.5 * (x @ w - y).square().sum() / n).backward()
    stepped = (w - 0.7 * w.grad).detach()
    layer = DescentLayer(w.detach(), 0.7)
    token = torch.cat((query, query @ w.detach()), -1)
    close(layer(token, torch.cat((x, y), -1))[:, d:], query @ stepped)
    with pytest.raises(UsageError, match="width"):
        layer(torch.zeros(1, d + e + 1, dtype=torch.float64), torch.zeros(1, d + e + 1, dtype=torch.float64))


def test_descent_loss_agrees_with_sampling():
    d, n, draws = 4, 9, 40_000
    x, w, query = normal(draws, n, d), normal(draws, d, 1, seed=1), normal(draws, 1, d, seed=2)
    rate = n / (n + d + 1)
    layer = DescentLayer(torch.zeros(d, 1, dtype=torch.float64), rate)
    predicted = layer(torch.cat((query, 0 * query[..., :1]), -1), torch.cat((x, x @ w), -1))[..., d:]
    losses = (predicted - query @ w).square().reshape(-1)
    assert abs(float(losses.mean()) - descent_loss(d, n)) < 4 * float(losses.std()) / math.sqrt(draws)
    assert descent_loss(d, 0) == d
    with pytest.raises(UsageError, match="dimension"):
        descent_loss(0, 1)


@pytest.mark.parametrize(("n", "d"), [(9, 4), (3, 6), (5, 5)])
def test_intention_solves_ridge_regression(n, d):
    q, k, v = normal(2, d), normal(n, d, seed=1), normal(n, 3, seed=2)
    alpha = 0.3
    rows = torch.cat((k, math.sqrt(alpha) * torch.eye(d, dtype=torch.float64)))
    right = torch.cat((v, torch.zeros(d, 3, dtype=torch.float64)))
    solution = torch.linalg.lstsq(rows, right).solution
    close(least_squares_attention(q, k, v, alpha), q @ solution, rtol=1e-10, atol=1e-12)


def test_both_forms_of_intention_agree():
    q, k, v, alpha = normal(2, 4), normal(9, 4, seed=1), normal(9, 3, seed=2), 0.3
    dual = q @ k.mT @ torch.linalg.solve(k @ k.mT + alpha * torch.eye(9, dtype=torch.float64), v)
    close(least_squares_attention(q, k, v, alpha), dual)
    with pytest.raises(UsageError, match="alpha"):
        least_squares_attention(q, k, v, 0.0)


def test_intention_becomes_linear_attention():
    q, k, v = normal(2, 4), normal(9, 4, seed=1), normal(9, 3, seed=2)
    gap = [float((a * least_squares_attention(q, k, v, a) - q @ k.mT @ v).norm()) for a in (1e4, 1e5)]
    assert gap[1] == pytest.approx(gap[0] / 10, rel=0.02)


def test_attention_is_a_gradient_step():
    patterns, state = normal(6, 4), normal(4, seed=1).requires_grad_(True)
    hopfield_energy(state, patterns, 1.7).backward()
    close(hopfield_step(state.detach(), patterns, 1.7), state.detach() - state.grad)


@quick
@given(beta=st.floats(0.1, 20.0), seed=seeds)
def test_attention_lowers_the_energy(beta, seed):
    patterns, state = normal(6, 4, seed=seed), 2 * normal(3, 4, seed=seed + 1)
    before = hopfield_energy(state, patterns, beta)
    after = hopfield_energy(hopfield_step(state, patterns, beta), patterns, beta)
    assert bool((after <= before + 1e-12).all())
    assert bool((after >= -1e-12).all())


def test_curl_of_known_cases():
    keys, values, state = normal(6, 4), normal(6, 4, seed=1), normal(4, seed=2)
    assert curl(state, keys, keys, 1.0) < 1e-15
    assert curl(state, keys, values, 1.0) > 0.1
    # By automatic differentiation of the output, at another β and at another size of the values.
    wide = 3.0 * values
    jacobian = torch.autograd.functional.jacobian(lambda q: torch.softmax(0.7 * keys @ q, 0) @ wide, state)
    size = jacobian.norm() + jacobian.mT.norm()
    assert curl(state, keys, wide, 0.7) == pytest.approx(float((jacobian - jacobian.mT).norm() / size), rel=1e-12)
    with pytest.raises(UsageError, match="beta"):
        curl(state, keys, keys, 0.0)


def test_batches_and_short_floats():
    left, right = normal(3, 6, 2), normal(3, 2, 6, seed=1)
    batch, other = Factored(left.float(), right.float()), factored(6, 2, 6, 5)
    several = Factored(other.left.expand(3, 6, 2), other.right.expand(3, 2, 6))
    scores = composition(batch, several)
    assert scores.dtype == torch.float64
    close(scores[1], composition(Factored(left[1].float(), right[1].float()), other))
    close(batch.eigenvalues()[2].abs(), Factored(left[2].float(), right[2].float()).eigenvalues().abs())
    texts = torch.stack([repeated(seed=s) for s in range(3)])
    close(Induction(12, 24).run(texts).induction[1], Induction(12, 24).run(texts[1]).induction)
