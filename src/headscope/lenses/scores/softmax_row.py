"""A row of scores and its softmax: shape, normality, entropy, Jacobian."""

from dataclasses import dataclass
from functools import lru_cache
from math import inf

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.lenses.scores.figures import EDGES
from headscope.lenses.scores.window import Window, bent
from headscope.maths.attention.softmax import GaussianRows, jacobian_operator_norm
from headscope.maths.gaussians.normality import FEWEST, omnibus_p

# Distance of the keys in a test of normality: their correlation r then enters only as r³ and r⁴.
APART = 4
# The norm of a Jacobian takes several passes over its row, at each scale: not every row.
JACOBIAN_ROWS = slice(2, None, 4)
LEVEL = 0.05

Scores = Float[Tensor, "heads rows keys"]
Visible = Bool[Tensor, "heads rows keys"]
PerRow = Float[Tensor, "heads rows"]
Rows = Bool[Tensor, "heads rows"]


@dataclass(frozen=True)
class SoftmaxRow:
    """Moments and softmax of each row; entropies are shares of ln n."""

    mean: PerRow
    variance: PerRow
    skewness: PerRow
    kurtosis: PerRow
    lifted: PerRow
    lifted_predicted: PerRow
    entropy: PerRow
    entropy_predicted: PerRow


def softmax_row(s: Scores, used_keys: Visible) -> SoftmaxRow:
    """The numbers of each row over the keys that are used."""
    n = used_keys.sum(-1)
    mean, centred = _centred(s, used_keys)
    squares = centred.square()
    total_square = squares.sum(-1)
    variance, second = total_square / (n - 1).clamp_min(1), total_square / n.clamp_min(1)
    scale = torch.where(second > 0, second, 1.0)
    top = centred.masked_fill(~used_keys, -inf).amax(-1, keepdim=True).clamp_min(-1e300)
    weights = torch.exp(centred - top).masked_fill(~used_keys, 0.0)
    total = weights.sum(-1)
    lifted = top[..., 0] + (total / n.clamp_min(1)).clamp_min(1e-300).log()
    entropy = lifted + n.clamp_min(1).log() - (weights * centred).sum(-1) / total.clamp_min(1e-300)
    of_gaussians, lifted_of_gaussians = _gaussian_rows()(n.clamp_min(2), variance)
    most = n.clamp_min(2).double().log()
    return SoftmaxRow(
        mean,
        variance,
        # A power of 4 would be taken by a logarithm.
        torch.linalg.vecdot(squares, centred) / n.clamp_min(1) / scale**1.5,
        torch.linalg.vecdot(squares, squares) / n.clamp_min(1) / scale.square() - 3,
        lifted,
        lifted_of_gaussians,
        (entropy / most).clamp(0.0, 1.0),
        of_gaussians / most,
    )


@lru_cache(maxsize=1)
def _gaussian_rows() -> GaussianRows:
    return GaussianRows()


def row_moments(s: Scores, used_keys: Visible) -> tuple[PerRow, PerRow]:
    """Mean and unbiased variance of each row."""
    mean, centred = _centred(s, used_keys)
    return mean, centred.square().sum(-1) / (used_keys.sum(-1) - 1).clamp_min(1)


def _centred(s: Scores, used_keys: Visible) -> tuple[PerRow, Scores]:
    """The mean of each row, and what its scores deviate from it; 0 at keys that are not used."""
    hidden = ~used_keys
    mean = s.masked_fill(hidden, 0.0).sum(-1) / used_keys.sum(-1).clamp_min(1)
    return mean, (s - mean[..., None]).masked_fill(hidden, 0.0)


def rejected(s: Scores, used_keys: Visible, counted: Rows) -> tuple[PerRow, Rows]:
    """1 where a test on keys far enough apart rejects that the row is normal."""
    s, used_keys = s[..., ::APART], used_keys[..., ::APART]
    n = used_keys.sum(-1)
    _, centred = _centred(s, used_keys)
    squares = centred.square()
    total_square = squares.sum(-1)
    tested = counted & (n >= FEWEST) & (total_square > 0)
    second = torch.where(tested, total_square / n.clamp_min(1), 1.0)
    skewness = torch.linalg.vecdot(squares, centred) / n.clamp_min(1) / second**1.5
    kurtosis = torch.linalg.vecdot(squares, squares) / n.clamp_min(1) / second.square() - 3
    p = omnibus_p(skewness, kurtosis, n.clamp_min(FEWEST).double())
    return (p < LEVEL).double(), tested


def jacobians(window: Window, visible: Visible, counted: Rows) -> dict[str, tuple[PerRow, Rows]]:
    """Norms of the Jacobian in a sample of rows, as trained and, without bias or cap, at two other scales."""
    sampled = torch.zeros_like(counted)
    sampled[:, JACOBIAN_ROWS] = True
    sampled &= counted
    rows = window.rows[sampled]
    norms_by_scale: dict[str, tuple[PerRow, Rows]] = {}
    root = window.site.d_head**-0.5
    norms: dict[float, Tensor] = {}
    for name, scale in (("trained", window.scale), ("root_d", root), ("unscaled", 1.0)):
        applies = name == "trained" or not bent(window.site)
        value = torch.zeros(counted.shape, dtype=torch.float64)
        if applies and len(rows):
            factor = round(scale / window.scale, 6) if window.scale else 1.0
            if factor not in norms:
                norms[factor] = jacobian_operator_norm(torch.softmax(rows * factor, -1))
            value[sampled] = norms[factor]
        norms_by_scale[f"jacobian_{name}"] = (value, sampled if applies else torch.zeros_like(sampled))
    norms_by_scale["uniform"] = (1 / visible.sum(-1).clamp_min(1).double(), sampled)
    return norms_by_scale


def binned(s: Scores, used_keys: Visible, used: Rows, row: SoftmaxRow) -> Int[Tensor, " bins"]:
    """Counts of standardised scores in bins; the last cell counts all of them."""
    standard = ((s - row.mean[..., None]) / row.variance.clamp_min(1e-300).sqrt()[..., None])[
        used_keys & used[..., None]
    ]
    bins = torch.histc(standard, len(EDGES) - 1, float(EDGES[0]), float(EDGES[-1])).to(torch.int64)
    return torch.cat((bins, torch.tensor([len(standard)])))
