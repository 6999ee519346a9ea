"""How alike the tokens of a stream are, beside independent isotropic ones."""

from collections.abc import Mapping
from math import nan, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.lenses.shared.table import Row
from headscope.lenses.uniformity.records import RANK_TOKENS, STREAM, Rows, rounding_bound
from headscope.lenses.uniformity.tables import cell, estimate, named
from headscope.maths.attention.token_collapse import isotropic_ranks

QUANTITIES = STREAM[:7]
# Sizes of the differences between tokens: they say nothing where the differences can be rounding.
SIZES = ("residual_share", "composite_share", "differences")


def stream_rows(site: Site, variant: str, rows: Rows, baseline: Rows | None) -> list[Row]:
    """Every quantity of one stream, means over windows, and how far they lie from those of the baseline stream."""
    valid = rows.values[rows.values[:, 0].isfinite()]
    if not len(valid):
        return []
    columns = dict(zip(STREAM, valid.unbind(1), strict=True))
    nulls = _nulls(columns["tokens"], columns["dimensions"])
    quantity_rows: list[Row] = []
    estimates = estimate(valid)
    changes = _changes(rows, baseline)
    bound = rounding_bound(rows.rounding, float(columns["dimensions"][0]))
    too_small = _is_rounding(valid, rows.rounding)
    for index, quantity in enumerate(QUANTITIES):
        numbers = estimates[:, index]
        ranked = quantity in ("participation_ratio", "effective_rank")
        most = int(columns["tokens"].max())
        null, spread = nulls.get(quantity, (nan, nan))
        if quantity in SIZES and too_small:
            numbers = torch.full_like(numbers, nan)
        change, change_low, change_high = (cell(end) for end in changes[:, index].tolist())
        quantity_rows.append(
            {
                **named(site, variant, quantity, numbers),
                "change": change,
                "change_low": change_low,
                "change_high": change_high,
                "rounding": bound if quantity in SIZES else None,
                "null": cell(null),
                "z": cell((float(numbers[0]) - null) / spread),
                "dimensions": int(columns["dimensions"][0]),
                "samples": min(most, RANK_TOKENS) if ranked else most,
                "windows": len(valid),
            }
        )
    return quantity_rows


def _changes(rows: Rows, baseline: Rows | None) -> Float[Tensor, "3 quantities"]:
    """The mean over windows of each quantity less that of the baseline in the same window, and its 95 % interval.

    NaN where there is no baseline, and for the sizes of differences that can be rounding in either stream.
    """
    nothing = torch.full((3, len(QUANTITIES)), nan, dtype=torch.float64)
    if baseline is None or len(baseline.values) != len(rows.values):
        return nothing
    comparable = rows.values[:, 0].isfinite() & baseline.values[:, 0].isfinite()
    if not bool(comparable.any()):
        return nothing
    ours, theirs = rows.values[comparable], baseline.values[comparable]
    changes = estimate(ours[:, : len(QUANTITIES)] - theirs[:, : len(QUANTITIES)])
    if any(_is_rounding(values, of.rounding) for values, of in ((ours, rows), (theirs, baseline))):
        changes[:, [QUANTITIES.index(name) for name in SIZES]] = nan
    return changes


def _is_rounding(values: Float[Tensor, "windows columns"], rounding: float) -> bool:
    """Whether the differences between the tokens of any window can be rounding."""
    bound = rounding_bound(rounding, float(values[0, STREAM.index("dimensions")]))
    return bool((values[:, STREAM.index("differences")] <= bound).any())


def _nulls(tokens: Float[Tensor, "windows"], dimensions: Float[Tensor, "windows"]) -> Mapping[str, tuple[float, float]]:
    """Of independent isotropic tokens, and the standard deviation of the mean over windows where it is known."""
    w = len(tokens)
    share = float((1 - 1 / tokens).sqrt().mean())
    spread = sqrt(float((2 / (tokens * (tokens - 1) * dimensions)).sum())) / w
    ranks = [isotropic_ranks(min(int(n), RANK_TOKENS), int(d)) for n, d in zip(tokens, dimensions, strict=True)]
    participation, entropy = torch.tensor(ranks, dtype=torch.float64).mean(0).tolist()
    return {
        "mean_cosine": (0.0, spread),
        "residual_share": (share, nan),
        "composite_share": (share, nan),
        "participation_ratio": (participation, nan),
        "effective_rank": (entropy, nan),
    }
