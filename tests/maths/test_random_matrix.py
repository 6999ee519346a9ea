"""Laws and known answers of `marchenko_pastur` and `null_spectrum`."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import UsageError
from headscope.maths.linear_algebra.spectrum import effective_rank, form_singular_values, singular_values, stable_rank
from headscope.maths.random_matrices.marchenko_pastur import BEYOND_EDGE, GaussianProduct, MarchenkoPastur
from headscope.maths.random_matrices.null_spectrum import Comparison, random_distance

sizes = st.integers(1, 60)
variances = st.floats(1e-3, 1e3)
quick = settings(max_examples=25, deadline=None)

LAWS = {
    "wide": MarchenkoPastur(30, 120, 0.3),
    "tall": MarchenkoPastur(500, 40, 2.0),
    "square": MarchenkoPastur(50, 50),
    "a head": GaussianProduct(384, 32, 384, 1e-4),
    "uneven": GaussianProduct(60, 20, 900),
    "inner largest": GaussianProduct(20, 900, 60),
    "square product": GaussianProduct(40, 40, 40, 0.1),
}
every_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Gauss–Legendre on [0, π]; found once, because finding it takes longer than using it.
NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)
THETA = torch.from_numpy((NODES + 1) * math.pi / 2), torch.from_numpy(WEIGHTS * math.pi / 2)


def integral(law, f):
    """∫ f(x) density(x) dx by Gauss–Legendre in θ, σ = middle − half·cos θ, which tames both edges."""
    low, high = (math.sqrt(edge) for edge in law.edges)
    theta, weight = THETA
    s = (low + high) / 2 - (high - low) / 2 * theta.cos()
    return float((f(s.square()) * law.singular_density(s) * (high - low) / 2 * theta.sin() * weight).sum())


@every_law
def test_densities_integrate_to_one(law):
    assert integral(law, torch.ones_like) == pytest.approx(1, abs=2e-5)
    assert law.cdf(torch.tensor(law.edges, dtype=torch.float64)).tolist() == pytest.approx([0.0, 1.0], abs=1e-12)


@every_law
def test_cdf_is_the_integral_of_the_density(law):
    low, high = law.edges
    x = torch.linspace(low + 0.2 * (high - low), low + 0.8 * (high - low), 2001, dtype=torch.float64)
    assert float(law.cdf(x[-1:]) - law.cdf(x[:1])) == pytest.approx(float(torch.trapezoid(law.density(x), x)), abs=1e-6)


@every_law
def test_outside_the_edges_there_is_nothing(law):
    low, high = law.edges
    x = torch.tensor([-1.0, low * 0.99 - 1e-9, high * 1.01], dtype=torch.float64)
    assert law.density(x).tolist() == [0.0, 0.0, 0.0]
    assert float(law.density(torch.zeros((), dtype=torch.float64))) == 0.0
    assert law.cdf(x).tolist() == [0.0, 0.0, 1.0]


@every_law
def test_quantile_inverts_cdf(law):
    probability = torch.linspace(0.001, 0.999, 41, dtype=torch.float64)
    x = law.quantile(probability)
    assert bool((x.diff() > 0).all())
    torch.testing.assert_close(law.cdf(x), probability, rtol=0, atol=1e-9)


@quick
@given(rows=sizes, columns=sizes, variance=variances)
def test_moments_of_marchenko_pastur(rows, columns, variance):
    law = MarchenkoPastur(rows, columns, variance)
    p, n = sorted((rows, columns))
    assert law.mean == pytest.approx(variance * n)
    assert integral(law, lambda x: x) == pytest.approx(variance * n, rel=1e-6)
    assert integral(law, torch.square) == pytest.approx(variance**2 * n * (n + p), rel=1e-6)


@quick
@given(rows=sizes, inner=sizes, columns=sizes, variance=variances)
def test_moments_of_gaussian_product(rows, inner, columns, variance):
    law = GaussianProduct(rows, inner, columns, variance)
    p, n_1, n_2 = sorted((rows, inner, columns))
    assert law.mean == pytest.approx(variance * n_1 * n_2)
    assert integral(law, lambda x: x) == pytest.approx(law.mean, rel=1e-5)
    assert integral(law, torch.square) == pytest.approx(law.mean**2 * (1 + p / n_1 + p / n_2), rel=1e-5)


@every_law
def test_entropy_deficits(law):
    mean = law.mean
    found = integral(law, lambda x: torch.xlogy(x / mean, x / mean))
    assert found == pytest.approx(law.entropy_deficit, abs=2e-5)
    assert MarchenkoPastur(7, 7).entropy_deficit == 0.5
    assert GaussianProduct(7, 7, 7).entropy_deficit == pytest.approx(5 / 6)


def test_published_edges():
    """Wertich's initial spectrum, read off his plot: 0.42 to 3.66."""
    law = MarchenkoPastur(1024, 4096, 0.02**2)
    assert law.edges == pytest.approx((0.4096, 3.6864))
    assert law.mean == pytest.approx(1.6384)


def test_edge_of_a_square_matrix():
    """4nv, thus 4 for v = 1/n whatever n."""
    for n in (1, 10, 1000):
        assert MarchenkoPastur(n, n, 1 / n).edges == pytest.approx((0.0, 4.0))


def test_edges_of_a_square_product():
    assert GaussianProduct(9, 9, 9).edges == pytest.approx((0.0, 27 / 4 * 81))


def test_product_becomes_marchenko_pastur():
    product = GaussianProduct(50, 20, 10**9, 1e-9)
    plain = MarchenkoPastur(50, 20)
    assert product.edges == pytest.approx(plain.edges, rel=1e-3)
    q = torch.linspace(0.05, 0.95, 11, dtype=torch.float64)
    torch.testing.assert_close(product.quantile(q), plain.quantile(q), rtol=1e-3, atol=0)


@quick
@given(a=sizes, b=sizes, c=sizes)
def test_order_of_the_sizes_does_not_matter(a, b, c):
    assert GaussianProduct(a, b, c).edges == pytest.approx(GaussianProduct(c, a, b).edges, rel=1e-9)


def deviation(law, squares):
    """Largest distance between the distribution function and that of the sample (Kolmogorov)."""
    x = squares.flatten().sort().values
    steps = torch.arange(1, len(x) + 1, dtype=torch.float64) / len(x)
    return float((law.cdf(x) - steps).abs().max())


def test_gaussian_matrix_follows_marchenko_pastur():
    squares = singular_values(normal(4, 100, 300)).square()
    assert deviation(MarchenkoPastur(100, 300), squares) < 0.02
    assert deviation(MarchenkoPastur(100, 200, 1.5), squares) > 0.02, "another aspect ratio is told apart"


def test_gaussian_product_follows_its_law():
    squares = form_singular_values(normal(8, 200, 50), normal(8, 300, 50, seed=1)).square()
    assert deviation(GaussianProduct(200, 50, 300), squares) < 0.02


def test_gaussian_product_is_not_marchenko_pastur():
    """A product of 384 × 32 factors against the best Marchenko–Pastur of its own shape or of its rank."""
    squares = form_singular_values(normal(8, 384, 32), normal(8, 384, 32, seed=1)).square()
    mean = float(squares.mean())
    for plain in (MarchenkoPastur(384, 384), MarchenkoPastur(384, 32)):
        scaled = MarchenkoPastur(plain.rows, plain.columns, mean / plain.mean)
        assert deviation(scaled, squares) > 0.05
    assert deviation(GaussianProduct(384, 32, 384), squares) < 0.02


@pytest.mark.parametrize("sizes", [(32, 128), (64, 64), (128, 32, 128), (384, 32, 384)])
def test_laws_hold_at_the_size_of_a_head(sizes):
    """Means over Gaussian matrices against the law: effective rank, stable rank, largest value."""
    draws = 60
    if len(sizes) == 2:
        law, sigma = MarchenkoPastur(*sizes), singular_values(normal(draws, *sizes))
    else:
        rows, inner, columns = sizes
        law = GaussianProduct(*sizes)
        sigma = form_singular_values(normal(draws, rows, inner), normal(draws, columns, inner, seed=1))
    largest = sigma[:, 0].square()
    assert float(effective_rank(sigma).mean()) == pytest.approx(law.effective_rank, rel=0.02)
    assert float(largest.mean()) == pytest.approx(law.largest[0], rel=0.02)
    assert float(stable_rank(sigma).mean()) == pytest.approx(law.stable_rank, rel=0.03)
    assert float(largest.std()) == pytest.approx(law.largest[1], rel=0.35)


@quick
@given(rows=sizes, columns=sizes)
def test_largest_has_johnstones_scale(rows, columns):
    law = MarchenkoPastur(rows, columns)
    scale = (math.sqrt(rows) + math.sqrt(columns)) * (1 / math.sqrt(rows) + 1 / math.sqrt(columns)) ** (1 / 3)
    assert law.largest[1] == pytest.approx(1.2679831 * scale, rel=1e-9)


def test_how_often_chance_exceeds_the_edge():
    """The limit is 0.168; matrices of this size stay a little below it."""
    sigma = singular_values(normal(400, 40, 80))
    share = float((sigma[:, 0].square() > MarchenkoPastur(40, 80).edges[1]).double().mean())
    assert share == pytest.approx(BEYOND_EDGE, abs=0.07)


def test_the_energy_beyond_the_edge_is_that_of_values_at_the_edge():
    """The null of the energy is that of the number, each value with the energy of the edge."""
    for sizes_of_factors in ((40, 80), (60, 20, 900)):
        numbers = of_gaussian(sizes_of_factors, 0).quantities
        share_at_edge = numbers["largest"][1] ** 2 / numbers["sum_squares"][0]
        for count, energy in (("above_edge", "energy_above_edge"), ("spikes", "energy_in_spikes")):
            assert numbers[energy][1] == pytest.approx(numbers[count][1] * share_at_edge, rel=1e-9)


@pytest.mark.parametrize("make", [lambda: MarchenkoPastur(0, 3), lambda: GaussianProduct(3, 3, 3, 0.0)])
def test_impossible_laws_are_refused(make):
    with pytest.raises(UsageError, match="random matrix needs"):
        make()


def test_gaussian_is_its_own_null():
    one = Comparison((100, 300), singular_values(normal(100, 300)))
    # The smallest value fluctuates most: at this size by a tenth of itself.
    close = {"largest": 0.03, "smallest": 0.12, "effective_rank": 0.005, "stable_rank": 0.05}
    for quantity, tolerance in close.items():
        value, null = one.quantities[quantity]
        assert value == pytest.approx(null, rel=tolerance), quantity
    assert one.quantities["above_edge"][0] <= 1


def test_planted_direction_is_above_the_edge():
    noise = normal(100, 300)
    spike = torch.zeros(100, 300, dtype=torch.float64)
    spike[3, 7] = 60.0  # twice the edge √100 + √300 = 27
    one = Comparison((100, 300), singular_values(noise + spike))
    assert one.quantities["above_edge"][0] == 1
    energy = one.quantities["energy_above_edge"][0]
    assert energy == pytest.approx(60**2 / (60**2 + 100 * 300), rel=0.1)


def test_zero_matrix_has_no_direction():
    one = Comparison((3, 5), torch.zeros(3, dtype=torch.float64))
    assert one.quantities["above_edge"][0] == 0
    assert one.quantities["energy_above_edge"][0] == 0
    assert one.quantities["effective_rank"][0] == 0
    assert one.edges == (0.0, 0.0)


def of_gaussian(shape, seed, factor=1.0):
    """A comparison of a random matrix (two sizes) or of a product of two (three, the inner one second)."""
    if len(shape) == 2:
        return Comparison(shape, singular_values(factor * normal(*shape, seed=seed)))
    a, b = normal(shape[0], shape[1], seed=seed), normal(shape[2], shape[1], seed=seed + 1000)
    return Comparison(shape, form_singular_values(factor * a, b))


@pytest.mark.parametrize("shape", [(64, 64), (40, 160), (120, 24, 120)])
def test_bulk_of_a_gaussian_matrix(shape):
    """The variance of the entries within 1 %, the distance within a tenth: 60 matrices leave 0.5 % and 3 %."""
    found = [of_gaussian(shape, seed, factor=0.3).quantities for seed in range(60)]
    assert np.mean([one["bulk_variance"][0] for one in found]) == pytest.approx(0.09, rel=0.01)
    assert np.mean([one["bulk_distance"][0] for one in found]) == pytest.approx(random_distance(min(shape)), rel=0.1)
    assert np.mean([one["spikes"][0] for one in found]) < 0.4, "chance makes one in about one case of six"


@pytest.mark.parametrize("shape", [(64, 64), (40, 160), (120, 24, 120)])
def test_p_values_of_comparisons(shape):
    chances = np.array([of_gaussian(shape, seed).quantities["largest_p_value"][0] for seed in range(300)])
    for level in (0.05, 0.2, 0.5):
        # Four standard errors, and 0.05 for a law that is a limit.
        assert np.mean(chances < level) == pytest.approx(level, abs=0.05 + 4 * math.sqrt(level * (1 - level) / 300))


def test_spikes_leave_the_bulk_alone():
    """Five directions with nine tenths of the energy: the raw variance is ten times that of the entries."""
    noise = normal(100, 300)
    noise[range(5), range(5)] += math.sqrt(9 * 100 * 300 / 5)
    one = Comparison((100, 300), singular_values(noise)).quantities
    fitted, raw = one["bulk_variance"]
    assert raw == pytest.approx(10, rel=0.03)
    assert fitted == pytest.approx(1, rel=0.1)
    assert one["spikes"][0] == 5
    assert one["energy_in_spikes"][0] == pytest.approx(0.9, rel=0.02)
    assert one["bulk_distance"][0] < 2.5 * one["bulk_distance"][1]
    assert one["largest_tracy_widom"][0] > 50
    assert one["largest_p_value"][0] < 1e-15


def test_a_bulk_of_another_kind_is_far():
    """A spectrum that falls like a power has no Marchenko–Pastur bulk; one of equal values has neither."""
    for sigma in (torch.arange(1, 201, dtype=torch.float64) ** -0.7, torch.ones(200, dtype=torch.float64)):
        distance, random = Comparison((200, 600), sigma).quantities["bulk_distance"]
        assert distance > 5 * random


def test_initial_matrix_has_the_given_spread():
    one = of_gaussian((64, 128), 0, factor=0.02)
    initial = one.initial(0.02)
    assert initial.keys() <= one.quantities.keys()
    for quantity, expected in initial.items():
        assert one.quantities[quantity][0] == pytest.approx(expected, rel=0.1 if quantity != "smallest" else 0.3), (
            quantity
        )
    product = of_gaussian((64, 16, 64), 0, factor=0.01**2).initial(0.01)
    assert product["bulk_variance"] == pytest.approx(1e-8)
    assert product["sum_squares"] == pytest.approx(64 * 64 * 16 * 1e-8)


def test_zero_matrix_has_no_bulk():
    one = Comparison((3, 5), torch.zeros(3, dtype=torch.float64)).quantities
    assert one["spikes"] == (0.0, BEYOND_EDGE)
    assert one["bulk_variance"] == (0.0, 0.0)
    assert {one[name][0] for name in ("bulk_distance", "largest_p_value", "largest_tracy_widom")} == {None}
