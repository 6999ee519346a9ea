"""The figures of a swap: which heads are cheap, quality against cost, speed against length."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, HeatMap, Series, Site


def figures(tables: dict[str, pl.DataFrame], sites: Sequence[Site], allowed: float) -> tuple[Figure, ...]:
    """Everything that is drawn."""
    charts: list[Figure] = [_heads(tables["heads"], sites)]
    if "frontier" in tables:
        charts.append(_frontier(tables["frontier"], allowed))
    if len(tables["speed"].filter(pl.col("which") == "plan")) > 1:
        charts.append(_speed(tables["speed"]))
    if "decoding" in tables and len(tables["decoding"]) > 2:
        charts.append(_decoding(tables["decoding"]))
    return tuple(charts)


def _heads(heads: pl.DataFrame, sites: Sequence[Site]) -> HeatMap:
    width = max(site.n_heads for site in sites)
    shares = np.full((len(sites), width), np.nan)
    values = iter(heads["share"].to_list())
    for row, site in enumerate(sites):
        shares[row, : site.n_heads] = [next(values) for _ in range(site.n_heads)]
    return HeatMap(
        name="heads",
        title="What each head computes",
        caption="The pairs of queries and keys that a head computes under the plan, as a share of the original's.",
        values=shares,
        row_labels=tuple(site.label for site in sites),
        column_labels=tuple(f"H{head}" for head in range(width)),
        unit="share of pairs",
        limits=(0.0, 1.0),
    )


def _frontier(frontier: pl.DataFrame, allowed: float) -> Curves:
    series = []
    texts = frontier["text"].n_unique()
    for (length, text), rows in frontier.group_by(["tokens", "text"], maintain_order=True):
        name = f"plans, {length} tokens" + (f" of {text}" if texts > 1 else "")
        loss, low, high = (rows[name].to_numpy().astype(float) for name in ("loss", "loss_low", "loss_high"))
        series.append(Series(name, rows["share"].to_numpy(), loss, low, high, points=True))
    series.append(Series("budget", np.array([0.0, 1.0]), np.full(2, allowed), role="theory"))
    series.append(Series("original", np.array([0.0, 1.0]), np.zeros(2), role="null"))
    return Curves(
        name="frontier",
        title="Quality against cost",
        caption="Every plan that the search measured: the quality that it loses on the split search, with its "
        "interval, against the share of pairs of queries and keys that all heads compute.",
        x_axis="share of pairs computed",
        y_axis="quality lost",
        series=tuple(series),
    )


def _decoding(decoding: pl.DataFrame) -> Curves:
    rows = decoding.filter(pl.col("which") == "plan")
    lengths = rows["tokens"].to_numpy().astype(float)
    least, most = rows["faster_least"].to_numpy(), rows["faster_most"].to_numpy()
    return Curves(
        name="decoding",
        title="Generation against length",
        caption="How many times as fast a token comes as from the original, each with its own cache, run in turns; the "
        "band is the least and the most of a turn. Below, the bytes of the cache over the original's.",
        x_axis="tokens read",
        y_axis="over the original",
        series=(
            Series("speed", lengths, rows["faster"].to_numpy(), least, most),
            Series("cache", lengths, rows["cache_share"].to_numpy()),
            Series("original", lengths[[0, -1]], np.ones(2), role="null"),
        ),
        log_x=True,
    )


def _speed(speed: pl.DataFrame) -> Curves:
    rows = speed.filter(pl.col("which") == "plan")
    lengths = rows["tokens"].to_numpy().astype(float)
    least, most = rows["speedup_least"].to_numpy(), rows["speedup_most"].to_numpy()
    return Curves(
        name="speed",
        title="Speed against length",
        caption="How many times as fast a prefill is as the original's, run in turns; the band is the least and the "
        "most of a turn.",
        x_axis="tokens",
        y_axis="speed-up",
        series=(
            Series("plan", lengths, rows["speedup"].to_numpy(), least, most),
            Series("original", lengths[[0, -1]], np.ones(2), role="null"),
        ),
        log_x=True,
    )
