"""Laws of `headscope.maths.attention.token_collapse`: the bound, its sharpness, and what random stacks do."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import NumericsError, UsageError
from headscope.maths.attention.token_collapse import (
    attention,
    averaging_rate,
    critical_diameter,
    diameter,
    diameter_bound,
    difference_ratio,
    isotropic_ranks,
    layer_norm,
    orthogonal_factor,
    random_stack,
    relative_residual,
    residual,
    residual_norm,
    skip_rate,
)
from headscope.maths.linear_algebra.spectrum import effective_rank, participation_ratio, singular_values

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 10_000)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def number(x):
    return torch.tensor(float(x), dtype=torch.float64)


def orthogonal_tokens(n, length):
    return length * torch.eye(n, dtype=torch.float64)


def test_the_residual_ignores_shifts():
    x = normal(2, 5, 3)
    torch.testing.assert_close(residual(x + normal(2, 1, 3, seed=1)), residual(x))
    assert float(residual_norm(torch.ones(4, 3))) == 0.0
    with pytest.raises(NumericsError, match="NaN"):
        residual(torch.full((2, 2), torch.nan))


def test_the_residual_ignores_rotations():
    x, turn = normal(5, 4), torch.linalg.qr(normal(4, 4, seed=1)).Q
    torch.testing.assert_close(residual_norm(x @ turn), residual_norm(x))
    torch.testing.assert_close(diameter(x @ turn), diameter(x))


def test_the_relative_residual():
    x = normal(6, 4)
    assert float(relative_residual(torch.ones(6, 4))) == 0.0
    assert float(relative_residual(x - x.mean(0))) == pytest.approx(1.0)
    assert float(relative_residual(1e9 * x)) == pytest.approx(float(relative_residual(x)))
    with pytest.raises(NumericsError, match="all tokens are 0"):
        relative_residual(torch.zeros(3, 2))


@quick
@given(
    n=st.integers(2, 6),
    d=st.integers(1, 5),
    size=st.sampled_from([0.1, 1.0, 3.0]),
    beta=st.sampled_from([0.2, 1.0]),
    seed=seeds,
)
def test_the_diameter_bound_holds(n, d, size, beta, seed):
    x = size * normal(n, d, seed=seed) + normal(d, seed=seed + 1)
    w_q, w_k, w_v = normal(3, d, d, seed=seed + 2)
    form, value = (float(torch.linalg.matrix_norm(m, 2)) for m in (w_q @ w_k.mT, w_v))
    after = beta * attention(x, w_q, w_k, w_v) + (1 - beta) * x
    assert float(diameter(after)) <= float(diameter_bound(diameter(x), form, value, d, beta)) * (1 + 1e-12)


@quick
@given(length=st.floats(0.05, 5.0), form=st.floats(0.1, 4.0), value=st.floats(0.1, 3.0))
def test_two_tokens_attain_the_bound(length, form, value):
    x, eye = orthogonal_tokens(2, length), torch.eye(2, dtype=torch.float64)
    after = attention(x, form * eye, eye, value * eye)
    bound = float(diameter_bound(diameter(x), form, value, 2))
    assert float(diameter(after)) == pytest.approx(bound, rel=1e-9)


@quick
@given(n=st.integers(2, 7), length=st.floats(0.1, 6.0), form=st.floats(0.1, 4.0), value=st.floats(0.2, 3.0))
def test_the_orthogonal_factor_is_exact(n, length, form, value):
    x, eye = orthogonal_tokens(n, length), torch.eye(n, dtype=torch.float64)
    after = attention(x, form * eye, eye, value * eye)
    factor = float(orthogonal_factor(number(length), n, form, value, n))
    assert float(residual_norm(after)) == pytest.approx(factor * float(residual_norm(x)), rel=1e-9)


@pytest.mark.parametrize("value", [1.1, 2.0, 5.0])
def test_the_critical_diameter_is_sharp(value):
    critical = critical_diameter(4.0, value, 2)
    eye = torch.eye(2, dtype=torch.float64)
    for share, collapses in ((0.99, True), (1.01, False)):
        x = orthogonal_tokens(2, share * critical / math.sqrt(2))
        start = float(diameter(x))
        for _ in range(200):
            x = attention(x, 2 * eye, 2 * eye, value * eye)
            if not 1e-30 < float(diameter(x)) < 1e30:
                break
        assert (float(diameter(x)) < start) is collapses
    assert critical_diameter(4.0, 1.0, 2) == math.inf
    with pytest.raises(UsageError, match="at least 0"):
        critical_diameter(-1.0, 2.0, 2)


@pytest.mark.parametrize("value", [1.1, 2.0, 5.0])
def test_the_critical_diameter_is_sharp_on_a_line(value):
    """One dimension: two tokens that lie opposite each other keep their diameter where it is critical."""
    critical = critical_diameter(3.0, value, 1)
    x, eye = number(critical / 2) * torch.tensor([[1.0], [-1.0]]).double(), torch.eye(1, dtype=torch.float64)
    after = attention(x, 3 * eye, eye, value * eye)
    assert float(diameter(after)) == pytest.approx(critical, rel=1e-9)
    with pytest.raises(UsageError, match="d_key at least 1"):
        critical_diameter(3.0, value, 0)


def test_collapse_is_cubic_in_the_end():
    x, eye = orthogonal_tokens(2, 0.1), torch.eye(2, dtype=torch.float64)
    before = float(diameter(x))
    after = float(diameter(attention(x, eye, eye, eye)))
    assert after == pytest.approx(before**3 / (4 * math.sqrt(2)), rel=1e-3)


def test_flat_stacks_follow_the_skip_rate():
    d, beta = 256, 0.3
    tokens = 1e-3 * layer_norm(normal(16, 8, d, seed=1))
    stack = random_stack(tokens, 30, generator(), beta=beta)
    size = torch.stack([residual_norm(x) / x.mean(-2).norm(dim=-1) for x in (stack[0], stack[30])])
    rates = (size[1] / size[0]).pow(1 / 30)
    error = float(rates.std()) / math.sqrt(len(rates))
    assert abs(float(rates.mean()) - skip_rate(beta)) < 4 * error + 1 / d
    assert skip_rate(1.0) == 0.0
    assert skip_rate(0.0) == 1.0


@pytest.mark.parametrize("norm", ["none", "post"])
def test_random_stacks_without_skips_collapse(norm):
    tokens = layer_norm(normal(4, 12, 32, seed=1))
    assert float(relative_residual(random_stack(tokens, 20, generator(), norm=norm)[-1]).max()) < 1e-9


def test_random_stacks_repeat():
    tokens = layer_norm(normal(3, 4, 8))
    first, second = (random_stack(tokens, 3, generator(5), beta=0.5, norm="pre") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_layer_norm_is_torchs():
    x = normal(4, 9)
    torch.testing.assert_close(layer_norm(x), torch.nn.functional.layer_norm(x, (9,), eps=0.0))
    with pytest.raises(NumericsError, match="all equal"):
        layer_norm(torch.ones(2, 3))


def test_wrong_arguments_are_refused():
    x = normal(3, 4)
    with pytest.raises(UsageError, match="share of attention"):
        random_stack(x, 2, generator(), beta=1.5)
    with pytest.raises(UsageError, match="depth"):
        random_stack(x, -1, generator())
    with pytest.raises(UsageError, match="two"):
        orthogonal_factor(number(1), 1, 1.0, 1.0, 2)


@quick
@given(seeds)
def test_the_difference_ratio(seed):
    x = normal(3, 5, 4, seed=seed) + 1
    tau = difference_ratio(x)
    assert torch.allclose(tau / (1 + tau.square()).sqrt(), relative_residual(x))
    assert torch.allclose(difference_ratio(-7 * x), tau)


@pytest.mark.parametrize(("n", "d"), [(40, 60), (60, 40), (30, 30)])
def test_isotropic_tokens(n, d):
    x = normal(40, n, d)
    sigma = singular_values(x / x.norm(dim=-1, keepdim=True))
    participation, entropy = isotropic_ranks(n, d)
    assert float(participation_ratio(sigma).mean()) == pytest.approx(participation, rel=0.01)
    assert float(effective_rank(sigma).mean()) == pytest.approx(entropy, rel=0.02)


def test_the_averaging_rate_contains_the_skip_rate():
    for beta in (0.1, 0.5, 0.9):
        assert float(averaging_rate(1 - beta, number(beta), number(0), number(1))) == pytest.approx(skip_rate(beta))
    assert float(averaging_rate(0.0, number(3), number(0.2), number(0.8))) == pytest.approx(0.25)
    with pytest.raises(UsageError, match="not both 0"):
        averaging_rate(0.0, number(0), number(1), number(1))


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_random_layers_follow_the_averaging_rate(strength):
    """Weights that are anything but flat, a value map of gain 0.8."""
    n, d = 12, 400
    x = normal(20, n, d, seed=1) + 2 * normal(20, 1, d, seed=2)
    weights = torch.softmax(2 * normal(20, n, n, seed=3), -1)
    mixed = weights @ x
    kept = residual_norm(mixed) / residual_norm(x)
    common = mixed.mean(1).norm(dim=-1) / x.mean(1).norm(dim=-1)
    gain = torch.full_like(kept, 0.8)
    after = strength * x + 0.8 * mixed @ (normal(20, d, d, seed=4) / math.sqrt(d))
    factor = difference_ratio(after) / difference_ratio(x)
    predicted = averaging_rate(strength, gain, kept, common)
    assert float((factor / predicted).log().mean().abs()) < 0.02
    assert not torch.allclose(averaging_rate(strength, gain, 0 * kept, common), predicted, rtol=0.05)
