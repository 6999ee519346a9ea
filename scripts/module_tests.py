"""The tests that a mutant of a module meets: in which order, and which cases of the contract tests."""

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headscope"
TESTS = ROOT / "tests"
CONTRACTS = {
    "lenses": ("tests/contract/test_lenses.py",),
    "attention": ("tests/contract/test_costs.py", "tests/contract/test_mechanisms.py"),
}


@dataclass(frozen=True)
class ModuleTests:
    """The test files of a module in stages, the likeliest to fail first, and the members that it belongs to."""

    stages: tuple[tuple[str, ...], ...]
    members: frozenset[str]

    def includes(self, test: str) -> bool:
        """Whether a test is about the module: of the contract tests only those that name a member."""
        path, _, case = test.partition("::")
        if not path.startswith("tests/contract/"):
            return True
        parameters = re.split(r"[-(]", case.partition("[")[2].rstrip("]"))
        return any(_plain(parameter) in self.members for parameter in parameters)


def chosen_tests(module: Path) -> ModuleTests:
    """The test files that have the module's name; its contract tests; its other test files.

    A module without test files gets those of the nearest modules that import it.
    """
    names = [f"test_{module.stem}", f"test_{module.parent.name}_{module.stem}", f"test_{module.parent.name}"]
    paths = sorted(_nearest_tests(module))
    first = [str(path.relative_to(ROOT)) for path in paths if path.stem in names]
    others = [str(path.relative_to(ROOT)) for path in paths if path.stem not in names]
    contract = CONTRACTS.get(module.parts[0], ()) if paths else ()
    order = (first, contract, others) if first else (others, contract)
    return ModuleTests(tuple(tuple(stage) for stage in order if stage), frozenset(map(_plain, _members(module, paths))))


def modules_at(place: Path) -> list[Path]:
    """The Python files of a folder, or the one file."""
    return sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.is_file() else []


def dotted(module: Path) -> str:
    """The name under which a module is imported."""
    return ".".join(("headscope", *module.with_suffix("").parts))


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _nearest_tests(module: Path) -> set[Path]:
    """The tests of the module and of its lens; where there are none, of the nearest modules that import it."""
    test_paths, modules, visited = [], [module], {module}
    while modules and not test_paths:
        test_paths = [test for path in modules for test in _test_files(path)]
        modules = [path for path in _importers(modules) if path not in visited]
        visited.update(modules)
    of_lens = [TESTS / "lenses" / f"test_{lens}{about}.py" for lens in _lens(module) for about in ("", "_sentences")]
    return {*test_paths, *(path for path in of_lens if path.exists())}


def _members(module: Path, tests: list[Path]) -> list[str]:
    """The mechanisms that a module is part of; the lens that it belongs to, or those whose tests it has."""
    if module.parts[0] != "attention":
        return _lens(module) or [path.stem.removeprefix("test_").removesuffix("_sentences") for path in tests]
    if _is_mechanism(module):
        return [module.stem]
    modules = added = {module}
    while added := {*_importers(sorted(added))} - modules:
        modules = modules | added
    return [path.stem for path in modules if _is_mechanism(path)]


def _lens(module: Path) -> list[str]:
    return [module.parts[1]] if module.parts[0] == "lenses" and module.parts[1:-1] not in ((), ("shared",)) else []


def _is_mechanism(module: Path) -> bool:
    return module.parent == Path("attention/mechanisms")


def _test_files(module: Path) -> list[Path]:
    """The tests named after a module, and the tests of its part that import it."""
    every, names = sorted((TESTS / module.parts[0]).glob("test_*.py")), {dotted(module)}
    if _is_mechanism(module):  # which the package of attention offers under its name
        names.add(f"headscope.attention.{module.stem}")
    return [path for path in every if path.stem == f"test_{module.stem}" or names & _imported(path)]


def _importers(modules: list[Path]) -> list[Path]:
    names = {dotted(module) for module in modules}
    part = modules[0].parts[0]
    return [path.relative_to(PACKAGE) for path in modules_at(PACKAGE / part) if names & _imported(path)]


@lru_cache(maxsize=1024)
def _imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names
