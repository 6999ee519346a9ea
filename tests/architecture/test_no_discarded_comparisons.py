"""A comparison whose result nobody looks at is a test that cannot fail."""

import ast
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PREDICATES = {
    "allclose",
    "isclose",
    "equal",
    "equals",
    "array_equal",
    "is_close",
    "all",
    "any",
    "startswith",
    "endswith",
}


def discarded(source: str) -> list[int]:
    """Lines whose statement is a comparison or a predicate that is not used."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr):
            continue
        value = node.value
        called = value.func if isinstance(value, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if isinstance(value, ast.Compare) or name in PREDICATES:
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "scripts"])
def test_no_discarded_comparisons(folder):
    found = [
        f"{path.relative_to(PROJECT)}:{line}"
        for path in sorted((PROJECT / folder).rglob("*.py"))
        for line in discarded(path.read_text(encoding="utf-8"))
    ]
    assert not found, found


def test_the_check_sees_them():
    assert discarded("import torch\na = 1\na == 2\ntorch.allclose(a, a)\nassert torch.equal(a, a)\n") == [
        3,
        4,
    ]
