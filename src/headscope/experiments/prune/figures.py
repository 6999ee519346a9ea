"""The figures of pruning: the importance of each head, and perplexity against the share of heads that are off."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, HeatMap, Series, Site
from headscope.experiments.prune.curve import RANDOM
from headscope.experiments.prune.settings import Off
from headscope.lenses.shared.plots import head_map

FLOOR = 1e-6  # nats; below it rounding decides
_WORDS = {Off.ZERO: "gives zero", Off.MEAN: "gives its mean"}


def figures(tables: Mapping[str, pl.DataFrame], sites: Sequence[Site], off: Off) -> tuple[Figure, ...]:
    """Everything that is drawn, the curve first."""
    return (
        perplexity_curve(tables["curve"], _WORDS[off], "windows"),
        *(_importance(tables["heads"], sites, way) for way in Off),
    )


def perplexity_curve(curve: pl.DataFrame, gives: str, parts: str) -> Curves:
    """The perplexity ratio of every order against the share of heads that are off, with intervals over parts."""
    orders = curve["order"].unique(maintain_order=True).to_list()
    shares = np.array([0.0, 1.0])
    series = [_series(curve.filter(pl.col("order") == order), order) for order in orders]
    return Curves(
        name="curve",
        title="Perplexity with heads switched off",
        caption="Heads are switched off in the order of their importance, the least important first: each "
        f"{gives}. Perplexity over the original's on the split test, with its 95 % interval over {parts}; of "
        "random orders the mean, and the band from the least to the most.",
        x_axis="share of heads that are off",
        y_axis="perplexity ratio",
        series=(*series, Series("original", shares, np.ones(2), role="theory")),
        log_y=True,
    )


def _series(rows: pl.DataFrame, order: str) -> Series:
    ends = ("ratio_least", "ratio_most") if order == RANDOM else ("ratio_low", "ratio_high")
    x, y, low, high = (np.array([first, *rows[name].to_list()], dtype=float)
                       for first, name in ((0.0, "share"), (1.0, "ratio"), (1.0, ends[0]), (1.0, ends[1])))  # fmt: skip
    return Series(order, x, y, low, high, role="null" if order == RANDOM else "measured")


def _importance(heads: pl.DataFrame, sites: Sequence[Site], off: Off) -> HeatMap:
    values = iter(heads[off.value].to_list())
    by_site = {site: [float(np.log10(max(next(values), FLOOR))) for _ in range(site.n_heads)] for site in sites}
    return head_map(
        by_site,
        name=f"importance_{off.value}",
        title=f"Importance of each head: it {_WORDS[off]}",
        caption="How far the predictions move when this head alone is off: the logarithm to base 10 of the KL from the "
        f"original, in nats per token. What is below {FLOOR:g} nats counts as that much.",
        unit="log₁₀ nats",
    )
