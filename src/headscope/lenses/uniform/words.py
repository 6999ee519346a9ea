"""What the lens `uniformity` says in sentences."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from headscope.lenses.lens import AS_IS
from headscope.lenses.uniform.rates import (
    ATTENTION_ALONE,
    INITIALISED,
    ROUNDINGS,
    WITHOUT_ATTENTION,
    WITHOUT_MLP,
    WITHOUT_SKIPS,
)
from headscope.lenses.uniform.records import RANK_TOKENS

# Below this share of their length that distinguishes tokens they are called one.
ONE = 0.1
# How far cosines or shares must be apart to be told apart where there is one window, and so no interval.
MARGIN = 0.05
# How close a predicted speed, the logarithm of a factor, is called right; where nothing happens, how close to nothing.
CLOSE, SLOW = 0.25, 0.02


def method(tokens: int, windows: int, seen: int, skip: int, variants: Sequence[str]) -> str:
    """How the numbers were obtained."""
    left = f" The first {f'{skip} tokens' if skip > 1 else 'token'} of each window left out." if skip else ""
    text = (
        f"all {seen} windows"
        if windows == seen
        else f"the first {windows} of {seen} windows, those that the first {tokens:,} tokens lie in"
    )
    return (
        f"Every form of the model ({', '.join(variants)}) on {text}, in float64 from what the model computed. Means "
        f"over windows, 95 % intervals from their spread (Student t). Ranks from up to {RANK_TOKENS} tokens of a "
        f"window at equal steps. Factors where differences are above {ROUNDINGS} roundings. Value maps exactly, "
        f"from the weights; their null is one random draw.{left}"
    )


def warnings(
    tables: Mapping[str, pl.DataFrame], refused: Mapping[str, str], unknown: Sequence[str], cross: bool
) -> tuple[str, ...]:
    """What could not be told, and why."""
    reasons: dict[str, list[str]] = {}
    for name, why in refused.items():
        reasons.setdefault(why, []).append(name)
    found = [f"Forms that could not be run: {_listed(names)}. Reason: {why}." for why, names in reasons.items()]
    if unknown:
        found.append(
            f"No predicted factors with skip connections, and no place in the plane, for {', '.join(unknown[:6])}"
            f"{' …' if len(unknown) > 6 else ''}: the weights of the values are not known there."
        )
    if cross:
        found.append("The decoder also adds what it reads from the encoder, which the prediction leaves out.")
    if tables["rates"].is_empty():
        found.append("No factor could be told: there is one layer or less, or all differences are rounding.")
    elif max(tables["streams"]["windows"].to_list(), default=0) < 2:
        found.append("One window: there are no intervals.")
    return tuple(found)


def sentences(tables: Mapping[str, pl.DataFrame]) -> tuple[str, ...]:
    """What stands out, in numbers."""
    found = (_growth(tables["streams"]), _causes(tables["streams"]), _prediction(tables["rates"]))
    return tuple(sentence for sentence in found if sentence)


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


def _growth(streams: pl.DataFrame) -> str:
    """Of the last stack: whether tokens grow alike, and whether they become one."""
    stack = _stacks(streams)[-1]
    cosines = _course(streams, "mean_cosine", AS_IS, stack)
    shares = _course(streams, "residual_share", AS_IS, stack)
    if not cosines or not shares:
        return ""
    first, last = cosines[0], cosines[-1]
    top = max(cosines, key=lambda row: _number(row, "value"))
    rose, fell = _above(last, first), _above(first, last)
    course = (
        "grow more alike with depth"
        if rose
        else "grow less alike with depth"
        if fell
        else "stay about as alike as at first"
    )
    where = "" if stack == "only" else f" of the {'decoder' if stack == 'dec' else stack}"
    peak = "" if top is last or top is first else f", at most {_number(top, 'value'):.2f} in L{top['layer']}"
    fresh = _course(streams, "mean_cosine", INITIALISED, stack)
    null = (
        f"; freshly initialised {_number(fresh[0], 'value'):.2f} to {_number(fresh[-1], 'value'):.2f}" if fresh else ""
    )
    chance = _number(last, "value") / _number(last, "z")
    share = _number(shares[-1], "value")
    one = "they have become nearly one" if share < ONE else "they do not become one"
    return (
        f"Tokens{where} {course}: two of them have a mean cosine of {_number(first, 'value'):.2f} at the first layer "
        f"and {_number(last, 'value'):.2f} behind the last{peak} (independent tokens: 0 ± {chance:.1g}{null}); "
        f"{_percent(share)} of their length still distinguishes them, so {one}."
    )


_PARTS = {WITHOUT_SKIPS: "skip connections", WITHOUT_MLP: "feed-forward parts", WITHOUT_ATTENTION: "attention"}


def _causes(streams: pl.DataFrame) -> str:
    """What each part does, by how much would distinguish tokens without it."""
    stack = _stacks(streams)[-1]
    courses = {name: _course(streams, "residual_share", name, stack) for name in (AS_IS, *_PARTS, ATTENTION_ALONE)}
    ends = {name: course[-1] for name, course in courses.items() if course}
    if AS_IS not in ends or len(ends) < 2:
        return ""
    left = [f"{name} {_percent(_number(row, 'value'))}" for name, row in _renamed(ends)]
    effects: dict[str, list[str]] = {}
    for name, part in _PARTS.items():
        if name in ends:
            effects.setdefault(_effect(ends[AS_IS], ends[name]), []).append(part)
    told = [f"{_listed(parts)} {effect}" for effect, parts in effects.items()]
    verdict = f", so {'; '.join(told)}" if told else ""
    return f"What would distinguish them at the end: {_listed(left)}{verdict}."


def _renamed(ends: Mapping[str, Mapping[str, object]]) -> list[tuple[str, Mapping[str, object]]]:
    named = {**{name: f"without {part}" for name, part in _PARTS.items()}, ATTENTION_ALONE: "with attention alone"}
    return [(name, ends[variant]) for variant, name in named.items() if variant in ends]


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _percent(share: float) -> str:
    value = 100 * share
    return f"{value:.0f} %" if value >= 10 else f"{value:.2g} %" if value >= 0.001 else "under 0.001 %"


def _above(a: Mapping[str, object], b: Mapping[str, object]) -> bool:
    """Whether a is clearly larger: the intervals are apart, or without intervals the values by more than MARGIN."""
    if a["low"] is None or b["high"] is None:
        return _number(a, "value") > _number(b, "value") + MARGIN
    return _number(a, "low") > _number(b, "high")


def _effect(whole: Mapping[str, object], without: Mapping[str, object]) -> str:
    """Whether a part keeps tokens apart: its absence leaves less."""
    if _above(whole, without):
        return "kept them apart"
    return "brought them together" if _above(without, whole) else "made little difference"


def _prediction(rates: pl.DataFrame) -> str:
    """Measured factors beside predicted ones."""
    if rates.is_empty():
        return ""
    # A decoder beside an encoder adds what it reads there, too: the theory is about the encoder.
    stack = _stacks(rates)[0]
    named = {
        ATTENTION_ALONE: "attention alone",
        WITHOUT_SKIPS: "the model without skip connections",
        WITHOUT_MLP: "the model without feed-forward parts",
        AS_IS: "the model as it is",
    }
    told, right, wrong = [], list[str](), list[str]()
    for variant, name in named.items():
        rows = _course(rates, "factor_over_depth", variant, stack)
        if not rows or rows[0]["predicted"] is None:
            continue
        value, predicted = _number(rows[0], "value"), _number(rows[0], "predicted")
        told.append(f"{value:.2g} in {name} (predicted {predicted:.2g})")
        # Speeds are logarithms: a factor of 0.98 is twice as fast as one of 0.99.
        speed, expected = -float(np.log(value)), -float(np.log(predicted))
        (right if abs(speed - expected) <= max(CLOSE * abs(expected), SLOW) else wrong).append(name)
    if not told:
        return ""
    verdict = [
        f"averaging tells the speed to a quarter in {_listed(right)}" if right else "",
        f"not in {_listed(wrong)}" if right and wrong else "averaging tells none of these speeds" if wrong else "",
    ]
    where = " of the encoder" if stack == "enc" else ""
    return (
        f"From layer to layer{where} their differences, in units of what they share, change by a factor of "
        f"{_listed(told)}: "
        f"{', '.join(one for one in verdict if one)}."
    )
