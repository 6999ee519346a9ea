"""What every claim promises: an id of its own, formulas that can be set, a verdict that its numbers decide."""

from dataclasses import replace

import pytest

from headscope.claims import claims, judged
from headscope.core.verdict import Evidence, verdict_of
from headscope.errors import NumericsError
from headscope.report.formula import formula

CLAIMS = claims()
CHECKED = [claim for claim in CLAIMS if claim.check is not None]
by_id = {"ids": lambda claim: claim.ids[0]}


def test_every_id_is_there_once() -> None:
    ids = [name for claim in CLAIMS for name in claim.ids]
    assert sorted(ids) == sorted(set(ids))


@pytest.mark.parametrize("claim", CLAIMS, **by_id)
def test_it_is_written_for_a_reader(claim) -> None:
    assert len(claim.statement) >= 20
    assert claim.statement.rstrip().endswith((".", "?", "!", "…"))
    assert claim.lesson.count(".") + claim.lesson.count("?") + claim.lesson.count("!") >= 2
    for text in (claim.formula, claim.corrected):
        assert not text or "<svg" in formula(text), text
    # One of three ways to settle it, and a reason where it is not run here.
    assert (claim.check is None) == bool(claim.reason)
    assert not (claim.check and claim.lens)
    assert not claim.slip or claim.correction


@pytest.mark.parametrize("claim", CHECKED, **by_id)
def test_its_numbers_decide(claim) -> None:
    """The verdict is the same for another seed, and another one where the formula is another."""
    entry = judged(claim, seed=0)
    assert judged(claim, seed=1).verdict == entry.verdict
    assert entry.verdict not in ("refuted",) or entry.correction
    evidence = entry.evidence
    assert evidence is not None
    if entry.verdict == "holds":
        assert changed(replace(evidence, stated=tuple(moved(c) for c in evidence.stated))) != "holds"
    else:
        right = tuple(replace(c, predicted=c.measured) for c in evidence.stated)
        assert changed(replace(evidence, stated=right)) == "holds"


def moved(comparison):
    """The prediction of another formula: twice as large, or 1 where 0 was predicted."""
    return replace(comparison, predicted=2 * comparison.predicted or 1.0)


def changed(evidence: Evidence) -> str:
    try:
        return verdict_of(replace(evidence, trend=None))
    except NumericsError:
        return "undecided"


@pytest.mark.parametrize("claim", CHECKED, **by_id)
def test_same_seed_same_numbers(claim) -> None:
    first, second = (judged(claim, seed=0).evidence for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.stated, first.corrected, first.trend) == (second.stated, second.corrected, second.trend)
