"""The sentences of the lens `maps`."""

from collections.abc import Mapping, Sequence
from math import nan

import polars as pl

from headscope.lenses.lens import Tables


def sentences(tables: Tables) -> tuple[str, ...]:
    """What the average hides, what the weighting changes, and how flat averages are."""
    layers = tables["layers"]
    return tuple(line for line in (_hidden(layers), _weighted(layers), _largest(layers)) if line)


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


def _hidden(layers: pl.DataFrame) -> str:
    rows = _rows(layers, "hidden")
    top = max(rows, key=_number)
    most = max(_number(row, "most") for row in rows)
    shown_share = _median(_rows(layers, "shown"))
    if most == 0:
        return "There is 1 head per layer: the average over heads is the head, and hides 0 % of the mass."
    windows = max(int(_number(row, "windows")) for row in rows)
    return (
        f"Over {windows} window{'' if windows == 1 else 's'}, the average over heads hides "
        f"{'' if shown_share > 0.5 else 'at least '}{100 * _median(rows):.0f} % of the mass in the median layer (equal "
        f"heads: 0 %, heads that share no key: {100 * most:.0f} %), and most in {_where(top)}: {_percent(top)}; "
        f"{100 * shown_share:.0f} % of the mass lies between the tokens that are shown."
    )


def _weighted(layers: pl.DataFrame) -> str:
    gaps, heads = _rows(layers, "weighting"), _rows(layers, "effective_heads")
    if not gaps:
        return ""
    top = max(gaps, key=_number)
    count = max(_number(row, "null") for row in heads)
    return (
        f"Weighted by what each head writes through W_O the averaged map moves by {100 * _median(gaps):.1f} % of its "
        f"mass in the median layer, most in {_where(top)}: {_percent(top, 1)}; the writing is shared as by "
        f"{_median(heads):.1f} of {count:.0f} heads."
    )


def _largest(layers: pl.DataFrame) -> str:
    average, single = _rows(layers, "largest_average"), _rows(layers, "largest_head")
    top = max(average, key=_number)
    return (
        f"The largest weight of an averaged map is {_median(average):.2f} in the median layer and {_number(top):.2f} "
        f"in {_where(top)}, that of a single head {_median(single):.2f}."
    )
