"""The sentences of the lens `alignment`."""

import numpy as np
import polars as pl
from scipy import stats

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.shared.effects import correlation_effect, majority_effect, mean_effect, share_effect
from headscope.lenses.shared.phrases import undetected
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES
from headscope.maths.resampling.jackknife import LEVEL, POWER


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """What stands out, in numbers."""
    heads, layers = tables["heads"], tables["layers"]
    noise = "" if heads["weights"].str.starts_with("as stored").all() else ", rounding noise included"
    headlines = (_trace_headline(heads, noise), _share_headline(heads), _layer_headline(layers, heads))
    return tuple(headline for headline in headlines if headline is not None)


def _of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())


def _trace_headline(heads: pl.DataFrame, noise: str) -> Headline:
    """The traces as effects; how many are beyond chance, after adjusting for the number of heads."""
    rows = _of(heads, "trace_share").filter(pl.col("z").is_not_null()).sort("value", maintain_order=True)
    if rows.is_empty():
        nothing = f"All {_of(heads, 'trace').height} heads have a W_QK of 0."
        return Headline(nothing, nothing)
    sure = rows.filter(_is_sure(rows))
    above, below = (sure.filter(side).height for side in (pl.col("value") > 0, pl.col("value") < 0))
    low, high = rows.row(0, named=True), rows.row(-1, named=True)
    median_share, random = float(np.median(rows["value"].to_numpy())), float(np.median(rows["sd"].to_numpy()))
    full = (
        f"In the weights, the trace of W_QK is {median_share:+.3f} of its largest possible value in the median of "
        f"{rows.height} heads (one side turned at random: 0 ± {random:.2g}{noise}), from {low['value']:+.2f} in "
        f"{label_of(low)} to {high['value']:+.2f} in {label_of(high)}. {above} heads are above and {below} below what "
        f"chance gives (false discovery rate {100 * FALSE_DISCOVERIES:.0f} %; one test detects {_detectable(rows):.2g} "
        "four times in five). What the heads do on a text is measured by the lens likeness."
    )
    effects = [
        correlation_effect(share) if is_sure else 0.0
        for share, is_sure in zip(rows["value"], _is_sure(rows), strict=True)
    ]
    return Headline(full, _trace_short(rows, sure), mean_effect(effects))


def _trace_short(rows: pl.DataFrame, sure: pl.DataFrame) -> str:
    if sure.is_empty():
        return undetected("head whose weights match or avoid like tokens", f"{_detectable(rows):.2g} of the maximum")
    size = float(np.median(np.abs(sure["value"].to_numpy())))
    return (
        f"The weights of {sure.height} of {rows.height} heads match or avoid like tokens beyond chance, typically by "
        f"{size:.2f} of the maximum."
    )


def _is_sure(rows: pl.DataFrame) -> pl.Series:
    """Whether each row differs from its null, adjusted for their number; every row has a z."""
    p = stats.false_discovery_control(2 * stats.norm.sf(np.abs(rows["z"].to_numpy())))
    return pl.Series(p < FALSE_DISCOVERIES)


def _detectable(rows: pl.DataFrame) -> float:
    """The distance from the null that a test at the 5 % level detects in four of five cases, in the median head."""
    return float(stats.norm.ppf((1 + LEVEL) / 2) + stats.norm.ppf(POWER)) * float(np.median(rows["sd"].to_numpy()))


def _share_headline(heads: pl.DataFrame) -> Headline | None:
    rows = _of(heads, "symmetric_share").sort("value", maintain_order=True)
    if rows.is_empty():
        return None
    low, high = rows.row(0, named=True), rows.row(-1, named=True)
    median_share, null, sd = (_median(rows, column) for column in ("value", "null", "sd"))
    full = (
        f"The form of the median head is {100 * median_share:.1f} % symmetric (random: {100 * null:.1f} ± "
        f"{100 * sd:.1g} %{_beyond_chance(rows)}); the most "
        f"symmetric is {label_of(high)} with {100 * high['value']:.0f} %, the least {label_of(low)} with "
        f"{100 * low['value']:.0f} %."
    )
    effect = majority_effect(share_effect(median_share, null), _detected(rows))
    if effect == 0.0:
        short = undetected(
            "difference from chance in the median head's symmetry of query and key", _detectable_points(rows)
        )
    else:
        short = (
            f"{100 * median_share:.1f} % of the median head's scoring treats query and key alike; in random weights "
            f"{100 * null:.1f} %."
        )
    return Headline(full, short, effect)


def _layer_headline(layers: pl.DataFrame, heads: pl.DataFrame) -> Headline:
    traces, overlaps = _of(layers, "trace"), _of(heads, "subspace_overlap")
    values, sds = (traces[column].to_numpy() for column in ("value", "sd"))
    size, random = (float(np.sqrt(np.mean(np.square(x)))) for x in (values, sds))
    sentence = (
        f"Summed over the heads of a layer the traces run from {values.min():.3g} to {values.max():.3g}, root mean "
        f"square {size:.3g} (random: {random:.3g})"
    )
    if overlaps.is_empty():
        return Headline(f"{sentence}.", f"The traces of all {len(values)} layers are 0: no head reads anything.")
    overlap, null, sd = (_median(overlaps, column) for column in ("value", "null", "sd"))
    full = (
        f"{sentence}; in the median head {100 * overlap:.1f} % of what the keys read lies within what the queries "
        f"read (random: {100 * null:.1f} ± {100 * sd:.1g} %{_beyond_chance(overlaps)})."
    )
    effect = majority_effect(share_effect(overlap, null), _detected(overlaps))
    if effect == 0.0:
        short = undetected("overlap beyond chance of the median head's queries and keys", _detectable_points(overlaps))
    else:
        short = (
            f"In the median head {100 * overlap:.1f} % of what keys read is read by queries too; at random "
            f"{100 * null:.1f} %."
        )
    return Headline(full, short, effect)


def _detected(rows: pl.DataFrame) -> list[bool]:
    """Whether each row where chance has play differs from its null."""
    tested = rows.filter(pl.col("z").is_not_null())
    return [] if tested.is_empty() else _is_sure(tested).to_list()


def _detectable_points(rows: pl.DataFrame) -> str:
    """The difference of two shares that one test detects, in points of a percent."""
    return f"{100 * _detectable(rows):.2g} points"


def _median(rows: pl.DataFrame, column: str) -> float:
    """The median of a column without its nulls; 0 where all are null."""
    numbers = rows[column].drop_nulls().to_numpy()
    return float(np.median(numbers)) if len(numbers) else 0.0


def _beyond_chance(rows: pl.DataFrame) -> str:
    """How many heads lie above and below their null, after adjusting for the number of heads."""
    tested = rows.filter(pl.col("z").is_not_null())
    if tested.is_empty():
        return ""
    sure = tested.filter(_is_sure(tested))
    above, below = (sure.filter(side).height for side in (pl.col("z") > 0, pl.col("z") < 0))
    return f"; {above} heads above and {below} below, false discovery rate {100 * FALSE_DISCOVERIES:.0f} %"
