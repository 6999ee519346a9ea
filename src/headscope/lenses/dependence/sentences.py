"""What the lens `dependence` says in words: its method, its warnings and its headlines."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from headscope.core import Headline, Site
from headscope.lenses.dependence.pooled import PER_DIMENSION
from headscope.lenses.dependence.windows import KEYS, SHIFTS, SampleSize
from headscope.lenses.shared.effects import (
    clear_effect,
    correlation_effect,
    excludes_null,
    majority_effect,
    mean_effect,
)
from headscope.lenses.shared.phrases import detectable_effect, interval_phrase, two_digits, undetected, windows_phrase
from headscope.lenses.shared.plots import label_of
from headscope.lenses.shared.token_pairs import PairSample

# The share of false discoveries among the heads that are counted.
LEVEL = 0.05
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
    return tuple(headline for headline in headlines if headline is not None)


_ENDS = ("low", "high")


def _joint_headline(joint: pl.DataFrame) -> Headline | None:
    """The mean over all heads, tested with windows as units."""
    rows = joint.filter(pl.col("layer").is_null(), pl.col("low").is_not_null())
    pointwise = rows.filter(pl.col("quantity") == "pointwise")
    if pointwise.is_empty():
        return None
    row = pointwise.sort("heads", descending=True, maintain_order=True).row(0, named=True)
    stack = "" if row["stack"] == "only" else f" of {row['stack']}"
    verdict = (
        "Keys that depend more on the query get more attention, beyond what distance explains"
        if row["low"] > 0
        else "Keys that depend more on the query get less attention, beyond what distance explains"
        if row["high"] < 0
        else "No relation of attention and dependence beyond distance was detected"
    )
    missed = (
        f"; a mean of {three_decimals(row['detectable'])} would have been detected in four of five texts"
        if row["low"] <= 0 <= row["high"]
        else ""
    )
    full = (
        f"{verdict}: over all {row['heads']} heads{stack} the rank correlation with the pointwise mutual information "
        f"at fixed positions exceeds that with another window's query by {three_decimals(row['value'])} in the mean "
        f"({interval_phrase(row, three_decimals, _ENDS)}; {windows_phrase(pointwise)}), and {row['positive']} heads "
        f"lie above 0{_cosine_clause(rows, row['stack'])}{missed}."
    )
    effect = clear_effect(correlation_effect(row["value"]), row["low"], row["high"])
    if row["low"] <= 0 <= row["high"]:
        size = f"a rank correlation of {three_decimals(row['detectable'])}"
        return Headline(full, undetected("relation of attention and dependence beyond distance", size), effect)
    more, above = ("more", "above") if row["value"] > 0 else ("less", "below")
    short = (
        f"Keys that depend on the query get {more} attention: rank correlation {three_decimals(abs(row['value']))} "
        f"{above} chance, distance held fixed."
    )
    return Headline(full, short, effect)


def _cosine_clause(rows: pl.DataFrame, stack: str) -> str:
    cosine = rows.filter(pl.col("quantity") == "cosine", pl.col("stack") == stack)
    if cosine.is_empty():
        return ""
    row = cosine.row(0, named=True)
    return f" (cosine of the inputs: {three_decimals(row['value'])}, {interval_phrase(row, three_decimals, _ENDS)})"


def three_decimals(value: float) -> str:
    """Three decimals, and never −0.000."""
    return f"{round(value, 3) + 0.0:.3f}"


def _single_headline(heads: pl.DataFrame) -> Headline | None:
    """How many single heads differ from their null, what one test detects, and what this leaves open."""
    judged = heads.filter(pl.col("quantity") == "pointwise", pl.col("adjusted").is_not_null())
    if judged.is_empty():
        return None
    clear = judged.filter(pl.col("adjusted") < LEVEL)
    up, down = (clear.filter(test).height for test in (pl.col("excess") > 0, pl.col("excess") < 0))
    effect, size = (float(np.median(judged[name].abs().to_numpy())) for name in ("excess", "detectable"))
    ordered = judged.sort("excess", maintain_order=True)
    least, most = ordered.row(0, named=True), ordered.row(-1, named=True)
    ends = ("excess_low", "excess_high")
    full = (
        f"Of {judged.height} single heads {up} lie above their null and {down} below it (false discoveries held at "
        f"5 %, {windows_phrase(judged)}); the median size is {three_decimals(effect)}, and one test detects "
        f"{three_decimals(size)} in four of five texts; the largest is {_two_decimals(most['excess'])} in "
        f"{label_of(most)} ({interval_phrase(most, _two_decimals, ends)}), the smallest "
        f"{_two_decimals(least['excess'])} in {label_of(least)}. The stream already holds what earlier layers copied, "
        "so this does not show that dependence causes attention."
    )
    if clear.is_empty():
        subject = f"relation beyond distance in any of {judged.height} heads"
        return Headline(full, undetected(subject, f"a rank correlation of {three_decimals(size)}"), 0.0)
    short = (
        f"{clear.height} of {judged.height} heads attend more or less to keys that depend on the query, beyond "
        "distance; by chance none."
    )
    effects = [
        correlation_effect(row["excess"]) if row["adjusted"] < LEVEL else 0.0 for row in judged.iter_rows(named=True)
    ]
    return Headline(full, short, mean_effect(effects))


def _two_decimals(value: float) -> str:
    """Two decimals, and never −0.00."""
    return f"{round(value, 2) + 0.0:.2f}"


def _further_headline(tables: Mapping[str, pl.DataFrame]) -> Headline | None:
    """Correlations with distance included, and scores; in short, nearness."""
    full = " ".join(text for text in (_compared(tables["heads"]), _scores_sentence(tables["pairs"])) if text)
    near = tables["heads"].filter(pl.col("quantity") == "nearness", pl.col("value").is_not_null())
    if near.is_empty():
        return Headline(full, _scores_short(tables["pairs"])) if full else None
    median = float(np.median(near["value"].to_numpy()))
    effect = majority_effect(correlation_effect(median), excludes_null(near, "null"))
    return Headline(full, _nearness_short(near, median, effect), effect)


def _nearness_short(near: pl.DataFrame, median: float, effect: float | None) -> str:
    correlation = f"attention and nearness have a rank correlation of {_two_decimals(median)}"
    if effect is None:
        return f"In the median head {correlation}; one window gives no interval."
    if effect > 0.0:
        return f"The median head prefers {'near' if median > 0 else 'far'} keys: {correlation}; chance: 0."
    subject, size = "relation of attention and nearness in the median head", detectable_effect(near) or 0.0
    if size >= 1.0:
        return f"No {subject} was detected; {windows_phrase(near)} are too few."
    return undetected(subject, f"a rank correlation of {_two_decimals(size)}")


def _compared(heads: pl.DataFrame) -> str:
    """The median correlation of each measure, without any control."""
    names = {
        "nearness": "nearness",
        "information": "the mutual information at that distance",
        "trace": "Tr(CΣ_ji)",
        "cosine": "the cosine",
        "pointwise": "the pointwise information",
    }
    parts = []
    for name, words in names.items():
        rows = heads.filter(pl.col("quantity") == name, pl.col("value").is_not_null())
        if rows.height:
            null = rows["null"].drop_nulls().to_numpy()
            chance = f" (null {_two_decimals(float(np.median(null)))})" if len(null) and name != "nearness" else ""
            parts.append(f"{words} {_two_decimals(float(np.median(rows['value'].to_numpy())))}{chance}")
    if not parts:
        return ""
    windows = windows_phrase(heads)
    return f"With distance included, the rank correlation of the median head is: {', '.join(parts)} ({windows})."


def _scores_short(pairs: pl.DataFrame) -> str:
    """How many heads score pairs of one text otherwise; pairs were tested."""
    words = {"dependent": "nearby tokens", "self": "a token with itself"}
    rows_by_pair = {
        name: pairs.filter(pl.col("quantity") == name, pl.col("adjusted").is_not_null())
        for name in ("dependent", "self")
    }
    name, rows = next((name, rows) for name, rows in rows_by_pair.items() if rows.height)
    clear = rows.filter(pl.col("adjusted") < LEVEL).height
    return f"{clear} of {rows.height} heads score {words[name]} unlike tokens of different windows; by chance none."


def _scores_sentence(pairs: pl.DataFrame) -> str:
    """How many heads score pairs of one text unlike pairs of different texts, and the variances."""
    parts = []
    for name, words in (("dependent", "tokens 1 to 8 apart"), ("self", "a token with itself")):
        rows = pairs.filter(pl.col("quantity") == name, pl.col("adjusted").is_not_null())
        if rows.is_empty():
            continue
        clear = rows.filter(pl.col("adjusted") < LEVEL)
        up, down = (clear.filter(test).height for test in (pl.col("shift") > 0, pl.col("shift") < 0))
        spread = rows.filter(pl.col("variance") > 0)  # a score that never changes has no unit to give an interval in
        half = (spread["shift_high"] - spread["shift_low"]).to_numpy() / 2 / np.sqrt(spread["variance"].to_numpy())
        limit = float(np.median(half[np.isfinite(half)])) if np.isfinite(half).any() else 0.0
        parts.append(
            f"for {words} in {up} of {rows.height} heads and lower in {down} (median half of an interval: "
            f"{two_digits(limit)} standard deviations of the score)"
        )
    if not parts:
        return ""
    judged = pairs.filter(pl.col("quantity") == "dependent", pl.col("predicted_variance") > 0, pl.col("variance") > 0)
    ratio = ""
    if judged.height:
        shares = judged["variance"].to_numpy() / judged["predicted_variance"].to_numpy()
        low, median, high = np.quantile(shares, (0.05, 0.5, 0.95))
        ratio = (
            f"; their variance is {median:.2f} times the Gaussian prediction in the median head ({low:.2f} to "
            f"{high:.2f} in nine of ten heads)"
        )
    return f"Mean scores are higher than with queries of other windows {', '.join(parts)}{ratio}."
