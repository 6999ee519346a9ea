"""What every claim promises: an id of its own, formulas that can be set, a verdict that its numbers decide."""

import ast
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from operator import add, mul, truediv
from pathlib import Path

import pytest

import headscope.theory.chapters
from headscope import api
from headscope.core.verdict import Comparison, Evidence, verdict_of
from headscope.errors import NumericsError
from headscope.experiments import experiment_members
from headscope.report.formula import formula
from headscope.theory import claims, judged

PROJECT = Path(__file__).parents[2]
CLAIMS = claims()
CHECKED = [claim for claim in CLAIMS if claim.check is not None]
by_id = {"ids": lambda claim: claim.ids[0]}


# Every checkable statement of the works.
IDS = """
W-2.1a W-2.1b W-2.1c W-2.1d W-2.1e W-2.1f W-2.1g W-2.1h W-2.1i W-2.1j W-2.1k W-2.1l W-2.1m W-2.1n W-2.2a W-2.2b
W-2.2c W-2.2d W-2.2e W-2.2f W-2.2g W-2.2h W-2.2i W-2.2j W-2.2k W-2.2l W-2.2m W-2.2n W-2.3a W-2.3b W-2.3c W-2.3d
W-2.3e W-2.3f W-2.4a W-2.4b W-2.4c W-2.4d W-2.5a W-2.5b W-2.5c W-2.5d W-2.5e W-2.5f W-2.5g W-2.5h W-2.5i W-2.5j
W-2.5k W-2.5l W-2.5m W-3.3a W-3.3b W-3.3c W-4.1 W-4.2a W-4.2b W-4.2c W-4.2d W-4.2e W-4.2f W-4.2g W-4.2h W-4.2i
W-4.3a W-4.3b W-4.3c W-4.3d W-4.3e W-4.3f W-4.3g W-4.3h W-4.3i W-5.1 W-5.1a W-5.1b W-5.1c W-5.1d W-5.1e W-5.1f
W-5.1g W-5.2 W-5.2a W-5.2b W-5.2c W-5.2d W-5.2e W-5.2f W-5.2g W-5.2h W-5.2i W-5.2j W-5.2k W-5.2l W-5.2m W-5.2n
W-5.2o W-5.2p W-5.2q W-5.2r W-5.2n2 W-5.3 W-5.3b W-5.3c W-5.3d W-5.3e W-5.3f W-5.3g W-5.3h W-5.3i W-5.3j W-5.3k
W-5.3l W-5.3m W-5.5 W-5.9 W-5.10b W-5.14 W-5.15 W-5.17 W-5.19 W-5.20 W-5.21 W-6.dof W-6.1 W-6.2 W-6.3 W-6.4
W-6.4a W-6.4b W-6.4d W-6.7 W-6.B7 W-6.10 W-6.10b W-6.10c W-6.11 W-6.11b W-6.12 W-6.13 W-6.15 W-6.17 W-6.17b
W-6.24a W-6.24b W-6.24c W-6.25 W-6.27 W-6.29 W-6.29a W-6.29b W-6.32 W-6.34 W-6.34b W-6.35 W-6.36 W-6.37 W-6.38
W-6.39a W-6.40 W-6.42 W-6.43 W-6.45 W-6.47 W-6.48 W-6.48b W-6.49 W-6.49b W-6.49c W-6.49d W-6.49e W-7.1a W-7.1b
W-7.1c W-7.1d W-7.1e W-7.1f W-7.1g W-7.1h W-7.2a W-7.2c W-7.2d W-7.2e W-7.2f W-7.2g W-7.2h W-7.2i W-7.2j W-7.3a
W-7.3b W-7.3d W-7.3e W-8.1a W-8.1b W-8.1c W-8.2a W-8.2b W-8.2c W-8.2d W-8.3 W-8.4 W-8.5a W-8.5b W-8.5c W-9.1a
W-9.1b C-1a C-1b C-1c C-1d C-1e C-1f C-1g C-2a C-2b C-2c C-2d C-2e C-2f C-2g C-2h C-2i C-3a C-3b C-3c C-3d C-3e
C-3f C-3g C-3h C-3i C-4a C-4b C-4c C-5a C-5b C-5c C-5d C-6a C-6b C-6c C-7a C-7b C-7c C-7d C-7e C-7f C-8a C-8b
C-8c C-8d C-8e C-8f C-8g C-8h C-8i C-9a C-9b C-9c C-9d C-9e C-9f C-9g C-10a C-10b C-10c C-10d C-10e R-1 R-2 R-3
R-4 R-6 R-7 R-8 B-1 B-2 B-3 B-4 B-5 B-6 B-7 B-8 B-9 B-10 B-11 B-12 B-13 B-14 B-15 B-16 B-17 B-18 B-19 B-20 B-21
B-22 B-23 B-24 B-25 B-26 B-27 P-1
""".split()  # noqa: SIM905 - a table


def test_every_id_is_there_once() -> None:
    ids = [name for claim in CLAIMS for name in claim.ids]
    new, gone = sorted({*ids} - {*IDS}), sorted({*IDS} - {*ids})
    assert not new, f"add {new} to IDS above, in the order of the work"
    assert not gone, f"these statements of the works have lost their claims: {gone}"
    twice = sorted(name for name, count in Counter([*ids, *IDS]).items() if count > 2)
    assert not twice, f"two claims have one id, or IDS names it twice: {twice}"


@pytest.mark.parametrize("claim", CLAIMS, **by_id)
def test_it_is_written_for_a_reader(claim) -> None:
    assert len(claim.statement) >= 20
    assert claim.statement.rstrip().endswith((".", "?", "!", "…", ")"))
    assert claim.lesson.count(".") + claim.lesson.count("?") + claim.lesson.count("!") >= 2, "two sentences or more"
    for text in (claim.formula, claim.corrected):
        assert not text or "<svg" in formula(text, display=True), text
    # One of three ways to settle it, and a reason where it is not run here.
    assert (claim.check is None) == bool(claim.reason)
    assert not (claim.check and claim.waits)
    assert not claim.slip or claim.correction
    assert set(claim.related) <= set(IDS) - set(claim.ids), "`related` names ids of other claims"


def test_every_lens_that_a_claim_names_exists() -> None:
    existing = {*api.lenses(), *experiment_members()}
    for claim in CLAIMS:
        assert {lens for lens in (claim.lens, *claim.also) if lens} <= existing, claim.ids
        assert (claim.judge is None) == (not claim.lens), f"{claim.ids}: a lens and a judge come together"


@cache
def first(claim):
    """The entry with seed 0, judged once for all tests."""
    return judged(claim, seed=0)


@pytest.mark.parametrize("claim", CHECKED, **by_id)
def test_its_numbers_decide(claim) -> None:
    """The verdict is the same for another seed, and another one where the formula is another."""
    entry = first(claim)
    assert judged(claim, seed=1).verdict == entry.verdict
    assert entry.verdict not in ("refuted", "approximate") or entry.correction
    assert (entry.verdict == "open question") == claim.statement.rstrip().endswith("?")
    assert (entry.verdict == "true but empty") == bool(entry.evidence.null)
    evidence = entry.evidence
    assert evidence is not None
    if entry.verdict in ("holds", "true but empty"):
        assert changed(claim, replace(evidence, stated=tuple(moved(c) for c in evidence.stated))) != entry.verdict
    elif entry.verdict != "open question":
        right = tuple(replace(c, predicted=reached(c)) for c in evidence.stated)
        assert changed(claim, replace(evidence, stated=right)) == "holds"


def test_readme_counts_the_verdicts() -> None:
    readme = " ".join((PROJECT / "README.md").read_text(encoding="utf-8").split())
    count: Counter[str] = Counter()
    for claim in CLAIMS:
        entry = first(claim)
        count[entry.verdict] += len(claim.ids)
        count["slip"] += len(claim.ids) * (entry.verdict == "refuted" and claim.slip)
    assert count["open question"] == 1, "the sentence below has no number of open questions"
    sentence = (
        f"Of {len(IDS)} statements {count['holds']} hold, {count['refuted']} are refuted ({count['slip']} of them "
        f"slips), {count['approximate']} are approximate, {count['true but empty']} are true but empty, "
        f"{count['needs a model']} need a model, {count['not testable']} cannot be tested, and one is an open question."
    )
    assert sentence in readme, f"write into README.md: {sentence}"


def moved(
    comparison: Comparison, share: float = 1.0, least: Callable[[Comparison], float] = lambda _: 0.0
) -> Comparison:
    """The prediction of another formula: larger by this share of itself, or by the share where 0 was predicted."""
    if comparison.relation == "is":
        return replace(comparison, predicted=1 - comparison.predicted)
    away = share * comparison.predicted or share
    if comparison.relation == "=":
        gap = comparison.predicted - comparison.measured
        away = math.copysign(abs(away) + least(comparison), gap or away)  # not across the measured number
        return replace(comparison, predicted=comparison.predicted + away)
    # An inequality: the border moves past the number.
    side = 1 if comparison.relation == ">" else -1
    return replace(comparison, predicted=comparison.measured + side * (abs(away) + 6 * comparison.error))


def reached(comparison: Comparison) -> float:
    """A prediction with which the comparison agrees."""
    side = {">": -1, "<": 1}.get(comparison.relation, 0)
    return comparison.measured + side * (1 + 6 * comparison.error)


def changed(claim, evidence: Evidence) -> str:
    try:
        return verdict_of(evidence, claim.wording)
    except NumericsError:
        return "undecided"


CORRECTED = [claim for claim in CHECKED if claim.correction]


@pytest.mark.parametrize("claim", CORRECTED, **by_id)
def test_a_planted_false_correction_fails(claim) -> None:
    """One number moved, all of them by 5 %, a trend of another order, or a mere denial: nothing is decided then."""
    entry = first(claim)
    evidence = entry.evidence
    assert evidence is not None
    name = "answer" if evidence.answer else "corrected"
    right = getattr(evidence, name)
    assert right
    for at, comparison in enumerate(right):
        false = (*right[:at], moved(comparison, 0.05, six_errors), *right[at + 1 :])
        assert changed(claim, replace(evidence, **{name: false})) == "undecided", comparison
    slight = tuple(moved(comparison, 0.05) for comparison in right)
    assert changed(claim, replace(evidence, **{name: slight})) == "undecided"
    if evidence.answer:
        return
    denied = tuple(denial(c) for c in evidence.stated if c.contradicts and c.relation != "=")
    if denied:
        assert changed(claim, replace(evidence, corrected=denied)) == "undecided"
    assert changed(claim, replace(evidence, corrected=())) == "undecided"
    if evidence.trend is not None:
        for off in (-0.5, 0.5):
            trend = replace(evidence.trend, order=evidence.trend.order + off)
            assert changed(claim, replace(evidence, trend=trend)) == "undecided", off


def six_errors(comparison: Comparison) -> float:
    """What the comparison must notice whatever its size."""
    return 6 * comparison.error + comparison.tolerance


def denial(comparison: Comparison) -> Comparison:
    """The comparison turned round, so that it passes exactly where the first one fails."""
    if comparison.relation == "is":
        return replace(comparison, what=f"not {comparison.what}", measured=1 - comparison.measured)
    return replace(comparison, relation="<" if comparison.relation == ">" else ">")


@pytest.mark.parametrize("claim", CHECKED, **by_id)
def test_same_seed_same_numbers(claim) -> None:
    before, again = first(claim).evidence, judged(claim, seed=0).evidence
    assert before is not None
    assert again is not None
    assert (before.groups, before.trend) == (again.groups, again.trend)


ERROR_AT = {"Comparison": 3, "more_than": 3, "less_than": 3, "exact": 3}  # which argument is the error, or its scale
ERROR_NAMES = {"error", "scale"}
SMALLEST = 1e-6  # below it a number is the rounding of arithmetic, above it an error bar
OPERATORS = {ast.Mult: mul, ast.Div: truediv, ast.Pow: pow, ast.Add: add}
LARGEST_SCALE = 1e4  # of a rounding of 1e-9: the largest that sums of so many terms need


def typed_errors(source: str) -> list[tuple[int, float]]:
    """Line and size of every error that is written down in place of measured, also behind a name or as a ratio."""
    tree = ast.parse(source)
    bound = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    typed = []
    for node in ast.walk(tree):
        name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if not isinstance(node, ast.Call) or name not in ERROR_AT:
            continue
        errors = [*node.args[ERROR_AT[name] :][:1], *(k.value for k in node.keywords if k.arg in ERROR_NAMES)]
        limit = LARGEST_SCALE if name == "exact" else SMALLEST
        for error in errors:
            sizes = [number for part in ast.walk(error) for number in decimals(part)]
            whole = written(error, bound)
            typed += [(node.lineno, size) for size in (*sizes, *([] if whole is None else [whole])) if size > limit]
    return typed


def decimals(node: ast.AST) -> list[float]:
    """The number where the node is one with a decimal point; a half is a square root's."""
    number = node.value if isinstance(node, ast.Constant) else None
    return [abs(number)] if isinstance(number, float) and number != 0.5 else []


def written(node: ast.AST, bound: dict[str, ast.expr]) -> float | None:
    """The value of an expression of numbers alone, followed through names; None where something is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return abs(float(node.value))
    if isinstance(node, ast.Name) and node.id in bound:
        return written(bound[node.id], {name: value for name, value in bound.items() if name != node.id})
    if isinstance(node, ast.BinOp):
        left, right = written(node.left, bound), written(node.right, bound)
        if left is None or right is None:
            return None
        return OPERATORS[type(node.op)](left, right) if type(node.op) in OPERATORS else None
    return None


@pytest.mark.parametrize("path", sorted(Path(headscope.theory.chapters.__path__[0]).glob("*.py")), ids=lambda p: p.stem)
def test_no_error_bar_is_typed(path: Path) -> None:
    """An error is measured: its formula holds no number larger than rounding."""
    assert typed_errors(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("Comparison(name, 1.0, x, 0.01)", True),
        ("Comparison(name, 1.0, x, 0.01 * x)", True),
        ("Comparison(name, 1.0, x, error=1e-4)", True),
        ("Comparison(name, 1.0, x, 1 / 100)", True),
        ("slack = (step / 10) ** 2\nstep = 1\nmore_than(name, 1.0, x, slack)", True),
        ("exact(name, 1.0, x, scale=1e6)", True),
        ("exact(name, 1.0, x, scale=1e3)", False),
        ("Comparison(name, 1.0, x, 1e-9)", False),
        ("less_than(name, 1.0, x, 0.0)", False),
        ("more_than(name, 1.0, x, samples.std() / len(samples) ** 0.5)", False),
    ],
)
def test_typed_error_bars_are_caught(source: str, caught: bool) -> None:
    assert bool(typed_errors(source)) is caught
