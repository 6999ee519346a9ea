"""The sentences of the lens `focus`."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from headscope.core import Headline
from headscope.lenses.focus.figures import tokens
from headscope.lenses.lens import Tables
from headscope.lenses.shared.effects import share_effect
from headscope.lenses.shared.phrases import interval_phrase, percent, windows_phrase
from headscope.lenses.shared.plots import label_of


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """Mass on the first token, sharpness, and mass near the token itself."""
    table = tables["heads"]
    bands = sorted(
        (name for name in table["quantity"].unique().to_list() if name.startswith("band_")),
        key=lambda name: int(name.removeprefix("band_")),
    )
    headlines = [_half_headline(table, "first", "on the first token"), _entropy_headline(table)]
    if bands:
        middle_band = bands[(len(bands) - 1) // 2]
        width = tokens(int(middle_band.removeprefix("band_")))
        headlines.append(_half_headline(table, middle_band, f"within {width}"))
    return tuple(headline for headline in headlines if headline is not None)


def _half_headline(table: pl.DataFrame, quantity: str, where: str) -> Headline | None:
    """How many heads have more than half of their mass somewhere, and the head that has the most."""
    rows = table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())
    if rows.is_empty():
        return None
    heads_above_half, surely = rows.filter(pl.col("value") > 0.5).height, rows.filter(pl.col("low") > 0.5).height
    top = rows.sort("value", descending=True, maintain_order=True).row(0, named=True)
    who = f"{heads_above_half or 'None'} of {rows.height} heads {'put' if heads_above_half > 1 else 'puts'}"
    uniform = float(np.mean(rows["uniform"].to_numpy()))
    median = float(np.median(rows["value"].to_numpy()))
    clear = f"; in {surely} the whole interval lies above one half" if heads_above_half and rows["low"].count() else ""
    full = (
        f"{who} more than half of {'their' if heads_above_half > 1 else 'its'} mass {where} (uniform attention: "
        f"{100 * uniform:.2g} %; {windows_phrase(rows)}){clear}; {label_of(top)} has the most, {_percent_of(top)}."
    )
    short = f"The median head puts {percent(median)} of its mass {where}; uniform attention puts {percent(uniform)}."
    return Headline(full, short, share_effect(median, uniform))


def _percent_of(row: Mapping[str, object]) -> str:
    """A share with its interval."""
    return f"{100 * float(str(row['value'])):.0f} % ({interval_phrase(row, percent, ('low', 'high'))})"


def _entropy_headline(table: pl.DataFrame) -> Headline:
    rows = table.filter(pl.col("quantity") == "entropy_share").sort("value", maintain_order=True)
    sharpest, flattest = rows.row(0, named=True), rows.row(-1, named=True)
    median = float(np.median(rows["value"].to_numpy()))
    uniform = float(np.mean(rows["uniform"].to_numpy()))
    full = (
        f"The median head has {100 * median:.0f} % of the largest possible entropy (uniform attention: "
        f"{percent(uniform)}; {windows_phrase(rows)}); the sharpest, {label_of(sharpest)}, {_percent_of(sharpest)}, "
        f"the flattest, {label_of(flattest)}, {_percent_of(flattest)}."
    )
    short = (
        f"The median head has {percent(median)} of the largest possible entropy; uniform attention has "
        f"{percent(uniform)}."
    )
    return Headline(full, short, share_effect(median, uniform))
