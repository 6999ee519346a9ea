"""A docstring that says `(tested: test_x)` names a test that exists."""

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PROMISE = re.compile(r"\(tested: ([^)]+)\)")


def named_tests(folder: Path) -> set[str]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("test_*.py"))
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def promises_in(folder: Path) -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(folder)}:{number}", name.strip())
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in PROMISE.finditer(line)
        for name in match[1].split(",")
    ]


def test_promised_tests_exist():
    known = named_tests(PROJECT / "tests")
    broken = [f"{place} promises {name}" for place, name in promises_in(PROJECT / "src") if name not in known]
    assert not broken, "\n".join(broken)


def test_there_are_promises():
    assert promises_in(PROJECT / "src")
