"""The sentences of the lens `maps`."""

from collections.abc import Mapping, Sequence
from math import nan
from statistics import median

import polars as pl

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.shared.absences import absence, uncut_effect
from headscope.lenses.shared.answers import answered, pictured
from headscope.lenses.shared.effects import excludes_null, majority_effect, ratio_effect, share_effect
from headscope.lenses.shared.phrases import percent
from headscope.lenses.shared.table import most_windows
from headscope.lenses.shared.written_numbers import counted, interval, part_of, percents, side_by_side


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """What the average hides, what the weighting changes, and how flat averages are."""
    layers = tables["layers"]
    headlines = (_hidden(layers), _weighted(layers), _largest(layers))
    return pictured(headlines, ("hidden_by_layer", "weighted", "heads"))


_Row = Mapping[str, object]


def _rows(layers: pl.DataFrame, quantity: str) -> list[dict[str, object]]:
    return layers.filter(pl.col("quantity") == quantity).to_dicts()


def _number(row: _Row, name: str = "value") -> float:
    value = row[name]
    return float(value) if isinstance(value, (int, float)) else nan


def _median(rows: Sequence[_Row]) -> float:
    return median(_number(row) for row in rows)


def _where(row: _Row) -> str:
    stack = "" if row["stack"] == "only" else f"{row['stack']}."
    return f"{stack}L{row['layer']}" + (".cross" if row["kind"] == "cross" else "")


def _window_count(rows: Sequence[_Row]) -> int:
    return max(int(_number(row, "windows")) for row in rows)


def _over_windows(rows: Sequence[_Row]) -> str:
    return f"Over {counted(_window_count(rows), 'window')}"


def _most_clause(rows: Sequence[_Row]) -> str:
    """The layer with the most, with its interval; alone, it is the median layer."""
    top = max(rows, key=_number)
    value, low, high = percents([_number(top, name) for name in ("value", "low", "high")])
    ends = interval(low, high, int(_number(top, "windows")))
    return f", and most in {_where(top)}: {value} ({ends})" if len(rows) > 1 else f" ({_where(top)}; {ends})"


def _tested(layers: pl.DataFrame, quantity: str) -> str:
    """In how many layers the interval leaves 0 out."""
    outside = excludes_null(layers.filter(pl.col("quantity") == quantity), 0.0)
    return f", outside the 95 % interval in {part_of(sum(outside), len(outside), 'layer')}" if outside else ""


def _effect(layers: pl.DataFrame, quantity: str) -> float | None:
    """How far the median layer lies from equal heads, as a share of what is possible."""
    rows = layers.filter(pl.col("quantity") == quantity, pl.col("most") > 0)
    share = rows.select((pl.col("value") / pl.col("most")).median()).item()
    return None if share is None else majority_effect(share_effect(share), excludes_null(rows, 0.0))


def _absence(layers: pl.DataFrame, quantity: str, subject: str) -> str:
    rows = layers.filter(pl.col("quantity") == quantity)
    reach = max(rows["most"].to_list())
    return absence(subject, uncut_effect(rows), percent, windows=most_windows(rows), reach=reach)


def _unsure(effect: float | None) -> str:
    return " (no interval)" if effect is None else ""


def _hidden(layers: pl.DataFrame) -> Headline:
    rows = _rows(layers, "hidden")
    most = max(_number(row, "most") for row in rows)
    shown_share = _median(_rows(layers, "shown"))
    if most == 0:
        full = "There is 1 head per layer: the average over heads is the head, and hides 0 % of the mass."
        return Headline(full, "There is 1 head per layer: an average over heads hides 0 % of its attention.")
    at_least = "" if shown_share > 0.5 else "at least "
    hidden, equal, different = percents((_median(rows), 0.0, most))
    full = (
        f"{_over_windows(rows)}, the average over heads hides {at_least}{hidden} of the mass in the median of "
        f"{counted(len(rows), 'layer')} (equal heads: {equal}{_tested(layers, 'hidden')}; heads that share no key: "
        f"{different}){_most_clause(rows)}; {percent(shown_share)} of the mass lies between the tokens that are shown."
    )
    effect = _effect(layers, "hidden")
    if effect == 0.0 and _median(rows) > 0.0:
        return Headline(full, _absence(layers, "hidden", "attention that an average over heads hides"), effect)
    short = (
        f"An average over heads hides {at_least}{hidden} of the median layer's attention; equal heads: "
        f"{equal}{_unsure(effect)}."
    )
    return answered(Headline(full, short, effect), "the average hides differences", f"{at_least}{hidden}", equal)


def _weighted(layers: pl.DataFrame) -> Headline | None:
    gaps, heads = _rows(layers, "weighting"), _rows(layers, "effective_heads")
    if not gaps:
        return None
    count = max(_number(row, "null") for row in heads)
    moved, equal = percents((_median(gaps), 0.0))
    spread, every = side_by_side((_median(heads), count))
    full = (
        f"{_over_windows(gaps)}, weighting heads by what they write through W_O moves {moved} of the mass of the "
        f"averaged map in the median of {counted(len(gaps), 'layer')} (equal weights: "
        f"{equal}{_tested(layers, 'weighting')}){_most_clause(gaps)}; "
        f"what is written is spread as over {spread} equal heads (equal weights: {every})."
    )
    effect = _effect(layers, "weighting")
    if effect == 0.0 and _median(gaps) > 0.0:
        return Headline(full, _absence(layers, "weighting", "shift of the averaged map by what heads write"), effect)
    short = (
        f"Weighting heads by what they write moves {moved} of the averaged attention; equal weights: "
        f"{equal}{_unsure(effect)}."
    )
    return Headline(full, short, effect)


def _largest(layers: pl.DataFrame) -> Headline:
    average, single = _rows(layers, "largest_average"), _rows(layers, "largest_head")
    lower = tuple(
        _number(mean, "high") < _number(head, "low")
        for mean, head in zip(average, single, strict=True)
        if mean["high"] is not None and head["low"] is not None
    )
    averaged, alone = _median(average), _median(single)
    effect = majority_effect(ratio_effect(averaged, alone), lower)
    of_average, of_head = side_by_side((averaged, alone), decimals=2)
    top = max(average, key=_number)
    largest, low, high = side_by_side([_number(top, name) for name in ("value", "low", "high")], decimals=2)
    ends = interval(low, high, int(_number(top, "windows")))
    tests = (
        f"the 95 % interval of the average lies below that of the head in {part_of(sum(lower), len(lower), 'layer')}"
        if lower
        else "one window gives no interval"
    )
    full = (
        f"{_over_windows(average)}, the largest weight of an averaged map is {of_average} in the median of "
        f"{counted(len(average), 'layer')}, and that of a single head {of_head}; {tests}. The largest of all averages "
        f"is {largest} in {_where(top)} ({ends})."
    )
    unsure = _unsure(effect) if effect is None or effect > 0 else " (intervals overlap)"
    short = (
        f"In the median layer the largest averaged weight is {of_average}; in a single head it is {of_head}{unsure}."
    )
    return Headline(full, short, effect)
