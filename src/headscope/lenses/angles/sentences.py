"""What the lens `angles` says in words: its method, its warnings and its headlines."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from headscope.core import Headline, Site
from headscope.lenses.angles.arcs import ARCS, POINTS
from headscope.lenses.angles.window import DRAWS, KEYS, Window
from headscope.lenses.shared.answers import answered, pictured
from headscope.lenses.shared.effects import (
    correlation_effect,
    excludes_null,
    majority_effect,
    mean_effect,
    ratio_effect,
    share_effect,
)
from headscope.lenses.shared.estimates import (
    apart,
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
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES

# Fewer windows than these are called few.
FEW = 8
# A ratio below this one is not written out.
LEAST_RATIO = 0.01


def method(windows_by_site: Mapping[Site, Sequence[Window]], windows_read: int, skipped: int) -> str:
    """How the numbers were obtained."""
    first = next(iter(windows_by_site.values()))
    left = f" The first {f'{skipped} tokens' if skipped > 1 else 'token'} of each window left out." if skipped else ""
    return (
        f"Sampled: up to {max(window.tokens for window in first)} tokens of each of {len(first)} windows "
        f"({windows_read} seen), all "
        "pairs among them that attention can see, a token with itself left out; in long windows the tokens stand in "
        f"runs, the last ones and others ever further before them. Rows with fewer than {KEYS} keys do not count. "
        f"Null: {DRAWS} shuffles of the tokens of each window. Arcs: at most {ARCS} per window and {POINTS} points "
        "each, between tokens half the sample apart. Scores of a moving query are mixed exactly where queries are "
        "linear in directions (no bias, no rotation between the two positions), and are a model of it elsewhere. "
        f"Intervals and tests: jackknife over windows.{left}"
    )


def warnings(windows_by_site: Mapping[Site, Sequence[Window]], crossed: Sequence[Site]) -> tuple[str, ...]:
    """Which sites were not measured, and whether there are few windows."""
    lines = []
    if crossed:
        names = ", ".join(site.label for site in crossed)
        lines.append(f"Left out: {names}. The vectors from which cross-attention makes its keys are not shown.")
    missing = [site.label for site, windows in windows_by_site.items() if not windows]
    if missing:
        lines.append(f"No row with {KEYS} visible keys in {', '.join(missing)}.")
    least = min(len(windows) for windows in windows_by_site.values() if windows)
    if least < 2:
        lines.append("One window only: no interval and no test.")
    elif least < FEW:
        lines.append(f"Only {least} windows: intervals are wide and tests weak.")
    return tuple(lines)


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[Headline, ...]:
    """Up to three statements: rank correlations, linear fits, arcs."""
    heads = tables["heads"]
    arcs = _arcs_headline(tables["arcs"]) if "arcs" in tables else None
    return pictured((_ranks_headline(heads), _linear_headline(heads), arcs), ("given_distance", "by_layer", "arcs"))


def _of(table: pl.DataFrame, quantity: str, column: str = "value") -> pl.DataFrame:
    """The rows of a quantity in which a column is a number."""
    return table.filter(pl.col("quantity") == quantity, pl.col(column).is_finite())


def _median(rows: pl.DataFrame, column: str = "value") -> float | None:
    """The median of the numbers of a column; None where there is none."""
    numbers = rows.filter(pl.col(column).is_finite())[column].to_numpy()
    return float(np.median(numbers)) if len(numbers) else None


def _median_of(rows: pl.DataFrame, noun: str = "head") -> str:
    return f"the median of {rows.height} {noun}s" if rows.height > 1 else f"the only {noun}"


def _ranks_headline(heads: pl.DataFrame) -> Headline | None:
    """How the ranks of weights follow those of cosines, with distance and without it."""
    rows = _of(heads, "input_rank")
    if rows.is_empty():
        return None
    windows = windows_phrase(rows)
    embedded = _of(heads, "embedding_rank")
    embeddings = (
        ""
        if embedded.is_empty()
        else f" With the angles between embeddings it is {_two_decimals(_median(embedded))}{_compared(embedded)}."
    )
    full = (
        f"Over {windows}, attention and the angles between layer inputs have a rank correlation within rows of "
        f"{_typical(rows)}{_compared(rows)}.{_span(rows)}{embeddings} {_preferences(rows)}"
    )
    headline = Headline(full, *_ranks_short(rows))
    clear = rows.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
    partials = (rows if clear.is_empty() else clear)["given_distance"].drop_nulls().to_numpy()
    size = fixed(float(np.median(np.abs(partials))), 2) if len(partials) else _two_decimals(_median(rows))
    answer = f"{how_many(clear.height, rows.height)} look at or away from similar tokens"
    return answered(headline, answer, f"rank correlation {size}", "0")


def _compared(rows: pl.DataFrame) -> str:
    """The median of shuffled tokens, and the median with the distance held fixed, as far as they were measured."""
    numbers = {"shuffled tokens": _median(rows, "null"), "given the distance": _median(rows, "given_distance")}
    clauses = [f"{words} {_two_decimals(number)}" for words, number in numbers.items() if number is not None]
    return f" ({', '.join(clauses)})" if clauses else ""


def _typical(rows: pl.DataFrame) -> str:
    """The median of the heads; of a single head its interval."""
    if rows.height > 1:
        return f"{_two_decimals(_median(rows))} in the median of {rows.height} heads"
    row = rows.row(0, named=True)
    return f"{estimate(row)} in the only head, {label_of(row)}"


def _span(rows: pl.DataFrame) -> str:
    """The heads at both ends."""
    if rows.height == 1:
        return ""
    ordered = rows.sort("value", maintain_order=True)
    least, most = ordered.row(0, named=True), ordered.row(-1, named=True)
    has_intervals = rows["low"].count() > 0
    ends = [str(estimate(row)) if has_intervals else _two_decimals(row["value"]) for row in (least, most)]
    return f" It runs from {ends[0]} in {label_of(least)} to {ends[1]} in {label_of(most)}."


def _preferences(rows: pl.DataFrame) -> str:
    """How many heads look at tokens like their own, or away from them, given the distance."""
    tested = rows.filter(pl.col("adjusted").is_finite())
    if tested.is_empty():
        return f"With {windows_phrase(rows)} no head could be tested given the distance."
    clear = tested.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
    toward, away = (clear.filter(test).height for test in (pl.col("given_distance") > 0, pl.col("given_distance") < 0))
    limit = countable_effect(tested, clear.height, ("given_low", "given_high"))
    if limit is None or clear.height == tested.height:
        further = ""
    elif limit < 1:
        further = f"; one more would be counted in four of five texts at {rounded(limit)}"
    else:
        further = f"; {windows_phrase(rows)} are too few to count one more"
    verb = "look" if toward > 1 else "looks"
    return (
        f"Given the distance, {how_many(toward, tested.height)} {verb} at tokens with similar inputs and "
        f"{away or 'none'} away from them (false discovery rate 5 %{further})."
    )


_Short = tuple[str, float | None]  # the short form of a headline, and its effect


def _ranks_short(rows: pl.DataFrame) -> _Short:
    """How many heads look at tokens like their own, or away from them, given the distance."""
    tested = rows.filter(pl.col("adjusted").is_finite())
    windows = window_count(rows)
    if tested.is_empty():
        null = _median(rows, "null")
        shuffled = "" if null is None else f" (shuffled {_two_decimals(null)})"
        correlation = f"attention and likeness have a rank correlation of {_two_decimals(_median(rows))}{shuffled}"
        return f"In the median head {correlation}; {untested(windows)}.", None
    clear = tested.filter(pl.col("adjusted") < FALSE_DISCOVERIES)
    if clear.is_empty():
        limit = countable_effect(tested, 0, ("given_low", "given_high"))
        size = "" if limit is None else f"a rank correlation of {rounded(limit)}"
        return no_detection("preference for similar tokens beyond distance", limit, size, windows, most=1.0), 0.0
    size = fixed(float(np.median(np.abs(clear["given_distance"].to_numpy()))), 2)
    signs = set(np.sign(clear["given_distance"].to_numpy()))
    side = "at" if signs == {1.0} else "away from" if signs == {-1.0} else "at, or away from,"
    look, typical = ("look", "typical ") if clear.height > 1 else ("looks", "")
    short = (
        f"Distance aside, {how_many(clear.height, tested.height)} {look} {side} similar tokens, with a {typical}rank "
        f"correlation of {size}."
    )
    return short, mean_effect(
        correlation_effect(partial) if p is not None and p < FALSE_DISCOVERIES else 0.0
        for partial, p in rows.select("given_distance", "adjusted").iter_rows()
    )


def _linear_headline(heads: pl.DataFrame) -> Headline | None:
    """Which share of the variance of scores and weights the cosine explains."""
    rows_by_target = {target: _of(heads, f"input_{target}") for target in ("score", "weight")}
    shares = {
        target: _share_clause(rows, _of(heads, f"embedding_{target}"), target)
        for target, rows in rows_by_target.items()
        if not rows.is_empty()
    }
    if not shares:
        return None
    target, rows = next((target, rows) for target, rows in rows_by_target.items() if not rows.is_empty())
    slope = _median(rows, "slope")
    change = "" if slope is None else f" From cosine 0 to 1 the {target} changes by {rounded(slope, signed=True)}."
    full = (
        f"Over {windows_phrase(rows)}, the cosine of two layer inputs explains "
        f"{' and '.join(shares.values())} in {_median_of(rows)}.{change} {_largest_share(rows, target)}"
    )
    short, effect = _linear_short(rows, target)
    return Headline(full, short, effect)


def _share_clause(rows: pl.DataFrame, embedded: pl.DataFrame, target: str) -> str:
    """The explained share of the median head, that of shuffled tokens, and that of the embeddings' cosine."""
    chance = _by_chance(rows)
    clauses = [] if chance is None else [f"shuffled tokens {_percent(chance)}"]
    if not embedded.is_empty():
        clauses.append(f"embeddings {_percent(_explained(embedded))}")
    compared = f" ({', '.join(clauses)})" if clauses else ""
    return f"{_percent(_explained(rows))} of the variance of the {target} within rows{compared}"


def _explained(rows: pl.DataFrame) -> float:
    return float(np.median(np.square(rows["value"].to_numpy())))


def _by_chance(rows: pl.DataFrame) -> float | None:
    """What shuffled tokens explain, in the median head; None where they were not measured."""
    measured = rows.filter(pl.col("null").is_finite(), pl.col("null_sd").is_finite())
    if measured.is_empty():
        return None
    return float(np.median(np.square(measured["null"].to_numpy()) + np.square(measured["null_sd"].to_numpy())))


def _largest_share(rows: pl.DataFrame, target: str) -> str:
    """How many heads differ from shuffled tokens, and the head with the largest share."""
    squares = rows.with_columns(
        share=pl.col("value") ** 2,
        # The interval of a square begins at 0 where that of the correlation holds 0.
        least=pl.when(pl.col("low") * pl.col("high") > 0)
        .then(pl.min_horizontal(pl.col("low") ** 2, pl.col("high") ** 2))
        .when(pl.col("low").is_not_null())
        .then(0.0),
        most=pl.max_horizontal(pl.col("low") ** 2, pl.col("high") ** 2),
    )
    top = squares.sort("share", descending=True, maintain_order=True).row(0, named=True)
    share = estimate(top, "share", ("least", "most"), percent=True)
    largest = f"The {target} of {label_of(top)} is explained best, by {share}."
    detected = excludes_null(rows, "null")
    if not detected:
        return largest
    leave = intervals_leave(detected).replace("the", "The 95 %", 1)
    return f"{leave} the correlation of shuffled tokens out, by chance one in twenty. {largest}"


def _linear_short(rows: pl.DataFrame, target: str) -> _Short:
    """Which share of the variance of the score (or weight) the cosine explains, compared with shuffled tokens."""
    share, chance, windows = _explained(rows), _by_chance(rows), window_count(rows)
    detected = excludes_null(rows, "null")
    if chance is None or not detected:
        null = "" if chance is None else f" (shuffled {_percent(chance)})"
        explained = f"Two tokens' angle explains {_percent(share)} of the median head's {target} variance{null}"
        return f"{explained}; {untested(windows)}.", None
    effect = majority_effect(share_effect(share, chance), detected)
    if effect == 0.0 and any(detected):
        return (
            f"In {how_many(sum(detected), len(detected))} the tokens' angle explains part of the {target}'s variance; "
            "chance gives one in twenty."
        ), effect
    if effect == 0.0:
        size = detectable_effect(rows)
        subject = f"part of the {target}'s variance explained by the tokens' angle"
        return no_detection(subject, size, "" if size is None else _percent(size**2), windows, most=1.0), effect
    return (
        f"In the median head, two tokens' angle explains {_percent(share)} of their {target}'s variance; shuffled "
        f"tokens' {_percent(chance)}."
    ), effect


def _arcs_headline(arcs: pl.DataFrame) -> Headline | None:
    """How far softmaxes diverge along arcs, compared with the law for random vectors."""
    rows_by_name = {name: _of(arcs, name, "ratio") for name in ("input", "unit", "row")}
    if all(rows.is_empty() for rows in rows_by_name.values()):
        return None
    starts = {
        "input": "Along arcs between layer inputs, softmaxes",
        "unit": "Along arcs between these inputs at length 1, they",
        "row": "Along arcs between these inputs, attention rows",
    }
    lines = [
        f"{starts[name]} diverge {_law_clause(rows, 'head' if name == 'row' else 'layer')}"
        for name, rows in rows_by_name.items()
        if not rows.is_empty()
    ]
    residual, line = (_median(rows_by_name["input"], column) for column in ("sinusoid", "line"))
    if residual is not None and line is not None:
        lines.append(
            f"A single curve is a sinusoid within {_percent(residual)} of its range; a straight line would be one "
            f"within {_percent(line)}."
        )
    name, rows = next((name, rows) for name, rows in rows_by_name.items() if not rows.is_empty())
    short, effect = _arcs_short(rows, name)
    return Headline(" ".join(lines), short, effect)


_RATIO_ENDS = ("ratio_low", "ratio_high")


def _law_clause(rows: pl.DataFrame, noun: str) -> str:
    """Measured over predicted in the median row, how many intervals leave 1 out, and how far the curve strays."""
    detected = excludes_null(rows, 1.0, _RATIO_ENDS)
    windows = windows_phrase(rows)
    judged = f"{intervals_leave(detected, noun)} 1 out, by chance one in twenty" if detected else "no interval"
    size = _detectable_ratio(rows)
    if size is not None and 2 * sum(detected) < len(detected):
        judged += f"; {_percent(size)} would be detected in four of five texts"
    misfit = _median(rows, "law_misfit")
    strayed = "" if misfit is None else f" and stray from it by at most {_percent(misfit)} of its start"
    return (
        f"{_times(rows, detected)} times as much as the law B(1 − cos) predicts in {_median_of(rows, noun)} "
        f"({judged}; {windows}){strayed}."
    )


def _times(rows: pl.DataFrame, detected: Sequence[bool]) -> str:
    """The median ratio, with as many decimals as tell it from 1 where most intervals do."""
    ratio = float(np.median(rows["ratio"].to_numpy()))
    if ratio < LEAST_RATIO:
        return f"less than {LEAST_RATIO}"
    return apart(ratio, 1.0, 2)[0] if detected and 2 * sum(detected) >= len(detected) else fixed(ratio, 2)


def _detectable_ratio(rows: pl.DataFrame) -> float | None:
    """Which departure from 1 one test detects; intervals end at 0, so their upper halves count."""
    return detectable_effect(rows.with_columns(ratio_low=2 * pl.col("ratio") - pl.col("ratio_high")), _RATIO_ENDS)


def _arcs_short(rows: pl.DataFrame, name: str) -> _Short:
    """How far softmaxes between inputs diverge, compared with the law; rows of attention where no input is there."""
    ratio, windows = float(np.median(rows["ratio"].to_numpy())), window_count(rows)
    detected = excludes_null(rows, 1.0, _RATIO_ENDS)
    effect = majority_effect(ratio_effect(ratio, 1.0), detected)
    between, noun = ("attention rows", "head") if name == "row" else ("inputs", "layer")
    if effect == 0.0 and any(detected):
        return (
            f"In {how_many(sum(detected), len(detected), noun)} softmaxes between {between} depart from the law for "
            "random vectors; chance gives one in twenty."
        ), effect
    if effect == 0.0:
        size = _detectable_ratio(rows)
        written = "" if size is None else _percent(size)
        return no_detection("departure from the law of divergence along arcs", size, written, windows), effect
    diverge = f"Between {between}, softmaxes diverge {_times(rows, detected)} times as much as"
    if effect is None:
        return f"{diverge} random vectors would by the law; {untested(windows)}.", effect
    return f"{diverge} the law for random vectors predicts.", effect


def _percent(share: float) -> str:
    """Two digits, and no powers of ten."""
    return f"{rounded(100 * share)} %"


def _two_decimals(value: float | None) -> str:
    return "" if value is None else fixed(value, 2)
