"""The sentences of the lens `focus`."""

import numpy as np
import polars as pl

from headscope.core import Headline
from headscope.lenses.focus.figures import tokens
from headscope.lenses.lens import Tables
from headscope.lenses.shared.answers import answered, pictured
from headscope.lenses.shared.effects import share_effect
from headscope.lenses.shared.estimates import compared, estimate, how_many
from headscope.lenses.shared.phrases import windows_phrase
from headscope.lenses.shared.plots import label_of


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """Mass on the first token, sharpness, and mass near the token itself."""
    table = tables["heads"].filter(pl.col("value").is_finite(), pl.col("uniform").is_finite())
    bands = sorted(
        (name for name in table["quantity"].unique().to_list() if name.startswith("band_")),
        key=lambda name: int(name.removeprefix("band_")),
    )
    headlines = [_half_headline(table, "first", "on the first token"), _entropy_headline(table)]
    figures = ["first", "entropy_share"]
    if bands:
        middle_band = bands[(len(bands) - 1) // 2]
        width = tokens(int(middle_band.removeprefix("band_")))
        headlines.append(_half_headline(table, middle_band, f"within {width}"))
        figures.append(middle_band)
    return pictured(headlines, figures)


def _half_headline(table: pl.DataFrame, quantity: str, where: str) -> Headline | None:
    """How many heads have more than half of their mass somewhere, and the head that has the most."""
    rows = table.filter(pl.col("quantity") == quantity).sort("value", maintain_order=True)
    if rows.is_empty():
        return None
    median, uniform = _medians(rows)
    top = rows.row(-1, named=True)
    largest = estimate(top, null=0.5, percent=True)
    if rows.height == 1:
        full = (
            f"The only head, {label_of(top)}, puts {largest.value} of its mass {where} ({largest.interval}; "
            f"{windows_phrase(rows)}; uniform attention: {uniform} %)."
        )
    else:
        full = (
            f"The median of {rows.height} heads puts {median} % of its mass {where} (uniform attention: {uniform} %; "
            f"{windows_phrase(rows)}). {_above_half(rows)} {label_of(top)} puts the most there, {largest}."
        )
    short = f"The median head puts {median} % of its mass {where}; uniform attention puts {uniform} %."
    return Headline(full, short, _effect(rows))


def _above_half(rows: pl.DataFrame) -> str:
    """How many heads have more than half of their mass there, and of how many the interval says so too."""
    above, surely = (rows.filter(pl.col(column) > 0.5).height for column in ("value", "low"))
    grammar = ("put", "their") if above > 1 else ("puts", "its")
    heads = f"{how_many(above, rows.height).capitalize()} {grammar[0]} more than half of {grammar[1]} mass there"
    if not above or not rows["low"].count():
        return f"{heads}."
    if above == 1:
        return f"{heads}; its interval {'lies' if surely else 'does not lie'} above one half."
    return f"{heads}; the interval lies above one half in {'all' if surely == above else surely or 'none'} of them."


def _medians(rows: pl.DataFrame) -> tuple[str, str]:
    """The median share and the mean uniform share in percent, told apart."""
    median, uniform = _shares(rows)
    return compared(100 * median, 100 * uniform)


def _shares(rows: pl.DataFrame) -> tuple[float, float]:
    return float(np.median(rows["value"].to_numpy())), float(np.mean(rows["uniform"].to_numpy()))


def _effect(rows: pl.DataFrame) -> float | None:
    return share_effect(*_shares(rows))


def _entropy_headline(table: pl.DataFrame) -> Headline | None:
    rows = table.filter(pl.col("quantity") == "entropy_share").sort("value", maintain_order=True)
    if rows.is_empty():
        return None
    sharpest, flattest = rows.row(0, named=True), rows.row(-1, named=True)
    median, uniform = _medians(rows)
    if rows.height == 1:
        entropy = estimate(sharpest, null=1.0, percent=True)
        full = (
            f"The only head, {label_of(sharpest)}, has {entropy.value} of the largest possible entropy "
            f"({entropy.interval}; {windows_phrase(rows)}; uniform attention: {uniform} %)."
        )
    else:
        full = (
            f"The median of {rows.height} heads has {median} % of the largest possible entropy (uniform attention: "
            f"{uniform} %; {windows_phrase(rows)}). The sharpest is {label_of(sharpest)} with "
            f"{estimate(sharpest, percent=True)}, the flattest {label_of(flattest)} with "
            f"{estimate(flattest, null=1.0, percent=True)}."
        )
    short = f"The median head has {median} % of the largest possible entropy; uniform attention has {uniform} %."
    headline = Headline(full, short, _effect(rows))
    return answered(headline, "sharper than uniform attention", f"{median} % of the largest entropy", f"{uniform} %")
