"""Do the keys that rank high in a row of attention rank high by a measure of dependence? The table of heads."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.lenses.dependent.jackknife import jackknife, p_value
from headscope.lenses.dependent.measures import MEASURES, measures
from headscope.lenses.dependent.pooled import Pooled
from headscope.lenses.dependent.tables import Row, number
from headscope.lenses.dependent.windows import Sampled
from headscope.lenses.figures.layout import place
from headscope.maths.ranks import RankSums, beyond_positions, row_ranks

# Measures are ranked after rounding, so that vectors that are the same (a word twice) tie.
DECIMALS = 9


def head_rows(sampled: Sampled, pooled: Pooled | None) -> Iterator[Row]:
    """Each head with each measure; without pooled pairs only what needs no Gaussian."""
    attention = row_ranks(sampled.pattern, sampled.counted)
    near = row_ranks(-sampled.distance.to(torch.float64), sampled.counted)
    found: dict[str, dict[str, Tensor]] = {}
    for name, (own, swapped) in measures(sampled, pooled):
        ranks = [row_ranks(one.round(decimals=DECIMALS), sampled.counted) for one in (own, *swapped)]
        found[name] = _plain(name, attention, ranks, near)
        if name in ("pointwise", "cosine"):
            found[name] |= _beyond([beyond_positions(attention, one, sampled.counted) for one in ranks])
    counts = {"samples": int(sampled.counted.sum()) * sampled.windows, "windows": sampled.windows}
    for head in range(sampled.site.n_heads):
        for name in MEASURES:
            numbers = {key: number(value[head]) for key, value in found.get(name, {}).items()}
            dimensions = pooled.components if pooled and name in ("pointwise", "information") else None
            yield {**place(sampled.site, head), "quantity": name, **numbers, "dimensions": dimensions, **counts}


def _plain(name: str, attention: Tensor, ranks: Sequence[Tensor], near: Tensor) -> dict[str, Tensor]:
    """The correlation with all windows, its interval from leaving out each, its null, and given the distance."""
    own, *nulls = [_left_out(RankSums.of(attention, one, near)) for one in ranks]
    values = own.correlation
    value, half = jackknife(values)
    found = {"value": value, "low": value - half, "high": value + half}
    if name == "nearness":
        return found | {"null": torch.zeros_like(value), "p": p_value(values)}
    if nulls:
        found["null"] = torch.stack([one.correlation[0] for one in nulls]).mean(0)
    return found | ({"given_distance": own.partial[0]} if name in ("pointwise", "cosine") else {})


def _beyond(estimates: Sequence[Float[Tensor, "sets heads"]]) -> dict[str, Tensor]:
    """The correlation beyond positions, its interval, its null, and the test whether it is 0."""
    own, *nulls = estimates
    value, half = jackknife(own)
    found = {"beyond": value, "beyond_low": value - half, "beyond_high": value + half, "p": p_value(own)}
    return found | ({"beyond_null": torch.stack([one[0] for one in nulls]).mean(0)} if nulls else {})


def _left_out(sums: RankSums) -> RankSums:
    """Those of all windows, then of all but each."""
    total = sums.sums.sum(0)
    return RankSums(torch.cat((total[None], total - sums.sums)))
