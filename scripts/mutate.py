"""Draw mutants of the mathematics, the lenses and the mechanisms, and run the tests that should notice them.

    python scripts/mutate.py                          40 mutants of all three parts
    python scripts/mutate.py maths/normality.py       mutants of one module or folder
    python scripts/mutate.py --count 100 --seed 7

A mutant is killed when the tests of its module or the contract tests fail. A survivor that changes no result is listed
in tests/equivalent_mutants.toml with the reason; the command fails when more than a tenth of the others survive.
"""

import argparse
import ast
import os
import random
import shutil
import sys
import tempfile
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headscope"
TESTS = ROOT / "tests"
PARTS = ("maths", "lenses", "attention/mechanisms")
EQUIVALENT = TESTS / "equivalent_mutants.toml"
FEWEST_KILLED = 0.9
sys.path.insert(0, str(ROOT))

from scripts.mutants import Mutant, mutants  # noqa: E402 - the script's own folder comes first on the path


def main() -> int:
    """Draw, run, report; 0 where at least nine tenths of the mutants that change a result are killed."""
    arguments = _arguments()
    drawn = _drawn(arguments.where or PARTS, arguments.count, arguments.seed)
    reasons = _reasons()
    _load_what_all_tests_share()
    _check_unchanged(sorted({module for module, _ in drawn}))
    survivors, explained, killed = [], 0, 0
    for number, (module, mutant) in enumerate(drawn, 1):
        tests = tests_of(module)
        reason = reasons.get((str(module), mutant.before, mutant.after))
        died = reason is None and _dies(module, mutant, tests)
        state = f"equivalent: {reason}" if reason else "killed" if died else f"SURVIVED {' '.join(tests)}"
        print(f"{number}/{len(drawn)} {module}:{mutant}: {state}", flush=True)
        killed, explained = killed + died, explained + (reason is not None)
        if not died and reason is None:
            survivors.append((module, mutant))
    counted = len(drawn) - explained
    print(f"{killed} of {counted} mutants killed; {explained} more change no result ({EQUIVALENT.name})")
    for module, mutant in survivors:
        print(f"survived: {module}:{mutant}")
    return 0 if killed >= FEWEST_KILLED * counted else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", nargs="*", help="modules or folders below src/headscope")
    parser.add_argument("--count", type=int, default=40, help="how many mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn")
    return parser.parse_args()


def _drawn(where: tuple[str, ...] | list[str], count: int, seed: int) -> list[tuple[Path, Mutant]]:
    places = [path for place in where for path in _modules(PACKAGE / place)]
    modules = [path.relative_to(PACKAGE) for path in places if path.name != "__init__.py"]
    if not modules:
        raise SystemExit(f"no module at {', '.join(where)} below {PACKAGE.relative_to(ROOT)}")
    every = [(module, mutant) for module in modules for mutant in mutants((PACKAGE / module).read_text())]
    return random.Random(seed).sample(every, min(count, len(every)))


def _modules(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.is_file() else []


def _reasons() -> dict[tuple[str, str, str], str]:
    rows: list[dict[str, Any]] = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {(row["module"], row["before"], row["after"]): row["reason"] for row in rows}


def tests_of(module: Path) -> list[str]:
    """The test files of a module, else those of the modules that import it; and its contract tests."""
    named, asked, known = [], [module], {module}
    while asked and not named:
        named = [test for path in asked for test in _test_files(path)]
        asked = [path for path in _importers(asked) if path not in known]
        known.update(asked)
    chosen = sorted({str(test.relative_to(ROOT)) for test in named})
    members = [Path(test).stem.removeprefix("test_") for test in chosen]
    contracts = {"lenses": ["test_lenses"], "attention": ["test_mechanisms", "test_costs"]}.get(module.parts[0], [])
    if not contracts:
        return chosen
    # Contract tests name a lens as it is, and a mechanism also as its class; a file of its own runs whole.
    names = {*members, *(member.replace("_", "") for member in members), *(Path(test).stem for test in chosen)}
    files = [f"tests/contract/{contract}.py" for contract in contracts]
    return [*chosen, *files, "-k", " or ".join(sorted(names))]


def _test_files(module: Path) -> list[Path]:
    """Those that are named after a module, and those of its part that import it."""
    every = sorted((TESTS / module.parts[0]).glob("test_*.py"))
    return [path for path in every if path.stem == f"test_{module.stem}" or _dotted(module) in _imported(path)]


def _importers(modules: list[Path]) -> list[Path]:
    wanted = {_dotted(module) for module in modules}
    part = modules[0].parts[0]
    return [path.relative_to(PACKAGE) for path in _modules(PACKAGE / part) if wanted & _imported(path)]


def _dotted(module: Path) -> str:
    return ".".join(("headscope", *module.with_suffix("").parts))


@lru_cache(maxsize=1024)
def _imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _load_what_all_tests_share() -> None:
    """Load the large libraries once: every mutant is tested in a fork of this process."""
    os.environ.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", HYPOTHESIS_STORAGE_DIRECTORY=tempfile.mkdtemp())
    import polars
    import pytest
    import scipy.stats
    import torch
    import transformers

    del polars, pytest, scipy, torch, transformers


def _check_unchanged(modules: list[Path]) -> None:
    """Stop where the tests fail without a mutant: they would kill everything."""
    checked = set[tuple[str, ...]]()
    for module in modules:
        tests = tests_of(module)
        if not tests:
            raise SystemExit(f"{module}: no test file is named after it or after what imports it")
        if tuple(tests) not in checked and _dies(module, Mutant(0, "", "", (PACKAGE / module).read_text()), tests):
            raise SystemExit(f"the tests fail without a mutant: {' '.join(tests)}")
        checked.add(tuple(tests))


def _dies(module: Path, mutant: Mutant, tests: list[str]) -> bool:
    """Whether the tests fail on a copy of the package that holds the mutant."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(PACKAGE.parent, source, ignore=shutil.ignore_patterns("__pycache__"))
        (source / "headscope" / module).write_text(mutant.source)
        child = os.fork()
        if child == 0:
            os._exit(_run(tests, source))
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) != 0


def _run(tests: list[str], source: Path) -> int:
    import pytest

    sys.path[:] = [str(source), str(ROOT), *(entry for entry in sys.path if entry != str(PACKAGE.parent))]
    sys.modules.pop("headscope", None)
    with Path(os.devnull).open("w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
        # What this process has loaded already is not rewritten: a warning that says nothing about the mutant.
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider"]
        return int(pytest.main(["-x", "-q", *quiet, *tests]))


if __name__ == "__main__":
    sys.exit(main())
