"""A statement of the theory, what was measured about it, and the verdict that follows: plain data.

A verdict is never written down: it is what `verdict_of` makes of the numbers.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from headscope.core.figure import Figure
from headscope.errors import NumericsError

Verdict = Literal["holds", "approximate", "refuted", "needs a model", "not testable"]

STANDARD_ERRORS = 5.0  # beyond which a measurement contradicts a prediction: one chance in two million


@dataclass(frozen=True)
class Comparison:
    """One number that was measured beside what a formula predicts.

    `error` is the standard error of the measurement, or the rounding that its arithmetic allows; 0 for what is
    counted. A question of yes and no is counted: 1 where it is so.
    """

    what: str
    predicted: float
    measured: float
    error: float

    @property
    def deviation(self) -> float:
        """How many errors lie between both; infinite where an exact number differs."""
        gap = abs(self.measured - self.predicted)
        if math.isnan(gap):
            return math.inf
        return gap / self.error if self.error > 0 else (math.inf if gap > 0 else 0.0)

    @property
    def agrees(self) -> bool:
        """Whether the measurement does not contradict the prediction."""
        return self.deviation <= STANDARD_ERRORS


@dataclass(frozen=True)
class Trend:
    """The relative error of an approximation on the way into its regime, e.g. at growing n.

    Properties:
        - a power law gives its own order  (tested: test_the_order_of_a_trend_is_its_power)
    """

    what: str
    parameter: str
    values: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def order(self) -> float:
        """The power p of the error ∝ parameter^p: the slope of a straight line through the logarithms."""
        x = [math.log(value) for value in self.values]
        y = [math.log(max(error, 1e-300)) for error in self.errors]
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)

    @property
    def vanishes(self) -> bool:
        """Whether the error falls on the way and ends below a tenth."""
        return self.errors[-1] < 0.7 * self.errors[0] and self.errors[-1] <= 0.1


@dataclass(frozen=True)
class Evidence:
    """What a check found: numbers beside the statement, and beside its correction where it has one."""

    stated: tuple[Comparison, ...]
    corrected: tuple[Comparison, ...] = ()
    trend: Trend | None = None
    figures: tuple[Figure, ...] = ()

    def __post_init__(self) -> None:
        if not self.stated:
            raise NumericsError("a check must compare something with the statement as it stands")


def settled(evidence: Evidence) -> Evidence:
    """The evidence to the digits that mean something: a hundredth of each error, three digits of the error itself.

    What lies below depends on where numbers happen to lie in memory, and the same seed is to give the same bytes.

    Properties:
        - noise of the last bits disappears, differences that count stay  (tested: test_settled_numbers)
    """

    def kept(c: Comparison) -> Comparison:
        error = float(f"{c.error:.2e}")
        # A decimal grid, so that a rounded number reads well.
        digits = 2 - math.floor(math.log10(error)) if error > 0 and math.isfinite(error) else None
        measured = c.measured if digits is None else round(c.measured, digits) + 0.0
        predicted = c.predicted if digits is None else round(c.predicted, digits + 2) + 0.0
        return replace(c, predicted=predicted, measured=measured, error=error)

    trend = evidence.trend
    if trend is not None:
        trend = replace(trend, errors=tuple(float(f"{error:.3e}") for error in trend.errors))
    return replace(
        evidence,
        stated=tuple(kept(c) for c in evidence.stated),
        corrected=tuple(kept(c) for c in evidence.corrected),
        trend=trend,
    )


def verdict_of(evidence: Evidence) -> Verdict:
    """What the numbers say; an error where they refute a statement and no correction passes."""
    if all(comparison.agrees for comparison in evidence.stated):
        return "holds"
    if evidence.trend is not None and evidence.trend.vanishes:
        return "approximate"
    if evidence.corrected and all(comparison.agrees for comparison in evidence.corrected):
        return "refuted"
    wrong = next(c for c in (*evidence.corrected, *evidence.stated) if not c.agrees)
    raise NumericsError(
        f"undecided: the statement fails and no correction passes; {wrong.what}: predicted {wrong.predicted:.6g}, "
        f"measured {wrong.measured:.6g} ± {wrong.error:.2g}"
    )


@dataclass(frozen=True)
class Source:
    """Where a statement stands."""

    author: str
    work: str
    section: str

    def __str__(self) -> str:
        return f"{self.author}, {self.work}, {self.section}"


@dataclass(frozen=True)
class Entry:
    """A statement with its verdict, complete enough to be printed without the check that made it.

    `lens` names what on a model settles the statement, `reason` why it waits or cannot be tested.
    """

    ids: tuple[str, ...]
    source: Source
    statement: str
    formula: str
    verdict: Verdict
    lesson: str
    correction: str = ""
    corrected_formula: str = ""
    slip: bool = False
    evidence: Evidence | None = None
    lens: str = ""
    reason: str = ""
    model: str = ""  # the model on which it was judged

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The pictures of its evidence."""
        return () if self.evidence is None else self.evidence.figures


@dataclass(frozen=True)
class Ledger:
    """Every statement that was judged, in the order of the works."""

    entries: tuple[Entry, ...]
    seed: int

    def counts(self) -> dict[str, int]:
        """How many statements (ids) have each verdict."""
        found: dict[str, int] = {}
        for entry in self.entries:
            found[entry.verdict] = found.get(entry.verdict, 0) + len(entry.ids)
        return found
