"""The numbers of the lens `spectra` by their formulas: float64, sums and integrals."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import exp, log, pi, prod, sqrt
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, optimize, special


def defined_numbers(
    sigma: Sequence[float], sizes: tuple[int, ...], initial_sd: float | None
) -> list[dict[str, object]]:
    """The quantities of singular values and their null; a matrix has two sizes, a product three."""
    low, high, stable, effective, centre, spread = _null(sizes)
    total = sum(s * s for s in sigma)
    mean = total / len(sigma)
    above = [s * s for s in sigma if s * s > high * mean]
    entropy = -sum(s * s / total * log(s * s / total) for s in sigma if s > 0)
    larger = prod(sizes) / min(sizes)  # σ² of a random matrix is in the mean the variance times the larger sizes
    bulk = median(s * s for s in sigma) / _median(sizes)
    spikes = [s * s for s in sigma if s * s > high * bulk]
    place_of = (sigma[0] ** 2 / mean - centre) / spread if total else None
    gap = _largest_gap(sizes, [s * s / bulk for s in sigma[len(spikes) :][::-1]]) if total else None
    numbers: dict[str, tuple[float | None, float | None]] = {
        "mean_square": (mean, None),
        "sum_squares": (total, None),
        "largest": (sigma[0], sqrt(high * mean)),
        "smallest": (sigma[-1], sqrt(low * mean)),
        "stable_rank": (total / sigma[0] ** 2 if total else 0.0, stable),
        "effective_rank": (exp(entropy) if total else 0.0, effective),
        "above_edge": (float(len(above)), 0.1681),
        "energy_above_edge": (sum(above) / total if total else 0.0, 0.1681 * high / len(sigma)),
        "largest_tracy_widom": (place_of, -1.2065336),
        "largest_p_value": (None if place_of is None else _survival(place_of), 0.5),
        "bulk_variance": (bulk / larger, mean / larger),
        "bulk_distance": (gap, sqrt(2) / pi * (log(len(sigma)) + 1) / len(sigma)),
        "spikes": (float(len(spikes)), 0.1681),
        "energy_in_spikes": (sum(spikes) / total if total else 0.0, 0.1681 * high / len(sigma)),
    }
    fresh = _initial_numbers(sizes, len(sigma), (low, high), initial_sd) if initial_sd else {}
    return [
        {"quantity": name, "value": value, "null": null, "initial": fresh.get(name)}
        for name, (value, null) in numbers.items()
    ]


def _largest_gap(sizes: tuple[int, ...], bulk: Sequence[float]) -> float | None:
    """The largest gap between the distribution functions of ascending values and of the law."""
    law = _shares(sizes, bulk)
    gaps = [max(abs(f - i / len(law)), abs(f - (i + 1) / len(law))) for i, f in enumerate(law)]
    return max(gaps, default=None)


def _initial_numbers(
    sizes: tuple[int, ...], values: int, edges: tuple[float, float], initial_sd: float
) -> dict[str, float]:
    """The quantities of a matrix, or a product of two, when it was initialised."""
    variance = initial_sd ** (2 * (len(sizes) - 1))
    mean = variance * (prod(sizes) / min(sizes))
    numbers = {"mean_square": mean, "sum_squares": mean * values, "bulk_variance": variance}
    low, high = edges
    return numbers | {"largest": sqrt(high * mean), "smallest": sqrt(low * mean)}


# Edges, stable rank and effective rank of a random matrix with mean square 1, then centre and scale of its largest.
_Null = tuple[float, float, float, float, float, float]


def _null(sizes: tuple[int, ...]) -> _Null:
    return _matrix_null(*sizes) if len(sizes) == 2 else _product_null(*sizes)


def _matrix_null(rows: int, columns: int) -> _Null:
    """Marchenko–Pastur with mean 1; the largest value after Johnstone (2001)."""
    p, n = min(rows, columns), max(rows, columns)
    low, high = (1 - sqrt(p / n)) ** 2, (1 + sqrt(p / n)) ** 2
    spread = (sqrt(n) + sqrt(p)) * (1 / sqrt(n) + 1 / sqrt(p)) ** (1 / 3) / n
    r, c = sqrt(n - 1 / 2), sqrt(p - 1 / 2)
    largest = (r + c) ** 2 / n, (r + c) * (1 / r + 1 / c) ** (1 / 3) / n
    return low, high, p / (high - 1.2065336 * spread), p * exp(-p / n / 2), *largest


def _product_null(rows: int, inner: int, columns: int) -> _Null:
    """The law of the product with mean 1: its edges are where x(z) turns, right of 0 and left of −1."""
    p, n_1, n_2 = sorted((rows, inner, columns))
    c_1, c_2 = p / n_1, p / n_2

    def x(z: float) -> float:
        return (1 + z) * (1 + c_1 * z) * (1 + c_2 * z) / z

    z = exp(_minimum(lambda t: x(exp(t)), -10.0, 20.0))
    high, low = x(z), x(_minimum(lambda z: -x(z), -1 / c_1, -1.0))
    # x ≈ high + x″ (z − z_b)²/2, so the density is √(2/x″)·√(high − x)/(π·high) below the edge.
    curvature = sqrt(2 / (2 * c_1 * c_2 + 2 / z**3)) / high
    spread = (p * curvature) ** (-2 / 3)
    largest = high - 1.2065336 * spread
    return max(low, 0.0), high, p / largest, p * exp(-(c_1 + c_2) / 2 + c_1 * c_2 / 6), high, spread


def _minimum(f: Callable[[float], float], low: float, high: float) -> float:
    """The minimum of a function that has only one, by ternary search."""
    for _ in range(120):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if f(left) < f(right) else (left, high)
    return (low + high) / 2


def _density(sizes: tuple[int, ...], x: float) -> float:
    """The density of the law with mean 1: Marchenko–Pastur, or the root of the product's cubic."""
    p, *larger_sizes = sorted(sizes)
    if len(larger_sizes) == 1:
        c = p / larger_sizes[0]
        low, high = (1 - sqrt(c)) ** 2, (1 + sqrt(c)) ** 2
        return sqrt(max((x - low) * (high - x), 0.0)) / (2 * pi * c * x)
    c_1, c_2 = (p / n for n in larger_sizes)
    roots = np.roots([c_1 * c_2, c_1 * c_2 + c_1 + c_2, 1 + c_1 + c_2 - x, 1])
    return float(max(abs(roots.imag))) / (pi * x)


def _shares(sizes: tuple[int, ...], points: Sequence[float]) -> list[float]:
    """The share of the law with mean 1 below each of the ascending points."""
    low, high = _null(sizes)[:2]
    shares, share, last = [], 0.0, low
    for point in points:
        # Where the law reaches 0 its density is infinite there; with x = t³ the integrand is not.
        point = min(max(point, low), high)
        if point > last:
            share += integrate.quad(
                lambda t: 3 * t * t * _density(sizes, t**3),
                last ** (1 / 3),
                point ** (1 / 3),
                epsabs=1e-11,
                limit=200,
            )[0]
        last = point
        shares.append(share)
    return shares


@lru_cache(maxsize=256)
def _median(sizes: tuple[int, ...]) -> float:
    low, high = _null(sizes)[:2]
    return float(optimize.brentq(lambda x: _shares(sizes, [x])[0] - 0.5, low, high, xtol=1e-13))


@lru_cache(maxsize=1)
def _painleve() -> Callable[[float], NDArray[np.float64]]:
    """q with q″ = sq + 2q³, q → Ai; with it the integrals of q and of (x − s)q² from s on."""
    ai, slope = special.airy(8.0)[:2]
    squares = slope**2 - 8.0 * ai**2  # ∫ Ai² from 8 on
    start = [ai, slope, squares, integrate.quad(lambda x: (x - 8) * special.airy(x)[0] ** 2, 8, 30, epsabs=0)[0]]
    start.append(integrate.quad(lambda x: special.airy(x)[0], 8, 30, epsabs=0)[0])

    def step(s: float, y: NDArray[np.float64]) -> list[float]:
        return [y[1], s * y[0] + 2 * y[0] ** 3, -(y[0] ** 2), -y[2], -y[0]]

    integration = integrate.solve_ivp(step, (8.0, -7.0), start, "DOP853", rtol=1e-12, atol=1e-22, dense_output=True)
    solution: Callable[[float], NDArray[np.float64]] = integration.sol
    return solution


def _survival(s: float) -> float:
    """1 − F₁(s), F₁ = exp(−½∫q − ½∫(x − s)q²): Tracy and Widom (1996), Comm. Math. Phys. 177, 727."""
    if s > 8:
        return float(integrate.quad(lambda x: special.airy(x)[0], s, s + 20)[0]) / 2
    if s < -7:
        return 1.0
    *_, second, first = _painleve()(s)
    return 1 - exp(-(first + second) / 2)
