"""The step of steepest change in sentences: of the head that changes most, and of the mean over heads."""

from collections.abc import Iterator

import numpy as np

from headscope.comparison.sentences import signed
from headscope.core import Headline
from headscope.core.numbers import count, counted, number
from headscope.report.head_choice import with_unit
from headscope.trajectories.curve_changes import CurveChanges

UNDETECTED = "not detected"


def headline(heads: CurveChanges, means: CurveChanges) -> Headline:
    """The statement about one quantity: where its heads change most steeply, or that none was seen to."""
    if not heads.tested.any():
        return _untested(heads)
    return _detected(heads, means) if heads.detected.any() else _undetected(heads)


def _detected(heads: CurveChanges, means: CurveChanges) -> Headline:
    curves, detected = heads.curves, heads.detected
    index = int(np.argmax(np.where(detected, heads.effect, -1.0)))
    label, change = curves.quantity.label, _change(heads, index)
    total, n_detected = len(curves.places), int(detected.sum())
    sentences = [
        f"{_capital(label)}: {curves.places[index].label} changes most steeply, at step {_step(heads, index)}, "
        f"from {change} ({_rate(heads, index)} per doubling of the step).",
        f"{count(n_detected)} of {counted(total, 'head')} {'changes' if n_detected == 1 else 'change'} detectably"
        f"{_limit(heads)}.",
        *_mean_sentences(means),
        f"{_basis(heads)}.",
    ]
    return Headline(
        " ".join(sentences),
        f"{curves.places[index].label} changes most in {label}, at step {count(heads.step(index))}: {change}.",
        float(heads.effect[index]),
        answer=f"{curves.places[index].label}, at step {count(heads.step(index))}",
        value=_rate(heads, index),
        null="0",
        figure=curves.quantity.key,
    )


def _undetected(heads: CurveChanges) -> Headline:
    label, limit = heads.curves.quantity.label, _limit(heads)
    return Headline(
        f"{_capital(label)}: no step of steepest change was detected in any of "
        f"{counted(len(heads.curves.places), 'head')}{limit}. {_basis(heads)}.",
        f"No step of steepest change was detected in {label}.",
        0.0,
        answer=UNDETECTED,
        figure=heads.curves.quantity.key,
    )


def _untested(heads: CurveChanges) -> Headline:
    """The steepest change of all, of which nothing says whether it is more than chance."""
    label = heads.curves.quantity.label
    effects = np.nan_to_num(heads.effect, nan=-1.0)
    index = int(np.argmax(effects))
    if effects[index] < 0:
        return Headline(
            f"{_capital(label)}: no head has a number at two neighbouring saved steps.",
            f"No head has {label} at two neighbouring steps.",
        )
    before, after = heads.saved_steps(index)
    text = f"{heads.curves.places[index].label} changes most, from {_change(heads, index)}"
    return Headline(
        f"{_capital(label)}: {text}, between the saved steps {count(before)} and {count(after)}. The lens stores no "
        f"interval, so whether this is more than chance was not tested. {_basis(heads)}.",
        f"{text} (untested).",
        answer=f"{heads.curves.places[index].label}, at step {count(heads.step(index))} (untested)",
        figure=heads.curves.quantity.key,
    )


def _mean_sentences(means: CurveChanges) -> Iterator[str]:
    for index, place in enumerate(means.curves.places):
        if means.detected[index]:
            yield (
                f"The {place.label} changes most steeply at step {_step(means, index)}, from {_change(means, index)}."
            )
        elif means.tested[index]:
            yield f"For the {place.label} no such step was detected."


def _step(changes: CurveChanges, index: int) -> str:
    """`91 (95 % interval 64 to 128)`, or the saved steps where there is no sampling error."""
    low, high = changes.step_interval(index)
    kind = "95 % interval" if changes.curves.certainty == "interval" else "from weights alone, between saved steps:"
    return f"{count(changes.step(index))} ({kind} {count(low)} to {count(high)})"


def _change(changes: CurveChanges, index: int) -> str:
    """Both values, the unit once: `3.1 % to 90 %`, `12 to 40 keys`."""
    unit, pair = changes.curves.quantity.unit, int(changes.change.pair[index])
    first, second = (float(value) for value in changes.curves.unscaled(changes.curves.values[index])[pair : pair + 2])
    return f"{with_unit(first, unit if unit == 'share' else '')} to {with_unit(second, unit)}"


def _rate(changes: CurveChanges, index: int) -> str:
    """The change per doubling, with its sign; on a logarithmic scale a factor."""
    rate = float(changes.change.rate[index])
    return f"×{number(2.0**rate)}" if changes.curves.is_log else signed(rate, changes.curves.quantity.unit)


def _limit(changes: CurveChanges) -> str:
    """Which change between neighbours would have been detected, in the median curve."""
    limits = changes.change.detectable.numpy()
    if changes.curves.certainty == "exact" or not np.isfinite(limits).any():
        return "; every difference beyond rounding counts" if changes.curves.certainty == "exact" else ""
    limit = float(np.median(limits[np.isfinite(limits)]))
    size = (
        f"by a factor of {number(2.0**limit)}"
        if changes.curves.is_log
        else f"of {signed(limit, changes.curves.quantity.unit).removeprefix('+')}"
    )
    return f"; in the median head, a change {size} between neighbouring saved steps would have been detected"


def _basis(changes: CurveChanges) -> str:
    """What the statement rests on: steps, and windows where text was read."""
    steps = counted(len(changes.curves.steps), "saved step")
    windows = int(changes.curves.windows.max(initial=0))
    return f"{steps}, {counted(windows, 'window')}" if windows else steps


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
