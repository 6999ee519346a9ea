r"""Counts of values: the entropy of what produced them, and draws from their shares.

A finite number of draws shows fewer values than there are, so the entropy comes out too small. Draws of the same number
from a known distribution show by how much.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.errors import NumericsError
from headscope.maths.resampling.grouped_counts import GroupedCounts


def coverage_entropy(counts: Int[Tensor, " values"]) -> float:
    r"""Entropy of the distribution that produced the counts, in nats.

    The estimate allows for values that did not occur.

    Definition:
        $H = -\sum_v \frac{p_v \ln p_v}{1 - (1 - p_v)^n}$ with $p_v = C c_v / n$: the share of the values that were seen
        is about $C = 1 - f_1/n$, $f_1$ of them seen once, and a value was seen at all with probability
        $1 - (1 - p_v)^n$. Where every value was seen once, $f_1 = n - 1$ is taken.
    Properties:
        - ln K for many equal counts, 0 for one value  (tested: test_entropy_of_equal_counts)
        - nearer to the truth than the shares themselves where many values are rare  (tested: test_the_correction_pays)
    Numerics:
        Still too small where most of the distribution was never seen.
    Reference:
        Chao and Shen (2003), Nonparametric estimation of Shannon's index of diversity, Environmental and Ecological
        Statistics 10, 429.
    """
    if not bool((counts > 0).any()):
        raise NumericsError("nothing was counted")
    return float(GroupedCounts.of(torch.zeros_like(counts), counts, 1).coverage_entropy())


def drawn(uniform: Float[Tensor, " draws"], counts: Int[Tensor, " values"]) -> Int[Tensor, " draws"]:
    r"""Draws from the shares of the counts.

    The draw is v where u lies between the cumulative shares before v and up to v.

    Properties:
        - each value as often as its share says  (tested: test_draws_follow_the_counts)
    """
    ends = counts.cumsum(0).to(torch.float64) / float(counts.sum())
    return torch.searchsorted(ends, uniform.to(torch.float64), right=True).clamp_max(len(counts) - 1)
