"""The mutants that `make mutate` draws: one changed operator each, and nothing that changes no result."""

import ast
import signal
import tomllib
from pathlib import Path

import pytest
from scripts.module_tests import PACKAGE, ModuleTests, chosen_tests, modules_at
from scripts.mutants import mutants, mutated
from scripts.mutate import EQUIVALENT, PARTS, Fate, fate_of

SOURCE = '''
Limit = int | None

def share(a: int | float, n: int = -1) -> int | None:
    """Not a * b."""
    if n < 0 or not a:
        raise ValueError(f"n must be at least {n + 1}")
    a += n / 3
    return a * 2 - n ** 2, f"{100 * a:.1f} %"
'''


def test_every_operator_changes_once():
    changed = {(mutant.before, mutant.after) for mutant in mutants(SOURCE)}
    assert changed == {
        ("-1", "1"),
        ("n < 0", "n <= 0"),
        ("n < 0 or not a", "n < 0 and (not a)"),
        ("not a", "a"),
        ("a += n / 3", "a -= n / 3"),
        ("n / 3", "n * 3"),
        ("100 * a", "100 / a"),
        ("a * 2", "a / 2"),
        ("n ** 2", "n * 2"),
        ("a * 2 - n ** 2", "a * 2 + n ** 2"),
    }


def test_a_mutant_is_the_source_with_one_expression_changed():
    plain = ast.unparse(ast.parse(SOURCE))
    for mutant in mutants(SOURCE):
        assert mutant.scope == "share"
        text = mutated(SOURCE, mutant)
        assert text != plain
        back = [mutated(text, twin) for twin in mutants(text) if twin.position == mutant.position]
        assert plain in back or mutant.before in ("-1", "not a", "n ** 2")  # whose change cannot be undone by another


def test_a_mutant_meets_the_contract_tests_of_its_member_alone():
    tests = ModuleTests((), frozenset({"window", "topblocks"}))
    assert tests.includes("tests/contract/test_costs.py::test_flops_count_the_visible_pairs[top_blocks-0-37]")
    assert tests.includes("tests/contract/test_mechanisms.py::test_dtypes[Window(left=2, right=0)-causal]")
    assert not tests.includes("tests/contract/test_mechanisms.py::test_dtypes[Intention(ridge=1.0)-causal window]")
    assert not tests.includes("tests/contract/test_lenses.py::test_scan_finds_the_lenses")
    assert tests.includes("tests/attention/test_intention.py::test_primal_and_dual_agree")


def test_the_tests_of_a_module_are_those_of_its_member():
    parts = chosen_tests(Path("attention/sparse/best_blocks.py"))
    assert parts.members == {"topblocks"}
    assert parts.stages[0] == ("tests/attention/test_choices.py",)
    sums = chosen_tests(Path("lenses/transport/sums.py"))
    assert sums.members == {"transport"}
    assert sums.stages[0] == ("tests/lenses/test_transport.py",)
    assert sums.stages[1] == ("tests/contract/test_lenses.py",)


@pytest.mark.parametrize(
    ("module", "tests"),
    [
        ("attention/statistics/rows.py", ("test_statistics", "test_slabs")),
        ("attention/statistics/geometry.py", ("test_statistics", "test_slabs")),
        ("attention/statistics/records.py", ("test_statistics",)),
        ("attention/sparse/merge.py", ("test_merging",)),
        ("experiments/swap/judgement.py", ("test_swap", "test_swap_repair", "test_swap_decoding")),
        ("experiments/swap/figures.py", ("test_swap", "test_swap_sentences")),
        ("lenses/angles/figures.py", ("test_figures", "test_angles", "test_angles_sentences")),
        ("lenses/shared/effects.py", ("test_effects",)),
        ("maths/attention/softmax.py", ("test_softmax",)),
    ],
)
def test_a_module_meets_the_tests_of_what_it_is_part_of(module, tests):
    stages = chosen_tests(Path(module)).stages
    assert {*tests} <= {Path(path).stem for stage in stages for path in stage}


@pytest.mark.parametrize("part", PARTS)
def test_every_module_meets_a_test(part):
    """One that meets none would stop the command."""
    modules = [path.relative_to(PACKAGE) for path in modules_at(PACKAGE / part) if path.name != "__init__.py"]
    assert modules
    assert [
        module for module in modules if mutants((PACKAGE / module).read_text()) and not chosen_tests(module).stages
    ] == []


def test_only_a_failed_test_kills():
    """Neither a time limit, nor tests that cannot be collected, nor a harness that broke."""
    assert [fate_of(code) for code in (0, 1, 2)] == [Fate.SURVIVED, Fate.KILLED, Fate.UNLOADABLE]
    assert fate_of(-signal.SIGXCPU) == Fate.ENDLESS
    for code in (3, 4, 5, 100, -signal.SIGKILL, -signal.SIGSEGV):
        with pytest.raises(SystemExit):
            fate_of(code)


def test_every_listed_mutant_exists_and_has_a_reason():
    """A list that outlives its code would hide a hole, and so would a row that names more than it was written for."""
    for row in tomllib.loads(EQUIVALENT.read_text()).get("mutant", []):
        every = mutants(Path(PACKAGE / row["module"]).read_text())
        alike = [m for m in every if (m.scope, m.before, m.after) == (row["scope"], row["before"], row["after"])]
        assert len(alike) == row.get("count", 1), row
        assert len(row["reason"].split()) > 5, row
