"""The sentences of the lens `likeness`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.shared.answers import answered, pictured
from headscope.lenses.shared.effects import difference_effect, mean_effect, share_effect
from headscope.lenses.shared.estimates import (
    countable_effect,
    estimate,
    how_many,
    no_detection,
    rounded,
    untested,
    window_count,
)
from headscope.lenses.shared.phrases import windows_phrase
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES
from headscope.lenses.shared.written_numbers import counted

# An effect of so many spreads of a head's scores is larger than any that there is.
LARGEST = 10.0


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """Whether tokens score themselves higher, whether the weights say so, and other distances."""
    table = tables["heads"].filter(pl.col("effect").is_finite())
    headlines = (_itself_headline(table), _weights_headline(table), _distance_headline(table))
    return pictured(headlines, ("itself", "itself", "distances"))


def _tested(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("adjusted").is_finite())


def _clear(rows: pl.DataFrame) -> pl.DataFrame:
    return _tested(rows).filter(pl.col("adjusted") < FALSE_DISCOVERIES)


def _sides(rows: pl.DataFrame) -> tuple[int, int]:
    """How many heads are clearly above 0, and how many clearly below."""
    clear = _clear(rows)
    return clear.filter(pl.col("value") > 0).height, clear.filter(pl.col("value") < 0).height


def _itself_headline(table: pl.DataFrame) -> Headline | None:
    rows = table.filter(pl.col("distance") == 0).sort("effect", maintain_order=True)
    if rows.is_empty():
        return None
    full = (
        f"On the text, the score of a token with itself differs from that of an unrelated token in its place by "
        f"{_typical(rows)} ({windows_phrase(rows)}, each compared with the one before it).{_span(rows)} "
        f"{_counts(rows, 'it')}"
    )
    headline = Headline(full, _scores_short(rows, "a token with itself", "an unrelated one"), _scores_effect(rows))
    above, below = _sides(rows)
    size = rounded(float(np.median(np.abs((_clear(rows) if above + below else rows)["effect"].to_numpy()))))
    answer = f"{above} heads score the token itself higher, {below} lower"
    return answered(headline, answer, f"{size} score spreads", "0")


def _typical(rows: pl.DataFrame) -> str:
    """The median effect; of a single head its interval."""
    if rows.height > 1:
        size = rounded(_median(rows), signed=True)
        return f"{size} times the spread of a head's scores in the median of {rows.height} heads"
    row = rows.row(0, named=True)
    return f"{_estimate(row)} times the spread of its scores in the only head, {label_of(row)}"


def _span(rows: pl.DataFrame) -> str:
    """The heads at both ends."""
    if rows.height == 1:
        return ""
    low, high = rows.row(0, named=True), rows.row(-1, named=True)
    return f" It runs from {_estimate(low)} in {label_of(low)} to {_estimate(high)} in {label_of(high)}."


def _estimate(row: Mapping[str, Any]) -> str:
    """The effect of a row with its interval."""
    return str(estimate(row, scale=row["spread"], signed=True))


def _counts(rows: pl.DataFrame, scored: str) -> str:
    """How many heads score clearly higher or lower, and what one more would need."""
    tested = _tested(rows)
    if tested.is_empty():
        return f"With {windows_phrase(rows)} no head could be tested."
    above, below = _sides(rows)
    score = "score" if above > 1 else "scores"
    further = _further(tested, above + below)
    return (
        f"{how_many(above, tested.height).capitalize()} {score} {scored} higher and {below or 'none'} lower (false "
        f"discovery rate 5 %{further})."
    )


def _further(rows: pl.DataFrame, counted_heads: int) -> str:
    """With which effect one more head would be counted, in spreads of its scores."""
    limit = countable_effect(rows, counted_heads, scale="spread")
    if limit is None or counted_heads == rows.height:
        return ""
    if limit >= LARGEST:
        return f"; {windows_phrase(rows)} are too few to count one more"
    return f"; one more would be counted in four of five texts at {rounded(limit)}"


def _median(rows: pl.DataFrame) -> float:
    return float(np.median(rows["effect"].to_numpy()))


def _scores_effect(rows: pl.DataFrame) -> float | None:
    """The mean over heads of the difference in units of the spread; a head without a clear difference counts as 0."""
    tested = _tested(rows)
    return mean_effect(
        difference_effect(effect, 0.0, 1.0) if p < FALSE_DISCOVERIES else 0.0
        for effect, p in zip(tested["effect"], tested["adjusted"], strict=True)
    )


def _scores_short(rows: pl.DataFrame, related: str, unrelated: str) -> str:
    """How many heads score related tokens clearly otherwise than unrelated ones, and by how much."""
    tested, clear = _tested(rows), _clear(rows)
    if tested.is_empty():
        median = _median(rows)
        size = f"{rounded(abs(median))} score spreads {'below' if median < 0 else 'above'} {unrelated}"
        return f"The median head scores {related} {size}; {untested(window_count(rows))}."
    above, below = _sides(rows)
    if clear.is_empty():
        limit = countable_effect(tested, 0, scale="spread")
        size = "" if limit is None else f"{rounded(limit)} score spreads"
        subject = f"head that scores {related} unlike {unrelated}"
        return no_detection(subject, limit, size, window_count(rows), most=LARGEST)
    size = rounded(float(np.median(np.abs(clear["effect"].to_numpy()))))
    side = "higher than" if not below else "lower than" if not above else "differently from"
    score, by = ("score", "typically by") if clear.height > 1 else ("scores", "by")
    heads = how_many(clear.height, tested.height)
    return f"{heads[0].upper()}{heads[1:]} {score} {related} {side} {unrelated}, {by} {size} score spreads."


def _weights_headline(table: pl.DataFrame) -> Headline | None:
    rows = _clear(table.filter(pl.col("distance") == 0, pl.col("isotropic").is_finite(), pl.col("folded").is_finite()))
    if rows.is_empty():
        return None
    agree = {name: rows.filter((pl.col(name) > 0) == (pl.col("value") > 0)).height for name in ("isotropic", "folded")}
    score = "score" if rows.height > 1 else "scores"
    full = (
        f"Of {counted(rows.height, 'head')} that clearly {score} a token with itself higher or lower, the trace of "
        f"W_QK has the right sign in {_cases(agree['isotropic'], rows.height)}; guessing gives {rows.height / 2:g}. "
        "With each coordinate weighted by its variance on the text, norm gains included, "
        f"the sign is right in {_cases(agree['folded'], rows.height)}."
    )
    return Headline(full, *_prediction_short(agree["isotropic"], rows.height))


def _cases(right: int, cases: int) -> str:
    """A number of cases with its 95 % interval (Clopper and Pearson)."""
    interval = stats.binomtest(right, cases).proportion_ci()
    return f"{right} (95 % interval {cases * interval.low:.1f} to {cases * interval.high:.1f})"


def _prediction_short(right: int, cases: int) -> tuple[str, float | None]:
    """How often the weights predict the sign, compared with guessing; the effect is 0 where they are as good."""
    predicted = f"The weights tell whether a head favours the token itself in {right} of {counted(cases, 'case')}"
    if _beats_guessing(right, cases):
        return f"{predicted}; guessing gives {cases / 2:g}.", share_effect(right / cases, 0.5)
    needed = next((count for count in range(cases // 2, cases + 1) if _beats_guessing(count, cases)), None)
    return f"{predicted}, too few to tell." if needed is None else f"{predicted}; {needed} would beat guessing.", 0.0


def _beats_guessing(right: int, cases: int) -> bool:
    """Whether the 95 % interval of a share leaves one half out (Clopper and Pearson)."""
    interval = stats.binomtest(right, cases).proportion_ci()
    return not interval.low <= 0.5 <= interval.high


def _distance_headline(table: pl.DataFrame) -> Headline | None:
    rows_by_distance = {
        distance: table.filter(pl.col("distance") == distance)
        for distance in sorted(set(table["distance"].to_list()) - {0})
    }
    if not rows_by_distance:
        return None
    distance, nearest = next(iter(rows_by_distance.items()))
    parts = [_distance_clause(at, rows) for at, rows in rows_by_distance.items()]
    heads = f"the median of {nearest.height} heads" if nearest.height > 1 else "the only head"
    rate = "" if all(_tested(rows).is_empty() for rows in rows_by_distance.values()) else "; false discovery rate 5 %"
    full = (
        f"At other distances, in tokens, {heads} scores related tokens otherwise than unrelated ones by "
        f"{'; '.join(parts)} (in spreads of its scores{rate}; {windows_phrase(nearest)})."
    )
    related = "neighbouring tokens" if distance == 1 else f"tokens {distance} tokens apart"
    return Headline(full, _scores_short(nearest, related, "unrelated ones"), _scores_effect(nearest))


def _distance_clause(distance: int, rows: pl.DataFrame) -> str:
    """The median effect at a distance, and how many heads clearly have one."""
    effect = f"{rounded(_median(rows), signed=True)} at {distance}"
    tested = _tested(rows)
    if tested.is_empty():
        return f"{effect} (not tested)"
    above, below = _sides(rows)
    further = _further(tested, above + below)
    return f"{effect} ({how_many(above, tested.height)} above 0 and {below or 'none'} below{further})"
