"""The sentences of the lens `likeness`."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from headscope.lenses.lens import Tables
from headscope.lenses.shared.phrases import detectable_effect
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES


def sentences(tables: Tables) -> tuple[str, ...]:
    """Whether tokens score themselves higher, whether the weights say so, and other distances."""
    table = tables["heads"]
    sentences = (_itself_sentence(table), _weights_sentence(table), _distance_sentence(table))
    return tuple(sentence for sentence in sentences if sentence)


def _clear(rows: pl.DataFrame) -> tuple[int, int]:
    """Heads clearly above and clearly below 0."""
    sure = rows.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
    return sure.filter(pl.col("value") > 0).height, sure.filter(pl.col("value") < 0).height


def _detectable(rows: pl.DataFrame) -> str:
    """What one test detects in the median head, in standard deviations."""
    size = detectable_effect(rows, scale="spread")
    return "" if size is None else f"; one test detects {size:.2g} in four of five texts"


def _itself_sentence(table: pl.DataFrame) -> str:
    rows = table.filter(pl.col("distance") == 0, pl.col("effect").is_not_null())
    if rows.is_empty():
        return ""
    ordered = rows.sort("effect", maintain_order=True)
    low, high = ordered.row(0, named=True), ordered.row(-1, named=True)
    windows = max(rows["windows"].to_list())
    text = (
        f"On the text ({windows} windows, each beside the one before it) the score of a token with itself differs "
        f"from that of an unrelated token in its place by {_median(rows, 'effect'):+.2g} times the spread of "
        f"the head's scores, in the median of {rows.height} heads; most in {label_of(high)} ({_interval(high)}), least "
        f"in {label_of(low)} ({_interval(low)})."
    )
    if windows < 2:
        return text
    above, below = _clear(rows)
    return f"{text} {above} heads score it higher and {below} lower (false discovery rate 5 %{_detectable(rows)})."


def _interval(row: Mapping[str, object]) -> str:
    """The effect of a row with its interval."""
    value, spread, low, high = (row[name] for name in ("effect", "spread", "low", "high"))
    if not (isinstance(low, float) and isinstance(high, float) and isinstance(spread, float) and spread > 0):
        return f"{value:+.2g}"
    return f"{value:+.2g}, 95 % interval {low / spread:+.2g} to {high / spread:+.2g}"


def _median(rows: pl.DataFrame, column: str) -> float:
    return float(np.median(rows[column].to_numpy()))


def _weights_sentence(table: pl.DataFrame) -> str:
    rows = table.filter(
        pl.col("distance") == 0, pl.col("isotropic").is_not_null(), pl.col("adjusted") < FALSE_DISCOVERIES
    )
    if rows.is_empty():
        return ""
    agree = {name: rows.filter((pl.col(name) > 0) == (pl.col("value") > 0)).height for name in ("isotropic", "folded")}
    return (
        f"Of the {rows.height} heads with a clear effect, the trace of W_QK has its sign in {agree['isotropic']}, and "
        f"in {agree['folded']} when each coordinate is weighted with its variance on the text, norm gains included."
    )


def _distance_sentence(table: pl.DataFrame) -> str:
    parts = []
    for distance in sorted(set(table["distance"].to_list()) - {0}):
        rows = table.filter(pl.col("distance") == distance, pl.col("effect").is_not_null())
        if rows.is_empty():
            continue
        above, below = _clear(rows)
        parts.append(
            f"{_median(rows, 'effect'):+.2g} at {distance} ({above} heads above 0, {below} below{_detectable(rows)})"
        )
    if not parts:
        return ""
    return f"At other distances, in tokens, the median effect is {'; '.join(parts)}."
