"""The sentences of the lens `maps`."""

from collections.abc import Mapping, Sequence
from math import nan

import polars as pl

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.shared.effects import excludes_null, majority_effect, ratio_effect, share_effect
from headscope.lenses.shared.phrases import detectable_effect, percent, undetected


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """What the average hides, what the weighting changes, and how flat averages are."""
    layers = tables["layers"]
    headlines = (_hidden(layers), _weighted(layers), _largest(layers))
    return tuple(headline for headline in headlines if headline is not None)


def _rows(layers: pl.DataFrame, quantity: str) -> list[dict[str, object]]:
    return layers.filter(pl.col("quantity") == quantity).to_dicts()


def _number(row: Mapping[str, object], name: str = "value") -> float:
    value = row[name]
    return float(value) if isinstance(value, (int, float)) else nan


def _median(rows: Sequence[Mapping[str, object]]) -> float:
    values = sorted(_number(row) for row in rows)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def _where(row: Mapping[str, object]) -> str:
    stack = "" if row["stack"] == "only" else f"{row['stack']}."
    return f"{stack}L{row['layer']}" + (".cross" if row["kind"] == "cross" else "")


def _percent(row: Mapping[str, object], digits: int = 0) -> str:
    """A share in percent, with its 95 % interval over windows."""
    value, low, high = (f"{100 * _number(row, name):.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} %" if row["low"] is None else f"{value} % ({low} to {high})"


def _effect(layers: pl.DataFrame, quantity: str) -> float | None:
    """How far the median layer lies from equal heads, as a share of what is possible."""
    rows = layers.filter(pl.col("quantity") == quantity, pl.col("most") > 0)
    share = rows.select((pl.col("value") / pl.col("most")).median()).item()
    return None if share is None else majority_effect(share_effect(share), excludes_null(rows, 0.0))


def _detectable(layers: pl.DataFrame, quantity: str) -> str:
    return percent(detectable_effect(layers.filter(pl.col("quantity") == quantity)) or 0.0)


def _hidden(layers: pl.DataFrame) -> Headline:
    rows = _rows(layers, "hidden")
    top = max(rows, key=_number)
    most = max(_number(row, "most") for row in rows)
    shown_share = _median(_rows(layers, "shown"))
    if most == 0:
        full = "There is 1 head per layer: the average over heads is the head, and hides 0 % of the mass."
        return Headline(full, "There is 1 head per layer: an average over heads hides 0 % of its attention.")
    windows = max(int(_number(row, "windows")) for row in rows)
    at_least = "" if shown_share > 0.5 else "at least "
    full = (
        f"Over {windows} window{'' if windows == 1 else 's'}, the average over heads hides "
        f"{at_least}{100 * _median(rows):.0f} % of the mass in the median layer (equal "
        f"heads: 0 %, heads that share no key: {100 * most:.0f} %), and most in {_where(top)}: {_percent(top)}; "
        f"{100 * shown_share:.0f} % of the mass lies between the tokens that are shown."
    )
    effect = _effect(layers, "hidden")
    if effect == 0.0 and _median(rows) > 0.0:
        subject = "attention that an average over heads hides"
        return Headline(full, undetected(subject, _detectable(layers, "hidden")), effect)
    short = (
        f"In the median layer an average over heads hides {at_least}{percent(_median(rows))} of the attention; "
        "equal heads: 0 %."
    )
    return Headline(full, short, effect)


def _weighted(layers: pl.DataFrame) -> Headline | None:
    gaps, heads = _rows(layers, "weighting"), _rows(layers, "effective_heads")
    if not gaps:
        return None
    top = max(gaps, key=_number)
    count = max(_number(row, "null") for row in heads)
    full = (
        f"Weighted by what each head writes through W_O the averaged map moves by {100 * _median(gaps):.1f} % of its "
        f"mass in the median layer, most in {_where(top)}: {_percent(top, 1)}; the writing is shared as by "
        f"{_median(heads):.1f} of {count:.0f} heads."
    )
    effect = _effect(layers, "weighting")
    if effect == 0.0 and _median(gaps) > 0.0:
        subject = "shift of the averaged map by what heads write"
        return Headline(full, undetected(subject, _detectable(layers, "weighting")), effect)
    short = (
        f"Weighting heads by what they write moves {percent(_median(gaps))} of the averaged attention; equal "
        "weights: 0 %."
    )
    return Headline(full, short, effect)


def _largest(layers: pl.DataFrame) -> Headline:
    average, single = _rows(layers, "largest_average"), _rows(layers, "largest_head")
    top = max(average, key=_number)
    full = (
        f"The largest weight of an averaged map is {_median(average):.2f} in the median layer and {_number(top):.2f} "
        f"in {_where(top)}, that of a single head {_median(single):.2f}."
    )
    short = (
        f"The largest weight of an averaged map is {_median(average):.2f} in the median layer; in a single head it is "
        f"{_median(single):.2f}."
    )
    lower = tuple(
        _number(mean, "high") < _number(head, "low")
        for mean, head in zip(average, single, strict=True)
        if mean["high"] is not None and head["low"] is not None
    )
    return Headline(full, short, majority_effect(ratio_effect(_median(average), _median(single)), lower))
