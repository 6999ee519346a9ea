r"""Rank correlation within rows: which keys of a query rank high by two measures.

A row is a query, its entries are keys, and a mask says which keys count. Ranks are taken within each row, so that what
is common to a row (how many keys it has, how sharp its softmax is) plays no part; correlations pool all rows.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# A variance of ranks that another measure leaves unexplained: below it the rest is rounding.
_DETERMINED = 1e-10


def row_ranks(values: Float[Tensor, "*batch keys"], mask: Bool[Tensor, "*some keys"]) -> Float[Tensor, "*batch keys"]:
    r"""Ranks of the counted keys within each row, mean 0 and variance 1; elsewhere 0.

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
    # Keys that do not count go to the end of the row, where no key has them as a lower neighbour.
    counted_values = torch.where(counted, values.to(torch.float64), torch.inf)
    double_ranks = _double_ranks(counted_values.detach().cpu()).to(values.device)
    n = counted.sum(-1, keepdim=True).to(torch.float64)
    centred = torch.where(counted, double_ranks.to(torch.float64) / 2 - n / 2, 0.0)
    spread = centred.square().sum(-1, keepdim=True) / n.clamp_min(1.0)
    return torch.where(spread > 0, centred / spread.clamp_min(1e-300).sqrt(), 0.0)


def _double_ranks(values: Float[Tensor, "*batch keys"]) -> Int[Tensor, "*batch keys"]:
    """Twice the ranks within each row, less 1; ties share the mean of their ranks.

    One sort by numpy, which takes a fifth of the time of torch's searches in sorted rows.
    """
    order = torch.from_numpy(np.argsort(values.numpy(), axis=-1))
    ordered = values.gather(-1, order)
    differs = ordered[..., 1:] != ordered[..., :-1]
    edge, at = torch.ones_like(ordered[..., :1], dtype=torch.bool), torch.arange(values.shape[-1], dtype=torch.int32)
    # Keys that tie are neighbours: the first and the last place of each run of equal ones.
    first = torch.where(torch.cat((edge, differs), -1), at, 0).cummax(-1).values
    last = torch.where(torch.cat((differs, edge), -1), at, len(at)).flip(-1).cummin(-1).values.flip(-1)
    return torch.empty_like(first).scatter_(-1, order, first + last + 1)


def row_centred(values: Float[Tensor, "*batch keys"], mask: Bool[Tensor, "*some keys"]) -> Float[Tensor, "*batch keys"]:
    r"""Values less the mean of their row, over the keys that count; elsewhere 0.

    Definition:
        $y_j - \frac{1}{n} \sum_{k\ \mathrm{counts}} y_k$: what a softmax sees of scores.
    Properties:
        - with `RankSums`, one row gives Pearson's correlation  (tested: test_one_centred_row_is_pearson)
    """
    counted_values = torch.where(mask, values.to(torch.float64), 0.0)
    n = mask.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(mask, counted_values - counted_values.sum(-1, keepdim=True) / n, 0.0)


@dataclass(frozen=True)
class RankSums:
    r"""Sums of products of the ranks of three measures: a, m and a control d.

    The sums add up over rows and windows.

    Any measures will do whose rows have the mean 0: `row_centred` ones give Pearson's correlation within rows.

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
        """The sums of products of ranks, over rows and keys."""
        products = ((a, a), (m, m), (d, d), (a, m), (a, d), (m, d))
        sums = [(x * y).sum((-2, -1)) for x, y in products]
        return cls(torch.stack([product_sum.expand_as(sums[3]) for product_sum in sums], -1))

    @property
    def correlation(self) -> Float[Tensor, "*batch"]:
        """Correlation of a and m; NaN where one of them does not vary."""
        aa, mm, _, am, _, _ = self.sums.unbind(-1)
        return _ratio(am, aa * mm)

    @property
    def slope(self) -> Float[Tensor, "*batch"]:
        """Slope of a by m, by least squares; NaN where m does not vary."""
        _, mm, _, am, _, _ = self.sums.unbind(-1)
        return torch.where(mm > 0, am / mm.clamp_min(1e-300), torch.nan)

    @property
    def partial(self) -> Float[Tensor, "*batch"]:
        """Partial correlation of a and m given d; NaN where d determines one of them."""
        aa, mm, dd, am, ad, md = self.sums.unbind(-1)
        r, r_a, r_m = _ratio(am, aa * mm), _ratio(ad, aa * dd), _ratio(md, mm * dd)
        left_a, left_m = 1 - r_a.square(), 1 - r_m.square()
        undetermined = (left_a > _DETERMINED) & (left_m > _DETERMINED)
        return torch.where(
            undetermined, (r - r_a * r_m) / (left_a * left_m).clamp_min(_DETERMINED**2).sqrt(), torch.nan
        )


def _ratio(product: Tensor, squares: Tensor) -> Tensor:
    return torch.where(squares > 0, product / squares.clamp_min(1e-300).sqrt(), torch.nan)


def beyond_positions(
    a: Float[Tensor, "windows *some rows keys"],
    m: Float[Tensor, "windows *more rows keys"],
    mask: Bool[Tensor, "rows keys"],
) -> Float[Tensor, "sets *batch"]:
    r"""Correlation of two measures of pairs without the parts of positions and keys.

    Definition:
        From the entry of window w, query i and key j the mean over windows at (i, j) is taken away, and then the mean
        over queries at (w, j): $r_{wij} = z_{wij} - \bar z_{ij} - \bar z_{wj} + \bar z_j$. The number is
        $\sum r^a r^m / \sqrt{\sum (r^a)^2 \sum (r^m)^2}$; first over all windows, then leaving out each.
    Properties:
        - the correlation of double-centred entries  (tested: test_beyond_positions_is_a_correlation_of_residuals)
        - 0 for what depends on positions or on the key only  (tested: test_nothing_is_beyond_positions_and_keys)
        - leaving out a window is the same as not having it  (tested: test_leaving_out_is_not_having)
    Numerics:
        NaN where nothing is left. All sets from one pass: means over windows enter through their sums.
    """
    a, m = (_without_keys(x, mask) for x in (a, m))
    aa, mm, am = (_crossed(x, y) for x, y in ((a, a), (m, m), (a, m)))
    # Residuals below this are rounding.
    has_residuals = (aa > 1e-12 * _size(a)) & (mm > 1e-12 * _size(m))
    return torch.where(has_residuals, am / (aa * mm).clamp_min(1e-300).sqrt(), torch.nan)


def _without_keys(x: Tensor, mask: Tensor) -> Tensor:
    """Entries less the mean of their key over the queries that count it."""
    x = torch.where(mask, x, 0.0)
    return torch.where(mask, x - x.sum(-2, keepdim=True) / mask.sum(-2, keepdim=True).clamp_min(1), 0.0)


def _crossed(x: Tensor, y: Tensor) -> Tensor:
    """Sums of products about the means over windows: with all, then without each."""
    windows = len(x)
    by_window, of_x, of_y = ((left * right).sum((-2, -1)) for left, right in ((x, y), (x.sum(0), y), (x, y.sum(0))))
    total, product = by_window.sum(0), (x.sum(0) * y.sum(0)).sum((-2, -1))
    with_all = total - product / windows
    if windows < 2:
        return torch.full_like(with_all, torch.nan).expand(1 + windows, *with_all.shape)
    without_window = total - by_window - (product - of_x - of_y + by_window) / (windows - 1)
    return torch.cat((with_all[None], without_window if windows > 2 else torch.full_like(without_window, torch.nan)))


def _size(x: Tensor) -> Tensor:
    return x.square().sum((0, -2, -1))
