"""What the lens `uniformity` says in sentences."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from scipy import stats

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
# How close a prediction of a factor is called right.
CLOSE = 0.1


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
    found = [f"The model {name} could not be run: {why}." for name, why in refused.items()]
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
    found = (_growth(tables["streams"]), _causes(tables), _prediction(tables["rates"]))
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
    rose = _number(last, "low") > _number(first, "high")
    fell = _number(last, "high") < _number(first, "low")
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
    share = _number(shares[-1], "value")
    one = "they have become nearly one" if share < ONE else "they do not become one"
    return (
        f"Tokens{where} {course}: two of them have a mean cosine of {_number(first, 'value'):.2f} at the first layer "
        f"and {_number(last, 'value'):.2f} behind the last{peak} (independent tokens: 0, here z = "
        f"{_number(last, 'z'):.0f}{null}); {100 * share:.2g} % of their length still distinguishes them, so {one}."
    )


def _causes(tables: Mapping[str, pl.DataFrame]) -> str:
    """What each part does to the speed, by what is left of the differences without it."""
    streams = tables["streams"]
    stack = _stacks(streams)[-1]
    ends = {}
    for variant in (AS_IS, WITHOUT_SKIPS, WITHOUT_MLP, WITHOUT_ATTENTION, ATTENTION_ALONE):
        course = _course(streams, "residual_share", variant, stack)
        if course:
            ends[variant] = course[-1]
    if AS_IS not in ends or len(ends) < 2:
        return ""
    told = []
    for variant, name in ((WITHOUT_SKIPS, "skip connections"), (WITHOUT_MLP, "feed-forward parts")):
        if variant in ends:
            told.append(f"{name} {_effect(ends[AS_IS], ends[variant])} ({_percent(ends[variant])} left without them)")
    if WITHOUT_ATTENTION in ends:
        effect = _effect(ends[AS_IS], ends[WITHOUT_ATTENTION])
        told.append(f"attention {effect} ({_percent(ends[WITHOUT_ATTENTION])} left without it)")
    if ATTENTION_ALONE in ends:
        told.append(f"attention alone would leave {_percent(ends[ATTENTION_ALONE])}")
    return f"Of the differences {_percent(ends[AS_IS])} are left at the end: {', '.join(told)}."


def _percent(row: Mapping[str, object]) -> str:
    value = 100 * _number(row, "value")
    return f"{value:.0f} %" if value >= 10 else f"{value:.2g} %"


def _effect(whole: Mapping[str, object], without: Mapping[str, object]) -> str:
    """Whether a part keeps tokens apart: its absence leaves less."""
    if _number(without, "high") < _number(whole, "low"):
        return "keep tokens apart"
    return "make tokens alike" if _number(without, "low") > _number(whole, "high") else "change little"


def _prediction(rates: pl.DataFrame) -> str:
    """Measured factors beside predicted ones."""
    if rates.is_empty():
        return ""
    stack = _stacks(rates)[-1]
    told, right = [], []
    for variant in (ATTENTION_ALONE, WITHOUT_SKIPS, WITHOUT_MLP, AS_IS):
        rows = _course(rates, "factor_over_depth", variant, stack)
        if not rows or rows[0]["predicted"] is None:
            continue
        value, predicted = _number(rows[0], "value"), _number(rows[0], "predicted")
        layers = [row for row in _course(rates, "factor", variant, stack) if row["predicted"] is not None]
        order = ""
        if len(layers) > 3:
            pairs = [(_number(row, "value"), _number(row, "predicted")) for row in layers]
            order = f", rank correlation over {len(layers)} layers {_spearman(pairs):.2f}"
        name = "as it is" if variant == AS_IS else variant
        told.append(f"{name} {value:.2g} where {predicted:.2g} is predicted{order}")
        if abs(np.log(value / predicted)) < CLOSE:
            right.append(name)
    if not told:
        return ""
    verdict = f"within {100 * CLOSE:.0f} % for {' and '.join(right)}" if right else "for none of them within 10 %"
    return f"Per layer the differences change by a factor, {'; '.join(told)}: averaging predicts it {verdict}."


def _spearman(pairs: Sequence[tuple[float, float]]) -> float:
    a, b = np.array(pairs).T
    if len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0
    return float(stats.spearmanr(a, b).statistic)
