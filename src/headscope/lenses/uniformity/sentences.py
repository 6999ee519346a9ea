"""What the lens `uniformity` says in sentences."""

from collections.abc import Mapping, Sequence

import polars as pl
import torch

from headscope.core import Headline
from headscope.lenses.lens import AS_IS
from headscope.lenses.shared.effects import clear_effect, correlation_effect, ratio_effect, share_effect
from headscope.lenses.shared.phrases import percent, two_digits, undetected
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
    return tuple(headline for headline in candidates if headline is not None)


def _stacks(table: pl.DataFrame) -> list[str]:
    return list(dict.fromkeys(table["stack"].to_list()))


def _course(table: pl.DataFrame, quantity: str, variant: str, stack: str) -> list[dict[str, object]]:
    return table.filter(
        pl.col("quantity") == quantity,
        pl.col("variant") == variant,
        pl.col("stack") == stack,
        pl.col("value").is_not_null(),
    ).to_dicts()


def _number(row: Mapping[str, object], name: str) -> float:
    value = row[name]
    return float(value) if isinstance(value, float) else float("nan")


def _windows(rows: Sequence[Mapping[str, object]]) -> str:
    count = max(int(str(row["windows"])) for row in rows)
    return f"{count} window{'' if count == 1 else 's'}"


def _ends(row: Mapping[str, object]) -> str:
    """A number with its 95 % interval."""
    value = f"{_number(row, 'value'):.2f}"
    return value if row["low"] is None else f"{value} ({_number(row, 'low'):.2f} to {_number(row, 'high'):.2f})"


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
        "unclear": f"do not detectably change their likeness{_missed(last)}",
        "untested": "cannot be told to grow more or less alike from one window",
    }[_direction(last)]
    where = "" if stack == "only" else f" of the {'decoder' if stack == 'dec' else stack}"
    peak = "" if top is last or top is first else f", at most {_number(top, 'value'):.2f} in L{top['layer']}"
    fresh = _course(streams, "mean_cosine", INITIALISED, stack)
    null = (
        f"; freshly initialised {_number(fresh[0], 'value'):.2f} to {_number(fresh[-1], 'value'):.2f}" if fresh else ""
    )
    high, low = _end(shares, "high"), _end(shares, "low")
    outcome = ", so they have become nearly one" if high < ONE else ", so they do not become one" if low > ONE else ""
    full = (
        f"Over {_windows(cosines)}, tokens{where} {course}: two of them have a mean cosine of {_ends(first)} at the "
        f"first layer and {_ends(last)} behind the last{peak} (independent tokens: 0{null}). "
        f"{_share(shares)} of their length still distinguishes them{outcome}."
    )
    effect = correlation_effect(_number(last, "value"), _number(first, "value"))
    return Headline(full, _growth_short(first, last), _changed(effect, last))


def _changed(
    effect: float | None, row: Mapping[str, object], baseline: Mapping[str, object] | None = None
) -> float | None:
    """The effect if the row's change is clear; 0 if not, None without a test."""
    return {"more": effect, "less": effect, "unclear": 0.0, "untested": None}[_direction(row, baseline)]


def _growth_short(first: Mapping[str, object], last: Mapping[str, object]) -> str:
    start, end = (f"{_number(row, 'value'):.2f}" for row in (first, last))
    direction = _direction(last)
    if direction == "unclear":
        return undetected("change of the mean cosine of two tokens with depth", two_digits(_detectable(last)))
    if direction == "untested":
        return f"Two tokens have a mean cosine of {start} at the first layer and {end} behind the last (no interval)."
    course = f"from {start} at the first layer to {end} behind the last"
    return f"Tokens grow {direction} alike: their mean cosine goes {course}."


def _detectable(row: Mapping[str, object], name: str = "change") -> float:
    """The change that four of five texts would have shown; 0 without an interval."""
    low, high, windows = row[f"{name}_low"], row[f"{name}_high"], row["windows"]
    if not (isinstance(low, float) and isinstance(high, float) and isinstance(windows, int)):
        return 0.0
    return float(detectable(torch.tensor((high - low) / 2, dtype=torch.float64), windows))


def _last(table: pl.DataFrame, quantity: str, variant: str, stack: str) -> dict[str, object] | None:
    """The row behind the last layer, also where its value is below rounding."""
    rows = table.filter(
        pl.col("quantity") == quantity, pl.col("variant") == variant, pl.col("stack") == stack
    ).to_dicts()
    return rows[-1] if rows else None


def _end(row: Mapping[str, object], name: str) -> float:
    """An end of an interval; of a value below rounding 0 and the bound, without an interval the value."""
    if row["value"] is None:
        return _number(row, "rounding") if name == "high" else 0.0
    return _number(row, "value") if row[name] is None else _number(row, name)


def _share(row: Mapping[str, object]) -> str:
    """A share in percent with its interval, or that it is below rounding."""
    if row["value"] is None:
        return f"Less than {_percent(_number(row, 'rounding'))} (rounding)"
    interval = "" if row["low"] is None else f" ({_percent(_end(row, 'low'))} to {_percent(_end(row, 'high'))})"
    return f"{_percent(_number(row, 'value'))}{interval}"


_PARTS = {WITHOUT_SKIPS: "skip connections", WITHOUT_MLP: "feed-forward parts", WITHOUT_ATTENTION: "attention"}


def _causes(streams: pl.DataFrame) -> Headline | None:
    """What each part does, by how much would distinguish tokens without it."""
    stack = _stacks(streams)[-1]
    rows = {name: _last(streams, "residual_share", name, stack) for name in (AS_IS, *_PARTS, ATTENTION_ALONE)}
    ends = {name: row for name, row in rows.items() if row is not None}
    if AS_IS not in ends or len(ends) < 2:
        return None
    left = [f"{name} {_lower(_share(row))}" for name, row in _renamed(ends)]
    effects: dict[str, list[str]] = {}
    for name, part in _PARTS.items():
        if name in ends:
            effects.setdefault(_effect(ends[AS_IS], ends[name]), []).append(part)
    causes = [f"{_listed(parts)} {effect}" for effect, parts in effects.items()]
    verdict = f". Compared window by window, {'; '.join(causes)}" if causes else ""
    return _causes_headline(f"What would distinguish them at the end: {_listed(left)}{verdict}.", ends)


def _causes_headline(full: str, ends: Mapping[str, Mapping[str, object]]) -> Headline:
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
        size = percent(max(_detectable(ends[variant]) for variant in parts))
        return Headline(full, undetected("effect of any part on how far apart tokens end", size), 0.0)
    unsure = " (no interval)" if effects[top] is None else ""
    name = names[top]
    short = (
        f"{name[:1].upper()}{name[1:]}, {_brief(ends[top])} of the vectors' length distinguishes tokens at the end; as "
        f"trained {_brief(usual)}{unsure}."
    )
    return Headline(full, short, effects[top])


def _brief(row: Mapping[str, object]) -> str:
    """A share in percent, or that it is below rounding."""
    return f"under {_percent(_number(row, 'rounding'))}" if row["value"] is None else _percent(_number(row, "value"))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _renamed(ends: Mapping[str, Mapping[str, object]]) -> list[tuple[str, Mapping[str, object]]]:
    return [(name, ends[variant]) for variant, name in _names().items() if variant in ends]


def _names() -> dict[str, str]:
    """The changed forms as a sentence names them."""
    return {**{name: f"without {part}" for name, part in _PARTS.items()}, ATTENTION_ALONE: "with attention alone"}


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _percent(share: float) -> str:
    value = 100 * share
    return f"{value:.0f} %" if value >= 10 else f"{value:.2g} %" if value >= 0.001 else "under 0.001 %"


def _direction(row: Mapping[str, object], baseline: Mapping[str, object] | None = None) -> str:
    """Whether a value is clearly more or less than its baseline, by the paired interval of the change.

    Where one of them is below rounding there is no change; the other must then lie above the rounding.
    """
    low, high = row["change_low"], row["change_high"]
    if isinstance(low, float) and isinstance(high, float):
        return "more" if low > 0 else "less" if high < 0 else "unclear"
    if baseline is not None and (row["value"] is None) != (baseline["value"] is None):
        if row["value"] is None:
            return "less" if _end(baseline, "low") > _end(row, "high") else "unclear"
        return "more" if _end(row, "low") > _end(baseline, "high") else "unclear"
    return "untested"


def _missed(row: Mapping[str, object]) -> str:
    """What change would have been detected where none was."""
    if row["change_low"] is None:
        return ""
    return f" (one of {_detectable(row):.2g} would have been detected in four of five texts)"


def _effect(unchanged: Mapping[str, object], without: Mapping[str, object]) -> str:
    """Whether a part keeps tokens apart: its absence leaves less."""
    return {
        "less": "kept them apart",
        "more": "brought them together",
        "unclear": f"made no difference that was detected{_missed(without)}",
        "untested": "cannot be judged",
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
    judged = [
        f"{_factor(rows[name])} in {text}, which {_verdict(rows[name])}"
        for name, text in _JUDGED.items()
        if name in rows
    ]
    unjudged = [f"{_factor(rows[name])} in {text}" for name, text in _UNJUDGED.items() if name in rows]
    if not rows:
        return None
    where = " of the encoder" if stack == "enc" else ""
    start = f"From layer to layer{where} their differences, in units of what they share, change by a factor of "
    if not judged:
        full = f"{start}{_listed(unjudged)}; the prediction leaves out feed-forward parts."
        return Headline(full, _factor_short(*next(iter(rows.items()))))
    with_mlp = f" With feed-forward parts, which the prediction leaves out: {_listed(unjudged)}." if unjudged else ""
    name, row = next((name, row) for name, row in rows.items() if name in _JUDGED)
    ratio, low, high = (_number(row, column) for column in ("ratio", "ratio_low", "ratio_high"))
    effect = clear_effect(ratio_effect(ratio, 1.0), low, high, 1.0)
    short = _factor_short(name, row)
    if effect == 0.0:
        size = percent(_detectable(row, "ratio"))
        short = undetected(f"difference of {_JUDGED[name]} from pure averaging", size)
    return Headline(f"{start}{'; of '.join(judged)}.{with_mlp}", short, effect)


def _factor_short(name: str, row: Mapping[str, object]) -> str:
    form = {**_JUDGED, **_UNJUDGED}[name]
    value, predicted = (f"{_number(row, column):.3g}" for column in ("value", "predicted"))
    return f"In {form}, differences between tokens change {value}-fold per layer; averaging alone predicts {predicted}."


def _factor(row: Mapping[str, object]) -> str:
    """A measured factor with its interval, and the predicted one."""
    value = f"{_number(row, 'value'):.3g}"
    interval = "" if row["low"] is None else f" ({_number(row, 'low'):.3g} to {_number(row, 'high'):.3g})"
    return f"{value}{interval}, predicted {_number(row, 'predicted'):.3g},"


def _verdict(row: Mapping[str, object]) -> str:
    """Whether measured over predicted can be 1, window by window."""
    if row["ratio_low"] is None:
        return "one window cannot compare with averaging"
    low, high = _number(row, "ratio_low"), _number(row, "ratio_high")
    ratio = f"{_number(row, 'ratio'):.4g} times the prediction ({low:.4g} to {high:.4g})"
    if low <= 1 <= high:
        return f"is not told from averaging: {ratio}"
    return f"is {'more' if low > 1 else 'less'} than averaging gives: {ratio}"
