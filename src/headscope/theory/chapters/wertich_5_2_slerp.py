r"""Wertich, section 5.2.4: divergences of softmaxes along an arc of the sphere.

For a fixed target w the cross-entropy along the arc u(t) is lse(u) − ⟨Softmax(w), u⟩. The second part is linear in u
and therefore a sinusoid in t; the first, the log-sum-exp, is not. Averaged over random pairs the first part is
constant, because u(t) is as random as w: then the curve is a sinusoid exactly.
"""

import math

import numpy as np
import torch
from torch import Tensor

from headscope.core.figure import Curves, Series
from headscope.core.verdict import Comparison, Evidence
from headscope.maths.attention.softmax import entropy, log_sum_exp, softmax
from headscope.maths.geometry.sinusoid_fit import fit_sinusoid
from headscope.maths.geometry.sphere import (
    cross_entropy,
    half_chord,
    jensen_shannon,
    kl_divergence,
    pairs_at_angle,
    slerp,
    slerp_derivative,
    uniform_on_sphere,
)
from headscope.theory.checks import Lab, exact, fact, mean_of, order_of, trend_of
from headscope.theory.works import wertich

CHAPTER = wertich()

_RIGHT = math.pi / 2
_ROUNDING = 1e-9  # of a relative residual
_N = 16


def _times(points: int = 21) -> Tensor:
    return torch.linspace(0, 1, points, dtype=torch.float64)


def _divergences(lab: Lab, count: int, radius: float, n: int = _N, centred: bool = False, points: int = 21) -> Tensor:
    """KL(Softmax(w) | Softmax(u(t))) for random orthogonal pairs: pairs × times."""
    v, w = pairs_at_angle(count, n, _RIGHT, radius, generator=lab.generator(f"{n} {centred}"), centred=centred)
    return kl_divergence(w[:, None], slerp(v, w, _times(points)))


def _residuals(curves: Tensor) -> Tensor:
    """Residual of the best sinusoid of frequency π/2, relative to the curve's range."""
    t = _times(curves.shape[-1])
    return torch.tensor([fit_sinusoid(t, curve, _RIGHT).residual for curve in curves], dtype=torch.float64)


def _equal_means(quantity: str, predicted: Tensor, measured: Tensor) -> Comparison:
    """Compares two means over the same pairs.

    The error is that of the mean difference.
    """
    error = float((measured - predicted).std()) / len(measured) ** 0.5
    return Comparison(quantity, float(predicted.mean()), float(measured.mean()), error)


def _zero_residual(quantity: str, measured: float) -> Comparison:
    return Comparison(quantity, 0.0, measured, _ROUNDING)


@CHAPTER.claim(
    "W-5.2m",
    section="5.2.4",
    statement="Conjecture with a proof: for orthogonal unit vectors v and w, the cross-entropy between Softmax(w) and "
    "the softmax along the arc from v to w is exactly a cosine of frequency π/2 plus a constant.",
    formula=r"H(\mathrm{Sm}(w) \,|\, \mathrm{Sm}(\mathrm{SLERP}(v, w, t))) = a \cos(\frac{\pi}{2} t + b) + c",
    correction="False for a single pair (it misses by up to a few percent at n = 16, radius one). It is true of the "
    "average over random pairs, for every radius l, dimension n and angle θ: there the log-sum-exp lse(u(t)) has the "
    "same mean at every t. For one pair it becomes true only for small radius and centred vectors (Σv = Σw = 0): the "
    "relative deviation then falls like the first power of l. Without centring a deviation of order 1/n remains at "
    "every radius.",
    corrected=r"E\,H = E[\mathrm{lse}(w)] - B \cos((1-t)\theta), \quad B = E\langle \mathrm{Sm}(w), w \rangle; \quad "
    r"D_{KL} = \frac{1}{2}\mathrm{Var}_i(u_i - w_i) + O(l^3)",
    lesson="With lse(u) = ln Σ e^(u_i), the cross-entropy is lse(u) − ⟨Softmax(w), u⟩. The second part is a sinusoid "
    "because u moves on a circle; the first bends, and the proof loses it by treating the amplitudes Softmax(w) − "
    "Softmax(u) as constant although u moves. Averaging over random pairs removes the bend, which is why an averaged "
    "plot looks perfect.",
)
def cross_entropy_along_an_arc(lab: Lab) -> Evidence:
    t = _times()
    count, time_indices = 2000, (0, 6, 12)
    v, w = pairs_at_angle(count, _N, _RIGHT, generator=lab.generator("unit"))
    u = slerp(v, w, t)
    curves = cross_entropy(w[:, None], u)
    worst = float(_residuals(curves[:40]).max())
    overlap = (softmax(w) * w).sum(-1)
    corrected = []
    for k in time_indices:
        # In the mean lse(u) is lse(w), since both are uniform on the sphere.
        predicted = log_sum_exp(w) - torch.sin(_RIGHT * t[k]) * overlap
        name = f"mean cross-entropy at t = {float(t[k]):.1f}, {count:,} pairs, radius 1"
        corrected.append(_equal_means(name, predicted, curves[:, k]))
    angle, time = 1.0, 0.3
    a, b = pairs_at_angle(count, _N, angle, 5.0, generator=lab.generator("other"))
    other = log_sum_exp(b) - math.cos((1 - time) * angle) * (softmax(b) * b).sum(-1)
    moved = cross_entropy(b, slerp(a, b, torch.tensor([time], dtype=torch.float64))[:, 0])
    corrected.append(_equal_means("the same at angle 1, radius 5, t = 0.3", other, moved))
    radii = (0.02, 0.01, 0.005, 0.0025)
    falling = [float(_residuals(_divergences(lab, 24, radius, centred=True)).median()) for radius in radii]
    corrected.append(order_of("power of the radius in the relative deviation, centred pairs", "l", 1.0, radii, falling))
    # Divergence against half the variance of u − w, and the residual of a sinusoid, on the way to radius 0.
    sizes = (1e-2, 5e-3, 2.5e-3)
    gaps, left = [], []
    for size in sizes:
        free = kl_divergence(size * w[:40, None], size * u[:40])
        chord = half_chord(size * w[:40, None], size * u[:40])
        gaps.append(float((free / chord)[:, :-1].sub(1).abs().max()))
        left.append(float(_residuals(free).median()))
    corrected.append(order_of("power of the radius in divergence over half the variance of u − w, less 1, any pairs",
                              "l", 1.0, sizes, gaps))  # fmt: skip
    corrected.append(order_of("power of the radius in the relative deviation, uncentred pairs: it stays", "l", 0.0,
                              sizes, left))  # fmt: skip
    return Evidence(
        stated=(_zero_residual("deviation from the best sinusoid over the range, worst of 40 pairs, n = 16", worst),),
        corrected=tuple(corrected),
        figures=(_deviation_by_radius(lab),),
    )


def _deviation_by_radius(lab: Lab) -> Curves:
    radii = np.logspace(-2, 2, 9)
    series = []
    for n in (16, 256):
        for centred in (True, False):
            y = [
                float(_residuals(_divergences(lab, 12, float(r), n=n, centred=centred, points=11)).median())
                for r in radii
            ]
            series.append(Series(f"n = {n}, {'centred' if centred else 'any'} pairs", radii, np.array(y)))
        reference = series[-2].y[0] * radii / radii[0]
        series.append(Series(f"∝ l, n = {n}", radii[:7], reference[:7], role="theory"))
    return Curves(
        "sinusoid-deviation",
        "How far the divergence along an arc is from a sinusoid",
        "Largest deviation of the best sinusoid over the range of the curve, median of 12 random orthogonal pairs. "
        "Centred vectors (entries sum to 0) approach a sinusoid like the radius; others keep a deviation of order 1/n.",
        "radius l",
        "relative deviation",
        tuple(series),
        log_x=True,
        log_y=True,
    )


@CHAPTER.claim(
    "W-5.2n",
    section="5.2.4, Fig. 5.1",
    statement="Corollary: for orthogonal unit vectors the Kullback–Leibler divergence of the softmaxes along the arc "
    "is a sinusoid; its average over 1000 pairs is shown as one.",
    formula=r"D_{KL}(\mathrm{Sm}(w) \| \mathrm{Sm}(\mathrm{SLERP}(v, w, t))) = a \cos(\frac{\pi}{2} t + b) + c",
    correction="For a single pair it is not a sinusoid. The average over random pairs is one exactly, at every radius "
    "and in every dimension, with the amplitude B = E⟨Softmax(w), w⟩.",
    corrected=r"E\,D_{KL} = B\,(1 - \sin(\frac{\pi}{2} t)), \quad B = E\langle \mathrm{Sm}(w), w \rangle "
    r"\approx \frac{l^2}{n}(1 - \frac{1}{n})",
    lesson="A divergence is a cross-entropy less a constant, so it inherits what the cross-entropy does. The picture "
    "of the average is right for a reason that the proof does not give: u(t) is uniform on the sphere at every t, so "
    "the part that is not a sinusoid has the same mean everywhere.",
)
def divergence_along_an_arc(lab: Lab) -> Evidence:
    t = _times()
    worst = float(_residuals(_divergences(lab, 40, 1.0)).max())
    corrected = []
    for radius in (1.0, 30.0):
        count = 2000
        v, w = pairs_at_angle(count, _N, _RIGHT, radius, generator=lab.generator(f"mean {radius}"))
        curves = kl_divergence(w[:, None], slerp(v, w, t[[0, 7, 14]]))
        overlap = (softmax(w) * w).sum(-1)
        for k, time in enumerate(t[[0, 7, 14]].tolist()):
            predicted = (1 - math.sin(_RIGHT * time)) * overlap
            name = f"mean divergence at t = {time:.2f}, radius {radius:g}, {count:,} pairs"
            corrected.append(_equal_means(name, predicted, curves[:, k]))
    n, radius = 64, 0.25
    v, w = pairs_at_angle(2000, n, _RIGHT, radius, generator=lab.generator("amplitude"))
    corrected.append(mean_of(f"mean divergence at t = 0, n = {n}, radius {radius}, against (l²/n)(1 − 1/n)",
                             radius**2 / n * (1 - 1 / n), kl_divergence(w, v)))  # fmt: skip
    return Evidence(
        stated=(_zero_residual("deviation from the best sinusoid over the range, worst of 40 pairs, n = 16", worst),),
        corrected=tuple(corrected),
        figures=(_averaged_curve(lab),),
    )


def _averaged_curve(lab: Lab) -> Curves:
    count, n = 1000, 64
    t = _times(31)
    curves = _divergences(lab, count, 1.0, n=n, points=31)
    mean, error = curves.mean(0), curves.std(0) / math.sqrt(count)
    fit = fit_sinusoid(t, mean, _RIGHT)
    theory = (1 - 1 / n) / n * (1 - torch.sin(_RIGHT * t))
    x = t.numpy()
    return Curves(
        "divergence-along-an-arc",
        "Divergence of softmaxes along an arc, averaged over 1000 pairs",
        f"Random orthogonal unit vectors with {n} entries. The best sinusoid deviates by {fit.residual:.1e} of the "
        "range; theory: (1/n)(1 − 1/n)(1 − sin(πt/2)), which has no free number.",
        "t",
        "KL(Softmax(w) | Softmax(u(t))) in nats",
        (
            Series("mean of 1000 pairs", x, mean.numpy(), (mean - 2 * error).numpy(), (mean + 2 * error).numpy()),
            Series("fitted sinusoid", x, fit.at(t).numpy(), role="null"),
            Series("theory", x, theory.numpy(), role="theory"),
        ),
    )


@CHAPTER.claim(
    "W-5.2n2",
    section="5.2.4",
    statement="The corollary comes with the benefit that at t = 0 the divergence from Softmax(v) is zero.",
    formula=r"D_{KL}(\mathrm{Sm}(v) \| \mathrm{Sm}(\mathrm{SLERP}(v, w, 0))) = 0",
    lesson="The arc starts at v, and no distribution differs from itself: it is true of every curve that starts at v, "
    "on a sphere or not, sinusoid or not, so it is no benefit of the corollary. What one would like to know is how "
    "high the curve from Softmax(w) starts, the constant a that the text leaves unnamed. For orthogonal vectors of "
    "radius l that is E⟨Softmax(w), w⟩, or (l²/n)(1 − 1/n) while l is well below √n (measured under W-5.2n): at radius "
    "one the two softmaxes are only 1/n nats apart, nearly the same distribution.",
    related=("W-5.2n",),
)
def start_of_the_curve(lab: Lab) -> Evidence:
    count, n = 500, 16
    v, w = pairs_at_angle(count, n, _RIGHT, generator=lab.generator("pairs"))
    start = slerp(v, w, torch.tensor([0.0], dtype=torch.float64))[:, 0]
    # The null: no sphere, no orthogonal vectors, no sinusoid; only a curve that starts at v.
    a, b = 20 * lab.normal(2, count, n, purpose="any vectors")

    def bent(time: float) -> Tensor:
        curve: Tensor = a + time * (b - a) + time**2 * torch.sin(b)
        return curve

    return Evidence(
        (
            _zero_residual(f"divergence of Softmax(v) from the start of the arc (worst of {count})",
                           float(kl_divergence(v, start).abs().max())),
        ),
        null=(
            _zero_residual(f"divergence of Softmax(v) from the start of a curve that is no arc (worst of {count})",
                           float(kl_divergence(a, bent(0.0)).abs().max())),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-5.2o",
    section="5.2.4",
    statement="The corollary also applies to the Jensen–Shannon divergence of orthogonal unit vectors: it follows a "
    "cosine, because it adds two Kullback–Leibler terms of the same frequency.",
    formula=r"JSD(\mathrm{Sm}(w), \mathrm{Sm}(u(t))) = a \cos(\frac{\pi}{2} t + b) + c",
    correction="Not for a pair, and not even on average: both terms are measured from the mixture m = (p + q)/2, "
    "which moves with t and does not lie on the arc. For small centred vectors it is a quarter of the "
    "Kullback–Leibler divergence and becomes a sinusoid with it, with a deviation of first order in the radius.",
    corrected=r"JSD = \frac{1}{8}\mathrm{Var}_i(u_i - w_i)\,(1 + O(l)) \approx "
    r"\frac{l^2}{4n}(1 - \sin(\frac{\pi}{2} t))",
    lesson="The two terms are divergences from a mixture, not from a softmax of a point on the arc, so the statement "
    "about the arc does not apply to either of them. Near each other all such divergences are the same quadratic "
    "form, and there the curve is a sinusoid again.",
)
def jensen_shannon_along_an_arc(lab: Lab) -> Evidence:
    t = _times()
    count = 40_000
    v, w = pairs_at_angle(count, _N, _RIGHT, generator=lab.generator("pairs"))
    three = jensen_shannon(w[:, None], slerp(v, w, t[[0, 10]]))
    expected = 1 - math.sin(_RIGHT / 2)
    # Relative to the start of the mean curve, which a cosine that ends at 0 with slope 0 fixes.
    gap = (three[:, 1] - expected * three[:, 0]) / three[:, 0].mean()
    curves = jensen_shannon(w[:40, None], slerp(v[:40], w[:40], t))
    sizes = (1e-2, 5e-3, 2.5e-3)
    gaps, left = [], []
    a, b = pairs_at_angle(40, _N, _RIGHT, generator=lab.generator("small"), centred=True)
    for size in sizes:
        u = size * slerp(a, b, t)
        small = jensen_shannon(size * b[:, None], u)
        gaps.append(float((small[:, :-1] / (half_chord(size * b[:, None], u)[:, :-1] / 4) - 1).abs().max()))
        left.append(float(_residuals(small).median()))
    return Evidence(
        stated=(
            _zero_residual("deviation from the best sinusoid over the range, worst of 40 pairs, n = 16",
                           float(_residuals(curves).max())),
            mean_of(f"mean at t = 1/2 less (1 − sin(π/4)) times that at t = 0, over the latter, {count:,} pairs", 0.0,
                    gap),
        ),
        corrected=(
            order_of("power of the radius in JSD over an eighth of the variance of u − w, less 1, centred pairs", "l",
                     1.0, sizes, gaps),
            order_of("power of the radius in its deviation from a sinusoid, centred pairs", "l", 1.0, sizes, left),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-5.2p",
    section="5.2.4",
    statement="For radius l ≤ 1 the averaged curve is a sinusoid; for l > 1 it shifts to a Dirac measure.",
    formula=r"l \leq 1: \ a \cos(\frac{\pi}{2} t + b) + c, \quad l > 1: \ \rightarrow \delta",
    correction="The average over random pairs is the same sinusoid at every radius; only its height changes, from "
    "l²/n to l·E[max of a unit vector]. It is the softmaxes that become one-hot, and not at l = 1 but near l = √(2n "
    "ln n). For a single pair and large l the curve tends to l·(max_i u_i − u_k), k the largest entry of w: pieces of "
    "sinusoids, no Dirac measure.",
    corrected=r"\frac{E\,D_{KL}(t)}{E\,D_{KL}(0)} = 1 - \sin(\frac{\pi}{2} t) \ \mathrm{for\ all}\ l; \quad "
    r"D_{KL}(t) \rightarrow l\,(\max_i \hat{u}_i - \hat{u}_k)",
    lesson="What decides whether a softmax is flat is the spread of its scores, and on a sphere of radius l that is "
    "l/√n. So radius one is not a border: with n = 1000 keys a radius of 20 is still almost uniform. And a divergence "
    "between one-hot distributions is large wherever they differ, which is along much of the arc.",
)
def curve_at_large_radius(lab: Lab) -> Evidence:
    t = _times()
    count, corrected = 3000, []
    for radius in (0.5, 10.0, 100.0):
        v, w = pairs_at_angle(count, _N, _RIGHT, radius, generator=lab.generator(f"{radius}"))
        halfway, start = kl_divergence(w[:, None], slerp(v, w, torch.tensor([0.5, 0.0]))).unbind(-1)
        # The error of a ratio of means, to first order.
        ratio = float(halfway.mean() / start.mean())
        error = float((halfway - ratio * start).std()) / count**0.5 / float(start.mean())
        name = f"mean divergence at t = 1/2 over that at t = 0, radius {radius:g}, n = 16"
        corrected.append(Comparison(name, 1 - math.sin(_RIGHT / 2), ratio, error))
    huge = 1e5
    v, w = pairs_at_angle(50, _N, _RIGHT, generator=lab.generator("huge"))
    u = slerp(v, w, t)
    target_entries = u.gather(-1, w.argmax(-1)[:, None, None].expand(-1, len(t), 1))[..., 0]
    gap = (kl_divergence(huge * w[:, None], huge * u) / huge - (u.amax(-1) - target_entries)).abs().max()
    # A log-sum-exp exceeds the largest entry by at most ln n.
    corrected.append(fact("single pairs, radius 1e5: divergence/l is within (ln n)/l of max u − u_k",
                          float(gap) <= math.log(_N) / huge))  # fmt: skip
    wide = entropy(softmax(uniform_on_sphere(200, 1000, 20.0, generator=lab.generator("wide")))) / math.log(1000)
    flat = bool(wide.min() > 0.95)
    corrected.append(fact(f"radius 20, n = 1000: entropy {float(wide.mean()):.3f} of ln n, above 0.95", flat))
    dirac = corrected[1]
    return Evidence(
        stated=(Comparison(dirac.what + ": 0 for a Dirac measure", 0.0, dirac.measured, dirac.error),),
        corrected=tuple(corrected),
        figures=(_curves_by_radius(lab),),
    )


def _curves_by_radius(lab: Lab) -> Curves:
    t = _times()
    series = []
    for radius in (0.5, 4.0, 16.0, 64.0):
        mean = _divergences(lab, 500, radius).mean(0)
        series.append(Series(f"radius {radius:g}", t.numpy(), (mean / mean[0]).numpy()))
    series.append(Series("1 − sin(πt/2)", t.numpy(), (1 - torch.sin(_RIGHT * t)).numpy(), role="theory"))
    return Curves(
        "divergence-by-radius",
        "The averaged divergence along an arc has one shape at every radius",
        "Mean of 500 random orthogonal pairs with 16 entries, divided by its value at t = 0. Theory: exact for the "
        "mean over all pairs.",
        "t",
        "KL(t) / KL(0)",
        tuple(series),
    )


@CHAPTER.claim(
    "W-5.2q",
    section="5.2.4",
    statement="The entropy of the softmax of a random vector on the sphere is almost always the same and very close "
    "to log n.",
    formula=r"H(\mathrm{Softmax}(v)) \approx \ln n, \quad v \in S_1^{n-1}",
    correction="What is missing is l²/(2n) nats to leading order: it falls like 1/n. It holds as long as l is well "
    "below √n, and fails for longer vectors.",
    corrected=r"H = \ln n - \frac{l^2}{2n} + \ldots",
    lesson="A unit vector with many entries has tiny entries of size 1/√n, and a softmax of nearly equal scores is "
    "nearly uniform. The entropy lacks half the variance of the scores. For real attention scores, whose spread is "
    "about one or more, it lacks much more.",
)
def entropy_of_random_vectors(lab: Lab) -> Evidence:
    sizes = (16, 64, 256, 1024)
    lacks = []
    for n in sizes:
        v = uniform_on_sphere(400, n, generator=lab.generator(f"{n}"))
        lacks.append(math.log(n) - entropy(softmax(v)))
    return Evidence(
        stated=(exact("entropy for a unit vector, n = 16 (worst of 400)", math.log(16), math.log(16) - lacks[0]),),
        corrected=(
            mean_of("what it lacks to ln n, n = 1024, against (l²/2n)(1 − 1/n)", (1 - 1 / 1024) / 2048, lacks[-1]),
        ),
        trend=trend_of("what the entropy lacks to ln n, in nats", "n", sizes, [float(x.mean()) for x in lacks], -1.0,
                       [float(x.std() / len(x) ** 0.5) for x in lacks]),
    )  # fmt: skip


def _pair(lab: Lab, angle: float = _RIGHT, radius: float = 1.0, n: int = 6) -> tuple[Tensor, Tensor]:
    v, w = pairs_at_angle(1, n, angle, radius, generator=lab.generator(f"pair {angle}"))
    return v[0], w[0]


def _slerp_by_definition(v: Tensor, w: Tensor, t: Tensor, angle: float) -> Tensor:
    return (torch.sin((1 - t) * angle)[:, None] * v + torch.sin(t * angle)[:, None] * w) / math.sin(angle)


@CHAPTER.claim(
    "W-5.5",
    section="5.2.4, (5.5)",
    statement="The derivative of the cross-entropy along the arc is the sum over the components of Softmax(w) − "
    "Softmax(v(t)) times the velocity of the component.",
    formula=r"\frac{dH}{dt} = \sum_i (\mathrm{Sm}(w)_i - \mathrm{Sm}(v(t))_i)\,\frac{dv_i(t)}{dt}",
    correction="The sign is turned round: by the section's own gradient (prediction minus target) it is Softmax(v(t)) "
    "− Softmax(w).",
    corrected=r"\frac{dH}{dt} = \sum_i (\mathrm{Sm}(v(t))_i - \mathrm{Sm}(w)_i)\,\frac{dv_i(t)}{dt}",
    lesson="The cross-entropy falls as the moving point approaches its target. With the stated sign it would grow on "
    "the way to w.",
    slip=True,
)
def derivative_of_the_cross_entropy(lab: Lab) -> Evidence:
    v, w = _pair(lab, radius=2.0)
    t = _times(9).requires_grad_()
    loss = -(torch.softmax(w, -1) * torch.log_softmax(_slerp_by_definition(v, w, t, _RIGHT), -1)).sum(-1)
    (measured,) = torch.autograd.grad(loss.sum(), t)
    times = t.detach()
    velocity = slerp_derivative(v, w, times)
    difference = softmax(w) - softmax(slerp(v, w, times))
    name = "derivative of the cross-entropy at 9 times (worst)"
    return Evidence(
        stated=(exact(name, (difference * velocity).sum(-1), measured),),
        corrected=(exact(name, -(difference * velocity).sum(-1), measured),),
    )


@CHAPTER.claim(
    "W-5.9",
    section="5.2.4, (5.6) to (5.11)",
    statement="The derivative of spherical interpolation is θ/sin θ · (cos(tθ) w − cos((1−t)θ) v); for orthogonal "
    "vectors π/2 · (cos(tπ/2) w − sin(tπ/2) v).",
    formula=r"\frac{d\,\mathrm{SLERP}(v, w, t)}{dt} = \frac{\theta}{\sin\theta}"
    r"\left(\cos(t\theta)\,w - \cos((1-t)\theta)\,v\right)",
    lesson="Each coefficient is a sine of t, and its derivative a cosine times θ. The velocity has constant length θ "
    "times the radius: the interpolation walks along the arc at constant speed.",
)
def derivative_of_slerp(lab: Lab) -> Evidence:
    t, step = _times(9), 1e-20
    comparisons = []
    for angle in (0.8, _RIGHT):
        v, w = _pair(lab, angle)
        # The imaginary part at a complex time is the derivative, to rounding: no difference is taken.
        z = torch.complex(t, torch.full_like(t, step))
        arc = torch.sin((1 - z) * angle)[:, None] * v + torch.sin(z * angle)[:, None] * w
        measured = arc.imag / (step * math.sin(angle))
        predicted = (
            angle / math.sin(angle) * (torch.cos(t * angle)[:, None] * w - torch.cos((1 - t) * angle)[:, None] * v)
        )
        comparisons.append(exact(f"velocity at 9 times, angle {angle:.2f} (worst entry)", predicted, measured))
    right = _RIGHT * (torch.cos(t * _RIGHT)[:, None] * w - torch.sin(t * _RIGHT)[:, None] * v)
    comparisons.append(exact("the form for orthogonal vectors (worst entry)", right, measured))
    return Evidence(tuple(comparisons))


@CHAPTER.claim(
    "W-5.10b",
    section="5.2.4",
    statement="The cosine of t + π/2 is the sine of t.",
    formula=r"\cos(t + \frac{\pi}{2}) = \sin(t)",
    correction="It is minus the sine; the sine is the cosine of π/2 − t, and that is what the next line uses.",
    corrected=r"\cos(\frac{\pi}{2} - t) = \sin(t), \quad \cos(t + \frac{\pi}{2}) = -\sin(t)",
    lesson="A quarter turn forward takes the cosine to minus the sine: at t = 0 it passes through zero downwards, "
    "where the sine goes up. The next equation, (5.10), is right all the same, because it needs cos((1 − t)π/2) = "
    "sin(tπ/2).",
    slip=True,
)
def shifted_cosine(lab: Lab) -> Evidence:
    t = 10 * lab.uniform(50, purpose="t") - 5
    return Evidence(
        stated=(exact("cos(t + π/2) at 50 points (worst)", torch.sin(t), torch.cos(t + _RIGHT)),),
        corrected=(
            exact("cos(t + π/2) against −sin t (worst)", -torch.sin(t), torch.cos(t + _RIGHT)),
            exact("cos(π/2 − t) against sin t (worst)", torch.sin(t), torch.cos(_RIGHT - t)),
        ),
    )


@CHAPTER.claim(
    "W-5.14",
    section="5.2.4, (5.12) to (5.14)",
    statement="The combination w cos x − v sin x is √(w² + v²) cos(x + arctan(−v/w)).",
    formula=r"w \cos x - v \sin x = \sqrt{w^2 + v^2}\,\cos(x + \arctan(-\frac{v}{w}))",
    correction="The phase has the wrong sign: α cos x + β sin x has the phase −arctan(β/α). And the arc tangent only "
    "serves for w > 0; for all signs it is the angle of the point (w, v).",
    corrected=r"w \cos x - v \sin x = \sqrt{w^2 + v^2}\,\cos(x + \mathrm{atan2}(v, w))",
    lesson="Expand the cosine of a sum: A cos φ must be w and A sin φ must be v, so φ is the angle of the point (w, "
    "v). The arc tangent alone cannot tell that point from the opposite one, which would turn the sign of the whole "
    "expression.",
    slip=True,
)
def one_cosine(lab: Lab) -> Evidence:
    v, w = lab.normal(40, 1, purpose="v"), lab.normal(40, 1, purpose="w")
    x = 2 * math.pi * _times(25)
    measured = w * torch.cos(x) - v * torch.sin(x)
    size = torch.hypot(v, w)
    name = "w cos x − v sin x for 40 random v, w (worst)"
    return Evidence(
        stated=(
            exact(name, size * torch.cos(x + torch.atan(-v / w)), measured),
            exact(
                "the same where w > 0", (size * torch.cos(x + torch.atan(-v / w)))[w[:, 0] > 0], measured[w[:, 0] > 0]
            ),
        ),
        corrected=(exact(name, size * torch.cos(x + torch.atan2(v, w)), measured),),
    )


@CHAPTER.claim(
    "W-5.15",
    section="5.2.4, (5.15)",
    statement="The cosine of an arc tangent is 1/√(1 + u²), which lies between 0 and π/2.",
    formula=r"0 \leq \cos(\arctan u) = \frac{1}{\sqrt{1 + u^2}} \leq \frac{\pi}{2}",
    lesson="In a right triangle with the legs 1 and u, the cosine of the angle is the leg 1 over the hypotenuse. The "
    "upper bound holds, though 1 would be the natural one: it is a cosine, not an angle.",
)
def cosine_of_arc_tangent(lab: Lab) -> Evidence:
    u = 5 * lab.normal(200, purpose="u")
    value = torch.cos(torch.atan(u))
    return Evidence(
        (
            exact("cos(arctan u) at 200 points (worst)", 1 / torch.sqrt(1 + u.square()), value),
            fact("all between 0 and π/2", bool((value >= 0).all() and (value <= _RIGHT).all())),
        )
    )


@CHAPTER.claim(
    "W-5.17",
    section="5.2.4, (5.16) to (5.17)",
    statement="A step of the proof: the derivative of the cross-entropy is a sum of cosines of the same frequency and "
    "therefore itself a cosine of that frequency.",
    formula=r"\frac{dH}{dt} = \sum_i (\mathrm{Sm}(w)_i - \mathrm{Sm}(v)_i)\,A_i \cos(\frac{\pi}{2} t + \phi_i) = "
    r"\hat{a} \cos(\frac{\pi}{2} t + \hat{b})",
    correction="The rule holds for constant amplitudes. Here the factor Softmax(w) − Softmax(v(t)) changes with t, so "
    "the sum is not a cosine. This is the step at which the proof of the conjecture breaks.",
    corrected=r"\sum_i a_i \cos(\omega t + \phi_i) = \hat{a} \cos(\omega t + \hat{b}) \ "
    r"\mathrm{only\ for\ constant}\ a_i",
    lesson="Waves of one frequency add up to a wave of that frequency, as long as none of them changes its height on "
    "the way. The shares of the moving point do change: they start at Softmax(v) and end at Softmax(w), where the sum "
    "is zero. The equation writes Sm(v) for Sm(v(t)), and that hides it.",
)
def sum_of_cosines(lab: Lab) -> Evidence:
    t = _times(41)
    v, w = _pair(lab, radius=1.0, n=8)
    velocity = slerp_derivative(v, w, t)
    moving = ((softmax(slerp(v, w, t)) - softmax(w)) * velocity).sum(-1)
    frozen = ((softmax(v) - softmax(w)) * velocity).sum(-1)

    def without_offset(curve: Tensor) -> float:
        """Residual of the best â cos(πt/2 + b̂), relative to the curve's range.

        The fit has no constant.
        """
        basis = torch.stack([torch.cos(_RIGHT * t), torch.sin(_RIGHT * t)], -1)
        residual = curve - basis @ torch.linalg.lstsq(basis, curve[:, None]).solution[:, 0]
        return float(residual.abs().max() / (curve.max() - curve.min()))

    return Evidence(
        stated=(_zero_residual("derivative: deviation from the best cosine over its range", without_offset(moving)),),
        corrected=(
            _zero_residual("the same with the amplitudes kept at t = 0", without_offset(frozen)),
            exact("the derivative at t = 1, where both softmaxes agree", 1.0, 1.0 + moving[-1]),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-5.19",
    section="5.2.4, (5.18) and (5.19)",
    statement="The divergence of Softmax(v) from the softmax along the arc is their cross-entropy less the entropy of "
    "Softmax(w).",
    formula=r"D_{KL}(\mathrm{Sm}(v) \| \mathrm{Sm}(u)) = H(\mathrm{Sm}(v) | \mathrm{Sm}(u)) - H(\mathrm{Sm}(w))",
    correction="The entropy to subtract is that of the first argument, Softmax(v).",
    corrected=r"D_{KL}(\mathrm{Sm}(v) \| \mathrm{Sm}(u)) = H(\mathrm{Sm}(v) | \mathrm{Sm}(u)) - H(\mathrm{Sm}(v))",
    lesson="A divergence compares the cost of coding with the wrong distribution with the cost of coding with the "
    "right one, both for events that follow the first distribution. With the entropy of another vector the divergence "
    "of a distribution from itself would not be zero.",
    slip=True,
)
def divergence_and_entropy(lab: Lab) -> Evidence:
    v, w = _pair(lab, radius=3.0)
    p, q = softmax(v), softmax(slerp(v, w, _times(9)))
    measured = (p * (p / q).log()).sum(-1)
    crossed = cross_entropy(v, slerp(v, w, _times(9)))
    return Evidence(
        stated=(exact("divergence at 9 times (worst)", crossed - entropy(softmax(w)), measured),),
        corrected=(exact("divergence at 9 times (worst)", crossed - entropy(p), measured, scale=10.0),),
    )
