"""Differences of heads in sentences: how many heads moved, and which numbers changed most."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headscope.comparison.head_differences import HeadDifferences, QuantityDifference
from headscope.core.numbers import MINUS, count, number
from headscope.report.head_choice import with_unit

_MOST_OF_HEAD = 2  # of the largest differences that may be about one head


@dataclass(frozen=True)
class Difference:
    """One number of one head that changed: a sentence, its effect, and where it comes from."""

    text: str
    effect: float
    lens: str
    head: int  # its place in the grid


def movement_sentences(heads: HeadDifferences) -> tuple[str, ...]:
    """How many heads moved on text, and of how many the weights differ."""
    total = len(heads.grid.heads)
    certainties = {part.certainty for part in heads.quantities}
    sentences = []
    if "interval" in certainties:
        n_moved = int(heads.moved_by("interval").sum())
        sentences.append(f"{_heads(n_moved, total)} moved beyond the error of sampling text.")
    if "exact" in certainties:
        n_changed = int(heads.moved_by("exact").sum())
        weights = f"The weights of {count(n_changed)} of {count(total)} heads differ." if n_changed else ""
        sentences.append(weights or "The weights of no head differ.")
    return tuple(sentences) or ("No quantity has a stored error, so no head is said to have moved.",)


def _heads(amount: int, total: int) -> str:
    if amount == 0:
        return "No head"
    return f"{count(amount)} of {count(total)} heads" if total > 1 else "The only head"


def largest_differences(heads: HeadDifferences, most: int) -> list[Difference]:
    """The largest effects among numbers that moved: one of each lens, at most two of one head."""
    differences: list[Difference] = []
    times: Counter[int] = Counter()
    for effect, part, head in _ranked(heads):
        if times[head] < _MOST_OF_HEAD and all(part.lens != other.lens for other in differences):
            times[head] += 1
            differences.append(Difference(sentence(part, head, heads.grid.heads[head].label), effect, part.lens, head))
        if len(differences) == most:
            break
    return differences


def _ranked(heads: HeadDifferences) -> Iterator[tuple[float, QuantityDifference, int]]:
    entries = [
        (float(part.counted_effect[head]), index, int(head))
        for index, part in enumerate(heads.quantities)
        for head in np.flatnonzero(part.counted_effect > 0)
    ]
    for effect, index, head in sorted(entries, key=lambda entry: (-entry[0], *entry[1:])):
        yield effect, heads.quantities[index], head


def sentence(part: QuantityDifference, head: int, label: str) -> str:
    """`L1.H3, mass on the first token: 3.1 % → 90 % (+87 points, 95 % interval +80 to +94)`."""
    name = part.quantity.label.replace(": ", " ")
    return f"{label}, {name}: {change_text(part, head)} ({difference_text(part, head)})."


def change_text(part: QuantityDifference, head: int) -> str:
    """Both values, the unit once: `3.1 % → 90 %`, `12 → 40 keys`."""
    unit, first, second = part.quantity.unit, float(part.base[head]), float(part.other[head])
    return f"{with_unit(first, unit if unit == 'share' else '')} → {with_unit(second, unit)}"


def difference_text(part: QuantityDifference, head: int) -> str:
    """The difference with its sign and its interval, or why it has none."""
    unit, difference = part.quantity.unit, float(part.difference[head])
    if part.certainty == "exact":
        return f"{signed(difference, unit)}, from the weights alone"
    low, high = float(part.low[head]), float(part.high[head])
    if np.isnan(low) or np.isnan(high):
        return f"{signed(difference, unit)}, no stored error"
    factor = 100 if unit == "share" else 1
    ends = " to ".join(_signed_number(factor * end) for end in (low, high))
    return f"{signed(difference, unit)}, 95 % interval {ends}"


def signed(value: float, unit: str) -> str:
    """A difference with its sign; of shares in percentage points."""
    return f"{_signed_number(100 * value)} points" if unit == "share" else _signed_number(value)


def _signed_number(value: float) -> str:
    text = number(value)
    return text if text.startswith(MINUS) or value == 0 else f"+{text}"
