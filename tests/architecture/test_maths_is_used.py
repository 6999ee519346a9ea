"""Mathematics is shown: every public function of maths/ is called from a claim, a lens or other code of the package."""

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "headscope"
MATHS = PACKAGE / "maths"

PROJECTIONS = "the lens that measures how structured a map is will call it"
MOMENTS = "the path of a Gaussian through the feed-forward part and the norm of a layer will call it"
# Functions that nothing calls yet, with the work that will; only ever shorten this.
PLANNED = {
    "gaussians.linear_mixing.gelu_moments": MOMENTS,
    "gaussians.linear_mixing.layer_normed_covariance": MOMENTS,
    "gaussians.linear_mixing.rectified_covariance": MOMENTS,
    "gaussians.linear_mixing.rectified_moments": MOMENTS,
    "linear_algebra.projections.nearest_band": PROJECTIONS,
    "linear_algebra.projections.nearest_blocks": PROJECTIONS,
    "linear_algebra.projections.nearest_equal_rows": PROJECTIONS,
    "linear_algebra.projections.nearest_low_rank": PROJECTIONS,
    "linear_algebra.projections.nearest_stripes": PROJECTIONS,
    "linear_algebra.supports.blocks": PROJECTIONS,
}

Definition = ast.FunctionDef | ast.ClassDef
Place = tuple[Path, str]  # a file, and a name that its top level binds


def imported(tree: ast.Module) -> dict[str, Place]:
    """Names of maths/ that a file imports, each with the place of its definition; a whole module has the name ""."""
    places = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("headscope.maths"):
            continue
        source = PACKAGE.joinpath(*str(node.module).split(".")[1:])
        for alias in node.names:
            module = source / f"{alias.name}.py"
            place = (module, "") if module.is_file() else (source.with_suffix(".py"), alias.name)
            places[alias.asname or alias.name] = place
    return places


def called(node: ast.AST, places: dict[str, Place]) -> set[Place]:
    """The places of maths/ that a piece of code names."""
    names = {places[part.id] for part in ast.walk(node) if isinstance(part, ast.Name) and part.id in places}
    members = {
        (places[part.value.id][0], part.attr)
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in places
    }
    return names | members


def calls_of_maths() -> tuple[dict[Place, set[Place]], set[Place]]:
    """What each definition of maths/ calls, and what is called from outside maths/."""
    inner: dict[Place, set[Place]] = {}
    outer: set[Place] = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        places = imported(tree)
        if MATHS not in path.parents:
            outer |= called(tree, places)
            continue
        definitions = [node for node in tree.body if isinstance(node, Definition)]
        places |= {node.name: (path, node.name) for node in definitions}
        inner |= {(path, node.name): called(node, places) for node in definitions}
    return inner, outer


@cache
def unused() -> frozenset[str]:
    """Public functions and classes of maths/ that no code outside maths/ reaches, by way of others or not."""
    inner, reached = calls_of_maths()
    waiting = list(reached)
    while waiting:
        further = inner.get(waiting.pop(), set()) - reached
        reached |= further
        waiting += further
    return frozenset(
        f"{'.'.join(path.relative_to(MATHS).with_suffix('').parts)}.{name}"
        for path, name in inner
        if not name.startswith("_") and (path, name) not in reached
    )


def test_every_function_of_maths_is_used() -> None:
    missing = sorted(unused() - PLANNED.keys())
    assert not missing, f"only tests call {', '.join(missing)}: let a claim or a lens show it, or delete it"


def test_planned_functions_are_still_unused() -> None:
    assert PLANNED.keys() <= unused(), "a function of the table has a caller now, or is gone: take it out"
