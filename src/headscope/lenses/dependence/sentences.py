"""What the lens `dependence` says in words: its method, its warnings and its headlines."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from headscope.core import Headline, Site
from headscope.lenses.dependence.pooled import PER_DIMENSION
from headscope.lenses.dependence.windows import KEYS, SHIFTS, SampleSize
from headscope.lenses.shared.answers import answered, pictured
from headscope.lenses.shared.effects import (
    clear_effect,
    correlation_effect,
    excludes_null,
    majority_effect,
    mean_effect,
)
from headscope.lenses.shared.estimates import (
    countable_effect,
    estimate,
    fixed,
    how_many,
    intervals_leave,
    no_detection,
    rounded,
    untested,
    window_count,
)
from headscope.lenses.shared.phrases import detectable_effect, windows_phrase
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.token_pairs import PairSample
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES
from headscope.lenses.shared.written_numbers import counted

# Fewer windows than these are called few.
FEW = 8


def method(sample: PairSample, size: SampleSize, skipped: int, step: int) -> str:
    """How the numbers were obtained."""
    sampled_windows = len(sample.windows)
    layers = f" Every {step}th layer only: the pairs of all would not fit." if step > 1 else ""
    left = f" The first {f'{skipped} tokens' if skipped > 1 else 'token'} of each window left out." if skipped else ""
    return (
        f"Sampled: {size.tokens} tokens of each of {size.windows} windows of {size.length} tokens ({sampled_windows} "
        f"of {sample.seen} windows drawn by a hash of their tokens), all pairs among them; the tokens stand in "
        "runs, the last ones of the window and others ever further before them. Rows with fewer than "
        f"{KEYS} keys are not ranked. Joint Gaussians with at least {PER_DIMENSION} pairs per dimension, distances "
        "pooled in half octaves or wider until there are. Intervals and tests: jackknife over windows, not over pairs. "
        f"Null: queries of up to {SHIFTS} other windows at the same positions, so that key, position and distance "
        "stay. Trace: of queries and keys as they meet (after any normalisation and rotation), so that C holds what "
        f"the model does with positions.{left}{layers}"
    )


def unseen(crossed: Sequence[Site], missing: Sequence[Site]) -> Iterator[str]:
    """Which sites were not measured, and why."""
    if crossed:
        names = ", ".join(site.label for site in crossed)
        yield f"Left out: {names}. The vectors from which cross-attention makes its keys are not shown."
    if missing:
        yield f"No row with {KEYS} visible keys in {', '.join(site.label for site in missing)}."


def warnings(
    tables: Mapping[str, pl.DataFrame], sizes_by_site: Mapping[Site, SampleSize], sampled_windows: int, components: int
) -> tuple[str, ...]:
    """What could not be estimated, and why."""
    lines = []
    windows = min(size.windows for size in sizes_by_site.values())
    if windows < 2:
        lines.append("One window only: no interval, no null, and no Gaussian of other windows to judge it by.")
    elif windows < FEW:
        lines.append(f"Only {windows} windows of equal length: intervals are wide and tests weak.")
    unused = sampled_windows - windows
    if unused > 0:
        unused_phrase = f"{unused} windows of other length were" if unused > 1 else "1 window of other length was"
        lines.append(f"{unused_phrase} not used: positions must be comparable.")
    profile = tables["profile"]
    without = [site.label for site in sizes_by_site if _of_site(profile, site).is_empty()]
    if without and windows > 1:
        lines.append(
            f"No joint Gaussian of two tokens in {', '.join(without)}: too few pairs, or one token determines another."
        )
    used = min(profile["dimensions"].to_list(), default=components)
    if used < components:
        lines.append(f"Information in {used} principal components, not {components}: too few pairs.")
    return tuple(lines)


def _of_site(table: pl.DataFrame, site: Site) -> pl.DataFrame:
    return table.filter(pl.col("stack") == site.stack, pl.col("kind") == site.kind, pl.col("layer") == site.layer)


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[Headline, ...]:
    """Sentences on the joint effect, single heads and scores, with interval, null and windows."""
    headlines = (_joint_headline(tables["joint"]), _single_headline(tables["heads"]), _further_headline(tables))
    return pictured(headlines, ("pointwise_excess", "pointwise_excess", "nearness_value"))


def _of(table: pl.DataFrame, quantity: str, column: str = "value") -> pl.DataFrame:
    """The rows of a quantity in which a column is a number."""
    return table.filter(pl.col("quantity") == quantity, pl.col(column).is_finite())


def _median(rows: pl.DataFrame, column: str = "value") -> float:
    return float(np.median(rows[column].to_numpy()))


_RELATION = "relation of attention and dependence beyond distance"


def _joint_headline(joint: pl.DataFrame) -> Headline | None:
    """The mean over all heads, tested with windows as units."""
    rows = joint.filter(pl.col("layer").is_null(), pl.col("low").is_finite(), pl.col("high").is_finite())
    pointwise = rows.filter(pl.col("quantity") == "pointwise")
    if pointwise.is_empty():
        return None
    row = pointwise.sort("heads", descending=True, maintain_order=True).row(0, named=True)
    if row["low"] > 0:
        verdict = "Keys that depend more on the query get more attention, beyond what distance explains"
    elif row["high"] < 0:
        verdict = "Keys that depend more on the query get less attention, beyond what distance explains"
    elif row["detectable"] < 1:
        verdict = f"No {_RELATION} was detected"
    else:
        verdict = f"{counted(row['windows'], 'window')} are too few to detect any {_RELATION}"
    stack = "" if row["stack"] == "only" else f" of {row['stack']}"
    heads = f"in the mean of {row['heads']} heads{stack}" if row["heads"] > 1 else f"in the only head{stack}"
    limit = rounded(row["detectable"])
    is_detected = not row["low"] <= 0 <= row["high"]
    is_missed = not is_detected and row["detectable"] < 1
    missed = f" A mean of {limit} would have been detected in four of five texts." if is_missed else ""
    full = (
        f"{verdict}: {heads}, the rank correlation of attention with the pointwise mutual information at fixed "
        f"positions differs from that with another window's query by {_with_windows(row)}; "
        f"{_positive(row['positive'], row['heads'])} above 0.{missed}{_cosine_sentence(rows, row['stack'])}"
    )
    effect = clear_effect(correlation_effect(row["value"]), row["low"], row["high"])
    more, above = ("more", "above") if row["value"] > 0 else ("less", "below")
    if is_detected:
        short = (
            f"Keys that depend on the query get {more} attention: rank correlation {rounded(abs(row['value']))} "
            f"{above} chance, distance held fixed."
        )
    else:
        size = f"a rank correlation of {limit}"
        short = no_detection(_RELATION, row["detectable"], size, row["windows"], most=1.0)
    value = f"rank correlation {rounded(row['value'], signed=True)}"
    return answered(Headline(full, short, effect), f"dependent keys get {more} attention", value, "0")


def _with_windows(row: Mapping[str, object]) -> str:
    """A mean difference with its interval and the number of windows."""
    difference = estimate(row, signed=True)
    return f"{difference.value} ({difference.interval}; {counted(int(str(row['windows'])), 'window')})"


def _positive(number: int, heads: int) -> str:
    """How many heads lie above 0, with the verb."""
    return f"{how_many(number, heads)} {'lie' if number > 1 else 'lies'}"


def _cosine_sentence(rows: pl.DataFrame, stack: str) -> str:
    cosine = rows.filter(pl.col("quantity") == "cosine", pl.col("stack") == stack)
    if cosine.is_empty():
        return ""
    return f" With the cosine of the inputs in its place the difference is {_with_windows(cosine.row(0, named=True))}."


def _single_headline(heads: pl.DataFrame) -> Headline | None:
    """How many single heads differ from their null, what one more would need, and what this leaves open."""
    judged = _of(heads, "pointwise", "excess").filter(pl.col("adjusted").is_finite())
    if judged.is_empty():
        return None
    clear = judged.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
    windows = window_count(judged)
    ends = ("excess_low", "excess_high")
    limit = countable_effect(judged, clear.height, ends)
    full = (
        f"{_sides(clear, judged.height)} (false discovery rate 5 %{_further(clear, judged, limit, windows)}; "
        f"{counted(windows, 'window')}). {_excess_span(judged, ends)} The stream already holds what earlier layers "
        "copied, so this does not show that dependence causes attention."
    )
    if clear.is_empty():
        subject = f"relation beyond distance in any of {judged.height} heads" if judged.height > 1 else _LONE_SUBJECT
        size = "" if limit is None else f"a rank correlation of {rounded(limit)}"
        return Headline(full, no_detection(subject, limit, size, windows, most=1.0), 0.0)
    effects = [
        correlation_effect(row["excess"]) if row["adjusted"] < FALSE_DISCOVERIES else 0.0
        for row in judged.iter_rows(named=True)
    ]
    return Headline(full, _single_short(clear, judged.height), mean_effect(effects))


def _single_short(clear: pl.DataFrame, heads: int) -> str:
    """How many heads are counted, on which side, and by how much they differ."""
    signs = set(np.sign(clear["excess"].to_numpy()))
    side = "more" if signs == {1.0} else "less" if signs == {-1.0} else "differently"
    size = rounded(float(np.median(np.abs(clear["excess"].to_numpy()))))
    verb, typical = ("attend", "typical ") if clear.height > 1 else ("attends", "")
    return (
        f"Beyond distance, {how_many(clear.height, heads)} {verb} {side} to keys that depend on the query; "
        f"{typical}rank correlation {size}."
    )


_LONE_SUBJECT = "relation beyond distance in the only head"


def _sides(clear: pl.DataFrame, heads: int) -> str:
    """How many heads attend more to keys that depend on the query than to others, and how many less."""
    more, less = (clear.filter(test).height for test in (pl.col("excess") > 0, pl.col("excess") < 0))
    verb = "attend" if more > 1 else "attends"
    return (
        f"Taken one by one, {how_many(more, heads)} {verb} more to keys that depend on the query, and {less or 'none'} "
        "less, than with another window's query"
    )


def _further(clear: pl.DataFrame, judged: pl.DataFrame, limit: float | None, windows: int) -> str:
    """With which rank correlation one more head would be counted."""
    if limit is None or clear.height == judged.height:
        return ""
    if limit >= 1:
        return f"; {counted(windows, 'window')} are too few to count one more"
    return f"; one more would be counted in four of five texts at a rank correlation of {rounded(limit)}"


def _excess_span(judged: pl.DataFrame, ends: tuple[str, str]) -> str:
    """The size of the median head, and the heads at both ends."""
    ordered = judged.sort("excess", maintain_order=True)
    least, most = (ordered.row(place, named=True) for place in (0, -1))
    low, high = (str(estimate(row, "excess", ends, signed=True)) for row in (least, most))
    if judged.height == 1:
        return f"The difference is {low} in {label_of(least)}."
    typical = rounded(float(np.median(np.abs(judged["excess"].to_numpy()))))
    return (
        f"The differences run from {low} in {label_of(least)} to {high} in {label_of(most)}; their median size is "
        f"{typical}."
    )


def _further_headline(tables: Mapping[str, pl.DataFrame]) -> Headline | None:
    """Correlations with distance included, and scores; in short, nearness."""
    lines = (_compared(tables["heads"]), _scores_sentence(tables["pairs"]), _variance_sentence(tables["pairs"]))
    full = " ".join(text for text in lines if text)
    if not full:
        return None
    near = _of(tables["heads"], "nearness")
    if near.is_empty():
        short = _scores_short(tables["pairs"]) or _compared_short(tables["heads"])
        return Headline(full, short) if short else None
    median = _median(near)
    effect = majority_effect(correlation_effect(median), excludes_null(near, "null"))
    return Headline(full, _nearness_short(near, median, effect), effect)


def _nearness_short(near: pl.DataFrame, median: float, effect: float | None) -> str:
    correlation = f"attention and nearness have a rank correlation of {fixed(median, 2)}"
    detected, windows = excludes_null(near, "null"), window_count(near)
    if effect is None:
        return f"In the median head {correlation}; {untested(windows)}."
    if effect > 0.0:
        return f"The median head prefers {'near' if median > 0 else 'far'} keys: {correlation}; chance: 0."
    if any(detected):
        heads = how_many(sum(detected), len(detected))
        return f"In {heads} attention prefers near or far keys; chance gives one in twenty."
    size = detectable_effect(near)
    written = "" if size is None else f"a rank correlation of {rounded(size)}"
    return no_detection("relation of attention and nearness", size, written, windows, most=1.0)


_MEASURES = {
    "nearness": "nearness",
    "information": "the mutual information at that distance",
    "trace": "Tr(CΣ_ji)",
    "cosine": "the cosine",
    "pointwise": "the pointwise information",
}


def _compared(heads: pl.DataFrame) -> str:
    """The median correlation of each measure and of its null, without any control; how many heads show nearness."""
    rows_by_name = {name: _of(heads, name) for name in _MEASURES}
    parts = [_with_null(rows, _MEASURES[name]) for name, rows in rows_by_name.items() if not rows.is_empty()]
    if not parts:
        return ""
    windows = max(window_count(rows) for rows in rows_by_name.values() if not rows.is_empty())
    detected = excludes_null(rows_by_name["nearness"], "null")
    judged = f" For nearness, {intervals_leave(detected)} the null out, by chance one in twenty." if detected else ""
    return (
        f"With distance included, the rank correlation of attention in the median head over "
        f"{counted(windows, 'window')} is {', '.join(parts)}.{judged}"
    )


def _with_null(rows: pl.DataFrame, words: str) -> str:
    """The median correlation with a measure, and that of its null where there is one."""
    nulls = rows.filter(pl.col("null").is_finite())
    null = "" if nulls.is_empty() else f" (null {fixed(_median(nulls, 'null'), 2)})"
    return f"{fixed(_median(rows), 2)} with {words}{null}"


def _compared_short(heads: pl.DataFrame) -> str:
    """The first measure that there is; empty without any."""
    for name, words in _MEASURES.items():
        rows = _of(heads, name)
        if not rows.is_empty():
            return f"In the median head attention has a rank correlation of {_with_null(rows, words)}."
    return ""


_PAIRS = {"dependent": "tokens 1 to 8 apart", "self": "a token with itself"}


def _scores_short(pairs: pl.DataFrame) -> str:
    """How many heads score pairs of one text otherwise; empty where no pair was tested."""
    for name, words in _PAIRS.items():
        rows = _of(pairs, name, "adjusted")
        if not rows.is_empty():
            clear = rows.filter(pl.col("adjusted") < FALSE_DISCOVERIES).height
            score = f"{how_many(clear, rows.height)} {'score' if clear > 1 else 'scores'}"
            return (
                f"{score[0].upper()}{score[1:]} {words} unlike tokens of different windows; false discovery rate 5 %."
            )
    return ""


def _scores_sentence(pairs: pl.DataFrame) -> str:
    """How many heads score pairs of one text unlike pairs of different texts."""
    lines = []
    for name, words in _PAIRS.items():
        rows = _of(pairs, name, "adjusted")
        if rows.is_empty():
            continue
        clear = rows.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
        up, down = (clear.filter(test).height for test in (pl.col("shift") > 0, pl.col("shift") < 0))
        lines.append(
            f"Mean scores of {words} are higher than with queries of other windows in {how_many(up, rows.height)} and "
            f"lower in {down or 'none'} (false discovery rate 5 %{_countable_shift(rows, clear.height)}; "
            f"{windows_phrase(rows)})."
        )
    return " ".join(lines)


def _countable_shift(rows: pl.DataFrame, counted_heads: int) -> str:
    """With which shift one more head would be counted, in standard deviations of its score."""
    spread = rows.with_columns(spread=pl.col("variance").sqrt())
    limit = countable_effect(spread, counted_heads, ("shift_low", "shift_high"), scale="spread")
    if limit is None or counted_heads == rows.height:
        return ""
    return f"; one more would be counted in four of five texts at {rounded(limit)} standard deviations of its score"


def _variance_sentence(pairs: pl.DataFrame) -> str:
    """The variance of the scores of near tokens over its Gaussian prediction."""
    judged = _of(pairs, "dependent", "variance").filter(pl.col("predicted_variance") > 0, pl.col("variance") > 0)
    if judged.is_empty():
        return ""
    shares = judged["variance"].to_numpy() / judged["predicted_variance"].to_numpy()
    low, median, high = np.quantile(shares, (0.05, 0.5, 0.95))
    span = f" ({fixed(low, 2)} to {fixed(high, 2)} in nine of ten heads)" if judged.height > 1 else ""
    head = "the median head" if judged.height > 1 else "the only head"
    return (
        f"The variance of scores of tokens 1 to 8 apart is {fixed(median, 2)} times the Gaussian prediction in "
        f"{head}{span}."
    )
