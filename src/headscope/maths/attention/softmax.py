r"""Softmax: shares of scores, their derivative, and their entropy.

Scores may hold −inf where a key is hidden. A row that sees nothing has the shares 0, the entropy 0 and a derivative
of 0: nothing here answers NaN. Every function takes leading batch axes and answers in float64.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.polynomial import chebyshev
from torch import Tensor

from headscope.errors import NumericsError, UsageError

# Of Newton's method, which stops long before: each step divides value times slope by 4 or more, and 4^64 = 2^128.
_MOST_STEPS = 64
LARGEST_VARIANCE = 400.0  # of the scores whose mean entropy is known
_LARGEST_SD = math.sqrt(LARGEST_VARIANCE)
_LOG_LARGEST_COUNT = 24.0
_NODES = 56


def softmax(scores: Float[Tensor, "*batch n"], temperature: float = 1.0) -> Float[Tensor, "*batch n"]:
    r"""Shares proportional to the exponential of the scores; −inf hides a key.

    Definition:
        $p_i = e^{s_i/T} / \sum_j e^{s_j/T}$. At T = 0 its limit, equal shares of the largest scores; at T = ∞ equal
        shares of all visible keys.
    Properties:
        - non-negative, sums to 1 (0 where everything is hidden)  (tested: test_shares_sum_to_one)
        - unchanged by a constant added to a row, also ±1e6  (tested: test_shares_ignore_a_constant)
        - agrees with torch's softmax  (tested: test_shares_equal_torch)
        - the limits T → 0 and T → ∞  (tested: test_limits_of_temperature)
        - a hidden row gives zeros  (tested: test_a_row_that_sees_nothing)
    Numerics:
        The largest score is subtracted first, so that nothing overflows.
    """
    s = checked_scores(scores)
    if math.isnan(temperature) or temperature < 0:
        raise UsageError(f"a temperature must be at least 0, got {temperature}")
    top = s.amax(-1, keepdim=True)
    gap = s - torch.where(torch.isfinite(top), top, 0.0)  # at most 0
    if temperature == 0:
        weights = (gap == 0).to(torch.float64)
    else:
        weights = torch.where(torch.isfinite(gap), torch.where(torch.isfinite(gap), gap, 0.0) / temperature, gap).exp()
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


def log_sum_exp(scores: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""The logarithm of the sum of the exponentials; −inf where everything is hidden.

    Definition:
        $\mathrm{lse}(s) = \ln \sum_i e^{s_i}$. Its gradient is softmax(s), its second derivative the Jacobian of it.
    Properties:
        - $\max s \leq \mathrm{lse}(s) \leq \max s + \ln n$  (tested: test_log_sum_exp_is_near_the_largest)
        - its gradient is the softmax  (tested: test_gradient_of_log_sum_exp)
    """
    return torch.logsumexp(checked_scores(scores), -1)


def entropy(p: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""Shannon entropy in nats.

    Definition:
        $H = -\sum_i p_i \ln p_i$ with $0 \ln 0 = 0$; 0 for a row of zeros.
    Properties:
        - between 0 (one key) and ln n (equal shares)  (tested: test_entropy_is_bounded)
        - agrees with scipy  (tested: test_entropy_equals_scipy)
    """
    total: Tensor = torch.special.entr(_checked_shares(p)).sum(-1)
    return total


def entropy_expansion(scores: Float[Tensor, "*batch n"], order: int = 2) -> Float[Tensor, "*batch"]:
    r"""Entropy of the softmax of small scores, from their cumulants.

    Definition:
        With the cumulants κ_k of the n numbers of a row, $H = \ln n - \sum_{k \geq 2} \frac{k-1}{k!} \kappa_k
        = \ln n - \frac{\kappa_2}{2} - \frac{\kappa_3}{3} - \frac{\kappa_4}{8} - \ldots$; κ_2 is the variance σ² (over
        n), κ_3 the third central moment, κ_4 the fourth less 3σ⁴. Cut after `order` (2, 3 or 4).
    Properties:
        - the error falls with the power order + 1 of the scores  (tested: test_order_of_the_entropy_expansion)
        - exact for equal scores  (tested: test_entropy_expansion_of_equal_scores)
    Numerics:
        Meant for scores with a spread below 1; hidden keys are an error, since n is then another.
    Reference:
        $H(\beta) = K(\beta) - \beta K'(\beta) + \ln n$ with K the cumulant generating function of the scores: the
        thermodynamic entropy. Mézard and Montanari (2009), Information, Physics, and Computation, section 2.4.
    """
    if order not in (2, 3, 4):
        raise UsageError(f"the expansion of the entropy has the orders 2, 3 and 4, got {order}")
    s = checked_scores(scores)
    if not bool(torch.isfinite(s).all()):
        raise UsageError("the expansion of the entropy needs finite scores: leave hidden keys out")
    centred = s - s.mean(-1, keepdim=True)
    second = centred.square().mean(-1)
    expansion = math.log(s.shape[-1]) - second / 2
    if order >= 3:
        expansion = expansion - centred.pow(3).mean(-1) / 3
    if order >= 4:
        expansion = expansion - (centred.pow(4).mean(-1) - 3 * second.square()) / 8
    return expansion


def gaussian_entropy(n: int, variance: float) -> float:
    r"""Mean entropy of the softmax of n independent Gaussian scores.

    It is the null of a row: what a row without structure shows.

    Definition:
        $E[H] = F - \sigma F'(\sigma)$ with $F = E[\mathrm{lse}(\sigma g)]$ for standard normal g, because
        $E\langle p, \sigma g \rangle = \sigma F'$. And $F = \int_{-\infty}^{\infty} (e^{-u} - \varphi(u)^n)\,dx$ with
        $u = e^x$ and $\varphi(u) = E[e^{-u\,e^{\sigma g}}]$, exact for every n.
    Properties:
        - agrees with sampled scores within 4 standard errors  (tested: test_entropy_of_gaussian_scores)
        - $\ln n - \frac{\sigma^2}{2}(1 - \frac{1}{n})$ for small σ
          (tested: test_entropy_of_almost_equal_gaussian_scores)
        - ln n at variance 0, 0 for one key  (tested: test_entropy_of_almost_equal_gaussian_scores)
    Numerics:
        Sums over equidistant points in g and x, which converge faster than any power for such integrands: absolute
        error below 1e-9 for σ ≤ 20  (tested: test_quadrature_of_the_gaussian_entropy). Larger σ are refused.
    Reference:
        For n → ∞ it is the random energy model, $\ln n - \sigma^2/2$ up to $\sigma_c = \sqrt{2 \ln n}$ and then 0:
        Derrida (1981), Random-energy model. https://doi.org/10.1103/PhysRevB.24.2613. The limit is reached slowly.
    """
    _check_gaussian(n, variance)
    return _gaussian_entropy(n, math.sqrt(variance), 1)


def _check_gaussian(n: int, variance: float) -> None:
    if n < 1 or not variance >= 0:
        raise UsageError(f"the entropy needs n ≥ 1 scores and a variance ≥ 0, got n = {n}, variance = {variance}")
    if variance > LARGEST_VARIANCE:
        raise UsageError(f"the entropy is computed for variances up to {LARGEST_VARIANCE:g}, got {variance:g}")


def _gaussian_entropy(n: int, sigma: float, refinement: int) -> float:
    return float(_gaussian_row(sigma, refinement).entropy(_counts(n)))


def _counts(n: int) -> Float[Tensor, " rows"]:
    return torch.tensor([float(n)], dtype=torch.float64)


@dataclass(frozen=True)
class _GaussianRow:
    """φ and its derivative on a grid of x, which all n share at one σ."""

    sigma: float
    spacing: float
    decay: Float[Tensor, " x"]
    log_phi: Float[Tensor, " x"]
    slope: Float[Tensor, " x"]

    def free_energy(self, n: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        """F for each number of scores."""
        if self.sigma == 0:
            return n.log()
        return (self.decay - torch.exp(n[:, None] * self.log_phi)).sum(-1) * self.spacing

    def entropy(self, n: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        """F − σF′ for each number of scores; 0 for one score."""
        if self.sigma == 0:
            return n.log()
        derivative = (n[:, None] * torch.exp((n[:, None] - 1) * self.log_phi) * self.slope).sum(-1) * self.spacing
        return torch.where(n == 1, 0.0, (self.free_energy(n) - self.sigma * derivative).clamp_min(0.0))


def _gaussian_row(sigma: float, refinement: int) -> _GaussianRow:
    # Both integrands are analytic within π/2 of the real axis (in σg and in x), so a step of 0.3 errs by e^(−π²/0.3).
    step = 0.3 / max(1.0, sigma) / refinement
    g = torch.arange(-9.0, 9.0 + step / 2, step, dtype=torch.float64)
    weight = torch.exp(-g.square() / 2) * (step / math.sqrt(2 * math.pi))
    spacing = 0.3 / refinement
    # ln u from where all of up to e^24 terms are negligible to where each of them is 1 up to rounding.
    x = torch.arange(-9 * sigma - _LOG_LARGEST_COUNT - 40, 9 * sigma + 8, spacing, dtype=torch.float64)
    u = x.exp()
    grown = u[:, None] * torch.exp(sigma * g)
    survived = torch.exp(-grown)
    decided = (-torch.expm1(-grown)) @ weight
    slope = (grown * survived) @ (weight * g)
    # Rounding may lift a sum of weights above 1, where there is no logarithm.
    log_phi = torch.log1p(-decided.clamp_max(1.0))
    return _GaussianRow(sigma, spacing, torch.exp(-u), log_phi, slope)


class GaussianRows:
    r"""Entropy and log mean exponential of many Gaussian rows, by interpolation in σ.

    Definition:
        `gaussian_entropy`, and the mean of $\ln \frac{1}{n} \sum_j e^{s_j}$, which is $F - \ln n$ with the F of
        `gaussian_entropy`: $\sigma^2/2$ for $n \to \infty$ at fixed σ, below it for a finite n. Both come from the
        Chebyshev polynomial in u, $\sigma = 20\,((u+1)/2)^2$, that equals them at 56 nodes. Variances beyond 400 count
        as 400.
    Properties:
        - within 1e-6 of the quadrature for n ≤ 8192  (tested: test_interpolated_gaussian_rows)
        - agrees with sampled scores within 4 standard errors  (tested: test_entropy_of_gaussian_scores)
    Numerics:
        The nodes cost about a second once; each further n next to nothing.
    """

    def __init__(self) -> None:
        nodes = torch.cos(math.pi * (torch.arange(_NODES, dtype=torch.float64) + 0.5) / _NODES)
        self._rows = [_gaussian_row(float(_LARGEST_SD * ((u + 1) / 2).square()), 1) for u in nodes]
        self._known: dict[int, Tensor] = {}

    def __call__(
        self, n: Int[Tensor, "*rows"], variance: Float[Tensor, "*rows"]
    ) -> tuple[Float[Tensor, "*rows"], Float[Tensor, "*rows"]]:
        """Entropy and log mean exponential of each row."""
        u = 2 * (variance.clamp(0.0, LARGEST_VARIANCE).sqrt() / _LARGEST_SD).sqrt() - 1
        counts, count_of_row = torch.unique(n, return_inverse=True)
        coefficients = torch.stack([self._coefficients(count) for count in counts.tolist()], -1)
        c = coefficients[..., count_of_row]  # degree, the two answers, rows
        # Clenshaw's recurrence: the value of a Chebyshev series without its polynomials.
        last, before = c[-1], torch.zeros_like(c[-1])
        for degree in range(_NODES - 2, 0, -1):
            last, before = c[degree] + 2 * u * last - before, last
        entropy, lifted = (c[0] + u * last - before).clamp_min(0.0)
        return entropy, lifted

    def _coefficients(self, count: int) -> Float[Tensor, "degrees 2"]:
        if count not in self._known:
            n = _counts(count)
            values = [(float(row.entropy(n)), float(row.free_energy(n)) - math.log(count)) for row in self._rows]
            u = np.cos(math.pi * (np.arange(_NODES) + 0.5) / _NODES)
            self._known[count] = torch.from_numpy(chebyshev.chebfit(u, np.array(values), _NODES - 1))
        return self._known[count]


def jacobian(p: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n n"]:
    r"""The Jacobian of the shares by the scores, as a dense matrix.

    Definition:
        $J = \mathrm{diag}(p) - p\,p^\top$, $J_{ij} = \partial p_i / \partial s_j$.
    Properties:
        - equals automatic differentiation  (tested: test_jacobian_equals_autograd)
        - symmetric, positive semidefinite, $J 1 = 0$, trace $1 - \sum p^2$  (tested: test_jacobian_is_a_covariance)
    Numerics:
        O(n²) memory; `jacobian_operator_norm` gives its norm in O(n).
    """
    p = _checked_shares(p)
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def jacobian_operator_norm(p: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""Largest eigenvalue of the Jacobian in O(n).

    It bounds how much a change of the scores changes the shares.

    Definition:
        $\|J\|_2 = \max_{|x|=1} |J x|$. It is the root of $\sum_i p_i / (p_i - \lambda) = 0$ between the second largest
        and the largest share; where these are equal, it is that share.
    Properties:
        - equals the largest eigenvalue of the dense matrix  (tested: test_jacobian_norms_equal_the_dense_ones)
        - at most 1/2, reached at two equal shares  (tested: test_jacobian_norms_known)
        - $2 p_1 p_2$ for two keys, also where p_2 = 1e-200  (tested: test_jacobian_norm_of_two_keys)
        - the same for a row alone and among others  (tested: test_jacobian_norm_of_each_row_alone)
    Numerics:
        With $\lambda = p_2 (1 + x)$ the root is that of $T(x) = \frac{p_1 - p_2}{p_1} - \frac{p_2}{p_1} x$, where
        $1/T = \sum_{i \geq 2} p_i / (p_2 x + p_2 - p_i)$: a harmonic sum of increasing lines, so T is increasing and
        concave. Newton's method then rises to the root from any point below it, as from $2 p_1 p_2 / (p_1 + p_2)$ (its
        step from $p_2$, the root itself for two keys), and ends quadratically: about 5 steps, each O(n). No difference
        in it cancels, the relative error is a few roundings  (tested: test_jacobian_norm_of_spread_shares).
    Reference:
        Golub and Van Loan (2013), Matrix Computations, section 8.4.3 (a diagonal matrix changed by rank one).
    """
    p = _checked_shares(p)
    if p.shape[-1] == 1:
        return p[..., 0] * 0.0
    top, top_keys = p.topk(2, dim=-1)
    high, low = top[..., 0], top[..., 1]
    # Outside: two equal largest shares (λ is that share), a single key or nothing (λ = 0).
    rising = inside = (low > 0) & (high > low)
    high, unit = torch.where(inside, high, 2.0), torch.where(inside, low, 1.0)
    without_largest = p.scatter(-1, top_keys[..., :1], 0.0)
    shares, gaps = without_largest / unit[..., None], (unit[..., None] - without_largest) / unit[..., None]
    start, slope = (high - unit) / high, unit / high
    x = (high - unit) / (high + unit)
    for _ in range(_MOST_STEPS):
        distances = x[..., None] + gaps
        terms = shares / distances
        t = 1 / terms.sum(-1)
        step = (start - slope * x - t) / (t.square() * (terms / distances).sum(-1) + slope)
        x = torch.where(rising, x + step, x)
        # Each row by itself: the answer must not depend on the other rows.
        rising = rising & (step > 4 * torch.finfo(torch.float64).eps * (1 + x))
        if not bool(rising.any()):
            break
    return torch.where(inside, low * (1 + x), low)


def checked_scores(scores: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """The scores in float64; −inf hides a key.

    A row that is empty or holds NaN or +inf is an error.
    """
    if scores.shape[-1] == 0:
        raise UsageError(f"a softmax needs at least one key; the scores have the shape {tuple(scores.shape)}")
    s = scores.to(torch.float64)
    if bool((torch.isnan(s) | (s == math.inf)).any()):
        raise NumericsError(
            f"scores of shape {tuple(scores.shape)} hold NaN or +inf, so they have no softmax",
            hint="only −inf is allowed: it hides a key",
        )
    return s


def _checked_shares(p: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """The shares in float64, divided by their sums.

    The division corrects the rounding of a short dtype; a larger deviation is an error.
    """
    # The rounding of n shares adds up like its square root; 32 leaves room for a sum taken in the short dtype.
    tolerance = min(max(32 * torch.finfo(p.dtype).eps * math.sqrt(p.shape[-1]), 1e-9), 0.05)
    p = p.to(torch.float64)
    total = p.sum(-1, keepdim=True)
    fine = (p >= 0).all(-1, keepdim=True) & (((total - 1).abs() <= tolerance) | (total == 0))
    if not bool(fine.all()):
        raise UsageError(
            "shares must be non-negative and sum to 1 (or all be 0 where a row sees nothing); found sums between "
            f"{float(total.min()):.6g} and {float(total.max()):.6g}, smallest share {float(p.min()):.3g}",
            hint="apply the softmax first",
        )
    return p / torch.where(total > 0, total, 1.0)
