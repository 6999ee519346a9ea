"""The tests that a mutant of a module meets: in which order, and which cases of the contract tests."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headscope"
TESTS = ROOT / "tests"
# Packages that tests import from in place of their modules.
OFFERING = (Path("attention/statistics"),)
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

    A module without test files gets those of the nearest modules that import it. The tests of its lens or experiment
    come with it, and those that import from its package, where the package offers names of its modules.
    """
    names = [f"test_{module.stem}", f"test_{module.parent.name}_{module.stem}", f"test_{module.parent.name}"]
    nearest = _nearest_tests(module)
    # The tests of an experiment run models: those that import the module come first, and small files before large ones.
    paths = sorted({*nearest, *_member_tests(module)}, key=lambda path: (path.stat().st_size, path))
    is_experiment = module.parts[0] == "experiments"
    first = [path for path in paths if (path in nearest if is_experiment else path.stem in names)]
    others = [path for path in paths if path not in first]
    contract = CONTRACTS.get(module.parts[0], ()) if paths else ()
    order = (_relative(first), contract, _relative(others)) if first else (_relative(others), contract)
    return ModuleTests(tuple(stage for stage in order if stage), frozenset(map(_plain, _members(module, paths))))


def _relative(paths: list[Path]) -> tuple[str, ...]:
    return tuple(str(path.relative_to(ROOT)) for path in paths)


def modules_at(place: Path) -> list[Path]:
    """The Python files of a folder, or the one file."""
    return sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.is_file() else []


def dotted(module: Path) -> str:
    """The name under which a module or the package of an `__init__` is imported."""
    parts = module.with_suffix("").parts
    return ".".join(("headscope", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _nearest_tests(module: Path) -> set[Path]:
    """The tests of the module; where there are none, of the nearest modules that import it."""
    test_paths, modules, visited = [], [module], {module}
    while modules and not test_paths:
        test_paths = [test for path in modules for test in _test_files(path)]
        modules = [path for path in _importers(modules) if path not in visited]
        visited.update(modules)
    return {*test_paths}


def _member_tests(module: Path) -> Iterator[Path]:
    """The tests of the lens or the experiment that a module belongs to."""
    for lens in _lens(module):
        yield from (path for path in sorted((TESTS / "lenses").glob(f"test_{lens}*.py")) if _is_about(path, lens))
    if module.parts[0] == "experiments" and len(module.parts) > 2:
        experiment = module.parts[1]
        yield from (path for path in sorted((TESTS / "experiments").glob("test_*.py")) if _is_about(path, experiment))


def _is_about(test: Path, member: str) -> bool:
    return test.stem == f"test_{member}" or test.stem.startswith(f"test_{member}_")


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
    """The tests named after a module, and the tests of its part that import it or its names from a package."""
    every, names = sorted((TESTS / module.parts[0]).glob("test_*.py")), _names(module)
    return [path for path in every if path.stem == f"test_{module.stem}" or names & _imported(path)]


def _names(module: Path) -> set[str]:
    """What a test may import of a module: itself, its names in the packages above it, or a package that offers them."""
    names = {dotted(module)}
    for folder in module.parents[:-1]:
        package = folder / "__init__.py"
        offered = _offered(PACKAGE / package)
        names |= {f"{dotted(package)}.{name}" for name in offered.get(dotted(module), ())}
        if folder == module.parent and folder in OFFERING:
            names.add(dotted(package))
    if _is_mechanism(module):  # which the package of attention offers under its name
        names.add(f"headscope.attention.{module.stem}")
    return names


def _importers(modules: list[Path]) -> list[Path]:
    names = {dotted(module) for module in modules}
    part = modules[0].parts[0]
    return [path.relative_to(PACKAGE) for path in modules_at(PACKAGE / part) if names & _imported(path)]


@lru_cache(maxsize=64)
def _offered(package: Path) -> dict[str, tuple[str, ...]]:
    """The names that a package takes from its modules, by module."""
    tree = ast.parse(package.read_text()) if package.exists() else ast.Module([], [])
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {str(node.module): tuple(alias.name for alias in node.names) for node in imports}


@lru_cache(maxsize=1024)
def _imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names
