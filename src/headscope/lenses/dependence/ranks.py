"""The table of heads: do keys that rank high in attention rank high by a measure of dependence?"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.lenses.dependence.measures import MEASURES, measures
from headscope.lenses.dependence.pooled import PairPools
from headscope.lenses.dependence.windows import SiteSample
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number
from headscope.maths.resampling.jackknife import detectable, jackknife, jackknife_p
from headscope.maths.resampling.rank_correlation import RankSums, beyond_positions, row_ranks

# Measures are ranked after rounding, so that vectors that are the same (a word twice) tie.
DECIMALS = 9


def head_rows(
    sampled: SiteSample, pooled: PairPools | None
) -> tuple[list[Row], dict[str, Float[Tensor, "sets heads"]]]:
    """A row for each head and measure, and each measure's excess over its null by set of windows.

    Without pooled pairs there are only the measures that need no Gaussian.
    """
    attention = row_ranks(sampled.pattern, sampled.counted)
    near = row_ranks(-sampled.distance.to(torch.float64), sampled.counted)
    columns_by_measure: dict[str, dict[str, Tensor]] = {}
    excess: dict[str, Tensor] = {}
    for name, (measure_map, swapped) in measures(sampled, pooled):
        ranks = [row_ranks(pair_map.round(decimals=DECIMALS), sampled.counted) for pair_map in (measure_map, *swapped)]
        columns_by_measure[name] = _plain(name, attention, ranks, near)
        if name in ("pointwise", "cosine"):
            estimates = [beyond_positions(attention, map_ranks, sampled.counted) for map_ranks in ranks]
            columns_by_measure[name] |= _beyond(estimates)
            if len(estimates) > 1:
                excess[name] = _excess(estimates)
    counts = {"samples": int(sampled.counted.sum()) * sampled.windows, "windows": sampled.windows}
    rows: list[Row] = []
    for head in range(sampled.site.n_heads):
        for name in MEASURES:
            numbers = {key: number(value[head]) for key, value in columns_by_measure.get(name, {}).items()}
            dimensions = pooled.components if pooled and name in ("pointwise", "information") else None
            rows.append({**place(sampled.site, head), "quantity": name, **numbers, "dimensions": dimensions, **counts})
    return rows, excess


def _plain(name: str, attention: Tensor, ranks: Sequence[Tensor], near: Tensor) -> dict[str, Tensor]:
    """The correlation, its jackknife interval, its null, and the correlation given the distance."""
    rank_sums, *nulls = [_left_out(RankSums.of(attention, measure_ranks, near)) for measure_ranks in ranks]
    values = rank_sums.correlation
    value, half = jackknife(values)
    columns = {"value": value, "low": value - half, "high": value + half}
    if name == "nearness":
        return columns | {"null": torch.zeros_like(value), "p": jackknife_p(values)}
    if nulls:
        columns["null"] = torch.stack([null_sums.correlation[0] for null_sums in nulls]).mean(0)
    return columns | ({"given_distance": rank_sums.partial[0]} if name in ("pointwise", "cosine") else {})


def _beyond(estimates: Sequence[Float[Tensor, "sets heads"]]) -> dict[str, Tensor]:
    """The correlation beyond positions, its excess over its null, and the test whether that is 0."""
    value, half = jackknife(estimates[0])
    cells = {"beyond": value, "beyond_low": value - half, "beyond_high": value + half}
    if len(estimates) == 1:
        return cells
    null = torch.stack([null_estimate[0] for null_estimate in estimates[1:]]).mean(0)
    more = _excess(estimates)
    excess, wide = jackknife(more)
    cells |= {"beyond_null": null, "excess": excess, "excess_low": excess - wide, "excess_high": excess + wide}
    return cells | {"p": jackknife_p(more), "detectable": detectable(wide, len(more) - 1)}


def _excess(estimates: Sequence[Float[Tensor, "sets heads"]]) -> Float[Tensor, "sets heads"]:
    """The first estimate less the mean of the others, its nulls, in every set of windows."""
    return estimates[0] - torch.stack(list(estimates[1:])).mean(0)


def _left_out(sums: RankSums) -> RankSums:
    """Sums of all windows, then of all windows but one, for each."""
    total = sums.sums.sum(0)
    return RankSums(torch.cat((total[None], total - sums.sums)))
