r"""Counts of what was seen: entropy with its bias, and how few values carry a share of the mass.

A finite number of draws shows fewer values than there are, so both numbers come out too small. Draws of the same number
from a known distribution show by how much.
"""

from math import log

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.errors import NumericsError


def plain_entropy(counts: Int[Tensor, " values"]) -> float:
    r"""Entropy of the shares of the counts, in nats; too small by about $(K - 1)/2n$ for K values and n draws.

    Definition:
        $H = -\sum_v \frac{c_v}{n} \ln \frac{c_v}{n}$.
    Properties:
        - ln K for equal counts, 0 for one value  (tested: test_entropy_of_equal_counts)
    """
    c = _checked(counts)
    n = float(c.sum())
    return log(n) - float((c * c.log()).sum()) / n


def corrected_entropy(counts: Int[Tensor, " values"]) -> float:
    r"""Entropy with the correction of Miller and Madow: $H + (K - 1)/2n$, K the values that were seen.

    Properties:
        - nearer to the truth than the plain one  (tested: test_the_correction_pays)
    Reference:
        Miller (1955), Note on the bias of information estimates. The correction is the first term of an expansion in
        1/n; where most values were seen once it is not enough.
    """
    c = _checked(counts)
    return plain_entropy(counts) + (len(c) - 1) / (2 * float(c.sum()))


def carriers(counts: Int[Tensor, " values"], share: float = 0.9) -> int:
    r"""The fewest values that carry the share: the least k with $\sum_{i \le k} c_{(i)} \ge s\,n$, largest first.

    Properties:
        - of n values seen once, ⌈s n⌉  (tested: test_carriers)
    """
    if not 0 < share <= 1:
        raise NumericsError(f"a share lies between 0 and 1, got {share}")
    c = _checked(counts).sort(descending=True).values
    # Sums of counts are whole numbers and s n is rounded: a little room below the next whole number.
    enough = c.cumsum(0) >= share * float(c.sum()) - 1e-9
    return int(enough.to(torch.int64).argmax()) + 1


def drawn(uniform: Float[Tensor, " draws"], counts: Int[Tensor, " values"]) -> Int[Tensor, " draws"]:
    r"""Draws from the shares of the counts: value v where u lies between the cumulative shares before and up to v.

    Properties:
        - each value as often as its share says  (tested: test_draws_follow_the_counts)
    """
    ends = counts.cumsum(0).to(torch.float64) / float(counts.sum())
    return torch.searchsorted(ends, uniform.to(torch.float64), right=True).clamp_max(len(counts) - 1)


def _checked(counts: Int[Tensor, " values"]) -> Float[Tensor, " seen"]:
    """The counts that are not 0, in float64."""
    seen = counts[counts > 0].to(torch.float64)
    if not len(seen):
        raise NumericsError("nothing was counted")
    return seen
