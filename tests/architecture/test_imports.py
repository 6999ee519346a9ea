"""Who may import whom: the table of ARCHITECTURE.md as data. Data flows down, imports point up."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "headscope"

GROUND = {"errors", "shapes"}
PARTS = GROUND | {
    *("lazy_names", "files", "folder_lock", "progress", "fetch", "core", "maths", "attention", "networks", "corpora"),
    *("training", "decoding", "model", "lenses", "theory"),
}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "shapes": set(),
    "lazy_names": set(),
    "files": {"errors"},
    "folder_lock": {"errors"},
    "progress": set(),
    "about": {"errors"},
    "members": {"errors", "about"},
    "core": GROUND | {"lazy_names", "about"},
    "fetch": {"errors", "files", "progress"},
    "maths": GROUND,
    "attention": GROUND | {"core", "members"},  # pictures of mechanisms are figures
    "corpora": {"errors", "lazy_names", "files", "progress", "core", "fetch"},
    "networks": GROUND | {"lazy_names", "core", "attention"},
    "model": GROUND | {"files", "progress", "core", "fetch", "attention", "networks"},
    "decoding": GROUND | {"lazy_names"},
    "training": GROUND | {"lazy_names", "files", "folder_lock", "progress", "core", "attention", "corpora"},
    "lenses": GROUND | {"core", "maths", "attention", "members"},
    "theory": GROUND | {"lazy_names", "core", "maths", "attention"},
    "catalogue": PARTS | {"members", "experiments", "store", "comparison", "api"},
    "experiments": PARTS | {"members"},
    "store": PARTS,
    "pipeline": PARTS | {"members", "store", "__init__"},
    "report": {"errors", "files", "core"},
    "comparison": {"errors", "progress", "core", "maths", "model", "store", "pipeline", "report"},
    "trajectories": {
        *("errors", "progress", "core", "maths", "lenses", "training", "pipeline", "report", "comparison")
    },
    "api": PARTS | {"experiments", "store", "pipeline", "report", "comparison", "trajectories"},
    "cli": {"errors", "progress", "core", "api", "catalogue", "__init__"},
    "__main__": {"cli"},
    "__init__": set(),  # names are fetched when used, by their module's name as a string
}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> list[tuple[int, str]]:
    """Line and part of every import of headscope, wherever in the file it stands."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write absolute imports"
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module == "headscope"
                else [str(node.module)]
            )
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "headscope":
                known = len(parts) > 1 and parts[1] in MAY_IMPORT
                found.append((node.lineno, parts[1] if known else "__init__"))
    return found


FILES = sorted(ROOT.rglob("*.py"))


def test_every_part_is_in_the_table():
    assert {part_of(path) for path in FILES} == set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_up(path):
    part = part_of(path)
    allowed = MAY_IMPORT[part] | {part}
    wrong = [f"line {line}: {part} may not import {other}" for line, other in imported(path) if other not in allowed]
    assert not wrong, f"{path.relative_to(ROOT)}: " + "; ".join(wrong)


def test_the_table_in_the_document_is_this_one():
    document = (ROOT.parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for part in MAY_IMPORT:
        if not part.startswith("__"):
            assert f"`{part}" in document, f"ARCHITECTURE.md does not mention {part}"


def test_imports_below_another_part_are_seen(tmp_path, monkeypatch):
    """The checker itself sees an import that hides in a function."""
    hidden = tmp_path / "core" / "x.py"
    hidden.parent.mkdir()
    hidden.write_text("def f():\n    from headscope.model import open_model\n    import headscope.cli\n")
    assert imported(hidden) == [(2, "model"), (3, "cli")]
