"""A member is a folder with its own name, a role is a file with a fixed name; names say what things hold."""

import ast
import importlib.util
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "headscope"
LENSES = sorted(path.parent.name for path in ROOT.glob("lenses/*/lens.py"))
ROLES = ("__init__.py", "about.md", "settings.py", "lens.py", "definition.py", "figures.py", "sentences.py")

# All that the settings of a member may import: help reads them, and must be instant.
LIGHT = {"collections.abc", "dataclasses", "enum", "math", "typing", "headscope.errors", "headscope.shapes"}

# Names of roles, and of things that every folder of a kind may hold.
ROLE_NAMES = {"__init__", "about", "settings", "lens", "definition", "figures", "sentences", "tables"}
# Two meanings of one basename within a part that are still to be told apart; only ever shorten this.
TWO_MEANINGS: dict[str, set[str]] = {}

# Words that say nothing about what a variable holds.
FILLERS = {
    *(
        "one",
        "found",
        "here",
        "told",
        "some",
        "what",
        "known",
        "given",
        "shown",
        "kept",
        "whole",
        "rest",
        "others",
        "own",
    ),
    *("both", "said", "there", "wanted", "chosen", "seen", "made", "drawn", "asked", "beside", "apart", "two", "which"),
    *("own", "many", "held", "middle", "lost", "hear", "taken", "each"),
}
# How many bindings of the package have such a name; only ever lower this.
MOST_FILLERS = 25


@pytest.mark.parametrize("name", LENSES)
@pytest.mark.parametrize("role", ROLES)
def test_every_lens_has_its_role_files(name: str, role: str) -> None:
    assert (ROOT / "lenses" / name / role).is_file(), f"lenses/{name}/ lacks {role} (CONTRIBUTING.md, Add a lens)"


def test_nothing_about_a_lens_lies_elsewhere() -> None:
    folders = {path.name for path in (ROOT / "lenses").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {*LENSES, "shared"}, f"folders without a lens.py: {sorted(folders - {*LENSES, 'shared'})}"
    files = {path.name for path in (ROOT / "lenses").glob("*.py")}
    assert files == {"__init__.py", "lens.py"}, "a file of a lens lies in its folder, a shared one in shared/"


def imports_of(path: Path) -> set[str]:
    """The modules that a file imports at its top."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    return plain | {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("name", LENSES)
def test_settings_import_no_torch(name: str) -> None:
    heavy = imports_of(ROOT / "lenses" / name / "settings.py") - LIGHT
    assert not heavy, f"lenses/{name}/settings.py may not import {sorted(heavy)}: help reads it and must be instant"


@pytest.mark.parametrize("name", LENSES)
def test_no_lens_borrows_from_another(name: str) -> None:
    for path in (ROOT / "lenses" / name).glob("*.py"):
        borrowed = {module for module in imports_of(path) if re.match(r"headscope\.lenses\.\w+", module)}
        own = ("headscope.lenses.lens", "headscope.lenses.shared", f"headscope.lenses.{name}")
        foreign = sorted(module for module in borrowed if not module.startswith(own))
        assert not foreign, f"{path} imports {foreign} of another lens: move what both need to lenses/shared/"


def test_a_basename_has_one_meaning_within_a_part() -> None:
    places: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in ROOT.rglob("*.py"):
        part, *inner = path.relative_to(ROOT).parts
        is_member = part in ("lenses", "experiments", "theory") and len(inner) > 1  # its own nouns, in its own folder
        if inner and path.stem not in ROLE_NAMES and not is_member:
            places[part][path.stem].append(path)
    twice = {part: {stem for stem, paths in stems.items() if len(paths) > 1} for part, stems in places.items()}
    assert {part: stems for part, stems in twice.items() if stems} == TWO_MEANINGS


def bindings(tree: ast.AST) -> list[str]:
    """Every name that is bound: arguments, assignments, loops."""
    names = [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg) and node.arg not in ("self", "cls")]
    return names + [
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def test_names_that_say_nothing_only_become_fewer() -> None:
    names_by_file = {path: bindings(ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(ROOT.rglob("*.py"))}
    fillers = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, names in names_by_file.items()
        for name in names
        if name in FILLERS
    ]
    most = f"{len(fillers)} variables have names that say nothing, {MOST_FILLERS} are allowed"
    assert len(fillers) <= MOST_FILLERS, "\n".join([most, *fillers])


def test_prose_is_not_in_python() -> None:
    """The prose of a member is its about.md: no module of a lens builds an About."""
    for path in (ROOT / "lenses").rglob("*.py"):
        assert "About(" not in path.read_text(encoding="utf-8"), f"{path}: prose belongs to about.md"
    assert importlib.util.find_spec("headscope.about") is not None
