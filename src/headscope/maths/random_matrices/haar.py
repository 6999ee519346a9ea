r"""Uniformly random directions, pairs, bases and subspaces, and their moments.

"Uniform" is the law that no rotation changes (Haar measure): the null for every statement about directions.
"""

from math import asin, log, sin, sqrt, tan

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from headscope.errors import UsageError


def uniform_directions(count: int, n: int, generator: Generator | None = None) -> Float[Tensor, "count n"]:
    r"""Independent unit vectors, uniform on the sphere in n dimensions.

    Properties:
        - length 1; $\mathbb{E}[x_i x_j] = \delta_{ij}/n$; $\mathbb{E}[x_i^4] = 3/(n(n+2))$
          (tested: test_directions_are_uniform)
    Numerics:
        A normal vector divided by its length.
    """
    _positive(count=count, n=n)
    x = torch.randn(count, n, generator=generator, dtype=torch.float64)
    directions: Tensor = x / x.norm(dim=-1, keepdim=True)
    return directions


def pairs_at_cosine(
    count: int, n: int, cosine: float, generator: Generator | None = None
) -> tuple[Float[Tensor, "count n"], Float[Tensor, "count n"]]:
    r"""Uniform pairs of unit vectors with $\langle x, y\rangle = $ cosine.

    Properties:
        - the cosine is exact; each vector alone is uniform  (tested: test_pairs_have_their_cosine)
    """
    _positive(count=count, n=n)
    if not -1 <= cosine <= 1 or (n == 1 and abs(cosine) != 1):
        raise UsageError(f"no two directions in {n} dimensions have the cosine {cosine}")
    x = uniform_directions(count, n, generator)
    if n == 1:
        return x, cosine * x
    z = torch.randn(count, n, generator=generator, dtype=torch.float64)
    for _ in range(2):  # the second pass removes what rounding left of the first
        z = z - (z * x).sum(-1, keepdim=True) * x
        z = z / z.norm(dim=-1, keepdim=True)
    return x, cosine * x + (1 - cosine**2) ** 0.5 * z


def haar_frames(
    count: int, n: int, size: int | None = None, generator: Generator | None = None
) -> Float[Tensor, "count n size"]:
    r"""Independent uniform matrices with `size` orthonormal columns (default: n).

    Properties:
        - $Q^\top Q = 1$  (tested: test_frames_are_orthonormal)
        - the law does not change under rotation: first, second, fourth moments  (tested: test_frames_are_uniform)
    Numerics:
        QR of a Gaussian matrix with the signs of R's diagonal moved into Q; without that the law is not uniform.
    Reference:
        Mezzadri (2007), How to generate random matrices from the classical compact groups, Notices AMS 54, 592.
    """
    size = n if size is None else size
    _positive(count=count, n=n, size=size)
    if size > n:
        raise UsageError(f"{n} dimensions have no {size} orthonormal vectors")
    q, r = torch.linalg.qr(torch.randn(count, n, size, generator=generator, dtype=torch.float64))
    signs = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    frames: Tensor = q * signs[..., None, :]
    return frames


def product_moments(n: int, cosine: float) -> tuple[float, float]:
    r"""Mean squares of $x_i y_i$ and of $x_i y_j$, i ≠ j, for pairs at this cosine.

    The pairs are uniform pairs of unit vectors.

    Definition:
        With k the cosine: $\frac{1 + 2k^2}{n(n+2)}$ and $\frac{n + 1 - 2k^2}{(n-1)\,n\,(n+2)}$.
    Properties:
        - n of the first and n(n−1) of the second sum to 1  (tested: test_product_moments_sum_to_one)
        - those of samples  (tested: test_product_moments_of_samples)
    """
    if n < 2 or not -1 <= cosine <= 1:
        raise UsageError(f"no pair in {n} dimensions has distinct coordinates and the cosine {cosine}")
    square = cosine**2
    return (1 + 2 * square) / (n * (n + 2)), (n + 1 - 2 * square) / ((n - 1) * n * (n + 2))


def subspace_overlap(n: int, first: int, second: int) -> tuple[float, float]:
    r"""Mean and variance of $\|P^\top Q\|_F^2$ for two independent uniform subspaces.

    Definition:
        The sum of squared cosines of the principal angles. With a and b the two dimensions: mean $ab/n$, variance
        $\frac{2ab(n-a)(n-b)}{n^2(n-1)(n+2)}$.
    Properties:
        - those of samples  (tested: test_overlap_of_random_subspaces)
        - a single direction: $x_1^2$  (tested: test_overlap_of_a_direction)
        - variance 0 where one subspace is everything  (tested: test_overlap_of_a_direction)
    Reference:
        Second moments of Haar projections: Collins and Śniady (2006), Commun. Math. Phys. 264, 773.
    """
    _positive(n=n)
    if not (0 <= first <= n and 0 <= second <= n):
        raise UsageError(f"{n} dimensions have no subspaces of {first} and {second}")
    a, b = first, second
    return a * b / n, 2 * a * b * (n - a) * (n - b) / (n**2 * (n - 1) * (n + 2)) if n > 1 else 0.0


def largest_cosine_square(n: int, first: int, second: int) -> tuple[float, float]:
    r"""Centre and scale of the largest principal cosine as a Tracy–Widom variable.

    With centre m, scale w and largest cosine c, $(\ln\frac{c^2}{1 - c^2} - m)/w$ follows F₁.

    Definition:
        For independent uniform subspaces of dimensions a, b with $a + b \leq n$ (else c = 1). With
        $\sin^2\frac{\gamma}{2} = \frac{\min(a,b) - 1/2}{n - 1}$ and
        $\sin^2\frac{\varphi}{2} = \frac{\max(a,b) - 1/2}{n - 1}$:
        $m = 2\ln\tan\frac{\varphi + \gamma}{2}$,
        $w^3 = \frac{16}{(n-1)^2}\,\frac{1}{\sin^2(\varphi + \gamma)\,\sin\varphi\,\sin\gamma}$.
    Properties:
        - mean and spread of samples  (tested: test_largest_cosine_of_random_subspaces)
    Reference:
        Johnstone (2008), Annals of Statistics 36, 2638: the largest canonical correlation.
    """
    _positive(n=n, first=first, second=second)
    if first + second > n - 1:
        raise UsageError(f"subspaces of {first} and {second} of {n} dimensions (almost) always share a direction")
    gamma, phi = (2 * asin(sqrt((size - 0.5) / (n - 1))) for size in sorted((first, second)))
    centre = 2 * log(tan((phi + gamma) / 2))
    cube = 16 / (n - 1) ** 2 / (sin(phi + gamma) ** 2 * sin(phi) * sin(gamma))
    return centre, cube ** (1 / 3)


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"{name} must be at least 1, got {size}")
