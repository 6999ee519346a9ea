"""What the lens `transport` says in words: its method, its warnings and its headlines."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from headscope.core import Headline, Site
from headscope.lenses.shared.absences import absence, limit_clause
from headscope.lenses.shared.answers import answered, pictured, side
from headscope.lenses.shared.effects import clear_effect, excludes_null, majority_effect, nats_effect, share_effect
from headscope.lenses.shared.phrases import detectable_effect, windows_phrase
from headscope.lenses.shared.table import most_windows
from headscope.lenses.shared.written_numbers import counted, interval, part_of, percents, side_by_side, significant
from headscope.lenses.transport.constant_weights import Counts
from headscope.lenses.transport.half_laws import PER_DIMENSION
from headscope.lenses.transport.sums import KEYS
from headscope.lenses.transport.tables import STAGES

# Errors of the entropy, in nats per component, up to which constant weights are called right, or rough.
SMALL, ROUGH = 0.05, 0.2
# Fewer windows in a half than these are called few.
FEW = 8
_NAMES = {"output": "W_O", "skip": "the skip", "norm": "the norm", "layer": "the whole layer"}


def method(counts: Counts, step: int, distance: int) -> str:
    """How the numbers were obtained."""
    layers = f" Every {step}th layer only: the windows of all would not fit." if step > 1 else ""
    sample = (
        f"all {counts.same_shape} windows"
        if counts.windows == counts.same_shape
        else f"{counts.windows} of {counts.same_shape} windows, drawn by a hash of their tokens"
    )
    skipped = counts.skip
    left = f" without the first {f'{skipped} tokens' if skipped > 1 else 'token'}" if skipped else ""
    return (
        f"Sampled: the first {counts.queries} tokens{left} of {sample}; mean weights over all {counts.same_shape}. "
        "Even and odd windows predict each other, and numbers are means over both directions. Covariances are averaged "
        f"over positions, with at least {PER_DIMENSION} tokens of the smaller half per dimension; principal axes of "
        f"measured and predicted tokens together. Mutual information of tokens {distance} apart, with its bias, which "
        "predicted and measured share. The part of the weights, and its share, are less what differences between "
        "windows give by chance (jackknife). Up to the sum with the skip everything is linear and the formula is "
        "applied as it stands; behind it draws from the predicted Gaussian go through the model's own modules, two "
        f"tokens at a time, in pairs of opposite sign, with mean and covariance matched exactly.{layers}"
    )


def warnings(
    tables: Mapping[str, pl.DataFrame],
    counts_by_site: Mapping[Site, Counts],
    omissions: Sequence[str],
    unseen: Sequence[str],
    params: Mapping[str, int],
) -> tuple[str, ...]:
    """What could not be estimated, and why."""
    first, fewest = next(iter(counts_by_site.values())), min(counts.fewest for counts in counts_by_site.values())
    texts = []
    if fewest < 2:
        texts.append(
            "Fewer than two windows in a half: no mean of a position could be told from its tokens, so all positions "
            "were taken together, and there are no intervals."
        )
    elif fewest < FEW:
        texts.append(
            f"Only {fewest} windows in the smaller half: mean weights and means of positions are rough, which shows "
            "under sampling. A longer text helps."
        )
    if fewest == 2:
        texts.append("Two windows in a half give no intervals and no share: they need three.")
    if first.other_shape:
        unused = (
            f"{first.other_shape} windows of other length were"
            if first.other_shape > 1
            else "1 window of other length was"
        )
        texts.append(f"{unused} not used: positions must be comparable.")
    return (*texts, *_small(tables, counts_by_site, params["components"]), *_grouped(omissions), *unseen)


def _small(tables: Mapping[str, pl.DataFrame], counts_by_site: Mapping[Site, Counts], components: int) -> Iterator[str]:
    rows = tables["heads"].filter(pl.col("quantity") == "covariance")
    if rows.is_empty():
        yield f"Too few tokens for a covariance: {PER_DIMENSION} are needed in each half for every dimension."
        return
    width = max(site.d_value for site in counts_by_site)
    low = rows.filter(pl.col("dimensions") < width)
    if low.height:
        least, share = min(low["dimensions"].to_list()), min(low["held"].drop_nulls().to_list(), default=0.0)
        yield (
            f"Covariance and entropy of heads in {least} of {width} principal components, which hold at least "
            f"{100 * share:.0f} % of the variance: there are too few tokens for more, or no variance in the others."
        )
    pairs = tables["heads"].filter(pl.col("quantity") == "information")
    used = min(pairs["dimensions"].to_list(), default=0)
    if used < min(components, width):
        yield (
            f"Mutual information in {used} components, not {components}: too few pairs of tokens."
            if used
            else "No mutual information: too few pairs of tokens."
        )


def _grouped(omissions: Sequence[str]) -> Iterator[str]:
    """One sentence for each reason, with the sites it is about."""
    reasons: dict[str, list[str]] = {}
    for omission in omissions:
        label, _, reason = omission.partition(": ")
        reasons.setdefault(reason, []).append(label)
    for reason, labels in reasons.items():
        site_list = ", ".join(labels[:4]) + (f" and {len(labels) - 4} more" if len(labels) > 4 else "")
        yield f"Left out in {site_list}: {reason}."


def not_seen(crossed: Sequence[Site], missing: Sequence[str], long: Sequence[str]) -> Iterator[str]:
    """Which sites there is nothing about, and why."""
    if crossed:
        names = ", ".join(site.label for site in crossed)
        yield f"Left out: {names}. Which keys of cross-attention are padding is not shown."
    if long:
        yield f"Left out: {', '.join(long)}, whose queries see more than {KEYS} keys. Use a shorter window."
    if missing:
        yield f"Too few windows or tokens of {', '.join(missing)} were seen."


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[Headline, ...]:
    """How well the formula predicts, in numbers."""
    heads, layers = tables["heads"], tables["layers"]
    candidates = (_answer(heads, layers), _causes(heads, layers), _through(layers))
    return pictured(candidates, ("entropy", "covariance_share", "covariance_error"))


_Row = Mapping[str, Any]


def _middle(rows: pl.DataFrame, column: str) -> float | None:
    """The median of what is known; None where nothing is."""
    values = rows[column].drop_nulls().to_numpy()
    return float(np.median(values)) if len(values) else None


def _value(rows: pl.DataFrame) -> float:
    return float(np.median(rows["value"].to_numpy()))


def _of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())


def _two(value: float) -> str:
    """Two decimals, and never −0.00."""
    return f"{round(value, 2) + 0.0:.2f}"


def _median_row(rows: pl.DataFrame, column: str = "value") -> dict[str, Any]:
    """The row in the middle: a layer that there is, so that its interval belongs to it."""
    return rows.sort(column, maintain_order=True).row(rows.height // 2, named=True)


def _answer(heads: pl.DataFrame, layers: pl.DataFrame) -> Headline | None:
    entropy, rows = _of(heads, "entropy"), _of(heads, "covariance")
    if entropy.is_empty() or rows.is_empty():
        vectors = _of(heads, "vector")
        return None if vectors.is_empty() else _vector_headline(vectors)
    median, flat = _value(entropy), _middle(entropy, "null")
    uniform = "" if flat is None else f"; with uniform attention {_off(flat)}"
    ratio = float(np.median(rows["predicted"].to_numpy() / np.maximum(rows["measured"].to_numpy(), 1e-300)))
    full = (
        f"Constant weights {_verdict(median, layers)}: for windows that they were not taken from, the entropy of a "
        f"head's output is predicted {_off(median, ' nats per component')} in the median of "
        f"{counted(entropy.height, 'head')} ({windows_phrase(entropy)}{uniform}).{_pooled_sentence(layers)}"
        f"{_clear_sentence(entropy)} The mean is off by {_compared(_of(heads, 'mean'))} and the covariance by "
        f"{_compared(rows)}; the predicted variance is {_two(ratio)} times the measured one{_shared(heads)}."
    )
    effect = majority_effect(nats_effect(median), excludes_null(entropy, 0.0))
    headline = Headline(full, _entropy_short(entropy, effect), effect)
    answer = side(median, 0.0, "not quite: entropy comes out too low", "not quite: entropy comes out too high")
    return answered(headline, answer, f"{side_by_side((median,), decimals=2)[0]} nats per component", "0")


def _verdict(median: float, layers: pl.DataFrame) -> str:
    """What the error of the median head says, as far as the interval over all heads of a layer goes."""
    row = _pooled_row(layers)
    if row is None:
        return "carry the entropy of tokens through attention with an error of which too few windows give no interval"
    if abs(median) < SMALL:
        return f"carry the entropy of tokens through attention {_nearly(layers)}"
    if row["low"] <= 0 <= row["high"]:
        return "carry the entropy of tokens through attention with an error that these windows cannot tell from 0"
    if abs(median) < ROUGH:
        return "carry the entropy of tokens through attention only roughly"
    return "do not carry the entropy of tokens through attention"


def _nats_per_component(size: float) -> str:
    return f"{significant(size, 2)} nats per component"


def _entropy_short(entropy: pl.DataFrame, effect: float | None) -> str:
    """The error of the median head, next to that of uniform attention."""
    if effect == 0.0:
        subject, size = "error of averaged weights in a head's output entropy", detectable_effect(entropy)
        return absence(subject, size, _nats_per_component, windows=most_windows(entropy))
    error, flat = _off(_value(entropy), " nats per component"), _middle(entropy, "null")
    text = f"Weights averaged over texts predict a head's output entropy {error}"
    if effect is None:
        return f"{text} (no interval)."
    return f"{text}." if flat is None else f"{text}; uniform ones {_off(flat)}."


def _off(value: float, unit: str = "") -> str:
    """How far off a prediction is, and to which side."""
    (size,) = side_by_side((abs(value),), decimals=2)
    return f"{size}{unit} too {'high' if value > 0 else 'low'}" if float(size) else f"{size}{unit} off"


def _vector_headline(vectors: pl.DataFrame) -> Headline:
    """Single outputs, of which constant weights would have no error at all."""
    error, uniform = side_by_side((_value(vectors), _middle(vectors, "null")), decimals=2)
    full = (
        f"With mean weights a head's output is off by {error} of its spread in the median of "
        f"{counted(vectors.height, 'head')} ({uniform and f'uniform attention: {uniform}; '}"
        f"{windows_phrase(vectors)}); there are too few windows to say more."
    )
    compared = uniform and f"; uniform ones by {uniform}"
    short = f"Weights averaged over texts miss the median head's output by {error} of its spread{compared}."
    return Headline(full, short, share_effect(_value(vectors)), figure="vector_missed")


def _pooled_row(layers: pl.DataFrame) -> dict[str, Any] | None:
    """The error of the entropy over all heads of the median layer; None where no layer has an interval."""
    rows = _of(layers, "entropy").filter(pl.col("stage") == "heads", pl.col("low").is_not_null())
    return _median_row(rows) if rows.height else None


def _nearly(layers: pl.DataFrame) -> str:
    """A small error is called one only where the interval is as small."""
    row = _pooled_row(layers)
    if row is None:
        return "with a small error, of which too few windows give no interval"
    if max(abs(row["low"]), abs(row["high"])) < SMALL:
        return "nearly right"
    return "with a small error in the median head, but one that the windows do not bound as tightly"


def _pooled_sentence(layers: pl.DataFrame) -> str:
    """The error of the entropy over all heads of the median layer, with its interval."""
    row = _pooled_row(layers)
    if row is None:
        return ""
    value, low, high, _ = side_by_side((row["value"], row["low"], row["high"], 0.0), decimals=2)
    ends = interval(low, high, row["windows"])
    return f" Over all heads of {_where(row)}, the median layer, the error is {value} nats ({ends})."


def _clear_sentence(entropy: pl.DataFrame) -> str:
    """In how many heads the interval of the error leaves 0 out, and what it would have taken."""
    outside = excludes_null(entropy, 0.0)
    if not outside:
        return ""
    limit = limit_clause(detectable_effect(entropy), lambda size: f"{significant(size, 2)} nats")
    return (
        f" The 95 % interval of {part_of(sum(outside), len(outside), 'head')} leaves 0 out (by chance: one in twenty"
        f"{limit and f'; in the median head {limit}'})."
    )


def _compared(rows: pl.DataFrame) -> str:
    """An error with what it is to be compared with, where that was measured."""
    value, null, floor = side_by_side([_middle(rows, name) for name in ("value", "null", "floor")], decimals=2)
    nulls = [
        f"{name}: {text}"
        for name, text in (("uniform attention", null), ("what was measured in the other half", floor))
        if text
    ]
    compared = f" ({'; '.join(nulls)})" if nulls else ""
    return f"{value} of its size{compared}"


def _shared(heads: pl.DataFrame) -> str:
    rows = _of(heads, "information")
    texts = side_by_side([_middle(rows, name) for name in ("before", "measured", "predicted")], decimals=2)
    if not all(texts):
        return ""
    before, measured, predicted = texts
    return (
        f"; the mutual information of two tokens, {before} nats in the values, becomes {measured} where {predicted} "
        "are predicted"
    )


_SHARE_ENDS = ("share_low", "share_high")


def _causes(heads: pl.DataFrame, layers: pl.DataFrame) -> Headline | None:
    """What the error is made of, whether the pattern helps, and what is left of single outputs."""
    rows, vectors = _of(heads, "covariance").filter(pl.col("share").is_not_null()), _of(heads, "vector")
    if rows.is_empty() or vectors.is_empty():
        return None
    median = float(np.median(rows["share"].to_numpy()))
    entropy = _middle(_of(heads, "entropy"), "share")
    of_entropy = "" if entropy is None else f"{_percent(entropy)} of the error of the entropy and "
    compared = rows.filter(pl.col("null").is_not_null())
    better = compared.filter(pl.col("value") < pl.col("null")).height
    pattern = (
        f"the mean pattern predicts the covariance better than uniform attention in "
        f"{part_of(better, compared.height, 'head')} (chance: half), and "
        if compared.height
        else "the mean pattern "
    )
    full = (
        f"In the median of {counted(rows.height, 'head')}, weights that depend on the data make up {of_entropy}"
        f"{_percent(median)} of the squared error of the covariance ({_share_spread(rows)}{_pooled_share(layers)}); "
        f"the rest is that windows differ. Over {windows_phrase(rows)}, {pattern}leaves "
        f"{_percent(_value(vectors) ** 2)} of the variance of single outputs unexplained."
    )
    effect = majority_effect(share_effect(median), excludes_null(rows, 0.0, _SHARE_ENDS))
    if effect == 0.0:
        subject, size = "error of covariances from weights that follow the text", detectable_effect(rows, _SHARE_ENDS)
        return Headline(full, absence(subject, size, _percent, windows=most_windows(rows), reach=1.0), effect)
    null = "constant ones: 0 %" if effect is not None else "no interval"
    share = f"{_percent(median)} of the squared error of predicted covariances"
    short = f"Weights that change with the text cause {share}; {null}."
    return Headline(full, short, effect)


def _share_spread(rows: pl.DataFrame) -> str:
    """How far heads differ, and in how many the share is clear."""
    outside = excludes_null(rows, 0.0, _SHARE_ENDS)
    tests = (
        f"its 95 % interval leaves 0 out in {part_of(sum(outside), len(outside), 'head')}" if outside else "no interval"
    )
    shares = rows["share"].to_numpy()
    low, high = side_by_side([100 * float(share) for share in (shares.min(), shares.max())], decimals=0)
    return f"{low} % to {high} % over heads; {tests}" if rows.height > 1 else tests


def _pooled_share(layers: pl.DataFrame) -> str:
    """The same over all heads of the median layer, with its interval."""
    rows = _of(layers, "covariance").filter(pl.col("stage") == "heads", pl.col("share_low").is_not_null())
    if rows.is_empty():
        return ""
    row = _median_row(rows, "share")
    value, low, high, _ = percents([row["share"], *(row[end] for end in _SHARE_ENDS), 0.0])
    return f"; over all heads of {_where(row)}, the median layer: {value}, {interval(low, high, row['windows'])}"


def _percent(value: float) -> str:
    (text,) = percents((value,))
    return text


def _where(row: Mapping[str, object]) -> str:
    stack = "" if row["stack"] == "only" else f"{row['stack']}."
    return f"{stack}L{row['layer']}"


def _through(layers: pl.DataFrame) -> Headline | None:
    """The error after each stage of the median layer, and what it is made of at the end."""
    covariances = _of(layers, "covariance")
    rows_by_stage = {stage: covariances.filter(pl.col("stage") == stage) for stage in STAGES[1:]}
    errors_by_stage = {stage: _value(rows) for stage, rows in rows_by_stage.items() if rows.height}
    if not errors_by_stage:
        return None
    errors = ", ".join(
        f"{_two(error)}{' of its size' if index == 0 else ''} after {_NAMES[stage]}"
        for index, (stage, error) in enumerate(errors_by_stage.items())
    )
    last = [*errors_by_stage][-1]
    rows = rows_by_stage[last]
    row = _median_row(rows)
    value, low, high, floor = side_by_side([row[name] for name in ("value", "low", "high", "floor")], decimals=2)
    measured = floor and f"; what was measured in the other half: {floor}"
    parts = [
        f"{words} {_two(part)}"
        for name, words in (("weights", "weights"), ("sampling", "other windows"), ("shape", "tokens not Gaussian"))
        if (part := _middle(rows, name)) is not None
    ]
    alone = f" Alone, the parts of the last error are: {', '.join(parts)}." if parts else ""
    entropy = _of(layers, "entropy").filter(pl.col("stage") == last)
    nats = (
        f" Entropy is predicted {_off(_value(entropy), ' nats per component')} after {_NAMES[last]}."
        if entropy.height
        else ""
    )
    full = (
        f"Through a layer the predicted covariance is off by {errors} (medians of "
        f"{counted(rows.height, 'layer')}, {windows_phrase(rows)}). In {_where(row)}, where the last error is the "
        f"median one, it is {value} ({interval(low, high, row['windows'])}{measured}).{alone}{nats}"
    )
    return _through_headline(full, row, rows, _NAMES[last])


def _through_headline(full: str, row: _Row, rows: pl.DataFrame, stage: str) -> Headline:
    """The last stage of the median layer, next to other windows as measured."""
    median, floor = _value(rows), _middle(rows, "floor")
    null = 0.0 if floor is None else floor
    effect = clear_effect(share_effect(median, min(null, 1.0)), row["low"], row["high"], null)
    if effect == 0.0:
        subject, size = f"error of covariances after {stage} beyond other windows'", detectable_effect(rows)
        return Headline(full, absence(subject, size, _of_their_size, windows=most_windows(rows)), effect)
    value, other = side_by_side((median, floor), decimals=2)
    compared = other and f", other windows' by {other}"
    unsure = " (no interval)" if effect is None else ""
    short = f"After {stage} the predicted covariance is off by {value} of its size{compared}{unsure}."
    return Headline(full, short, effect)


def _of_their_size(error: float) -> str:
    return f"{significant(error, 2)} of their size"
