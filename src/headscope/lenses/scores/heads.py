"""The table of heads: every quantity from the sums of all windows, with an interval from leaving out each of them."""

from collections.abc import Iterator
from math import inf, nan

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from headscope.core import Site
from headscope.lenses.scores.predictions import sides
from headscope.lenses.scores.row_sums import AT
from headscope.lenses.scores.site_sums import SiteSums
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number

_CELLS = ("value", "low", "high", "predicted", "stated", "null")
# What a quantity can be.
_RANGE = {
    "variance": (0.0, inf), "row_variance": (0.0, inf), "log_mean_exp": (0.0, inf), "freezing": (0.0, inf),
    "entropy_share": (0.0, 1.0), "entropy_share_all": (0.0, 1.0), "rejected_share": (0.0, 1.0),
    "jacobian_trained": (0.0, 0.5), "jacobian_root_d": (0.0, 0.5), "jacobian_unscaled": (0.0, 0.5),
}  # fmt: skip
# Whose rows are counted, where not every row has the quantity.
_COUNT_OF = {
    "row_skewness": "row_skewness", "row_kurtosis": "row_kurtosis", "rejected_share": "rejected",
    "jacobian_trained": "jacobian_trained", "jacobian_root_d": "jacobian_root_d",
    "jacobian_unscaled": "jacobian_unscaled",
}  # fmt: skip


def head_rows(site: Site, site_sums: SiteSums) -> Iterator[Row]:
    """One row per head and quantity."""
    sums, counts = torch.cat(site_sums.sums), torch.cat(site_sums.counts)
    used = (counts[:, AT["first"]] > 0).any(-1)
    sums, counts = sums[used], counts[used]
    windows = len(sums)
    total, rows = sums.sum(0), counts.sum(0)
    values = _estimates(total, rows)
    without_window = _estimates(total - sums, rows - counts)
    references = sides(site, site_sums, total / torch.where(rows > 0, rows, nan))
    columns = {}
    for quantity, value in values.items():
        low, high = _interval(quantity, value, without_window[quantity])
        tensors = {"value": value, "low": low, "high": high, **references.get(quantity, {})}
        columns[quantity] = {name: column.tolist() for name, column in tensors.items()}
    for head in range(site.n_heads):
        for quantity, column in columns.items():
            cells = {name: number(column[name][head]) if name in column else None for name in _CELLS}
            yield {
                **place(site, head),
                "quantity": quantity,
                **cells,
                "rows": int(rows[AT[_COUNT_OF.get(quantity, "first")], head]),
                "samples": site_sums.q.count,
                "dimensions": site.d_head,
                "windows": windows,
            }


def _estimates(
    sums: Float[Tensor, "*sets summed heads"], counts: Float[Tensor, "*sets summed heads"]
) -> dict[str, Float[Tensor, "*sets heads"]]:
    """Every quantity from the sums of some windows; NaN where nothing was counted."""
    mean = sums / torch.where(counts > 0, counts, nan)
    first, second, third, fourth = (mean[..., AT[name], :] for name in ("first", "second", "third", "fourth"))
    variance = second - first.square()
    central = fourth - 4 * first * third + 6 * first.square() * second - 3 * first.pow(4)
    direct = {
        "row_variance": "row_variance", "row_skewness": "row_skewness", "row_kurtosis": "row_kurtosis",
        "rejected_share": "rejected", "log_mean_exp": "lifted", "entropy_share": "entropy",
        "entropy_share_all": "entropy_all", "freezing": "freezing", "jacobian_trained": "jacobian_trained",
        "jacobian_root_d": "jacobian_root_d", "jacobian_unscaled": "jacobian_unscaled",
    }  # fmt: skip
    return {
        "mean": first,
        "variance": variance,
        "pair_kurtosis": central / variance.square() - 3,
        **{name: mean[..., AT[column], :] for name, column in direct.items()},
    }


def _interval(
    quantity: str, value: Float[Tensor, " heads"], without_window: Float[Tensor, "windows heads"]
) -> tuple[Float[Tensor, " heads"], Float[Tensor, " heads"]]:
    """Jackknife over windows, Student t; within what the quantity can be. NaN where a window cannot be left out."""
    w = len(without_window)
    if w < 2:
        return torch.full_like(value, nan), torch.full_like(value, nan)
    error = ((w - 1) / w * (without_window - without_window.mean(0)).square().sum(0)).sqrt()
    half = float(stats.t.ppf(0.975, w - 1)) * error
    least, most = _RANGE.get(quantity, (-inf, inf))
    return (value - half).clamp_min(least), (value + half).clamp_max(most)
