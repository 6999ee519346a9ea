"""The sentences of the lens `alignment`."""

from collections.abc import Mapping

import numpy as np
import polars as pl
from scipy import stats

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.shared.answers import answered, pictured
from headscope.lenses.shared.effects import correlation_effect, majority_effect, mean_effect, share_effect
from headscope.lenses.shared.estimates import apart, fixed, how_many, rounded
from headscope.lenses.shared.phrases import undetected
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES
from headscope.lenses.shared.written_numbers import counted
from headscope.maths.resampling.jackknife import POWER


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """What stands out, in numbers."""
    heads, layers = tables["heads"], tables["layers"]
    headlines = (_trace_headline(heads), _share_headline(heads), _layer_headline(layers, heads))
    return pictured(headlines, ("trace_share", "symmetric_share", "subspace_overlap"))


def _of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    """The rows of a quantity that were measured, the smallest value first."""
    measured = (pl.col(name).is_finite() for name in ("value", "null", "sd"))
    return table.filter(pl.col("quantity") == quantity, *measured).sort("value", maintain_order=True)


def _trace_headline(heads: pl.DataFrame) -> Headline | None:
    """The traces as effects; how many are beyond chance, after adjusting for the number of heads."""
    rows = _of(heads, "trace_share").filter(pl.col("z").is_finite())
    if rows.is_empty():
        return _zero_headline(_of(heads, "trace").filter(pl.col("value") == 0).height)
    stored = heads["weights"].str.starts_with("as stored").all()
    median_share, spread = _median(rows, "value"), _median(rows, "sd")
    low, high = rows.row(0, named=True), rows.row(-1, named=True)
    span = (
        f" It runs from {fixed(low['value'], 3, signed=True)} in {label_of(low)} to "
        f"{fixed(high['value'], 3, signed=True)} in {label_of(high)}."
        if rows.height > 1
        else ""
    )
    full = (
        f"In the weights{'' if stored else ', rounding noise included'}, the trace of W_QK is "
        f"{fixed(median_share, 3, signed=True)} of its largest possible value in {_median_head(rows)} (one side turned "
        f"at random: 0, standard deviation {rounded(spread)}).{span} {_beyond_chance(rows, 1.0, '')} What the "
        "heads do on a text is measured by the lens likeness."
    )
    is_sure = _is_sure(rows)
    effects = [correlation_effect(share) if sure else 0.0 for share, sure in zip(rows["value"], is_sure, strict=True)]
    sure = rows.filter(is_sure)
    headline = Headline(full, _trace_short(rows, sure), mean_effect(effects))
    size = fixed(float(np.median(np.abs((rows if sure.is_empty() else sure)["value"].to_numpy()))), 2)
    answer = f"{how_many(sure.height, rows.height)} match or avoid like tokens"
    return answered(headline, answer, f"{size} of the maximum", "0")


def _zero_headline(heads: int) -> Headline | None:
    """What is left to say of heads that score every pair of tokens alike."""
    if not heads:
        return None
    nothing = f"All {heads} heads have a W_QK of 0." if heads > 1 else "The only head has a W_QK of 0."
    return Headline(nothing, nothing)


def _median_head(rows: pl.DataFrame) -> str:
    if rows.height > 1:
        return f"the median of {rows.height} heads"
    return f"the only head, {label_of(rows.row(0, named=True))}"


def _trace_short(rows: pl.DataFrame, sure: pl.DataFrame) -> str:
    if sure.is_empty():
        size = rounded(_countable(rows, 0))
        return undetected("head whose weights match or avoid like tokens", f"{size} of the maximum")
    signs = set(np.sign(sure["value"].to_numpy()))
    verb = "match" if signs == {1.0} else "avoid" if signs == {-1.0} else "match or avoid"
    size = fixed(float(np.median(np.abs(sure["value"].to_numpy()))), 2)
    by = "typically by" if sure.height > 1 else "by"
    heads = how_many(sure.height, rows.height)
    return f"The weights of {heads} {verb} like tokens beyond chance, {by} {size} of the maximum."


def _is_sure(rows: pl.DataFrame) -> pl.Series:
    """Whether each row differs from its null, adjusted for their number; every row has a z."""
    p = stats.false_discovery_control(2 * stats.norm.sf(np.abs(rows["z"].to_numpy())))
    return pl.Series(p < FALSE_DISCOVERIES)


def _countable(rows: pl.DataFrame, counted_heads: int) -> float:
    """The distance from the null with which one more head is counted four times in five, in the median head.

    With k of m heads counted, one more is counted where its p-value is at most (k + 1) / m of the rate.
    """
    level = FALSE_DISCOVERIES * min(counted_heads + 1, rows.height) / rows.height
    return float(stats.norm.isf(level / 2) + stats.norm.ppf(POWER)) * _median(rows, "sd")


def _beyond_chance(rows: pl.DataFrame, factor: float, unit: str) -> str:
    """How many heads lie above and below their null, and which distance one more of them would need."""
    sure = rows.filter(_is_sure(rows))
    above, below = (sure.filter(side).height for side in (pl.col("z") > 0, pl.col("z") < 0))
    limit = f"{rounded(factor * _countable(rows, sure.height))}{unit}"
    if rows.height == 1:
        if sure.is_empty():
            return f"Chance could give as much: it takes {limit} to be detected four times in five."
        return f"It lies {'above' if above else 'below'} what chance gives."
    verb = "lie" if above > 1 else "lies"
    missing = (
        f"; one more would be counted four times in five if it differed by {limit}" if sure.height < rows.height else ""
    )
    return (
        f"{how_many(above, rows.height).capitalize()} {verb} above and {below or 'none'} below what chance gives "
        f"(false discovery rate {100 * FALSE_DISCOVERIES:.0f} %{missing})."
    )


def _share_headline(heads: pl.DataFrame) -> Headline | None:
    rows = _of(heads, "symmetric_share")
    if rows.is_empty():
        return None
    low, high = rows.row(0, named=True), rows.row(-1, named=True)
    span = (
        f" The most symmetric is {label_of(high)} with {fixed(100 * high['value'], 1)} %, the least {label_of(low)} "
        f"with {fixed(100 * low['value'], 1)} %."
        if rows.height > 1
        else ""
    )
    median_share, null = _median(rows, "value"), _median(rows, "null")
    full = f"In {_median_head(rows)}, W_QK is {fixed(100 * median_share, 1)} % symmetric{_chance(rows)}{span}"
    if effect := majority_effect(share_effect(median_share, null), _detected(rows)):
        value, random = apart(100 * median_share, 100 * null, 1)
        short = f"{value} % of the median head's scoring treats query and key alike; in random weights {random} %."
        return Headline(full, short, effect)
    deviation = ("treat", "query and key more or less alike than random weights")
    return Headline(full, _minority_short(rows, "symmetry of query and key", deviation), effect)


def _chance(rows: pl.DataFrame) -> str:
    """The null in brackets, then how many heads lie beyond it; where chance has no play, that."""
    null, spread = fixed(100 * _median(rows, "null"), 1), rounded(100 * _median(rows, "sd"))
    tested = rows.filter(pl.col("z").is_finite())
    if tested.is_empty():
        return f" (one side turned at random: always {null} %)."
    return (
        f" (one side turned at random: {null} %, standard deviation {spread} points). "
        f"{_beyond_chance(tested, 100.0, ' points')}"
    )


def _minority_short(rows: pl.DataFrame, name: str, deviation: tuple[str, str]) -> str:
    """The short form where fewer than half of the heads differ from chance, or none, or chance has no play.

    `deviation` says what the heads that differ do: a verb in the plural, and its object.
    """
    tested = rows.filter(pl.col("z").is_finite())
    if tested.is_empty():
        return f"Whatever the weights, heads of this size have {fixed(100 * _median(rows, 'value'), 1)} % {name}."
    sure = tested.filter(_is_sure(tested))
    if sure.is_empty():
        return undetected(f"difference from chance in the {name}", f"{rounded(100 * _countable(tested, 0))} points")
    size = float(np.median(np.abs((sure["value"] - sure["null"]).to_numpy())))
    verb, thing = deviation
    verb, by = (verb, "typically by") if sure.height > 1 else ({"have": "has"}.get(verb, f"{verb}s"), "by")
    return f"{how_many(sure.height, tested.height)} {verb} {thing}, {by} {rounded(100 * size)} points."


def _layer_headline(layers: pl.DataFrame, heads: pl.DataFrame) -> Headline | None:
    traces, rows = _of(layers, "trace"), _of(heads, "subspace_overlap")
    if traces.is_empty():
        return None
    summed = _layers_sentence(traces)
    if rows.is_empty():
        return Headline(summed, f"The traces of {counted(traces.height, 'layer')} are 0: no head reads anything.")
    overlap, null = _median(rows, "value"), _median(rows, "null")
    full = (
        f"{summed} In {_median_head(rows)}, {fixed(100 * overlap, 1)} % of what the keys read lies within what the "
        f"queries read{_chance(rows)}"
    )
    if effect := majority_effect(share_effect(overlap, null), _detected(rows)):
        value, random = apart(100 * overlap, 100 * null, 1)
        short = f"In the median head {value} % of what keys read is read by queries too; at random {random} %."
        return Headline(full, short, effect)
    deviation = ("have", "queries and keys that overlap more or less than at random")
    return Headline(full, _minority_short(rows, "overlap of queries and keys", deviation), effect)


def _layers_sentence(traces: pl.DataFrame) -> str:
    """The traces of whole layers, smallest first, compared with random ones."""
    low, high = traces.row(0, named=True), traces.row(-1, named=True)
    size, random = (float(np.sqrt(np.mean(np.square(traces[name].to_numpy())))) for name in ("value", "sd"))
    if traces.height == 1:
        return (
            f"Summed over the heads of {_layer_label(low)}, the trace of W_QK is {rounded(low['value'], 3)} (one "
            f"side turned at random: 0, standard deviation {rounded(random, 3)})."
        )
    return (
        f"Summed over the heads of a layer, the trace of W_QK runs from {rounded(low['value'], 3)} in "
        f"{_layer_label(low)} to {rounded(high['value'], 3)} in {_layer_label(high)}; its root mean square is "
        f"{rounded(size, 3)} (one side turned at random: {rounded(random, 3)})."
    )


def _layer_label(row: Mapping[str, object]) -> str:
    return label_of(row).rpartition(".")[0]


def _detected(rows: pl.DataFrame) -> list[bool]:
    """Whether each row where chance has play differs from its null."""
    tested = rows.filter(pl.col("z").is_finite())
    return [] if tested.is_empty() else _is_sure(tested).to_list()


def _median(rows: pl.DataFrame, column: str) -> float:
    return float(np.median(rows[column].to_numpy()))
