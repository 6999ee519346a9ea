"""Mutants of a Python source: the same text with one operator or comparison changed.

A mutant that no test notices shows a line that no test holds. Annotations, messages of errors and type aliases are
left alone, since a change there changes no result.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
_CONNECTIVES: dict[type[ast.boolop], type[ast.boolop]] = {ast.And: ast.Or, ast.Or: ast.And}


@dataclass(frozen=True)
class Mutant:
    """One changed expression of one file."""

    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.line}: {self.before}  →  {self.after}"


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a source, in the order of the text."""
    tree = ast.parse(source)
    text = source.encode()
    starts = [0]
    for row in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    made = []
    for node in _expressions(tree):
        changed = _changed(node)
        if changed is None or node.end_lineno is None or node.end_col_offset is None:
            continue
        first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        after = ast.unparse(changed)
        whole = text[:first] + f"({after})".encode() + text[last:]
        made.append(Mutant(node.lineno, ast.unparse(node), after, whole.decode()))
    return sorted(made, key=lambda mutant: (mutant.line, mutant.before))


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions whose value a result may depend on."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases") or isinstance(node, ast.Raise | ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or (isinstance(node, ast.Module) and isinstance(child, ast.Assign)):
                continue
            if isinstance(child, ast.BinOp | ast.Compare | ast.BoolOp | ast.UnaryOp):
                yield child
            yield from _expressions(child)


def _changed(node: ast.expr) -> ast.expr | None:
    twin = copy.deepcopy(node)
    if isinstance(twin, ast.BinOp) and type(twin.op) in _ARITHMETIC and not _joins_text(twin):
        twin.op = _ARITHMETIC[type(twin.op)]()
        return twin
    if isinstance(twin, ast.Compare) and type(twin.ops[0]) in _COMPARISONS:
        twin.ops[0] = _COMPARISONS[type(twin.ops[0])]()
        return twin
    if isinstance(twin, ast.BoolOp):
        twin.op = _CONNECTIVES[type(twin.op)]()
        return twin
    if isinstance(twin, ast.UnaryOp) and isinstance(twin.op, ast.USub | ast.Not):
        return twin.operand
    return None


def _joins_text(node: ast.BinOp) -> bool:
    """A sum or a format of strings fails for every other operator, which tells nothing."""
    literals = [side.value for side in (node.left, node.right) if isinstance(side, ast.Constant)]
    return any(isinstance(value, str) for value in literals) or isinstance(node.left, ast.JoinedStr)
