r"""How tokens become alike through layers of attention, and what stops them.

Attention replaces every token by an average of all, so differences between tokens shrink; the value map can enlarge
them again. With $D$ the diameter (largest distance between two tokens), $c$ a bound on the operator norm of
$W_Q W_K^\top$ and $v$ one on that of $W_V$, one layer
$X' = \mathrm{softmax}(X W_Q W_K^\top X^\top / \sqrt{d_k})\,X W_V$ obeys

$D' \leq v \tanh\left(\frac{c\,D^2}{4 \sqrt{d_k}}\right) D$  (`diameter_bound`).

Two rows of scores differ, up to a constant that softmax ignores, by at most $c D^2/\sqrt{d_k}$; two softmax rows whose
logarithms differ by a function of oscillation δ are at most tanh(δ/4) apart in total variation; and averages of the
same tokens with weights that far apart are at most that share of D apart. It follows that

- $v \leq 1$: tokens always converge to one another, in the end doubly exponentially (each layer cubes D);
- $v > 1$: they do if $D_0^2 < \frac{4 \sqrt{d_k}}{c} \mathrm{artanh}(1/v)$ (`critical_diameter`), and the constant is
  sharp: two orthogonal tokens just above it drift apart for ever (`orthogonal_factor`).

A skip connection $X' = \beta\,\mathrm{Attn}(X) + (1 - \beta) X$ replaces the factor $f$ by $1 - \beta(1 - f)$: the same
threshold, but at best geometric convergence.

Two numbers of a layer's attention say what it does to actual tokens, not in the worst case: the share of the values'
differences that its averages keep, and the share of their common part (`averaging_rate`).
"""

from math import atanh, exp, sqrt
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError

Norm = Literal["none", "post", "pre"]


def residual(x: Float[Tensor, "*batch tokens d"]) -> Float[Tensor, "*batch tokens d"]:
    r"""The tokens less their mean, $X - 1 \bar{x}^\top$, in float64.

    Properties:
        - 0 for equal tokens, unchanged by a shift of all  (tested: test_the_residual_ignores_shifts)
    """
    if not bool(torch.isfinite(x).all()):
        raise NumericsError(f"tokens of shape {tuple(x.shape)} hold NaN or Inf")
    y = x.to(torch.float64)
    return y - y.mean(-2, keepdim=True)


def residual_norm(x: Float[Tensor, "*batch tokens d"]) -> Float[Tensor, "*batch"]:
    r"""Frobenius norm of the residual.

    Properties:
        - orthogonal maps of the tokens leave it  (tested: test_the_residual_ignores_rotations)
    """
    size: Tensor = residual(x).norm(dim=(-2, -1))
    return size


def relative_residual(x: Float[Tensor, "*batch tokens d"]) -> Float[Tensor, "*batch"]:
    r"""Share of the tokens' length that distinguishes them, from 0 to 1.

    It is $|X - 1 \bar{x}^\top|_F / |X|_F$.

    Properties:
        - 0 for equal tokens, 1 where the mean is 0, unchanged by a factor  (tested: test_the_relative_residual)
    """
    total: Tensor = x.to(torch.float64).norm(dim=(-2, -1))
    if bool((total == 0).any()):
        raise NumericsError("all tokens are 0: there is nothing to compare their differences with")
    return residual_norm(x) / total


def difference_ratio(x: Float[Tensor, "*batch tokens d"]) -> Float[Tensor, "*batch"]:
    r"""The length of the tokens' differences over the length of their common part.

    It is infinite where the tokens have nothing in common.

    Definition:
        $\tau = |X - 1 \bar{x}^\top|_F\,/\,(\sqrt{n}\,|\bar{x}|)$, so that the relative residual is
        $\tau / \sqrt{1 + \tau^2}$.
    Properties:
        - that relation, and τ of a multiple is τ  (tested: test_the_difference_ratio)
    """
    y = x.to(torch.float64)
    common: Tensor = y.mean(-2).norm(dim=-1) * sqrt(x.shape[-2])
    return residual_norm(y) / common


def isotropic_ranks(tokens: int, d: int) -> tuple[float, float]:
    r"""Participation ratio and effective rank of n independent isotropic directions.

    Definition:
        $\frac{n d}{d + n - 1}$, since the squared singular values sum to n and the squares of those to n + n(n−1)/d on
        average; and $m\,e^{-m/2M}$, m and M the smaller and the larger of n and d: the entropy of the
        Marchenko–Pastur law.
    Properties:
        - random directions show both  (tested: test_isotropic_tokens)
    Reference:
        Page (1993), Average entropy of a subsystem, Physical Review Letters 71, 1291 (the entropy).
    """
    if tokens < 1 or d < 1:
        raise UsageError(f"a matrix has at least one row and one column; got {tokens} × {d}")
    small, large = min(tokens, d), max(tokens, d)
    return tokens * d / (d + tokens - 1), small * exp(-small / (2 * large))


def diameter(x: Float[Tensor, "*batch tokens d"]) -> Float[Tensor, "*batch"]:
    r"""Largest Euclidean distance between two tokens.

    Numerics:
        From differences, not from a Gram matrix: exact also where tokens nearly coincide. O(tokens²·d) memory.
    """
    r = residual(x)
    distances: Tensor = (r.unsqueeze(-2) - r.unsqueeze(-3)).norm(dim=-1)
    return distances.amax((-2, -1))


def diameter_bound(
    diameter: Float[Tensor, "*batch"], form: float, value: float, d_key: int, beta: float = 1.0
) -> Float[Tensor, "*batch"]:
    r"""Bound on the diameter after one layer; see the module.

    Definition:
        $\left(1 - \beta + \beta\,v \tanh\frac{c D^2}{4 \sqrt{d_k}}\right) D$, with $c \geq |W_Q W_K^\top|$ and
        $v \geq |W_V|$ (operator norms).
    Properties:
        - holds for random layers  (tested: test_the_diameter_bound_holds)
        - is attained by two tokens  (tested: test_two_tokens_attain_the_bound)
    """
    _share(beta)
    d = diameter.to(torch.float64)
    return (1 - beta + beta * value * torch.tanh(form * d.square() / (4 * sqrt(d_key)))) * d


def critical_diameter(form: float, value: float, d_key: int) -> float:
    r"""Diameter below which tokens converge to one another in every case.

    It is infinite where the value map enlarges nothing.

    Definition:
        $\sqrt{\frac{4 \sqrt{d_k}}{c} \mathrm{artanh}\frac{1}{v}}$ for $v > 1$.
    Properties:
        - two orthogonal tokens below it collapse, above it part  (tested: test_the_critical_diameter_is_sharp)
    """
    if form < 0 or value < 0 or d_key < 1:
        raise UsageError(f"norms must be at least 0 and d_key at least 1; got {form}, {value}, {d_key}")
    if value <= 1 or form == 0:
        return float("inf")
    return sqrt(4 * sqrt(d_key) / form * atanh(1 / value))


def orthogonal_factor(
    length: Float[Tensor, "*batch"], tokens: int, form: float, value: float, d_key: int
) -> Float[Tensor, "*batch"]:
    r"""The exact factor of the residual in one layer of n orthogonal tokens.

    Definition:
        For $W_Q W_K^\top = c\,1$ and $W_V = v\,1$ the tokens stay of the form $a e_i + b\,1$ and
        $a' = v \lambda a$, $\lambda = \frac{e^s - 1}{e^s + n - 1}$, $s = c a^2 / \sqrt{d_k}$. It exceeds 1, and a grows
        for ever, where $e^s > 1 + \frac{n}{v - 1}$.
    Properties:
        - equals attention run on such tokens  (tested: test_the_orthogonal_factor_is_exact)
    """
    if tokens < 2:
        raise UsageError(f"tokens can only become alike if there are two; got {tokens}")
    s = form * length.to(torch.float64).square() / sqrt(d_key)
    decay = torch.exp(-s)
    return value * -torch.expm1(-s) / (1 + (tokens - 1) * decay)


def skip_rate(beta: float) -> float:
    r"""Factor per layer of the difference ratio for flat attention and random $W_V$.

    Definition:
        $\frac{1 - \beta}{\sqrt{(1 - \beta)^2 + \beta^2}}$ in $X' = \beta\,\mathrm{Attn} + (1 - \beta) X$: flat
        attention adds the same vector to all tokens, so their differences keep only the share 1 − β, while to the
        mean a random vector of its own length is added at a right angle.
    Properties:
        - a random stack with flat attention follows it  (tested: test_flat_stacks_follow_the_skip_rate)
    """
    _share(beta)
    return (1 - beta) / sqrt((1 - beta) ** 2 + beta**2)


def averaging_rate(
    strength: float,
    gain: Float[Tensor, "*batch"],
    differences: Float[Tensor, "*batch"],
    common: Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch"]:
    r"""Factor per layer of the difference ratio, from the shares attention keeps.

    Definition:
        In $X' = s X + A X W$ let attention keep the share a of the differences' length and the share c of the common
        token's, and let W enlarge any vector by g and turn it to a right angle, as a random matrix does:
        $\frac{\tau'}{\tau} = \sqrt{\frac{s^2 + g^2 a^2}{s^2 + g^2 c^2}}$. Without a skip connection it is a/c; flat
        attention (a = 0, c = 1) gives `skip_rate` with s = 1 − β and g = β.
    Properties:
        - contains the skip rate  (tested: test_the_averaging_rate_contains_the_skip_rate)
        - random layers with any given weights follow it  (tested: test_random_layers_follow_the_averaging_rate)
    """
    if strength < 0 or bool((gain < 0).any()) or bool((strength + gain == 0).any()):
        raise UsageError(f"strength and gain are at least 0 and not both 0; got {strength}, {gain.tolist()}")
    g, a, c = (part.to(torch.float64) for part in (gain, differences, common))
    top, bottom = strength**2 + (g * a).square(), strength**2 + (g * c).square()
    return (top / bottom).sqrt()


def attention(
    x: Float[Tensor, "*#batch tokens d"],
    w_q: Float[Tensor, "*#batch d d_key"],
    w_k: Float[Tensor, "*#batch d d_key"],
    w_v: Float[Tensor, "*#batch d d"],
) -> Float[Tensor, "*#batch tokens d"]:
    r"""One head without mask or output map.

    It is $\mathrm{softmax}(X W_Q W_K^\top X^\top/\sqrt{d_k})\,X W_V$.
    """
    scores = (x @ w_q) @ (x @ w_k).mT / sqrt(w_q.shape[-1])
    return torch.softmax(scores, -1) @ (x @ w_v)


def layer_norm(x: Float[Tensor, "*batch tokens d"]) -> Float[Tensor, "*batch tokens d"]:
    """Each token centred and scaled to variance 1, so that its length is √d."""
    centred = x - x.mean(-1, keepdim=True)
    scale = centred.square().mean(-1, keepdim=True).sqrt()
    if bool((scale == 0).any()):
        raise NumericsError("LayerNorm of a token whose coordinates are all equal")
    return centred / scale


def random_stack(
    x: Float[Tensor, "*batch tokens d"],
    depth: int,
    generator: torch.Generator,
    *,
    beta: float = 1.0,
    norm: Norm = "none",
    gain: float = 1.0,
) -> list[Float[Tensor, "*batch tokens d"]]:
    r"""The tokens after 0, 1, …, depth layers of attention with fresh random matrices.

    Definition:
        $X' = \beta\,\mathrm{Attn}(X) + (1 - \beta) X$, entries of $W_Q, W_K$ of variance 1/d (Xavier for square
        matrices), of $W_V$ of variance gain²/d. `norm`: none; post, LayerNorm of the result; pre, as in most models
        of today, $X' = X + \beta\,\mathrm{Attn}(\mathrm{LayerNorm}(X))$: the stream is only added to.
    Properties:
        - the same generator gives the same stack  (tested: test_random_stacks_repeat)
    Numerics:
        float64. Without a norm the length of the tokens drifts; use `relative_residual`.
    """
    _share(beta)
    if depth < 0:
        raise UsageError(f"depth must be at least 0, got {depth}")
    if norm not in ("none", "post", "pre"):
        raise UsageError(f"norm must be none, post or pre; got {norm!r}")
    d = x.shape[-1]
    now = x.to(torch.float64)
    tokens_by_depth = [now]
    for _ in range(depth):
        shape = (3, *x.shape[:-2], d, d)
        w_q, w_k, w_v = torch.randn(shape, generator=generator, dtype=torch.float64) / sqrt(d)
        if norm == "pre":
            now = now + beta * attention(layer_norm(now), w_q, w_k, gain * w_v)
        else:
            now = beta * attention(now, w_q, w_k, gain * w_v) + (1 - beta) * now
        now = layer_norm(now) if norm == "post" else now
        tokens_by_depth.append(now)
    return tokens_by_depth


def _share(beta: float) -> None:
    if not 0 <= beta <= 1:
        raise UsageError(f"beta is the share of attention in a layer, from 0 to 1; got {beta}")
