"""The sentences of the lens `lowrank`."""

from collections.abc import Mapping
from math import ceil, log
from typing import Any

import polars as pl

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.lowrank.tables import FITS
from headscope.lenses.shared.absences import absence, limit_clause, uncut_effect
from headscope.lenses.shared.answers import answered, pictured, side
from headscope.lenses.shared.effects import excludes_null, majority_effect, mean_effect, ratio_effect, share_effect
from headscope.lenses.shared.phrases import detectable_effect, percent, windows_phrase
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.table import most_windows
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES
from headscope.lenses.shared.written_numbers import (
    counted,
    decimals_of,
    interval,
    part_of,
    percents,
    side_by_side,
    significant,
)

# Energy beyond ln n components that is called nothing.
LITTLE = 0.01


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """How many components, how they grow, and whether anything is left beyond log n."""
    table, fits = tables["components"], tables.get("growth", pl.DataFrame())
    size = max(table["tokens"].to_list())
    last = table.filter(pl.col("tokens") == size)
    growth = _growth_headlines(fits, table)
    headlines = (
        _count_headline(last, size),
        Headline(_popular_sentence(last, size), *_popular_short(last, size)),
        *growth,
        Headline(_beyond_sentence(last, size), *_beyond_short(last)),
    )
    return pictured(headlines, ("components_90", "components_90", *("growth", "power")[: len(growth)], "spectra"))


def _count_headline(last: pl.DataFrame, size: int) -> Headline:
    median, null = _medians(_of(last, "components_90"), "value", "shuffled")
    value, shuffled = side_by_side((median, null))
    answer = side(median, null, "fewer than weights in random places", "more than weights in random places")
    headline = Headline(_count_sentence(last, size), *_count_short(last, size))
    return answered(headline, answer, f"{value} components at {size} tokens", shuffled)


_Short = tuple[str, float | None]  # the short form of a headline, and its effect


def _median(rows: pl.DataFrame, column: str = "value") -> float:
    return float(rows[column].to_torch().quantile(0.5))


def _medians(rows: pl.DataFrame, *columns: str) -> list[float]:
    return [_median(rows, column) for column in columns]


def _of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity)


def _components(number: float) -> str:
    return f"{significant(number, 2)} component{'' if number == 1 else 's'}"


def _sides(rows: pl.DataFrame, null: str) -> tuple[int, int]:
    """How many intervals lie below the null, and how many above."""
    below, above = (pl.col("high") < pl.col(null), pl.col("low") > pl.col(null))
    return rows.filter(below).height, rows.filter(above).height


def _count_sentence(last: pl.DataFrame, size: int) -> str:
    ninety, more = _of(last, "components_90"), _of(last, "components_99")
    names = ("value", "shuffled", "popular", "uniform")
    value, shuffled, popular, uniform = (
        f"{ninety_text} and {ninety_nine}"
        for ninety_text, ninety_nine in zip(
            side_by_side(_medians(ninety, *names)), side_by_side(_medians(more, *names)), strict=True
        )
    )
    return (
        f"At n = {size}, over {windows_phrase(last)}, the median of {counted(ninety.height, 'head')} has 90 % and 99 % "
        f"of the energy of its pattern in {value} singular components; its weights in random places would need "
        f"{shuffled}, or {popular} if every key stays as popular as it is (uniform attention: {uniform}; ln n = "
        f"{log(size):.1f}). {_spread_sentence(ninety)}"
    )


def _spread_sentence(rows: pl.DataFrame) -> str:
    """How many heads differ from the null by their intervals, and the heads at both ends."""
    ordered = rows.sort("value", maintain_order=True)
    least, most = ordered.row(0, named=True), ordered.row(-1, named=True)
    ends = (
        f"{label_of(least)} needs the fewest, {_with_interval(least)}, and {label_of(most)} the most, "
        f"{_with_interval(most)}"
        if rows.height > 1
        else f"{label_of(least)} needs {_with_interval(least)}"
    )
    tested = rows.drop_nulls(["low", "high"])
    if tested.is_empty():
        return f"For 90 % {ends}; one window gives no interval."
    below, above = _sides(tested, "shuffled")
    return (
        f"For 90 % the 95 % interval of {part_of(below, tested.height, 'head')} lies below weights in random places, "
        f"that of {above} above; {ends}."
    )


def _with_interval(row: Mapping[str, Any]) -> str:
    """A number of components with its 95 % interval; where all windows agree, their number is all that is known."""
    value, low, high = side_by_side(
        [row[name] for name in ("value", "low", "high")], decimals=decimals_of(row["value"], 3)
    )
    return f"{value} ({interval(low, high, row['windows'])})" if low else value


def _count_short(last: pl.DataFrame, size: int) -> _Short:
    rows = _of(last, "components_90")
    median, null = _medians(rows, "value", "shuffled")
    effect = majority_effect(ratio_effect(median, null), excludes_null(rows, "shuffled"))
    if effect == 0.0:
        subject, limit = "difference of the median rank from weights in random places", uncut_effect(rows)
        return absence(subject, limit, _components, windows=most_windows(rows), reach=_reach(null, size)), effect
    value, shuffled = side_by_side((median, null))
    short = (
        f"The median head's attention needs {value} components at {size} tokens; its weights in random places need "
        f"{shuffled}{_unsure(effect)}."
    )
    return short, effect


def _reach(null: float, size: int) -> float:
    """The largest difference from a null that a pattern of `size` tokens can have: it needs 1 to `size` components."""
    return max(null - 1, size - null)


def _unsure(effect: float | None) -> str:
    return " (no interval)" if effect is None else ""


def _popular_sentence(last: pl.DataFrame, size: int) -> str:
    """Whether popular keys alone explain the low rank, head by head."""
    measured = _of(last, "components_90")
    rows = measured.filter(pl.col("adjusted").is_not_null())
    if rows.is_empty():
        return (
            f"For 90 % the median head needs {_more_or_fewer(measured)} than popular keys alone would need; whether "
            "that is chance cannot be tested with 1 window."
        )
    sure = rows.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
    fewer, more = sure.filter(pl.col("difference") < 0).height, sure.filter(pl.col("difference") > 0).height
    limit = limit_clause(_popular_limit(rows), _components, reach=_reach(_median(rows, "popular"), size))
    return (
        f"Fewer components for 90 % than popular keys alone would need are detected in "
        f"{part_of(fewer, rows.height, 'head')}, more in {more} (paired in "
        f"{counted(rows['null_windows'][0], 'window')}, false discovery rate {100 * FALSE_DISCOVERIES:.0f} %). The "
        f"median head needs {_more_or_fewer(rows)}{limit and f'; {limit}'}."
    )


def _more_or_fewer(rows: pl.DataFrame) -> str:
    """The median difference from popular keys alone."""
    difference = _median(rows, "difference")
    return f"{significant(abs(difference), 2)} {'fewer' if difference < 0 else 'more'}"


def _popular_limit(rows: pl.DataFrame) -> float | None:
    return detectable_effect(rows, ("difference_low", "difference_high"), units="null_windows")


def _popular_short(last: pl.DataFrame, size: int) -> _Short:
    rows = _of(last, "components_90").filter(pl.col("adjusted").is_not_null())
    if rows.is_empty():
        return "With 1 window it cannot be tested whether popular keys explain the rank.", None
    sure = rows.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
    if sure.is_empty():
        subject, limit = "rank other than popular keys explain", _popular_limit(rows)
        reach, windows = _reach(_median(rows, "popular"), size), int(rows["null_windows"][0])
        return absence(subject, limit, _components, windows=windows, reach=reach, one_of_many=True), 0.0
    fewer, more = (sure.filter(side).height for side in (pl.col("difference") < 0, pl.col("difference") > 0))
    short = (
        f"{part_of(fewer, rows.height, 'head')} {_need(fewer)} fewer components than popular keys alone explain; "
        f"{more} {_need(more)} more."
    )
    return short, mean_effect(
        ratio_effect(popular + difference, popular) if p < FALSE_DISCOVERIES else 0.0
        for popular, difference, p in rows.select("popular", "difference", "adjusted").iter_rows()
    )


def _need(heads: int) -> str:
    return "needs" if heads == 1 else "need"


def kinds(fits: pl.DataFrame) -> dict[str, int]:
    """How many heads follow which law."""
    laws = fits["law"].to_list()
    return {name: laws.count(name) for name in ("power", "logarithm", "neither", "none", "undecided")}


def _growth_headlines(fits: pl.DataFrame, table: pl.DataFrame) -> tuple[Headline, ...]:
    if fits.is_empty():
        return ()
    sizes = sorted(set(table["tokens"].to_list()))
    rows, more = _of(fits, "components_90"), _of(fits, "components_99")
    names = ("value", "logarithm", "popular")
    power, logarithm, popular = side_by_side(_medians(rows, *names), decimals=2)
    most_power, most_popular = side_by_side(_medians(more, "value", "popular"), decimals=2)
    growing = (
        f"From n = {sizes[0]} to {sizes[-1]}, over {windows_phrase(rows)}, the components for 90 % grow like n to the "
        f"power {power} in the median of {counted(rows.height, 'head')} (ln n itself: {logarithm}; popular keys alone: "
        f"{popular}; each token on itself: 1); {_faster_clause(rows)}. For 99 % the power is {most_power} (popular "
        f"keys alone: {most_popular})."
    )
    laws = f"{_laws_sentence(rows, '90 %')} {_laws_sentence(more, '99 %')}"
    return Headline(growing, *_growth_short(rows)), Headline(laws, *_laws_short(rows))


def _faster_clause(rows: pl.DataFrame) -> str:
    tested = rows.drop_nulls(["low", "high"])
    if tested.is_empty():
        return "one window gives no interval"
    slower, faster = _sides(tested, "logarithm")
    return f"the 95 % interval of {part_of(faster, tested.height, 'head')} lies above ln n, that of {slower} below"


def _growth_short(rows: pl.DataFrame) -> _Short:
    median, null = _medians(rows, "value", "logarithm")
    effect = majority_effect(share_effect(median, null), excludes_null(rows, "logarithm"))
    if effect == 0.0:
        subject, limit = "difference of the median growth from a logarithm", detectable_effect(rows)
        # No more than each token on itself, no less than a number that stays.
        windows, reach = most_windows(rows), max(null, 1.0 - null)
        return absence(subject, limit, _in_the_power, windows=windows, reach=reach), effect
    power, logarithm = side_by_side((median, null), decimals=2)
    short = (
        f"The median head's components grow like the length to the power {power}; a logarithm would show "
        f"{logarithm}{_unsure(effect)}."
    )
    return short, effect


def _in_the_power(size: float) -> str:
    return f"{significant(size, 2)} in the power"


_GAIN = ("gain_low", "gain_high")


def _points(misfit: float) -> str:
    return f"{significant(100 * misfit, 2)} points of misfit"


def _laws_short(rows: pl.DataFrame) -> _Short:
    count, size = kinds(rows), detectable_effect(rows, _GAIN)
    if size is None:
        return f"With 1 window, a power cannot be told from a logarithm in {counted(rows.height, 'head')}.", None
    if count["undecided"] == rows.height:
        subject, windows = "difference between a power and a logarithm", most_windows(rows)
        return absence(subject, size, _points, windows=windows, one_of_many=True), 0.0
    short = (
        f"Components grow like a power of the length in {part_of(count['power'], rows.height, 'head')}, like its "
        f"logarithm in {count['logarithm'] or 'none'}."
    )
    return short, share_effect(count["power"] / rows.height)


def _laws_sentence(rows: pl.DataFrame, share: str) -> str:
    """How many heads follow which law, and which difference of the laws one test detects."""
    count = kinds(rows)
    text = (
        f"For {share}, growth is a power of n in {part_of(count['power'], rows.height, 'head')}, a logarithm in "
        f"{count['logarithm']}, neither in {count['neither']} (both miss by more than {100 * FITS:.0f} %), absent in "
        f"{count['none']} and undecided in {count['undecided']}"
    )
    limit = limit_clause(detectable_effect(rows, _GAIN), _points)
    if not limit:
        return f"{text}: one window gives no interval."
    windows, rate = windows_phrase(rows), f"false discovery rate {100 * FALSE_DISCOVERIES:.0f} %"
    return f"{text} ({windows}, {rate}; in the median head {limit})."


def _beyond_sentence(last: pl.DataFrame, size: int) -> str:
    rows = _of(last, "beyond_log")
    left, popular, flat = percents(_medians(rows, "value", "popular", "uniform"))
    sentence = (
        f"The singular values beyond the {ceil(log(size))} = ⌈ln n⌉ largest hold {left} of the energy in the median of "
        f"{counted(rows.height, 'head')} (popular keys alone: {popular}, uniform attention: {flat}; "
        f"{windows_phrase(rows)})"
    )
    tested = rows.drop_nulls(["low", "high"])
    if tested.is_empty():
        return f"{sentence}; one window gives no interval."
    below, above = (tested.filter(side).height for side in (pl.col("high") < LITTLE, pl.col("low") > LITTLE))
    return (
        f"{sentence}; by their 95 % intervals they hold less than {percent(LITTLE)} in "
        f"{part_of(below, tested.height, 'head')} and more in {above}."
    )


def _beyond_short(last: pl.DataFrame) -> _Short:
    rows = _of(last, "beyond_log")
    median = _median(rows)
    effect = majority_effect(share_effect(median), excludes_null(rows, 0.0))
    if effect == 0.0 and median > 0.0:
        subject = "energy of the median pattern beyond ln n components"
        return absence(subject, uncut_effect(rows), percent, windows=most_windows(rows), reach=1.0), effect
    (left,) = percents((median,))
    loss = f"Keeping ln n components loses {left} of the median pattern's energy"
    return (
        f"{loss} (none at that rank; no interval)."
        if effect is None
        else f"{loss}; a pattern of that rank loses none.",
        effect,
    )
