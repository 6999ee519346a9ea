"""The sentences of the lens `alignment`."""

import numpy as np
import polars as pl
from scipy import stats

from headscope.lenses.lens import Tables
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES
from headscope.maths.resampling.jackknife import LEVEL, POWER


def sentences(tables: Tables) -> tuple[str, ...]:
    """What stands out, in numbers."""
    heads, layers = tables["heads"], tables["layers"]
    noise = "" if heads["weights"].str.starts_with("as stored").all() else ", rounding noise included"
    sentences = (_trace_sentence(heads, noise), _share_sentence(heads), _layer_sentence(layers, heads))
    return tuple(sentence for sentence in sentences if sentence)


def _of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())


def _trace_sentence(heads: pl.DataFrame, noise: str) -> str:
    """The traces as effects; how many are beyond chance, after adjusting for the number of heads."""
    rows = _of(heads, "trace_share").filter(pl.col("z").is_not_null()).sort("value", maintain_order=True)
    if rows.is_empty():
        return f"All {_of(heads, 'trace').height} heads have a W_QK of 0."
    p = stats.false_discovery_control(2 * stats.norm.sf(np.abs(rows["z"].to_numpy())))
    sure = rows.filter(pl.Series(p < FALSE_DISCOVERIES))
    above, below = (sure.filter(side).height for side in (pl.col("value") > 0, pl.col("value") < 0))
    low, high = rows.row(0, named=True), rows.row(-1, named=True)
    median_share, random = float(np.median(rows["value"].to_numpy())), float(np.median(rows["sd"].to_numpy()))
    return (
        f"In the weights, the trace of W_QK is {median_share:+.3f} of its largest possible value in the median of "
        f"{rows.height} heads (one side turned at random: 0 ± {random:.2g}{noise}), from {low['value']:+.2f} in "
        f"{label_of(low)} to {high['value']:+.2f} in {label_of(high)}. {above} heads are above and {below} below what "
        f"chance gives (false discovery rate {100 * FALSE_DISCOVERIES:.0f} %; one test detects {_detectable(rows):.2g} "
        "four times in five). What the heads do on a text is measured by the lens likeness."
    )


def _detectable(rows: pl.DataFrame) -> float:
    """The trace share that a test at the 5 % level detects in four of five cases, in the median head."""
    return float(stats.norm.ppf((1 + LEVEL) / 2) + stats.norm.ppf(POWER)) * float(np.median(rows["sd"].to_numpy()))


def _share_sentence(heads: pl.DataFrame) -> str:
    rows = _of(heads, "symmetric_share").sort("value", maintain_order=True)
    if rows.is_empty():
        return ""
    low, high = rows.row(0, named=True), rows.row(-1, named=True)
    median_share, null, sd = (_median(rows, column) for column in ("value", "null", "sd"))
    return (
        f"The form of the median head is {100 * median_share:.1f} % symmetric (random: {100 * null:.1f} ± "
        f"{100 * sd:.1g} %{_beyond_chance(rows)}); the most "
        f"symmetric is {label_of(high)} with {100 * high['value']:.0f} %, the least {label_of(low)} with "
        f"{100 * low['value']:.0f} %."
    )


def _layer_sentence(layers: pl.DataFrame, heads: pl.DataFrame) -> str:
    traces, overlaps = _of(layers, "trace"), _of(heads, "subspace_overlap")
    values, sds = (traces[column].to_numpy() for column in ("value", "sd"))
    size, random = (float(np.sqrt(np.mean(np.square(x)))) for x in (values, sds))
    sentence = (
        f"Summed over the heads of a layer the traces run from {values.min():.3g} to {values.max():.3g}, root mean "
        f"square {size:.3g} (random: {random:.3g})"
    )
    if overlaps.is_empty():
        return sentence + "."
    overlap, null, sd = (_median(overlaps, column) for column in ("value", "null", "sd"))
    return (
        f"{sentence}; in the median head {100 * overlap:.1f} % of what the keys read lies within what the queries "
        f"read (random: {100 * null:.1f} ± {100 * sd:.1g} %{_beyond_chance(overlaps)})."
    )


def _median(rows: pl.DataFrame, column: str) -> float:
    """The median of a column without its nulls; 0 where all are null."""
    numbers = rows[column].drop_nulls().to_numpy()
    return float(np.median(numbers)) if len(numbers) else 0.0


def _beyond_chance(rows: pl.DataFrame) -> str:
    """How many heads lie above and below their null, after adjusting for the number of heads."""
    tested = rows.filter(pl.col("z").is_not_null())
    if tested.is_empty():
        return ""
    p = stats.false_discovery_control(2 * stats.norm.sf(np.abs(tested["z"].to_numpy())))
    sure = tested.filter(pl.Series(p < FALSE_DISCOVERIES))
    above, below = (sure.filter(side).height for side in (pl.col("z") > 0, pl.col("z") < 0))
    return f"; {above} heads above and {below} below, false discovery rate {100 * FALSE_DISCOVERIES:.0f} %"
