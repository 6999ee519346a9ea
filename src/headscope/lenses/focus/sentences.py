"""The sentences of the lens `focus`."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from headscope.lenses.focus.figures import tokens
from headscope.lenses.lens import Tables
from headscope.lenses.shared.phrases import interval_phrase, percent, windows_phrase
from headscope.lenses.shared.plots import label_of


def sentences(tables: Tables) -> tuple[str, ...]:
    """What stands out, in numbers."""
    table = tables["heads"]
    bands = sorted(
        (name for name in table["quantity"].unique().to_list() if name.startswith("band_")),
        key=lambda name: int(name.removeprefix("band_")),
    )
    sentences = [_half_sentence(table, "first", "on the first token"), _entropy_sentence(table)]
    if bands:
        middle_band = bands[(len(bands) - 1) // 2]
        width = tokens(int(middle_band.removeprefix("band_")))
        sentences.append(_half_sentence(table, middle_band, f"within {width}"))
    return tuple(sentence for sentence in sentences if sentence)


def _half_sentence(table: pl.DataFrame, quantity: str, where: str) -> str:
    """How many heads have more than half of their mass somewhere, and the head that has the most."""
    rows = table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())
    if rows.is_empty():
        return ""
    heads_above_half, surely = rows.filter(pl.col("value") > 0.5).height, rows.filter(pl.col("low") > 0.5).height
    top = rows.sort("value", descending=True, maintain_order=True).row(0, named=True)
    who = f"{heads_above_half or 'None'} of {rows.height} heads {'put' if heads_above_half > 1 else 'puts'}"
    uniform = 100 * float(np.mean(rows["uniform"].to_numpy()))
    clear = f"; in {surely} the whole interval lies above one half" if heads_above_half and rows["low"].count() else ""
    return (
        f"{who} more than half of {'their' if heads_above_half > 1 else 'its'} mass {where} (uniform attention: "
        f"{uniform:.2g} %; {windows_phrase(rows)}){clear}; {label_of(top)} has the most, {_percent_of(top)}."
    )


def _percent_of(row: Mapping[str, object]) -> str:
    """A share with its interval."""
    return f"{100 * float(str(row['value'])):.0f} % ({interval_phrase(row, percent, ('low', 'high'))})"


def _entropy_sentence(table: pl.DataFrame) -> str:
    rows = table.filter(pl.col("quantity") == "entropy_share").sort("value", maintain_order=True)
    sharpest, flattest = rows.row(0, named=True), rows.row(-1, named=True)
    median = float(np.median(rows["value"].to_numpy()))
    uniform = float(np.mean(rows["uniform"].to_numpy()))
    return (
        f"The median head has {100 * median:.0f} % of the largest possible entropy (uniform attention: "
        f"{percent(uniform)}; {windows_phrase(rows)}); the sharpest, {label_of(sharpest)}, {_percent_of(sharpest)}, "
        f"the flattest, {label_of(flattest)}, {_percent_of(flattest)}."
    )
