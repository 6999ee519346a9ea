"""Mutants of a Python source: copies with one operator or comparison changed.

A mutant that no test notices shows a line that no test checks. Annotations, type aliases and error messages are left
alone, since they change no result. Numbers inside the sentences of a finding are results.
"""

import ast
import copy
from collections.abc import Callable, Iterator
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
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_WITHOUT_RESULT = ("annotation", "returns", "decorator_list", "bases")
_Replace = Callable[[ast.AST], None]


@dataclass(frozen=True)
class Mutant:
    """One changed expression of one file.

    `position` counts the expressions that can change, in syntactic order.
    """

    scope: str
    line: int
    before: str
    after: str
    position: int

    def __str__(self) -> str:
        return f"{self.line}: {self.before}  →  {self.after}"


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a source, in the order of the text."""
    found_mutants = []
    for position, (scope, node, _) in enumerate(_changeable(ast.parse(source))):
        line, before = node.lineno, ast.unparse(node)
        found_mutants.append(Mutant(scope, line, before, ast.unparse(_changed(copy.deepcopy(node))), position))
    return sorted(found_mutants, key=lambda mutant: (mutant.line, mutant.position))


def mutated(source: str, mutant: Mutant) -> str:
    """The source that holds the mutant, without its comments."""
    tree = ast.parse(source)
    _, node, replace = list(_changeable(tree))[mutant.position]
    replace(_changed(node))
    return ast.unparse(tree)


def _changeable(tree: ast.Module) -> list[tuple[str, ast.expr | ast.AugAssign, _Replace]]:
    """Every node that can change, with its function and a way to replace it."""
    return [(scope, node, replace) for scope, node, replace in _nodes(tree, "") if _can_change(node)]


def _nodes(parent: ast.AST, scope: str) -> Iterator[tuple[str, ast.expr | ast.AugAssign, _Replace]]:
    """The nodes whose value a result may depend on."""
    if isinstance(parent, ast.Raise):
        return
    for field, value in ast.iter_fields(parent):
        if field in _WITHOUT_RESULT:
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or _is_type_alias(parent, child):
                continue
            if isinstance(child, ast.expr | ast.AugAssign):
                yield scope, child, _replacement(parent, field, index if isinstance(value, list) else None)
            inner = f"{scope}.{child.name}".lstrip(".") if isinstance(child, _DEFINITIONS) else scope
            yield from _nodes(child, inner)


def _replacement(parent: ast.AST, field: str, index: int | None) -> _Replace:
    def replace(node: ast.AST) -> None:
        if index is None:
            setattr(parent, field, node)
        else:
            getattr(parent, field)[index] = node

    return replace


def _is_type_alias(parent: ast.AST, child: ast.AST) -> bool:
    """Whether a module names a union or a subscript."""
    if not isinstance(parent, ast.Module) or not isinstance(child, ast.Assign):
        return False
    value = child.value
    return isinstance(value, ast.Subscript) or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr))


def _can_change(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return type(node.op) in _ARITHMETIC and not (isinstance(node, ast.BinOp) and _joins_text(node))
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in _COMPARISONS
    return isinstance(node, ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not))


def _changed(node: ast.expr | ast.AugAssign) -> ast.AST:
    """The node with its operator changed, in place.

    A negation is replaced by its operand.
    """
    if isinstance(node, ast.BinOp | ast.AugAssign):
        node.op = _ARITHMETIC[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops[0] = _COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BoolOp):
        node.op = _CONNECTIVES[type(node.op)]()
    return node.operand if isinstance(node, ast.UnaryOp) else node


def _joins_text(node: ast.BinOp) -> bool:
    """Whether this joins or formats strings, where any other operator fails."""
    literals = [side.value for side in (node.left, node.right) if isinstance(side, ast.Constant)]
    joined = isinstance(node.left, ast.JoinedStr) or isinstance(node.right, ast.JoinedStr)
    return joined or any(isinstance(value, str) for value in literals)
