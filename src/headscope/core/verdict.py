r"""A statement of the theory, its measurements and the verdict that follows.

Nobody writes a verdict down: `verdict_of` computes it from the numbers and from the words of the statement. The rule,
in the order of its steps:

1. **Open question.** The source asks and does not answer (`Evidence.answer`). There is no true or false; the measured
   numbers are compared with our answer, and that answer must pass.
2. **Holds.** Every comparison with the statement agrees: a number within five standard errors (or within the rounding
   of a printed number), a yes-or-no question answered as stated, an inequality kept by more than five standard errors.
3. **True but empty.** It holds, and it also holds for a planted null (`Evidence.null`) that lacks what the statement
   is about.
4. Otherwise a comparison fails. A statement of mathematics then needs a correction: another statement whose own
   comparisons all agree. "Not so" is not a correction. Without a correction that passes, nothing is decided, and that
   is an error.
5. **Approximate.** What fails are numbers, the statement does not claim exactness (`core.claim_wording`), and the
   relative error vanishes towards the regime: it falls to a tenth or less, and its measured order is the order that the
   correction states, within the measured uncertainty of that order.
6. **Refuted.** Everything else, including a printed number that its own rounding does not cover. A check cannot choose
   to have no trend: where the words claim an approximation, or where every failing number is off by a tenth or less, a
   trend must decide, and its absence is an error. A trend whose order differs from the order in the correction is
   an error too. The regime is a limit of a size that the statement names or that its formula holds.
7. **On one model.** A general statement that is judged on one model reads "holds on MODEL" or "refuted on MODEL". Its
   correction is printed only if its own comparisons agree on that model; it may have none. Where an interval holds
   the limit, nothing is decided and the statement goes on waiting ("needs a model").

A **slip** is a mark on a refuted statement in which only symbols are wrong: a sign, a factor, an exponent or root, an
index, letter or number, the order of two factors, or one word for its opposite. With these corrected it is true, and
its argument holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from headscope.core.claim_wording import Wording
from headscope.core.figure import Figure
from headscope.errors import NumericsError

Verdict = Literal["refuted", "approximate", "holds", "true but empty", "open question", "needs a model", "not testable"]
MEANINGS: dict[Verdict, str] = {
    "refuted": "contradicted by its numbers; the correction, where there is one, passes",
    "approximate": "not exact; the error vanishes in a regime, with the order that the correction states",
    "holds": "agrees with every measurement that was tried",
    "true but empty": "agrees, and so does a null that has nothing of what the statement is about",
    "open question": "the source asks; the measured numbers are shown beside an answer",
    "needs a model": "about trained models; what is named settles it",
    "not testable": "nothing here can test it, for the reason given",
}

STANDARD_ERRORS = 5.0  # a measurement further away contradicts a prediction: one chance in two million
NEAR = 0.1  # the largest relative error of a formula that may count as an approximation
RESOLUTION = 0.25  # the uncertainty at which an order could also be half a power off

Relation = Literal["=", ">", "<", "is"]


@dataclass(frozen=True)
class Comparison:
    """One measured number and its prediction.

    `error` is the standard error of the measurement, or the rounding that its arithmetic allows; 0 for what is
    counted. `tolerance` is what the rounding of a printed number leaves open. With the relation ">" or "<" the
    number must lie on that side of the predicted one; "is" is a yes-or-no question, 1 for yes.
    """

    what: str
    predicted: float
    measured: float
    error: float
    relation: Relation = "="
    tolerance: float = 0.0

    @property
    def _side(self) -> float:
        """How far the number is on the wrong side, in its own units.

        Negative on the right side.
        """
        gap = self.measured - self.predicted
        return {"=": abs(gap) - self.tolerance, "is": abs(gap), ">": -gap, "<": gap}[self.relation]

    @property
    def deviation(self) -> float:
        """The distance between the number and its allowed range, in errors.

        Infinite where an exact number differs.
        """
        side = self._side
        if math.isnan(side):
            return math.inf
        return max(side, 0.0) / self.error if self.error > 0 else (math.inf if side > 0 else 0.0)

    @property
    def agrees(self) -> bool:
        """Whether the measurement supports the prediction."""
        if math.isnan(self._side):
            return False
        if self.relation in ("=", "is"):
            return self.deviation <= STANDARD_ERRORS
        return -self._side > STANDARD_ERRORS * self.error

    @property
    def contradicts(self) -> bool:
        """Whether the measurement contradicts the prediction.

        The interval of an inequality may leave this open.
        """
        if self.relation in ("=", "is") or math.isnan(self._side):
            return not self.agrees
        return self._side >= STANDARD_ERRORS * self.error

    @property
    def relative_gap(self) -> float:
        """The distance of prediction and measurement, relative to the larger of both."""
        size = max(abs(self.predicted), abs(self.measured))
        return abs(self.measured - self.predicted) / size if size > 0 else 0.0


@dataclass(frozen=True)
class Trend:
    """The relative error of an approximation towards its regime, e.g. at growing n.

    `spreads` are the standard errors of `errors` (0 for what is computed), `order` is the power that the correction
    states: errors ∝ parameter^order, 0 for an error that stays.

    The measured order is that of the last step. Its uncertainty is measured too: twice its change from the step
    before (the effect of the next term of the expansion) plus five standard errors.

    Properties:
        - a power law gives its own order  (tested: test_the_order_of_a_trend_is_its_power)
        - an order that differs from the stated one does not agree  (tested: test_a_trend_must_have_the_stated_order)
    """

    what: str
    parameter: str
    values: tuple[float, ...]
    errors: tuple[float, ...]
    spreads: tuple[float, ...]
    order: float

    def __post_init__(self) -> None:
        if not len(self.values) == len(self.errors) == len(self.spreads) or len(self.values) < 3:
            raise NumericsError(
                f"a trend needs at least three values with an error and its spread each, found {len(self.values)} "
                f"values, {len(self.errors)} errors and {len(self.spreads)} spreads: {self.what}"
            )

    @property
    def steps(self) -> tuple[float, ...]:
        """The power between each pair of neighbours."""
        points = [(math.log(v), math.log(max(e, 1e-300))) for v, e in zip(self.values, self.errors, strict=True)]
        return tuple((y - b) / (x - a) for (a, b), (x, y) in pairwise(points))

    @property
    def fitted(self) -> float:
        """The measured order: the power of the last step."""
        return self.steps[-1]

    @property
    def uncertainty(self) -> float:
        """The uncertainty of the measured order."""
        drift = abs(self.steps[-1] - self.steps[-2])
        shares = [s / max(e, 1e-300) for s, e in zip(self.spreads[-2:], self.errors[-2:], strict=True)]
        noise = math.hypot(*shares) / abs(math.log(self.values[-1] / self.values[-2]))
        return 2 * drift + STANDARD_ERRORS * noise

    @property
    def agrees(self) -> bool:
        """Whether the measured order is the stated one, and sharp enough to tell."""
        rounding = 1e-6
        return self.uncertainty < RESOLUTION and abs(self.fitted - self.order) <= self.uncertainty + rounding

    @property
    def vanishes(self) -> bool:
        """Whether the error goes to 0 in the regime, and falls to a tenth there."""
        into = math.log(self.values[-1] / self.values[0])
        return self.order * into < 0 and self.errors[-1] < self.errors[0] and self.errors[-1] <= NEAR


@dataclass(frozen=True)
class Evidence:
    """The numbers of a check: for the statement, and for its correction if it has one.

    `null` repeats the stated comparisons for something that lacks what the statement is about. `answer` replaces
    `stated` where the source asks a question: it compares numbers with our answer.
    """

    stated: tuple[Comparison, ...] = ()
    corrected: tuple[Comparison, ...] = ()
    trend: Trend | None = None
    figures: tuple[Figure, ...] = ()
    null: tuple[Comparison, ...] = ()
    answer: tuple[Comparison, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.stated) == bool(self.answer):
            raise NumericsError("a check must compare numbers either with the statement or with an answer")

    @property
    def groups(self) -> tuple[tuple[str, tuple[Comparison, ...]], ...]:
        """All comparisons, under the name of their group."""
        names = (("stated", self.stated), ("corrected", self.corrected), ("null", self.null), ("answer", self.answer))
        return tuple((name, comparisons) for name, comparisons in names if comparisons)


def rounded_evidence(evidence: Evidence) -> Evidence:
    """The evidence, rounded to the digits that mean something.

    Values keep a hundredth of their error, errors keep three digits. Further digits depend on
    the layout of memory, and the same seed must give the same bytes.

    Properties:
        - noise of the last bits disappears, differences that count stay  (tested: test_settled_numbers)
    """

    def rounded(c: Comparison) -> Comparison:
        error = float(f"{c.error:.2e}")
        # A decimal grid makes rounded numbers readable.
        digits = 2 - math.floor(math.log10(error)) if error > 0 and math.isfinite(error) else None
        measured = c.measured if digits is None else round(c.measured, digits) + 0.0
        predicted = c.predicted if digits is None else round(c.predicted, digits + 2) + 0.0
        return replace(c, predicted=predicted, measured=measured, error=error)

    trend = evidence.trend
    if trend is not None:
        errors, spreads = (tuple(float(f"{x:.5e}") for x in xs) for xs in (trend.errors, trend.spreads))
        trend = replace(trend, errors=errors, spreads=spreads)
    return replace(
        evidence,
        stated=tuple(rounded(c) for c in evidence.stated),
        corrected=tuple(rounded(c) for c in evidence.corrected),
        null=tuple(rounded(c) for c in evidence.null),
        answer=tuple(rounded(c) for c in evidence.answer),
        trend=trend,
    )


def verdict_of(evidence: Evidence, wording: Wording = "plain", *, on_model: bool = False) -> Verdict:
    """The verdict that follows from the numbers and the words, by the rule above.

    Raises `NumericsError` where they decide nothing.

    Args:
        evidence: What was measured.
        wording: How much the statement claims.
        on_model: Whether one trained model was measured, which needs no correction.
    """
    if evidence.answer:
        _require(evidence.answer, "the answer to the question fails")
        return "open question"
    failing = [c for c in evidence.stated if c.contradicts]
    if not failing:
        return _verdict_without_contradiction(evidence, on_model=on_model)
    if not on_model:
        _check_correction(evidence)
    if any(c.relation != "=" or c.tolerance > 0 for c in failing) or wording == "exact":
        return "refuted"
    trend = evidence.trend
    if trend is None:
        if not on_model and (wording == "approximate" or all(c.relative_gap <= NEAR for c in failing)):
            raise NumericsError(
                f"undecided: {'the statement claims an approximation' if wording == 'approximate' else 'it is near'}, "
                f"and no trend tells whether its error vanishes; {_comparison_text(failing[0])}"
            )
        return "refuted"
    if not trend.agrees:
        raise NumericsError(
            f"undecided: the error goes like {trend.parameter} to the power {trend.fitted:.3f} ± "
            f"{trend.uncertainty:.3f}, the correction states {trend.order:g}: {trend.what}"
        )
    return "approximate" if trend.vanishes else "refuted"


def correction_passes(evidence: Evidence) -> bool:
    """Whether the evidence has a correction that agrees with its numbers."""
    try:
        _check_correction(evidence)
    except NumericsError:
        return False
    return True


def _verdict_without_contradiction(evidence: Evidence, *, on_model: bool) -> Verdict:
    """The verdict where nothing contradicts the statement.

    It holds, is empty, or an interval leaves it open.
    """
    if not all(c.agrees for c in evidence.stated):
        if on_model:
            return "needs a model"
        _require(evidence.stated, "the statement is left open")
    return "true but empty" if evidence.null and all(c.agrees for c in evidence.null) else "holds"


def _check_correction(evidence: Evidence) -> None:
    if not evidence.corrected:
        wrong = max(evidence.stated, key=lambda c: c.deviation)
        raise NumericsError(f"undecided: the statement fails and there is no correction; {_comparison_text(wrong)}")
    _require(evidence.corrected, "the statement fails and no correction passes")
    for c in evidence.corrected:
        if any(_is_complement(s, c) for s in evidence.stated):
            raise NumericsError(
                "undecided: the correction only says that the statement is not so, and cannot fail; "
                f"{_comparison_text(c)}"
            )


def _is_complement(stated: Comparison, corrected: Comparison) -> bool:
    """Whether the correction is the reversed statement, which passes when that fails."""
    if "is" in (stated.relation, corrected.relation):
        return stated.relation == corrected.relation == "is" and _denies(stated.what, corrected.what)
    same = (stated.predicted, stated.measured) == (corrected.predicted, corrected.measured)
    return same and {stated.relation, corrected.relation} == {"<", ">"}


def _denies(stated: str, corrected: str) -> bool:
    """Whether two sentences differ only by a denial: not, no, nor, none, never."""
    words = [[w for w in text.lower().replace(":", " ").split() if w not in _DENIALS] for text in (stated, corrected)]
    return words[0] == words[1]


_DENIALS = frozenset({"not", "no", "nor", "none", "never", "a", "any", "is", "so", "all", "both"})


def _require(comparisons: Sequence[Comparison], complaint: str) -> None:
    wrong = next((c for c in comparisons if not c.agrees), None)
    if wrong is not None:
        raise NumericsError(f"undecided: {complaint}; {_comparison_text(wrong)}")


def _comparison_text(c: Comparison) -> str:
    side = {">": "more than ", "<": "less than "}.get(c.relation, "")
    return f"{c.what}: predicted {side}{c.predicted:.6g}, measured {c.measured:.6g} ± {c.error:.2g}"


@dataclass(frozen=True)
class Source:
    """The place of a statement in the literature."""

    author: str
    work: str
    section: str

    def __str__(self) -> str:
        return f"{self.author}, {self.work}, {self.section}"


@dataclass(frozen=True)
class Entry:
    """A statement with its verdict, complete enough to print without its check.

    `lens` names the lens or experiment that settles the statement on a model; `reason` says why it waits or cannot be
    tested. `related` names other statements that the reader should also see.
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
    checkpoint: str = ""  # the one checkpoint that the statement is about
    related: tuple[str, ...] = ()

    @property
    def reading(self) -> str:
        """The printed verdict; it names the model that settled a general statement."""
        on_one = self.model and not self.checkpoint and self.verdict in ("holds", "refuted")
        return f"{self.verdict} on {self.model}" if on_one else self.verdict

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figures of the evidence."""
        return () if self.evidence is None else self.evidence.figures


@dataclass(frozen=True)
class Ledger:
    """All judged statements, in the order of the works."""

    entries: tuple[Entry, ...]
    seed: int

    def counts(self) -> dict[str, int]:
        """The number of statements (ids) per printed verdict, in the order of `MEANINGS`."""
        kinds = list(MEANINGS)
        readings = sorted({(kinds.index(entry.verdict), entry.reading) for entry in self.entries})
        return {
            reading: sum(len(entry.ids) for entry in self.entries if entry.reading == reading)
            for _, reading in readings
        }
