"""Sums over the rows of one window of every quantity of a row."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.lenses.scores.softmax_row import (
    PerRow,
    Rows,
    binned,
    jacobians,
    rejected,
    row_moments,
    softmax_row,
)
from headscope.lenses.scores.window import Window
from headscope.maths.attention.softmax import LARGEST_VARIANCE
from headscope.maths.gaussians.normality import FEWEST

# What is summed over the rows of a window, each with its own count.
SUMMED = (
    "first", "second", "third", "fourth", "row_variance", "row_skewness", "row_kurtosis", "kurtosis_null", "rejected",
    "lifted", "lifted_predicted", "lifted_stated", "entropy", "entropy_predicted", "freezing", "melting", "wide",
    "entropy_all", "entropy_all_predicted", "jacobian_trained", "jacobian_root_d", "jacobian_unscaled", "uniform",
)  # fmt: skip
AT = {name: index for index, name in enumerate(SUMMED)}


@dataclass(frozen=True)
class Summed:
    """The sums of one window over its rows, how many rows are in each, and the standardised scores in bins."""

    sums: Float[Tensor, "summed heads"]
    counts: Float[Tensor, "summed heads"]
    histogram: Int[Tensor, " bins"]


def summed(window: Window) -> Summed:
    """The sums of every quantity over the rows of one window."""
    counted, products = window.counted(), window.products().double()
    visible = torch.isfinite(products)
    used_keys = visible.clone()
    used_keys[..., : window.skip] = False
    columns: dict[str, tuple[PerRow, Rows]] = {}
    n = used_keys.sum(-1).clamp_min(1)
    raw = products.masked_fill(~used_keys, 0.0)
    for power, name in enumerate(("first", "second", "third", "fourth"), start=1):
        columns[name] = (raw.pow(power).sum(-1) / n, counted)
    columns["row_variance"] = (row_moments(products, used_keys)[1], counted)
    softmax = softmax_row(window.rows, used_keys)
    spread = softmax.variance > 0
    shaped = counted & (n >= 4) & spread
    columns["row_skewness"], columns["row_kurtosis"] = (softmax.skewness, shaped), (softmax.kurtosis, shaped)
    columns["kurtosis_null"] = (-6 / (n + 1.0), shaped)
    columns["rejected"] = rejected(window.rows, used_keys, counted)
    columns["lifted"] = (softmax.lifted, counted)
    columns["lifted_predicted"] = (softmax.lifted_predicted, counted)
    columns["lifted_stated"] = ((softmax.variance - softmax.mean) / 2, counted)
    columns["entropy"], columns["entropy_predicted"] = (softmax.entropy, counted), (softmax.entropy_predicted, counted)
    critical = (2 * n.clamp_min(2).double().log()).sqrt()
    columns["freezing"], columns["melting"] = (softmax.variance.sqrt() / critical, counted), (1 / critical, counted)
    columns["wide"] = ((softmax.variance > LARGEST_VARIANCE).double(), counted)
    everything = softmax_row(window.rows, visible)
    columns["entropy_all"] = (everything.entropy, counted)
    columns["entropy_all_predicted"] = (everything.entropy_predicted, counted)
    columns |= jacobians(window, visible, counted)
    sums = torch.stack([torch.where(mask, value, 0.0).sum(-1) for value, mask in map(columns.__getitem__, SUMMED)])
    counts = torch.stack([columns[name][1].sum(-1) for name in SUMMED]).double()
    return Summed(sums, counts, binned(window.rows, used_keys, counted & (n >= FEWEST) & spread, softmax))
