"""The sentences of the lens `lowrank`."""

from collections.abc import Mapping
from math import ceil, log

import polars as pl

from headscope.lenses.lens import Tables
from headscope.lenses.lowrank.tables import FITS
from headscope.lenses.shared.phrases import detectable_effect
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES


def sentences(tables: Tables) -> tuple[str, ...]:
    """How many components, how they grow, and whether anything is left beyond log n."""
    table, fits = tables["components"], tables.get("growth", pl.DataFrame())
    size = max(table["tokens"].to_list())
    last = table.filter(pl.col("tokens") == size)
    sentences = (
        _count_sentence(last, size),
        _popular_sentence(last),
        *_growth_sentences(fits, table),
        _beyond_sentence(last, size),
    )
    return tuple(sentence for sentence in sentences if sentence)


def _median(rows: pl.DataFrame, column: str = "value") -> float:
    return float(rows[column].to_torch().quantile(0.5)) if rows.height else 0.0


def _of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity)


def _windows(rows: pl.DataFrame) -> str:
    count = max(rows["windows"].to_list())
    return f"{count} window{'' if count == 1 else 's'}"


def _count_sentence(last: pl.DataFrame, size: int) -> str:
    ninety, more = _of(last, "components_90"), _of(last, "components_99")
    ordered = ninety.sort("value", maintain_order=True)
    least, most = ordered.row(0, named=True), ordered.row(-1, named=True)
    return (
        f"At n = {size}, over {_windows(last)}, the median head has 90 % of the energy of its pattern in "
        f"{_median(ninety):.3g} singular components and 99 % in {_median(more):.3g}; with weights in random places it "
        f"has {_median(ninety, 'popular'):.3g} and {_median(more, 'popular'):.3g} if keys stay as popular as they are, "
        f"and {_median(ninety, 'shuffled'):.3g} and {_median(more, 'shuffled'):.3g} if they do not (uniform attention: "
        f"{_median(ninety, 'uniform'):.3g} and {_median(more, 'uniform'):.3g}; ln n = {log(size):.1f}). For 90 % "
        f"{label_of(least)} needs {least['value']:.3g}{_ends(least)} and {label_of(most)} "
        f"{most['value']:.3g}{_ends(most)}."
    )


def _ends(row: Mapping[str, object]) -> str:
    """The 95 % interval of a row, in words."""
    return "" if row["low"] is None else f" ({row['low']:.3g} to {row['high']:.3g})"


def _popular_sentence(last: pl.DataFrame) -> str:
    """Whether popular keys alone explain the low rank, head by head."""
    rows = _of(last, "components_90").filter(pl.col("adjusted").is_not_null())
    if rows.is_empty():
        return "One window: whether popular keys explain the number of components cannot be tested."
    sure = rows.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
    fewer, more = sure.filter(pl.col("difference") < 0).height, sure.filter(pl.col("difference") > 0).height
    size = detectable_effect(rows, ("difference_low", "difference_high"), units="null_windows")
    limit = "" if size is None else f"; in the median head one test detects {size:.2g} in four of five texts"
    return (
        f"Compared with popular keys alone, {fewer} of {rows.height} heads need fewer components for 90 % and {more} "
        f"need more (paired in {rows['null_windows'][0]} windows, false discovery rate 5 %). "
        f"The median difference is {_median(rows, 'difference'):+.2g} components{limit}."
    )


def kinds(fits: pl.DataFrame) -> dict[str, int]:
    """How many heads follow which law."""
    laws = fits["law"].to_list()
    return {name: laws.count(name) for name in ("power", "logarithm", "neither", "none", "undecided")}


def _growth_sentences(fits: pl.DataFrame, table: pl.DataFrame) -> tuple[str, ...]:
    if fits.is_empty():
        return ()
    sizes = sorted(set(table["tokens"].to_list()))
    rows, more = _of(fits, "components_90"), _of(fits, "components_99")
    return (
        f"From n = {sizes[0]} to {sizes[-1]} the components of the median head grow like n to the power "
        f"{_median(rows):.2f} for 90 % and {_median(more):.2f} for 99 % (ln n itself: {rows['logarithm'][0]:.2f}; "
        f"popular keys alone: {_median(rows, 'popular'):.2f} and {_median(more, 'popular'):.2f}; each token on itself: "
        "1).",
        f"{_laws_sentence(rows, '90 %')} {_laws_sentence(more, '99 %')}",
    )


def _laws_sentence(rows: pl.DataFrame, share: str) -> str:
    """How many heads follow which law, and which difference of the laws one test detects."""
    count = kinds(rows)
    text = (
        f"For {share}, of {rows.height} heads {count['power']} follow a power, {count['logarithm']} a logarithm, "
        f"{count['neither']} neither (both miss by more than {100 * FITS:.0f} %) and {count['none']} do not grow"
    )
    size = detectable_effect(rows, ("gain_low", "gain_high"))
    if size is None:
        return f"{text}; {count['undecided']} are undecided, since one window gives no interval."
    return (
        f"{text}; {count['undecided']} are undecided (false discovery rate {100 * FALSE_DISCOVERIES:.0f} %; in the "
        f"median head one test detects misfits that differ by {100 * size:.2g} points in four of five texts)."
    )


def _beyond_sentence(last: pl.DataFrame, size: int) -> str:
    rows = _of(last, "beyond_log")
    left, popular, flat = (f"{100 * round(_median(rows, name), 5):.2g} %" for name in ("value", "popular", "uniform"))
    sentence = (
        f"The singular values beyond the {ceil(log(size))} = ⌈ln n⌉ largest hold {left} of the energy in the median "
        f"head (popular keys alone: {popular}, uniform attention: {flat})"
    )
    if rows["high"].null_count():
        return f"{sentence}."
    below, above = rows.filter(pl.col("high") < 0.01).height, rows.filter(pl.col("low") > 0.01).height
    return (
        f"{sentence}; by their 95 % intervals they hold less than 1 % in {below} of {rows.height} heads and more in "
        f"{above}."
    )
