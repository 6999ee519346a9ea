r"""The nearest probability rows: projections onto the simplex in two norms.

A row of an attention map is a point of the simplex $\{p \ge 0, \sum_j p_j = 1\}$, often with some entries held at 0
(a band, a mask). Every function takes leading batch axes and answers in float64.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError

Rows = Float[Tensor, "*batch keys"]
Allowed = Bool[Tensor, "*#batch keys"]


def nearest_on_simplex(a: Rows, allowed: Allowed | None = None) -> Rows:
    r"""The Euclidean projection of each row onto the simplex of the allowed entries.

    Definition:
        $\arg\min_p \|p - a\|_2$ over $p \ge 0$, $\sum p = 1$, $p_j = 0$ where not allowed. It is
        $p_j = (a_j - \tau)_+$ with the one $\tau$ that makes the allowed entries sum to 1.
    Properties:
        - unique: the simplex is closed and convex and the norm is Euclidean
        - no sampled point of the simplex is nearer  (tested: test_no_point_of_the_simplex_is_nearer)
        - a point of the simplex is left as it is  (tested: test_simplex_points_stay)
        - non-expansive  (tested: test_simplex_projection_is_non_expansive)
    Numerics:
        One sort, O(n log n), after the largest allowed entry is subtracted (which does not change the answer).
    Reference:
        Held, Wolfe and Crowder (1974), Validation of subgradient optimization; Duchi et al. (2008), Efficient
        projections onto the l1-ball. https://doi.org/10.1145/1390156.1390191
    """
    a, mask = _checked(a, allowed)
    hidden = a.masked_fill(~mask, -torch.inf)
    hidden = hidden - hidden.amax(-1, keepdim=True)
    ordered = hidden.sort(-1, descending=True).values
    present = torch.isfinite(ordered)
    counts = torch.arange(1, a.shape[-1] + 1, dtype=torch.float64, device=a.device)
    excess = ordered.masked_fill(~present, 0.0).cumsum(-1) - 1
    active = ((ordered * counts > excess) & present).sum(-1, keepdim=True)
    threshold = excess.gather(-1, active - 1) / active
    return (hidden - threshold).clamp_min(0.0)


def nearest_on_simplex_l1(a: Rows, allowed: Allowed | None = None) -> Rows:
    r"""One of the probability rows nearest in l1: the positive part, normalised.

    Definition:
        $\arg\min_p \sum_j |p_j - a_j|$ over the same rows; the answer is $a^+ / \sum a^+$ over the allowed entries
        (uniform where $a^+ = 0$ there).
    Properties:
        - its distance is $|1 - \sum_{\mathrm{allowed}} a^+| + \sum a^- + \sum_{\mathrm{others}} a^+$, the least
          possible  (tested: test_l1_distance_is_the_least)
        - not unique: missing mass may be added anywhere, excess mass may be taken from any positive
          entry, all at the same distance; unique only where the positive part already sums to 1, where there is one
          allowed entry, or where there is too much and one positive entry
          (tested: test_l1_nearest_row_is_not_unique)
        - so dividing a row by its sum is an exact projection in this norm, not in the Euclidean one
          (tested: test_normalising_is_not_the_euclidean_projection)
    """
    a, mask = _checked(a, allowed)
    positive = a.clamp_min(0.0) * mask
    # Divided by the largest first: tiny rows must not lose their shape to rounding.
    top = positive.amax(-1, keepdim=True)
    filled = torch.where(top > 0, positive / torch.where(top > 0, top, 1.0), mask.to(torch.float64))
    return filled / filled.sum(-1, keepdim=True)


def _checked(a: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    a = a.to(torch.float64)
    if a.ndim < 1 or a.shape[-1] == 0:
        raise UsageError(f"a probability row needs at least one entry, got the shape {tuple(a.shape)}")
    if not bool(torch.isfinite(a).all()):
        raise NumericsError("a row holds NaN or Inf, so no probability row is nearest to it")
    mask = torch.ones_like(a, dtype=torch.bool) if allowed is None else allowed.expand_as(a)
    if not bool(mask.any(-1).all()):
        raise UsageError(
            "a row allows no entry, so no probability row fits it", hint="let the diagonal belong to the support"
        )
    return a, mask
