"""The sentences of the lens `lowrank`."""

from collections.abc import Mapping
from math import ceil, log

import polars as pl

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.lowrank.tables import FITS
from headscope.lenses.shared.effects import excludes_null, majority_effect, mean_effect, ratio_effect, share_effect
from headscope.lenses.shared.phrases import detectable_effect, percent, undetected
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """How many components, how they grow, and whether anything is left beyond log n."""
    table, fits = tables["components"], tables.get("growth", pl.DataFrame())
    size = max(table["tokens"].to_list())
    last = table.filter(pl.col("tokens") == size)
    return (
        Headline(_count_sentence(last, size), *_count_short(last, size)),
        Headline(_popular_sentence(last), *_popular_short(last)),
        *_growth_headlines(fits, table),
        Headline(_beyond_sentence(last, size), *_beyond_short(last)),
    )


_Short = tuple[str, float | None]  # the short form of a headline, and its effect


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


def _count_short(last: pl.DataFrame, size: int) -> _Short:
    rows = _of(last, "components_90")
    value, shuffled = _median(rows), _median(rows, "shuffled")
    effect = majority_effect(ratio_effect(value, shuffled), excludes_null(rows, "shuffled"))
    if effect == 0.0:
        components = f"{detectable_effect(rows) or 0.0:.2g} components"
        return undetected("difference of the median head's rank from weights in random places", components), effect
    short = (
        f"The median head's attention needs {value:.3g} components at {size} tokens; with its weights in random places "
        f"it needs {shuffled:.3g}."
    )
    return short, effect


def _ends(row: Mapping[str, object]) -> str:
    """The 95 % interval of a row in words; where all windows agree, their number is all that is known."""
    if row["low"] is None:
        return ""
    return (
        f" (in each of {row['windows']} windows)"
        if row["low"] == row["high"]
        else f" ({row['low']:.3g} to {row['high']:.3g})"
    )


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


def _popular_short(last: pl.DataFrame) -> _Short:
    rows = _of(last, "components_90").filter(pl.col("adjusted").is_not_null())
    if rows.is_empty():
        return "With 1 window it cannot be tested whether popular keys explain the rank.", None
    sure = rows.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
    if sure.is_empty():
        size = detectable_effect(rows, ("difference_low", "difference_high"), units="null_windows") or 0.0
        return undetected("rank other than popular keys explain", f"{size:.2g} components"), 0.0
    fewer, more = sure.filter(pl.col("difference") < 0), sure.filter(pl.col("difference") > 0)
    most, side = (fewer, "fewer") if fewer.height >= more.height else (more, "more")
    short = (
        f"{most.height} of {rows.height} heads need {side} components than popular keys alone explain, typically "
        f"{abs(_median(most, 'difference')):.2g} {side}."
    )
    return short, mean_effect(
        ratio_effect(popular + difference, popular) if p < FALSE_DISCOVERIES else 0.0
        for popular, difference, p in rows.select("popular", "difference", "adjusted").iter_rows()
    )


def kinds(fits: pl.DataFrame) -> dict[str, int]:
    """How many heads follow which law."""
    laws = fits["law"].to_list()
    return {name: laws.count(name) for name in ("power", "logarithm", "neither", "none", "undecided")}


def _growth_headlines(fits: pl.DataFrame, table: pl.DataFrame) -> tuple[Headline, ...]:
    if fits.is_empty():
        return ()
    sizes = sorted(set(table["tokens"].to_list()))
    rows, more = _of(fits, "components_90"), _of(fits, "components_99")
    growing = (
        f"From n = {sizes[0]} to {sizes[-1]} the components of the median head grow like n to the power "
        f"{_median(rows):.2f} for 90 % and {_median(more):.2f} for 99 % (ln n itself: {rows['logarithm'][0]:.2f}; "
        f"popular keys alone: {_median(rows, 'popular'):.2f} and {_median(more, 'popular'):.2f}; each token on itself: "
        "1)."
    )
    laws = f"{_laws_sentence(rows, '90 %')} {_laws_sentence(more, '99 %')}"
    return Headline(growing, *_growth_short(rows)), Headline(laws, *_laws_short(rows))


def _growth_short(rows: pl.DataFrame) -> _Short:
    power, logarithm = _median(rows), float(rows["logarithm"][0])
    effect = majority_effect(share_effect(power, logarithm), excludes_null(rows, "logarithm"))
    if effect == 0.0:
        size = f"{detectable_effect(rows) or 0.0:.2g} in the power"
        return undetected("difference of the median head's growth from a logarithm", size), effect
    short = (
        f"The median head's components grow like the length to the power {power:.2f}; a logarithm would show "
        f"{logarithm:.2f}."
    )
    return short, effect


def _laws_short(rows: pl.DataFrame) -> _Short:
    count, size = kinds(rows), detectable_effect(rows, ("gain_low", "gain_high"))
    if size is None:
        return f"With 1 window, a power cannot be told from a logarithm in {rows.height} heads.", None
    if count["undecided"] == rows.height:
        return undetected("difference between a power and a logarithm", f"{100 * size:.2g} points of misfit"), 0.0
    short = (
        f"The components of {count['power']} of {rows.height} heads grow like a power of the length; of "
        f"{count['logarithm']} like a logarithm."
    )
    return short, share_effect(count["power"] / rows.height)


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


def _beyond_short(last: pl.DataFrame) -> _Short:
    rows = _of(last, "beyond_log")
    left = _median(rows)
    effect = majority_effect(share_effect(left), excludes_null(rows, 0.0))
    if effect == 0.0 and left > 0.0:
        size = f"{percent(detectable_effect(rows) or 0.0)} of it"
        return undetected("energy of the median pattern beyond ln n components", size), effect
    short = f"Keeping ln n components loses {percent(left)} of the median pattern's energy"
    return f"{short}; a pattern of that rank would lose none.", effect
