r"""Sinusoidal positions: d/2 points on circles that turn at different speeds.

$f(t)_{2k} = \sin \omega_k t$, $f(t)_{2k+1} = \cos \omega_k t$, $\omega_k = N^{-2k/d}$, $k = 0, …, d/2 - 1$.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError

BASE = 10_000.0  # N of the original transformer


def frequencies(d: int, base: float = BASE) -> Float[Tensor, " half"]:
    r"""$\omega_k = N^{-2k/d}$: from 1 down to $N^{-(d-2)/d}$.

    Properties:
        - the wavelengths $2\pi/\omega_k$ run from 2π to $2\pi N^{1-2/d}$  (tested: test_wavelengths)
    """
    if d < 2 or d % 2:
        raise UsageError(f"sinusoidal positions need an even width of at least 2, got {d}")
    if not (base > 0 and math.isfinite(base)):
        raise UsageError(f"the base must be positive and finite, got {base}")
    return torch.exp(torch.arange(0, d, 2, dtype=torch.float64) * (-math.log(base) / d))


def sinusoidal(t: Float[Tensor, "*positions"], d: int, base: float = BASE) -> Float[Tensor, "*positions d"]:
    r"""The encoding f(t), sine and cosine of each frequency side by side.

    Properties:
        - $\|f(t)\|^2 = d/2$ for every t  (tested: test_all_positions_have_one_length)
        - different integers have different encodings, whatever d and N: already $\omega_0 = 1$ separates them, since
          $2\pi$ is irrational  (tested: test_positions_differ)
        - but not by a fixed margin: with d = 2 positions 0 and 710 are 6e-5 apart  (tested: test_near_collision)
    Numerics:
        float64; the angle $\omega_k t$ is exact to about $10^{-16} t$.
    Reference:
        Vaswani et al. (2017), Attention is all you need, section 3.5.
    """
    if not bool(torch.isfinite(t).all()):
        raise NumericsError("a position is NaN or Inf")
    angle = t.to(torch.float64)[..., None] * frequencies(d, base).to(t.device)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def shift(offset: float, d: int, base: float = BASE) -> Float[Tensor, "d d"]:
    r"""The matrix that moves every position by `offset`: $f(t + s) = f(t)\,M(s)$.

    Rows act on the right.

    Definition:
        One rotation per frequency: $(\sin\omega t, \cos\omega t) \mapsto (\sin\omega(t+s), \cos\omega(t+s))$.
    Properties:
        - moves all positions alike  (tested: test_shift_moves_positions)
        - orthogonal, and $M(r) M(s) = M(r + s)$  (tested: test_shifts_are_a_group)
    """
    angle = frequencies(d, base) * offset
    cosine, sine = angle.cos(), angle.sin()
    turn = torch.stack([torch.stack([cosine, -sine], -1), torch.stack([sine, cosine], -1)], -2)
    matrix = torch.zeros(d, d, dtype=torch.float64)
    for k, block in enumerate(turn):
        matrix[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = block
    return matrix


def similarity(offset: Float[Tensor, "*offsets"], d: int, base: float = BASE) -> Float[Tensor, "*offsets"]:
    r"""The inner product of two encodings, which depends on their offset alone.

    Definition:
        $f(t) \cdot f(t + s) = \sum_k \cos \omega_k s$.
    Properties:
        - equals the inner product at every place of the pair  (tested: test_similarity_depends_on_the_offset)
        - even in s: it does not tell before from after  (tested: test_similarity_depends_on_the_offset)
        - $\|f(t+s) - f(t)\|^2 = d - 2\,$similarity  (tested: test_similarity_is_a_distance)
    """
    return (offset.to(torch.float64)[..., None] * frequencies(d, base).to(offset.device)).cos().sum(-1)


def nearest_pair(length: int, d: int, base: float = BASE) -> tuple[int, float]:
    r"""The offset below `length` with the most similar positions, and their distance.

    Definition:
        $\min_{1 \le s < n} \|f(s) - f(0)\| = \min_s 2 \sqrt{\sum_k \sin^2(\omega_k s / 2)}$; by the shift it is the
        least distance between any two of n positions.
    Properties:
        - equals the least distance of all pairs  (tested: test_nearest_pair_by_brute_force)
    Numerics:
        From sines of half angles: no cancellation where positions nearly coincide.
    """
    if length < 2:
        raise UsageError(f"a pair needs at least two positions, got {length}")
    s = torch.arange(1, length, dtype=torch.float64)
    gaps = 2 * (s[:, None] * frequencies(d, base) / 2).sin().square().sum(-1).sqrt()
    best = int(gaps.argmin())
    return best + 1, float(gaps[best])
