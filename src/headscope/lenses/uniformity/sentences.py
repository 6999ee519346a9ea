"""What the lens `uniformity` says in sentences."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil

import polars as pl
import torch

from headscope.core import Headline
from headscope.lenses.lens import AS_IS
from headscope.lenses.shared.absences import absence, limit_clause
from headscope.lenses.shared.answers import answered, pictured, side
from headscope.lenses.shared.effects import clear_effect, correlation_effect, ratio_effect, share_effect
from headscope.lenses.shared.written_numbers import counted, decimals_of, interval, percents, side_by_side, significant
from headscope.lenses.uniformity.rates import (
    ATTENTION_ALONE,
    INITIALISED,
    WITHOUT_ATTENTION,
    WITHOUT_MLP,
    WITHOUT_SKIPS,
)
from headscope.lenses.uniformity.records import RANK_TOKENS
from headscope.maths.resampling.jackknife import detectable

# Below this share of their length that distinguishes tokens they are called one.
ONE = 0.1


def method(tokens: int, windows: int, shown_windows: int, skip: int, variants: Sequence[str]) -> str:
    """How the numbers were obtained."""
    left = f" The first {f'{skip} tokens' if skip > 1 else 'token'} of each window left out." if skip else ""
    text = (
        f"all {shown_windows} windows"
        if windows == shown_windows
        else f"the first {windows} of {shown_windows} windows, those that the first {tokens:,} tokens lie in"
    )
    return (
        f"Every form of the model ({', '.join(variants)}) on {text}, in float64 from what the model computed. Means "
        f"over windows, 95 % intervals from their spread (Student t). Ranks from up to {RANK_TOKENS} tokens of a "
        f"window at equal steps. Sizes of differences, and factors, only where differences are above the rounding "
        "of a sum over the stream's width (column rounding). Value maps exactly, from the weights; their null is one "
        f"random draw.{left}"
    )


def warnings(
    tables: Mapping[str, pl.DataFrame], refused: Mapping[str, str], unknown: Sequence[str], cross: bool
) -> tuple[str, ...]:
    """What could not be told, and why."""
    reasons: dict[str, list[str]] = {}
    for name, why in refused.items():
        reasons.setdefault(why, []).append(name)
    texts = [f"Forms that could not be run: {_listed(names)}. Reason: {why}." for why, names in reasons.items()]
    if unknown:
        texts.append(
            f"No predicted factors with skip connections, and no place in the plane, for {', '.join(unknown[:6])}"
            f"{' …' if len(unknown) > 6 else ''}: the weights of the values are not known there."
        )
    if cross:
        texts.append("The decoder also adds what it reads from the encoder, which the prediction leaves out.")
    if tables["rates"].is_empty():
        texts.append("No factor could be told: there is one layer or less, or all differences are rounding.")
    elif max(tables["streams"]["windows"].to_list(), default=0) < 2:
        texts.append("One window: there are no intervals.")
    return tuple(texts)


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[Headline, ...]:
    """What stands out, in numbers."""
    candidates = (_growth(tables["streams"]), _causes(tables["streams"]), _prediction(tables["rates"]))
    return pictured(candidates, ("cosine", "differences", "rates"))


_Row = Mapping[str, object]


def _stacks(table: pl.DataFrame) -> list[str]:
    return list(dict.fromkeys(table["stack"].to_list()))


def _course(table: pl.DataFrame, quantity: str, variant: str, stack: str) -> list[dict[str, object]]:
    return table.filter(
        pl.col("quantity") == quantity,
        pl.col("variant") == variant,
        pl.col("stack") == stack,
        pl.col("value").is_not_null(),
    ).to_dicts()


def _number(row: _Row, name: str) -> float:
    value = row[name]
    return float(value) if isinstance(value, float) else float("nan")


def _known(row: _Row, *names: str) -> list[float | None]:
    """Numbers of a row, None where there is none."""
    return [value if isinstance(value, float) else None for value in (row[name] for name in names)]


def _window_count(rows: Sequence[_Row]) -> int:
    return max(int(str(row["windows"])) for row in rows)


def _cosine(row: _Row) -> str:
    """A mean cosine with its 95 % interval."""
    value, low, high = side_by_side(_known(row, "value", "low", "high"), decimals=2)
    return f"{value} ({interval(low, high, _window_count([row]))})" if low else value


def _growth(streams: pl.DataFrame) -> Headline | None:
    """Of the last stack: whether tokens grow alike, and whether they become one."""
    stack = _stacks(streams)[-1]
    cosines = _course(streams, "mean_cosine", AS_IS, stack)
    shares = _last(streams, "residual_share", AS_IS, stack)
    if not cosines or shares is None:
        return None
    first, last = cosines[0], cosines[-1]
    top = max(cosines, key=lambda row: _number(row, "value"))
    course = {
        "more": "grow more alike with depth",
        "less": "grow less alike with depth",
        "unclear": f"do not detectably change their likeness ({_limit(last, _cosines, 2.0)})",
        "untested": "cannot be said to grow more or less alike without an interval",
    }[_direction(last)]
    where = "" if stack == "only" else f" of the {'decoder' if stack == 'dec' else stack}"
    peak = "" if top is last or top is first else f", at most {_number(top, 'value'):.2f} in L{top['layer']}"
    fresh = _course(streams, "mean_cosine", INITIALISED, stack)
    null = (
        f"; freshly initialised: {_number(fresh[0], 'value'):.2f} at the first layer and "
        f"{_number(fresh[-1], 'value'):.2f} after the last"
        if fresh
        else ""
    )
    full = (
        f"Over {counted(_window_count(cosines), 'window')}, tokens{where} {course}: two of them have a mean cosine of "
        f"{_cosine(first)} at the first layer and {_cosine(last)} after the last{peak} (independent tokens: 0{null}). "
        f"{_capitalised(_share(shares))} of their length still distinguishes them{_outcome(shares)}."
    )
    effect = correlation_effect(_number(last, "value"), _number(first, "value"))
    headline = Headline(full, _growth_short(first, last), _changed(effect, last))
    start, end = side_by_side([_number(row, "value") for row in (first, last)], decimals=2)
    answer = side(_number(last, "value"), _number(first, "value"), "they grow less alike", "they grow more alike")
    return answered(headline, answer, f"mean cosine {end}", f"{start} at the first layer")


def _outcome(shares: _Row) -> str:
    """Whether tokens have become one, where the interval tells."""
    if shares["value"] is not None and shares["low"] is None:
        return ""
    if _end(shares, "high") < ONE:
        return ", so they have become nearly one"
    return ", so they do not become one" if _end(shares, "low") > ONE else ""


def _changed(effect: float | None, row: _Row, baseline: _Row | None = None) -> float | None:
    """The effect if the row's change is clear; 0 if not, None without a test."""
    return {"more": effect, "less": effect, "unclear": 0.0, "untested": None}[_direction(row, baseline)]


def _cosines(size: float) -> str:
    return significant(size, 2)


def _growth_short(first: _Row, last: _Row) -> str:
    direction = _direction(last)
    if direction == "unclear":
        subject, windows = "change of the mean cosine of two tokens with depth", _window_count([last])
        return absence(subject, _detectable(last), _cosines, windows=windows, reach=2.0)
    start, end = side_by_side([_number(row, "value") for row in (first, last)], decimals=2)
    if direction == "untested":
        return f"Two tokens have a mean cosine of {start} at the first layer and {end} after the last (no interval)."
    course = f"from {start} at the first layer to {end} after the last"
    return f"Tokens grow {direction} alike: their mean cosine goes {course}."


def _detectable(row: _Row, name: str = "change") -> float | None:
    """The change that four of five texts would have shown; None without an interval."""
    low, high, windows = row[f"{name}_low"], row[f"{name}_high"], row["windows"]
    if not (isinstance(low, float) and isinstance(high, float) and isinstance(windows, int)):
        return None
    return float(detectable(torch.tensor((high - low) / 2, dtype=torch.float64), windows))


def _limit(row: _Row, write: Callable[[float], str], reach: float) -> str:
    """What change would have been detected where none was."""
    return limit_clause(_detectable(row), write, reach=reach) or "one of them can be rounding"


def _last(table: pl.DataFrame, quantity: str, variant: str, stack: str) -> dict[str, object] | None:
    """The row behind the last layer, also where its value is below rounding."""
    rows = table.filter(
        pl.col("quantity") == quantity, pl.col("variant") == variant, pl.col("stack") == stack
    ).to_dicts()
    return rows[-1] if rows else None


def _end(row: _Row, name: str) -> float:
    """An end of an interval; of a value below rounding 0 and the bound, without an interval the value."""
    if row["value"] is None:
        return _number(row, "rounding") if name == "high" else 0.0
    return _number(row, "value") if row[name] is None else _number(row, name)


def _share(row: _Row) -> str:
    """A share in percent with its interval, or that it is below rounding."""
    if row["value"] is None:
        return f"less than {_small_percent(_number(row, 'rounding'))} (rounding)"
    value, low, high = percents(_known(row, "value", "low", "high"))
    return f"{value} ({interval(low, high, _window_count([row]))})" if low else value


def _small_percent(share: float) -> str:
    """A bound in percent, rounded up to thousandths."""
    return f"{max(ceil(1e5 * share), 1) / 1000} %"


_PARTS = {WITHOUT_SKIPS: "skip connections", WITHOUT_MLP: "feed-forward parts", WITHOUT_ATTENTION: "attention"}


def _causes(streams: pl.DataFrame) -> Headline | None:
    """What each part does, by how much would distinguish tokens without it."""
    stack = _stacks(streams)[-1]
    rows = {name: _last(streams, "residual_share", name, stack) for name in (AS_IS, *_PARTS, ATTENTION_ALONE)}
    ends = {name: row for name, row in rows.items() if row is not None}
    if AS_IS not in ends or len(ends) < 2:
        return None
    left = [f"{name} {_share(row)}" for name, row in _renamed(ends)]
    effects: dict[str, list[str]] = {}
    for name, part in _PARTS.items():
        if name in ends:
            effects.setdefault(_effect(ends[AS_IS], ends[name]), []).append(part)
    causes = [f"{_listed(parts)} {effect}" for effect, parts in effects.items()]
    verdict = f" Compared window by window, {'; '.join(causes)}." if causes else ""
    full = (
        f"Over {counted(_window_count([*ends.values()]), 'window')}, {_share(ends[AS_IS])} of the vectors' length "
        f"distinguishes tokens after the last layer of the model as it is; {_listed(left)}.{verdict}"
    )
    return _causes_headline(full, ends)


def _causes_headline(full: str, ends: Mapping[str, _Row]) -> Headline:
    """The part whose absence changes most; attention alone where there is none."""
    usual = ends[AS_IS]
    names = {variant: name for variant, name in _names().items() if variant in ends}
    parts = [variant for variant in names if variant in _PARTS] or list(names)
    effects = {
        variant: _changed(share_effect(_end(ends[variant], "value"), _end(usual, "value")), ends[variant], usual)
        for variant in parts
    }
    top = max(parts, key=lambda variant: (effects[variant] is not None, effects[variant] or 0.0))
    if effects[top] == 0.0:
        # The least certain part: what it would have taken holds for the others, too.
        sizes = [size for variant in parts if (size := _detectable(ends[variant])) is not None]
        subject, windows = "effect of any part on how far apart tokens end", _window_count([*ends.values()])
        short = absence(subject, max(sizes, default=None), _points, windows=windows, reach=1.0)
        return Headline(full, short, 0.0)
    without, as_trained = _shares_apart(ends[top], usual)
    if ends[top]["value"] is None and usual["value"] is None:
        subject = f"As trained and {names[top]}, {without}"
        return Headline(full, f"{subject} of vectors' length distinguishes tokens at the end: rounding.", effects[top])
    short = (
        f"{_capitalised(names[top])}, {without} of vectors' length distinguishes tokens at the end; as trained "
        f"{as_trained}{' (no interval)' if effects[top] is None else ''}."
    )
    return Headline(full, short, effects[top])


def _shares_apart(*rows: _Row) -> list[str]:
    """Shares in percent, or that they are below rounding."""
    written = percents([_known(row, "value")[0] for row in rows])
    bounds = [f"under {_small_percent(_number(row, 'rounding'))}" if row["value"] is None else "" for row in rows]
    return [text or bound for text, bound in zip(written, bounds, strict=True)]


def _points(share: float) -> str:
    return f"{significant(100 * share, 2)} points"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _renamed(ends: Mapping[str, _Row]) -> list[tuple[str, _Row]]:
    return [(name, ends[variant]) for variant, name in _names().items() if variant in ends]


def _names() -> dict[str, str]:
    """The changed forms as a sentence names them."""
    return {**{name: f"without {part}" for name, part in _PARTS.items()}, ATTENTION_ALONE: "with attention alone"}


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _direction(row: _Row, baseline: _Row | None = None) -> str:
    """Whether a value is clearly more or less than its baseline, by the paired interval of the change.

    Where one of them is below rounding there is no change; the interval of the other must then lie above the rounding.
    """
    low, high = row["change_low"], row["change_high"]
    if isinstance(low, float) and isinstance(high, float):
        return "more" if low > 0 else "less" if high < 0 else "unclear"
    if baseline is None or (row["value"] is None) == (baseline["value"] is None):
        return "untested"
    small, large, side = (row, baseline, "less") if row["value"] is None else (baseline, row, "more")
    if large["low"] is None:
        return "untested"
    return side if _end(large, "low") > _end(small, "high") else "unclear"


def _effect(unchanged: _Row, without: _Row) -> str:
    """Whether a part keeps tokens apart: its absence leaves less."""
    return {
        "less": "kept them apart",
        "more": "brought them together",
        "unclear": f"made no difference that was detected ({_limit(without, _points, 1.0)})",
        "untested": "cannot be judged without an interval",
    }[_direction(without, unchanged)]


# The prediction is about these forms: they have no feed-forward parts, which it leaves out.
_JUDGED = {ATTENTION_ALONE: "attention alone", WITHOUT_MLP: "the model without feed-forward parts"}
_UNJUDGED = {WITHOUT_SKIPS: "the model without skip connections", AS_IS: "the model as it is"}


def _prediction(rates: pl.DataFrame) -> Headline | None:
    """Measured factors beside predicted ones, judged by the interval of their ratio."""
    if rates.is_empty():
        return None
    # A decoder beside an encoder adds what it reads there, too: the theory is about the encoder.
    stack = _stacks(rates)[0]
    rows = {
        name: course[0]
        for name in (*_JUDGED, *_UNJUDGED)
        if (course := _course(rates, "factor_over_depth", name, stack)) and course[0]["predicted"] is not None
    }
    if not rows:
        return None
    judged = [
        f"{_factor(rows[name])} in {text}, which {_verdict(rows[name])}"
        for name, text in _JUDGED.items()
        if name in rows
    ]
    unjudged = [f"{_factor(rows[name])} in {text}" for name, text in _UNJUDGED.items() if name in rows]
    where = " of the encoder" if stack == "enc" else ""
    start = (
        f"Over {counted(_window_count([*rows.values()]), 'window')}, from layer to layer{where} the differences of "
        "tokens, in units of what they share, change by a factor of "
    )
    if not judged:
        full = f"{start}{_listed(unjudged)}; the prediction leaves out feed-forward parts."
        return Headline(full, _factor_short(*next(iter(rows.items()))))
    with_mlp = f" With feed-forward parts, which the prediction leaves out: {_listed(unjudged)}." if unjudged else ""
    name, row = next((name, row) for name, row in rows.items() if name in _JUDGED)
    ratio, low, high = (_number(row, column) for column in ("ratio", "ratio_low", "ratio_high"))
    effect = clear_effect(ratio_effect(ratio, 1.0), low, high, 1.0)
    short = _factor_short(name, row)
    if effect == 0.0:
        subject, windows = f"difference of {_JUDGED[name]} from pure averaging", _window_count([row])
        short = absence(subject, _detectable(row, "ratio"), _percent_of_prediction, windows=windows)
    return Headline(f"{start}{'; of '.join(judged)}.{with_mlp}", short, effect)


def _percent_of_prediction(size: float) -> str:
    return f"{significant(100 * size, 2)} %"


def _factor_short(name: str, row: _Row) -> str:
    form = {**_JUDGED, **_UNJUDGED}[name]
    value, predicted = side_by_side(_known(row, "value", "predicted"))
    unsure = " (no interval)" if row["low"] is None else ""
    return (
        f"In {form}, differences between tokens change {value}-fold per layer; averaging alone predicts "
        f"{predicted}{unsure}."
    )


def _factor(row: _Row) -> str:
    """A measured factor with its interval, and the predicted one."""
    numbers = _known(row, "value", "low", "high", "predicted")
    value, low, high, predicted = side_by_side(numbers, decimals=decimals_of(_number(row, "value"), 3))
    ends = f"{interval(low, high, _window_count([row]))}; " if low else ""
    return f"{value} ({ends}predicted {predicted})"


def _verdict(row: _Row) -> str:
    """Whether measured over predicted can be 1, window by window."""
    if row["ratio_low"] is None:
        return "cannot be compared with averaging without an interval"
    numbers = (*_known(row, "ratio", "ratio_low", "ratio_high"), 1.0)
    ratio, low, high, _ = side_by_side(numbers, decimals=decimals_of(_number(row, "ratio"), 3))
    times = f"{ratio} times the prediction ({interval(low, high, _window_count([row]))}"
    if _number(row, "ratio_low") <= 1 <= _number(row, "ratio_high"):
        limit = limit_clause(_detectable(row, "ratio"), _percent_of_prediction)
        return f"is not told from averaging: {times}; {limit})"
    return f"is {'more' if _number(row, 'ratio_low') > 1 else 'less'} than averaging gives: {times})"
