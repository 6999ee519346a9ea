r"""Points on a sphere, arcs between them, and divergences of softmaxes on an arc.

A vector of scores with a fixed length l lies on a sphere. Its softmax does not change when a constant is added to all
scores, so that each `centred` point (whose entries sum to 0) represents one distribution.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError
from headscope.maths.attention.softmax import checked_scores, softmax

# Below this sine of the angle, opposite points have no unique shortest arc in float64.
_ANTIPODAL = 1e-12
_SAME_LENGTH = 1e-6


def uniform_on_sphere(
    count: int, dimension: int, radius: float = 1.0, *, generator: torch.Generator, centred: bool = False
) -> Float[Tensor, "count dimension"]:
    r"""Independent points that are uniform on a sphere.

    Definition:
        $l\,g/\|g\|$ with g standard normal; with `centred` its mean entry is taken out first, which gives the uniform
        law on the sphere within $\sum_i v_i = 0$.
    Properties:
        - the length is the radius  (tested: test_points_lie_on_the_sphere)
        - entries have mean 0 and variance l²/n  (tested: test_points_are_isotropic)
        - centred points sum to 0  (tested: test_points_lie_on_the_sphere)
    Reference:
        Muller (1959), A note on a method for generating points uniformly on n-dimensional spheres.
    """
    _check_sphere(dimension - centred, radius, need=1)
    return radius * _unit(_normal(count, dimension, generator, centred))


def pairs_at_angle(
    count: int,
    dimension: int,
    angle: float,
    radius: float = 1.0,
    *,
    generator: torch.Generator,
    centred: bool = False,
) -> tuple[Float[Tensor, "count dimension"], Float[Tensor, "count dimension"]]:
    r"""Pairs of points with one angle between them, otherwise uniform.

    Definition:
        $v = l\,e_1$, $w = l\,(\cos\theta\,e_1 + \sin\theta\,e_2)$ with $(e_1, e_2)$ a uniform orthonormal pair.
    Properties:
        - length and angle are the requested ones  (tested: test_pairs_have_their_angle)
        - w alone is uniform as well  (tested: test_points_are_isotropic)
    """
    _check_sphere(dimension - centred, radius, need=2)
    if not 0 <= angle <= math.pi:
        raise UsageError(f"an angle between two vectors lies between 0 and π, got {angle}")
    first = _unit(_normal(count, dimension, generator, centred))
    second = _normal(count, dimension, generator, centred)
    for _ in range(2):  # twice is enough: orthogonal to rounding
        second = _unit(second - (second * first).sum(-1, keepdim=True) * first)
    return radius * first, radius * (math.cos(angle) * first + math.sin(angle) * second)


def angle_between(v: Float[Tensor, "*#batch n"], w: Float[Tensor, "*#batch n"]) -> Float[Tensor, "..."]:
    r"""The angle between two vectors, from 0 to π.

    Definition:
        $\theta = 2\,\mathrm{atan2}(\|\hat{v} - \hat{w}\|, \|\hat{v} + \hat{w}\|)$ with unit vectors.
    Properties:
        - precise near 0 and π, where the arc cosine is not  (tested: test_small_angles_are_precise)
    Reference:
        Kahan (2006), How futile are mindless assessments of roundoff in floating-point computation?, section 12.
    """
    a, b = _unit(v.to(torch.float64)), _unit(w.to(torch.float64))
    return 2 * torch.atan2(torch.linalg.vector_norm(a - b, dim=-1), torch.linalg.vector_norm(a + b, dim=-1))


def slerp(
    v: Float[Tensor, "*#batch n"], w: Float[Tensor, "*#batch n"], t: Float[Tensor, " points"]
) -> Float[Tensor, "..."]:
    r"""Points of the shortest arc from v (t = 0) to w (t = 1), at constant speed.

    Definition:
        $\frac{\sin((1-t)\theta)}{\sin\theta}\,v + \frac{\sin(t\theta)}{\sin\theta}\,w$.
    Properties:
        - starts at v, ends at w, keeps the length  (tested: test_slerp_stays_on_the_sphere)
        - equals the definition  (tested: test_slerp_equals_its_definition)
        - angle tθ from v, also for θ = 1e-9 and π − 1e-6  (tested: test_slerp_walks_at_constant_speed)
        - opposite points are an error  (tested: test_opposite_points_have_no_arc)
    Numerics:
        Written as $\cos(t\theta)\,v + \frac{\sin(t\theta)}{\sin\theta}\,w_\perp$ with $w_\perp$ the part of w that is
        orthogonal to v: nothing cancels near θ = 0.
    Reference:
        Shoemake (1985), Animating rotation with quaternion curves. https://doi.org/10.1145/325334.325242
    """
    start, across, angle, sine = _arc(v, w)
    turn = angle * t.to(torch.float64)
    ratio = torch.where(sine > 0, turn.sin() / torch.where(sine > 0, sine, 1.0), t.to(torch.float64))
    return turn.cos().unsqueeze(-1) * start + ratio.unsqueeze(-1) * across


def slerp_weights(
    angle: Float[Tensor, "*batch"], t: Float[Tensor, " points"]
) -> tuple[Float[Tensor, "*batch points"], Float[Tensor, "*batch points"]]:
    r"""The weights of both ends in a point of the arc between them.

    Every linear function of the point mixes with these weights.

    Definition:
        $\frac{\sin((1-t)\theta)}{\sin\theta}$ and $\frac{\sin(t\theta)}{\sin\theta}$.
    Properties:
        - the arc itself  (tested: test_weights_make_the_arc)
    Numerics:
        For angles that are neither 0 nor π.
    """
    theta = angle.to(torch.float64)[..., None]
    return ((1 - t) * theta).sin() / theta.sin(), (t * theta).sin() / theta.sin()


def arc_law(
    target: Float[Tensor, "*batch n"], angle: Float[Tensor, "*some"], t: Float[Tensor, " points"]
) -> Float[Tensor, "*batch points"]:
    r"""The mean divergence along an arc towards scores w, from w alone.

    It holds where every point of the arc is as random as w.

    Definition:
        $B\,(1 - \cos((1-t)\theta))$ with $B = \langle \mathrm{softmax}(w), w - \bar{w} \rangle$, the mean taken over
        the visible keys.
    Properties:
        - the mean of `kl_divergence` over random pairs, at every length
          (tested: test_the_law_is_the_mean_of_random_arcs)
    Reference:
        Wertich, section 5.2.4, corrected: true of the mean over random pairs, not of each.
    """
    w = checked_scores(target)
    visible = torch.isfinite(w)
    visible_scores = torch.where(visible, w, 0.0)
    mean = visible_scores.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp_min(1)
    overlap = (softmax(w) * torch.where(visible, visible_scores - mean, 0.0)).sum(-1)
    return overlap[..., None] * (1 - ((1 - t) * angle.to(torch.float64)[..., None]).cos())


def slerp_derivative(
    v: Float[Tensor, "*#batch n"], w: Float[Tensor, "*#batch n"], t: Float[Tensor, " points"]
) -> Float[Tensor, "..."]:
    r"""The velocity along the arc.

    Definition:
        $\frac{\theta}{\sin\theta}\left(\cos(t\theta)\,w - \cos((1-t)\theta)\,v\right)$.
    Properties:
        - agrees with differences of slerp  (tested: test_slerp_derivative_equals_differences)
        - has the length θl and is orthogonal to the point  (tested: test_slerp_derivative_is_tangent)
    """
    start, across, angle, sine = _arc(v, w)
    turn = angle * t.to(torch.float64)
    ratio = torch.where(sine > 0, angle / torch.where(sine > 0, sine, 1.0), 1.0) * turn.cos()
    return -(angle * turn.sin()).unsqueeze(-1) * start + ratio.unsqueeze(-1) * across


def cross_entropy(target: Float[Tensor, "*#batch n"], scores: Float[Tensor, "*#batch n"]) -> Float[Tensor, "..."]:
    r"""Cross-entropy of the softmaxes of two vectors of scores, in nats.

    Definition:
        $H(p, q) = -\sum_i p_i \ln q_i = \mathrm{lse}(s) - \langle p, s \rangle$, p = softmax(target), q = softmax(s).
    Properties:
        - Kullback–Leibler divergence plus the entropy of the target  (tested: test_divergences_equal_scipy)
        - gradient q − p in the scores  (tested: test_gradient_of_the_cross_entropy)
    Numerics:
        ∞ where the target has mass on a key that is hidden from the scores; a hidden target row gives 0.
    """
    p, s = softmax(target), checked_scores(scores)
    lse = torch.logsumexp(s, -1, keepdim=True)
    return torch.where(p > 0, p * (lse - s), 0.0).sum(-1)


def kl_divergence(target: Float[Tensor, "*#batch n"], scores: Float[Tensor, "*#batch n"]) -> Float[Tensor, "..."]:
    r"""Kullback–Leibler divergence of the softmaxes of two vectors of scores, in nats.

    Definition:
        $D(p \| q) = \sum_i p_i \ln(p_i/q_i) = \ln \sum_i p_i\,e^{d_i}$, $d = \delta - \langle p, \delta \rangle$,
        $\delta$ = scores − target.
    Properties:
        - agrees with scipy  (tested: test_divergences_equal_scipy)
        - non-negative, 0 for scores that differ by a constant  (tested: test_divergences_are_not_negative)
        - for small scores half the variance of their difference
          (tested: test_small_scores_make_a_euclidean_divergence)
    Numerics:
        $\ln(1 + \sum p\,(e^d - 1 - d))$ where the differences are below 1: relative precision also for nearly equal
        scores, where the difference of two cross-entropies would be rounding. ∞ where q hides what p has.
    """
    a, b = checked_scores(target), checked_scores(scores)
    p = softmax(a)
    has_mass = p > 0
    delta = torch.where(has_mass, torch.where(has_mass, b, 0.0) - torch.where(has_mass, a, 0.0), 0.0)
    hidden = (has_mass & torch.isinf(b)).any(-1)
    clean = torch.where(torch.isinf(delta), 0.0, delta)
    d = torch.where(has_mass, clean - (p * clean).sum(-1, keepdim=True), 0.0)
    # The small form needs a q without mass outside p's keys; such mass exists only where targets are hidden.
    outside = torch.where(has_mass, -math.inf, b)
    small = (d.abs().amax(-1) < 1) & torch.isinf(outside).all(-1)
    near = torch.log1p((p.expand_as(d)[small] * _exponential_remainder(d[small])).sum(-1))
    shares = torch.where(has_mass, p, 1.0).log()
    lse = torch.logsumexp(b, -1, keepdim=True)
    far = torch.where(
        has_mass, p * (shares - torch.where(torch.isinf(b), 0.0, b) + torch.where(torch.isinf(lse), 0.0, lse)), 0.0
    )
    divergence = far.sum(-1).masked_scatter(small, near).clamp_min(0.0)
    return torch.where(hidden, math.inf, divergence)


def jensen_shannon(first: Float[Tensor, "*#batch n"], second: Float[Tensor, "*#batch n"]) -> Float[Tensor, "..."]:
    r"""Jensen–Shannon divergence of the softmaxes of two vectors of scores, in nats.

    Definition:
        $\frac{1}{2} D(p \| m) + \frac{1}{2} D(q \| m)$ with $m = (p+q)/2$.
    Properties:
        - symmetric, between 0 and ln 2  (tested: test_divergences_are_not_negative)
        - agrees with scipy  (tested: test_divergences_equal_scipy)
        - for small scores a quarter of the Kullback–Leibler divergence
          (tested: test_small_scores_make_a_euclidean_divergence)
    Numerics:
        Terms $m\,g(x)$ with $x = (p-q)/(p+q)$ and $g(x) = \frac{1}{2}((1+x)\ln(1+x) + (1-x)\ln(1-x))$, all
        non-negative: no cancellation between the two divergences. What is left is the rounding of p − q, a relative
        error of about 1e-16 / |x|. Finite always.
    """
    p, q = softmax(first), softmax(second)
    m = (p + q) / 2
    x = ((p - q) / torch.where(m > 0, 2 * m, 1.0)).clamp(-1.0, 1.0)
    square = x.square()
    # Where |x| < 0.03, eight terms of the series x²/(1·2) + x⁴/(3·4) + … are exact to rounding.
    series = sum((square**k / (2 * k * (2 * k - 1)) for k in range(1, 9)), torch.zeros_like(x))
    direct = (torch.special.xlog1py(1 + x, x) + torch.special.xlog1py(1 - x, -x)) / 2
    divergence: Tensor = (m * torch.where(x.abs() < 0.03, series, direct)).sum(-1)
    return divergence


def half_chord(target: Float[Tensor, "*#batch n"], scores: Float[Tensor, "*#batch n"]) -> Float[Tensor, "..."]:
    r"""The limit of the Kullback–Leibler divergence for small scores.

    It is half a squared distance.

    Definition:
        $\frac{1}{2}\,\mathrm{Var}_i(s_i - r_i) = \frac{1}{2n}\|s - r\|^2 - \frac{1}{2}(\bar{s} - \bar{r})^2$; for
        centred points of a sphere with the angle α between them $\frac{l^2}{n}(1 - \cos\alpha)$.
    Properties:
        - the relative error falls with the first power of the radius
          (tested: test_small_scores_make_a_euclidean_divergence)
        - a sinusoid along an arc of centred points  (tested: test_the_chord_is_a_sinusoid)
    """
    difference = checked_scores(scores) - checked_scores(target)
    if not bool(torch.isfinite(difference).all()):
        raise UsageError("the distance of scores needs finite scores: leave hidden keys out")
    return difference.var(-1, correction=0) / 2


def _arc(v: Float[Tensor, "*#batch n"], w: Float[Tensor, "*#batch n"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """v, the part of w across v, the angle and its sine.

    Each has an axis for the points of the arc.
    """
    v, w = v.to(torch.float64), w.to(torch.float64)
    length, other = (torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (v, w))
    if not bool((torch.isfinite(length) & torch.isfinite(other) & (length > 0)).all()):
        raise NumericsError("an arc needs finite vectors that are not zero")
    if bool(((length - other).abs() > _SAME_LENGTH * length).any()):
        raise UsageError("both ends of an arc must have the same length", hint="scale one of them first")
    unit = v / length
    across = w - (w * unit).sum(-1, keepdim=True) * unit
    across = across - (across * unit).sum(-1, keepdim=True) * unit
    sine = torch.linalg.vector_norm(across, dim=-1, keepdim=True) / length
    cosine = (w * unit).sum(-1, keepdim=True) / length
    if bool(((sine < _ANTIPODAL) & (cosine < 0)).any()):
        raise UsageError("opposite points have no unique shortest arc between them", hint="choose a point between")
    return v.unsqueeze(-2), across.unsqueeze(-2), torch.atan2(sine, cosine), sine


def _exponential_remainder(d: Tensor) -> Tensor:
    """e^d − 1 − d without cancellation, for |d| ≤ 1."""
    # Taylor terms d²/2! … d^20/20!: the rest is below 1e-18 of the sum for |d| ≤ 1.
    total = torch.full_like(d, 1 / math.factorial(20))
    for k in range(19, 1, -1):
        total = torch.addcmul(d.new_tensor(1 / math.factorial(k)), total, d)
    return total * d.square()


def _normal(count: int, dimension: int, generator: torch.Generator, centred: bool) -> Tensor:
    x = torch.randn(count, dimension, generator=generator, dtype=torch.float64)
    return x - x.mean(-1, keepdim=True) if centred else x


def _unit(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    if not bool((torch.isfinite(length) & (length > 0)).all()):
        raise NumericsError("a direction needs a finite vector that is not zero")
    unit: Tensor = x / length
    return unit


def _check_sphere(dimension: int, radius: float, need: int) -> None:
    if dimension < need:
        raise UsageError(f"this needs at least {need} dimension(s) besides the mean, got {dimension}")
    if not (radius > 0 and math.isfinite(radius)):
        raise UsageError(f"a radius must be positive and finite, got {radius}")
