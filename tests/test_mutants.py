"""The mutants that `make mutate` draws: one changed operator each, and nothing that changes no result."""

import ast
import tomllib
from pathlib import Path

from scripts.mutants import mutants
from scripts.mutate import EQUIVALENT, PACKAGE

SOURCE = '''
Limit = int | None

def share(a: int | float, n: int = -1) -> int | None:
    """Not a * b."""
    if n < 0 or not a:
        raise ValueError(f"n must be at least {n + 1}")
    return a * 2 - n ** 2
'''


def test_every_operator_changes_once():
    changed = {(mutant.before, mutant.after) for mutant in mutants(SOURCE)}
    assert changed == {
        ("-1", "1"),
        ("n < 0", "n <= 0"),
        ("n < 0 or not a", "n < 0 and (not a)"),
        ("not a", "a"),
        ("a * 2", "a / 2"),
        ("n ** 2", "n * 2"),
        ("a * 2 - n ** 2", "a * 2 + n ** 2"),
    }


def test_a_mutant_is_the_source_with_one_expression_changed():
    plain = ast.dump(ast.parse(SOURCE))
    for mutant in mutants(SOURCE):
        assert ast.dump(ast.parse(mutant.source)) != plain
        assert mutant.source.replace(f"({mutant.after})", mutant.before, 1) == SOURCE


def test_every_listed_mutant_exists_and_has_a_reason():
    """A list that outlives its code would hide a hole."""
    for row in tomllib.loads(EQUIVALENT.read_text()).get("mutant", []):
        made = {(mutant.before, mutant.after) for mutant in mutants(Path(PACKAGE / row["module"]).read_text())}
        assert (row["before"], row["after"]) in made, row
        assert len(row["reason"].split()) > 3, row
