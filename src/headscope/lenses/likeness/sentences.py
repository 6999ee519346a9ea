"""The sentences of the lens `likeness`."""

from collections.abc import Mapping

import numpy as np
import polars as pl
from scipy import stats

from headscope.core import Headline
from headscope.lenses.lens import Tables
from headscope.lenses.shared.effects import difference_effect, mean_effect, share_effect
from headscope.lenses.shared.phrases import detectable_effect, undetected
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES


def sentences(tables: Tables) -> tuple[Headline, ...]:
    """Whether tokens score themselves higher, whether the weights say so, and other distances."""
    table = tables["heads"]
    headlines = (_itself_headline(table), _weights_headline(table), _distance_headline(table))
    return tuple(headline for headline in headlines if headline is not None)


def _clear(rows: pl.DataFrame) -> tuple[int, int]:
    """Heads clearly above and clearly below 0."""
    sure = rows.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
    return sure.filter(pl.col("value") > 0).height, sure.filter(pl.col("value") < 0).height


def _detectable(rows: pl.DataFrame) -> str:
    """What one test detects in the median head, in standard deviations."""
    size = detectable_effect(rows, scale="spread")
    return "" if size is None else f"; one test detects {size:.2g} in four of five texts"


def _itself_headline(table: pl.DataFrame) -> Headline | None:
    rows = table.filter(pl.col("distance") == 0, pl.col("effect").is_not_null())
    if rows.is_empty():
        return None
    ordered = rows.sort("effect", maintain_order=True)
    low, high = ordered.row(0, named=True), ordered.row(-1, named=True)
    windows = max(rows["windows"].to_list())
    text = (
        f"On the text ({windows} windows, each beside the one before it) the score of a token with itself differs "
        f"from that of an unrelated token in its place by {_median(rows, 'effect'):+.2g} times the spread of "
        f"the head's scores, in the median of {rows.height} heads; most in {label_of(high)} ({_interval(high)}), least "
        f"in {label_of(low)} ({_interval(low)})."
    )
    short, effect = _scores_short(rows, "a token with itself", "an unrelated one"), _scores_effect(rows)
    if windows < 2:
        return Headline(text, short, effect)
    above, below = _clear(rows)
    full = f"{text} {above} heads score it higher and {below} lower (false discovery rate 5 %{_detectable(rows)})."
    return Headline(full, short, effect)


def _scores_effect(rows: pl.DataFrame) -> float | None:
    """The mean over heads of the difference in units of the spread; a head without a clear difference counts as 0."""
    tested = rows.filter(pl.col("adjusted").is_not_null())
    return mean_effect(
        difference_effect(effect, 0.0, 1.0) if p < FALSE_DISCOVERIES else 0.0
        for effect, p in zip(tested["effect"], tested["adjusted"], strict=True)
    )


def _scores_short(rows: pl.DataFrame, related: str, unrelated: str) -> str:
    """How many heads score related tokens clearly otherwise than unrelated ones, and by how much."""
    above, below = _clear(rows)
    if rows["adjusted"].null_count() == rows.height:
        return f"The median head scores {related} {_median(rows, 'effect'):+.2g} score spreads above {unrelated}."
    if not above + below:
        size = detectable_effect(rows, scale="spread") or 0.0
        return undetected(f"head that scores {related} unlike {unrelated}", f"{size:.2g} score spreads")
    sure = rows.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
    size = float(np.median(np.abs(sure["effect"].to_numpy())))
    side = "higher than" if not below else "lower than" if not above else "differently from"
    return (
        f"{above + below} of {rows.height} heads score {related} {side} {unrelated}, typically by {size:.2g} score "
        "spreads."
    )


def _interval(row: Mapping[str, object]) -> str:
    """The effect of a row with its interval."""
    value, spread, low, high = (row[name] for name in ("effect", "spread", "low", "high"))
    if not (isinstance(low, float) and isinstance(high, float) and isinstance(spread, float) and spread > 0):
        return f"{value:+.2g}"
    return f"{value:+.2g}, 95 % interval {low / spread:+.2g} to {high / spread:+.2g}"


def _median(rows: pl.DataFrame, column: str) -> float:
    return float(np.median(rows[column].to_numpy()))


def _weights_headline(table: pl.DataFrame) -> Headline | None:
    rows = table.filter(
        pl.col("distance") == 0, pl.col("isotropic").is_not_null(), pl.col("adjusted") < FALSE_DISCOVERIES
    )
    if rows.is_empty():
        return None
    agree = {name: rows.filter((pl.col(name) > 0) == (pl.col("value") > 0)).height for name in ("isotropic", "folded")}
    full = (
        f"Of the {rows.height} heads with a clear effect, the trace of W_QK has its sign in {agree['isotropic']}, and "
        f"in {agree['folded']} when each coordinate is weighted with its variance on the text, norm gains included."
    )
    return Headline(full, *_prediction_short(agree["isotropic"], rows.height))


def _prediction_short(right: int, cases: int) -> tuple[str, float | None]:
    """How often the weights predict the sign, compared with guessing; the effect is 0 where they are as good."""
    predicted = f"The weights alone predict whether a head favours the token itself in {right} of {cases} cases"
    if _beats_guessing(right, cases):
        return f"{predicted}; guessing gives {cases / 2:.3g}.", share_effect(right / cases, 0.5)
    needed = next((count for count in range(cases // 2, cases + 1) if _beats_guessing(count, cases)), None)
    return f"{predicted}, too few to tell." if needed is None else f"{predicted}; {needed} would beat guessing.", 0.0


def _beats_guessing(right: int, cases: int) -> bool:
    """Whether the 95 % interval of a share leaves one half out (Clopper and Pearson)."""
    interval = stats.binomtest(right, cases).proportion_ci()
    return not interval.low <= 0.5 <= interval.high


def _distance_headline(table: pl.DataFrame) -> Headline | None:
    parts = []
    nearest: tuple[str, float | None] | None = None
    for distance in sorted(set(table["distance"].to_list()) - {0}):
        rows = table.filter(pl.col("distance") == distance, pl.col("effect").is_not_null())
        if rows.is_empty():
            continue
        if nearest is None:
            related = "neighbouring tokens" if distance == 1 else f"tokens {distance} tokens apart"
            nearest = _scores_short(rows, related, "unrelated ones"), _scores_effect(rows)
        above, below = _clear(rows)
        parts.append(
            f"{_median(rows, 'effect'):+.2g} at {distance} ({above} heads above 0, {below} below{_detectable(rows)})"
        )
    if nearest is None:
        return None
    return Headline(f"At other distances, in tokens, the median effect is {'; '.join(parts)}.", *nearest)
