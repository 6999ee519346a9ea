"""Laws and known answers of `headscope.maths.geometry.sphere`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import spatial, stats

from headscope.errors import NumericsError, UsageError
from headscope.maths.geometry.sinusoid_fit import fit_sinusoid
from headscope.maths.geometry.sphere import (
    angle_between,
    arc_law,
    cross_entropy,
    half_chord,
    jensen_shannon,
    kl_divergence,
    pairs_at_angle,
    slerp,
    slerp_derivative,
    slerp_weights,
    uniform_on_sphere,
)

quick = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 10_000)
angles = st.floats(0.05, 3.0)
radii = st.sampled_from([1e-6, 0.5, 1.0, 40.0])
T = torch.linspace(0, 1, 21, dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("radius", [1e-3, 1.0, 50.0])
def test_points_lie_on_the_sphere(radius, centred):
    v = uniform_on_sphere(100, 6, radius, generator=generator(), centred=centred)
    torch.testing.assert_close(v.norm(dim=-1), torch.full((100,), radius, dtype=torch.float64), rtol=1e-12, atol=0)
    assert not centred or float(v.sum(-1).abs().max()) < 1e-13 * radius


def test_points_are_isotropic():
    n, count = 5, 20_000
    for v in (
        uniform_on_sphere(count, n, 2.0, generator=generator()),
        pairs_at_angle(count, n, 1.1, 2.0, generator=generator(1))[1],
    ):
        assert float(v.mean(0).abs().max()) < 5 * math.sqrt(4 / n / count)
        covariance = v.mT @ v / count
        assert float((covariance - 4 / n * torch.eye(n)).abs().max()) < 5 * 4 / n * math.sqrt(2 / count)


@quick
@given(angle=angles, radius=radii, centred=st.booleans(), seed=seeds)
def test_pairs_have_their_angle(angle, radius, centred, seed):
    v, w = pairs_at_angle(4, 7, angle, radius, generator=generator(seed), centred=centred)
    for x in (v, w):
        assert float((x.norm(dim=-1) / radius - 1).abs().max()) < 1e-12
    assert float((angle_between(v, w) - angle).abs().max()) < 1e-12


@pytest.mark.parametrize("angle", [1e-12, 1e-7, math.pi - 1e-7])
def test_small_angles_are_precise(angle):
    v = torch.tensor([1.0, 0.0], dtype=torch.float64)
    w = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    assert float(angle_between(3 * v, 5 * w)) == pytest.approx(angle, rel=1e-9)


@quick
@given(angle=angles, radius=radii, seed=seeds)
def test_slerp_stays_on_the_sphere(angle, radius, seed):
    v, w = pairs_at_angle(3, 5, angle, radius, generator=generator(seed))
    u = slerp(v, w, T)
    assert u.shape == (3, 21, 5)
    torch.testing.assert_close(u[:, 0], v, rtol=1e-11, atol=1e-12 * radius)
    torch.testing.assert_close(u[:, -1], w, rtol=1e-11, atol=1e-12 * radius)
    assert float((u.norm(dim=-1) / radius - 1).abs().max()) < 1e-11


def test_slerp_between_almost_opposite_points_stays_on_the_sphere():
    """The part of w across v is small there: rounding that stays along v would be a ten-millionth of it."""
    v, w = pairs_at_angle(20, 6, math.pi - 1e-9, generator=generator())
    length = slerp(v, w, T).norm(dim=-1)
    torch.testing.assert_close(length, torch.ones_like(length), rtol=0, atol=1e-12)


@quick
@given(angle=angles, seed=seeds)
def test_slerp_equals_its_definition(angle, seed):
    v, w = pairs_at_angle(1, 5, angle, 2.0, generator=generator(seed))
    for k, t in enumerate(T.tolist()):
        expected = (math.sin((1 - t) * angle) * v + math.sin(t * angle) * w) / math.sin(angle)
        torch.testing.assert_close(slerp(v, w, T)[:, k], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("angle", [1e-9, 0.3, 3.0, math.pi - 1e-6])
def test_slerp_walks_at_constant_speed(angle):
    v, w = pairs_at_angle(3, 5, angle, generator=generator())
    found = angle_between(v.unsqueeze(1), slerp(v, w, T))
    assert float((found - angle_between(v, w).unsqueeze(-1) * T).abs().max()) < 1e-9 * max(angle, 1e-6)


def test_slerp_of_a_point_with_itself():
    v = uniform_on_sphere(2, 4, generator=generator())
    torch.testing.assert_close(slerp(v, v, T), v.unsqueeze(1).expand(2, 21, 4))
    assert float(slerp_derivative(v, v, T).abs().max()) < 1e-15


@pytest.mark.parametrize("length", [0.0, math.inf, math.nan])
def test_a_vector_without_a_direction_has_no_angle(length):
    v = uniform_on_sphere(2, 4, generator=generator())
    with pytest.raises(NumericsError, match="direction"):
        angle_between(v, length * v)


def test_opposite_points_have_no_arc():
    v = uniform_on_sphere(2, 4, generator=generator())
    with pytest.raises(UsageError, match="opposite"):
        slerp(v, -v, T)
    with pytest.raises(UsageError, match="same length"):
        slerp(v, 2 * v, T)
    with pytest.raises(NumericsError, match="not zero"):
        slerp(0 * v, 0 * v, T)


@quick
@given(angle=angles, seed=seeds)
def test_slerp_derivative_equals_differences(angle, seed):
    v, w = pairs_at_angle(2, 5, angle, generator=generator(seed))
    h = 1e-5
    inner = T[1:-1]
    differences = (slerp(v, w, inner + h) - slerp(v, w, inner - h)) / (2 * h)
    torch.testing.assert_close(slerp_derivative(v, w, inner), differences, rtol=1e-7, atol=1e-8)


@quick
@given(angle=angles, radius=radii, seed=seeds)
def test_slerp_derivative_is_tangent(angle, radius, seed):
    v, w = pairs_at_angle(2, 5, angle, radius, generator=generator(seed))
    velocity = slerp_derivative(v, w, T)
    assert float((velocity.norm(dim=-1) / (angle * radius) - 1).abs().max()) < 1e-10
    assert float(((velocity * slerp(v, w, T)).sum(-1) / radius**2).abs().max()) < 1e-11


@quick
@given(n=st.integers(1, 9), scale=st.sampled_from([0.01, 1.0, 20.0]), seed=seeds)
def test_divergences_equal_scipy(n, scale, seed):
    a, b = scale * normal(n, seed=seed), scale * normal(n, seed=seed + 1)
    p, q = torch.softmax(a, -1).numpy(), torch.softmax(b, -1).numpy()
    kl = stats.entropy(p, q)
    assert float(kl_divergence(a, b)) == pytest.approx(kl, rel=1e-9, abs=1e-14)
    assert float(cross_entropy(a, b)) == pytest.approx(kl + stats.entropy(p), rel=1e-10, abs=1e-14)
    expected = spatial.distance.jensenshannon(p, q) ** 2 if n > 1 else 0.0
    assert float(jensen_shannon(a, b)) == pytest.approx(expected, rel=1e-6, abs=1e-13)


@quick
@given(n=st.integers(2, 9), scale=st.sampled_from([1e-8, 1.0, 1e3]), seed=seeds)
def test_divergences_are_not_negative(n, scale, seed):
    a, b = scale * normal(n, seed=seed), scale * normal(n, seed=seed + 1)
    assert float(kl_divergence(a, b)) >= 0
    assert float(kl_divergence(a, a + 7.0)) < 1e-25 + 1e-14 * scale
    assert 0 <= float(jensen_shannon(a, b)) <= math.log(2) + 1e-15
    assert float(jensen_shannon(a, b)) == pytest.approx(float(jensen_shannon(b, a)), rel=1e-12, abs=1e-30)


def test_gradient_of_the_cross_entropy():
    a, b = normal(6), normal(6, seed=1).requires_grad_()
    (gradient,) = torch.autograd.grad(cross_entropy(a, b), b)
    torch.testing.assert_close(gradient, (torch.softmax(b, -1) - torch.softmax(a, -1)).detach(), rtol=1e-11, atol=1e-14)


def test_small_scores_make_a_euclidean_divergence():
    a, b = normal(12), normal(12, seed=1)
    errors, quarters = [], []
    for scale in (1e-2, 1e-3, 1e-5):
        kl = float(kl_divergence(scale * a, scale * b))
        errors.append(abs(kl / float(half_chord(scale * a, scale * b)) - 1))
        quarters.append(abs(float(jensen_shannon(scale * a, scale * b)) / kl - 0.25))
    assert math.log10(errors[0] / errors[1]) == pytest.approx(1.0, abs=0.05)
    assert errors[2] < 2e-5
    assert quarters[1] < 0.11 * quarters[0]


def test_the_chord_is_a_sinusoid():
    for angle in (0.7, math.pi / 2, 2.5):
        v, w = pairs_at_angle(1, 9, angle, 3.0, generator=generator(), centred=True)
        chord = half_chord(w, slerp(v, w, T)[0])
        torch.testing.assert_close(chord, 9 / 9 * (1 - torch.cos((1 - T) * angle)), rtol=1e-10, atol=1e-13)
        assert fit_sinusoid(T, chord, angle).residual < 1e-12


def test_hidden_keys():
    a = torch.tensor([0.0, 1.0, -math.inf])
    b = torch.tensor([0.0, -math.inf, 2.0])
    assert float(kl_divergence(a, b)) == math.inf
    assert float(cross_entropy(a, b)) == math.inf
    both = torch.tensor([1.0, 0.0, -math.inf])
    assert float(kl_divergence(a, both)) == pytest.approx(float(kl_divergence(a[:2], both[:2])), rel=1e-12)
    # q may have mass where p has none: that costs, and finitely.
    wide = torch.tensor([0.0, 1.0, 0.5])
    p, q = torch.softmax(a, -1).double(), torch.softmax(wide, -1).double()
    assert float(kl_divergence(a, wide)) == pytest.approx(float((p[:2] * (p[:2] / q[:2]).log()).sum()), rel=1e-6)
    nothing = torch.full((3,), -math.inf)
    assert float(kl_divergence(nothing, a)) == 0.0
    assert float(jensen_shannon(a, b)) <= math.log(2)
    with pytest.raises(UsageError, match="hidden"):
        half_chord(a, b)


@pytest.mark.parametrize("centred", [False, True])
def test_the_smallest_spheres(centred):
    """Two points are a sphere, and a circle has pairs at an angle; centred points need one dimension more."""
    points = uniform_on_sphere(50, 1 + centred, 2.0, generator=generator(), centred=centred)
    assert points[:, 0].sign().unique().tolist() == [-1.0, 1.0]
    torch.testing.assert_close(points.norm(dim=-1), torch.full((50,), 2.0, dtype=torch.float64))
    first, second = pairs_at_angle(50, 2 + centred, 0.7, generator=generator(), centred=centred)
    torch.testing.assert_close(angle_between(first, second), torch.full((50,), 0.7, dtype=torch.float64))


def test_unusable_spheres():
    with pytest.raises(UsageError, match="dimension"):
        uniform_on_sphere(3, 1, generator=generator(), centred=True)
    with pytest.raises(UsageError, match="radius"):
        uniform_on_sphere(3, 4, 0.0, generator=generator())
    with pytest.raises(UsageError, match="dimension"):
        pairs_at_angle(3, 2, 1.0, generator=generator(), centred=True)
    with pytest.raises(UsageError, match="between 0 and π"):
        pairs_at_angle(3, 4, 4.0, generator=generator())


def test_weights_make_the_arc():
    v, w = pairs_at_angle(6, 5, 0.8, generator=generator(1))
    first, second = slerp_weights(angle_between(v, w), T)
    arc = first[..., None] * v[:, None] + second[..., None] * w[:, None]
    torch.testing.assert_close(arc, slerp(v, w, T), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("radius", [0.5, 6.0])
def test_the_law_is_the_mean_of_random_arcs(radius):
    v, w = pairs_at_angle(4000, 8, 1.1, radius, generator=generator(2), centred=True)
    t = T[[0, 8, 15]]
    gap = kl_divergence(w[:, None], slerp(v, w, t)) - arc_law(w, torch.tensor(1.1), t)
    assert bool((gap.mean(0).abs() < 4 * gap.std(0) / 4000**0.5).all())
    # A key that is hidden plays no part.
    hidden = torch.cat((w, torch.full((4000, 1), -torch.inf)), -1)
    torch.testing.assert_close(arc_law(hidden, torch.tensor(1.1), t), arc_law(w, torch.tensor(1.1), t))
