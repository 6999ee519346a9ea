r"""Rank correlation within rows: which of the keys of a query rank high by two measures at once.

A row is a query, its entries are keys, and a mask says which keys count. Ranks are taken within each row, so that what
is common to a row (how many keys it has, how sharp its softmax is) plays no part; correlations pool all rows.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# A variance of ranks that another measure leaves unexplained: below it the rest is rounding.
_DETERMINED = 1e-10


def row_ranks(values: Float[Tensor, "*batch keys"], mask: Bool[Tensor, "*some keys"]) -> Float[Tensor, "*batch keys"]:
    r"""Ranks within each row among the keys that count, of mean 0 and variance 1; elsewhere 0.

    Definition:
        $z_j = (r_j - \frac{n+1}{2})/s$ with the rank $r_j$ of key j among n, ties sharing the mean of their ranks, and
        s the standard deviation of the row's ranks. A row in which all keys tie is 0.
    Properties:
        - scipy's rankdata, standardised  (tested: test_row_ranks_equal_scipy)
        - unchanged by any increasing function of a row  (tested: test_row_ranks_ignore_increasing_maps)
    Numerics:
        One sort per row.
    """
    counted = mask.expand_as(values)
    # Keys that do not count go to the end of the row, where they are nobody's lower neighbour.
    known = torch.where(counted, values.to(torch.float64), torch.inf)
    ordered = known.sort(-1).values
    twice = torch.searchsorted(ordered, known) + torch.searchsorted(ordered, known, right=True)
    n = counted.sum(-1, keepdim=True).to(torch.float64)
    centred = torch.where(counted, twice.to(torch.float64) / 2 - n / 2, 0.0)
    spread = centred.square().sum(-1, keepdim=True) / n.clamp_min(1.0)
    return torch.where(spread > 0, centred / spread.clamp_min(1e-300).sqrt(), 0.0)


@dataclass(frozen=True)
class RankSums:
    r"""Sums of products of the ranks of three measures (a, m and a control d), which add up over rows and windows.

    Definition:
        $S_{am} = \sum z_a z_m$ over all counted entries of the rows; $r_{am} = S_{am}/\sqrt{S_{aa} S_{mm}}$ and the
        partial correlation is $(r_{am} - r_{ad} r_{md})/\sqrt{(1 - r_{ad}^2)(1 - r_{md}^2)}$.
    Properties:
        - one row: Spearman's correlation  (tested: test_one_row_is_spearman)
        - the partial one is that of the residuals of ranks  (tested: test_partial_is_the_correlation_of_residuals)
        - a measure that the control determines has no partial correlation  (tested: test_no_partial_of_the_control)
    Reference:
        Spearman (1904), American Journal of Psychology 15, 72. Kendall (1942), Biometrika 32, 277 (partial ranks).
    """

    sums: Float[Tensor, "*batch six"]

    @classmethod
    def of(
        cls, a: Float[Tensor, "*batch rows keys"], m: Float[Tensor, "*some rows keys"], d: Float[Tensor, "rows keys"]
    ) -> "RankSums":
        """Of ranks, over rows and keys."""
        a, m, d = torch.broadcast_tensors(a, m, d)
        products = ((a, a), (m, m), (d, d), (a, m), (a, d), (m, d))
        return cls(torch.stack([(x * y).sum((-2, -1)) for x, y in products], -1))

    @property
    def correlation(self) -> Float[Tensor, "*batch"]:
        """Of a and m; NaN where one of them does not vary."""
        aa, mm, _, am, _, _ = self.sums.unbind(-1)
        return _ratio(am, aa * mm)

    @property
    def partial(self) -> Float[Tensor, "*batch"]:
        """Of a and m given d; NaN where d determines one of them."""
        aa, mm, dd, am, ad, md = self.sums.unbind(-1)
        r, r_a, r_m = _ratio(am, aa * mm), _ratio(ad, aa * dd), _ratio(md, mm * dd)
        left_a, left_m = 1 - r_a.square(), 1 - r_m.square()
        known = (left_a > _DETERMINED) & (left_m > _DETERMINED)
        return torch.where(known, (r - r_a * r_m) / (left_a * left_m).clamp_min(_DETERMINED**2).sqrt(), torch.nan)


def _ratio(product: Tensor, squares: Tensor) -> Tensor:
    return torch.where(squares > 0, product / squares.clamp_min(1e-300).sqrt(), torch.nan)
