"""Sample mutants of maths, lenses and mechanisms, and run their tests.

    python scripts/mutate.py                          40 mutants of all three parts
    python scripts/mutate.py maths/normality.py       mutants of one module or folder
    python scripts/mutate.py --count 100 --seed 7

A mutant is killed when a test of its module or a contract test fails that passes without the mutant. A mutant that
does not end counts as alive; one with which the tests cannot be collected is left out. A survivor that changes no
result is listed in tests/equivalent_mutants.toml with the reason; the command fails when more than a tenth of the
others survive.
"""

import argparse
import ast
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headscope"
TESTS = ROOT / "tests"
PARTS = ("maths", "lenses", "attention/mechanisms")
EQUIVALENT = TESTS / "equivalent_mutants.toml"
FEWEST_KILLED = 0.9
# A mutant may loop forever or allocate any amount of memory.
CPU_SECONDS = 900
MEMORY = 8 << 30
NOT_TESTED = 100
sys.path.insert(0, str(ROOT))

from scripts.mutants import Mutant, mutants, mutated  # noqa: E402 - the script's own folder comes first on the path


class Fate(StrEnum):
    """What the tests did with a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    ENDLESS = "did not end"
    UNLOADABLE = "could not be loaded"


def main() -> int:
    """Sample mutants, run their tests, print the result.

    Returns 0 where at least nine tenths of the mutants that change a result are killed.
    """
    arguments = _arguments()
    sample = _sample(arguments.where or PARTS, arguments.count, arguments.seed)
    reasons = _reasons()
    _load_what_all_tests_share()
    changing = [(module, mutant) for module, mutant in sample if _key(module, mutant) not in reasons]
    mutants_by_fate: dict[Fate, list[str]] = {fate: [] for fate in Fate}
    for number, (module, mutant) in enumerate(sample, 1):
        reason = reasons.get(_key(module, mutant))
        fate = None if reason else _fate(module, mutant)
        print(f"{number}/{len(sample)} {module}:{mutant}: {fate or f'equivalent: {reason}'}", flush=True)
        if fate is not None:
            mutants_by_fate[fate].append(f"{module}:{mutant}")
    return _report(mutants_by_fate, len(sample) - len(changing))


def _report(mutants_by_fate: dict[Fate, list[str]], explained: int) -> int:
    killed, survived = len(mutants_by_fate[Fate.KILLED]), len(mutants_by_fate[Fate.SURVIVED])
    counted = killed + survived + len(mutants_by_fate[Fate.ENDLESS])
    rate = f" ({100 * killed / counted:.1f} %)" if counted else ""
    print(f"{killed} of {counted} mutants killed{rate}; {explained} more change no result ({EQUIVALENT.name})")
    for fate in (Fate.SURVIVED, Fate.ENDLESS, Fate.UNLOADABLE):
        for name in mutants_by_fate[fate]:
            print(f"{fate}: {name}")
    return 0 if killed >= FEWEST_KILLED * counted else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", nargs="*", help="modules or folders below src/headscope")
    parser.add_argument("--count", type=int, default=40, help="how many mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn")
    return parser.parse_args()


def _sample(where: tuple[str, ...] | list[str], count: int, seed: int) -> list[tuple[Path, Mutant]]:
    places = [path for place in where for path in _modules(PACKAGE / place)]
    modules = [path.relative_to(PACKAGE) for path in places if path.name != "__init__.py"]
    if not modules:
        raise SystemExit(f"no module at {', '.join(where)} below {PACKAGE.relative_to(ROOT)}")
    every = [(module, mutant) for module in modules for mutant in mutants((PACKAGE / module).read_text())]
    return random.Random(seed).sample(every, min(count, len(every)))


def _modules(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.is_file() else []


def _reasons() -> dict[tuple[str, str, str, str], str]:
    rows: list[dict[str, Any]] = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {(row["module"], row["scope"], row["before"], row["after"]): row["reason"] for row in rows}


def _key(module: Path, mutant: Mutant) -> tuple[str, str, str, str]:
    return str(module), mutant.scope, mutant.before, mutant.after


def tests_of(module: Path) -> list[str]:
    """The test files of a module, and its contract tests.

    A module without test files gets those of the modules that import it. The file that has the module's name comes
    first: it is the likeliest to fail.
    """
    named = [f"test_{module.stem}", f"test_{module.parent.name}_{module.stem}", f"test_{module.parent.name}"]
    paths = sorted(_nearest_tests(module), key=lambda path: (path.stem not in named, path))
    tests = [str(path.relative_to(ROOT)) for path in paths]
    contracts = {"lenses": ["test_lenses"], "attention": ["test_costs", "test_mechanisms"]}.get(module.parts[0], [])
    if not contracts:
        return tests
    # Contract tests name a lens by its name, and a mechanism also by its class; a test file of its own runs completely.
    members = [*(path.stem.removeprefix("test_") for path in paths), *_members(module)]
    names = {*members, *(member.replace("_", "") for member in members), *(Path(test).stem for test in tests)}
    files = [f"tests/contract/{contract}.py" for contract in contracts]
    return [*tests, *files, "-k", " or ".join(sorted(names))]


def _nearest_tests(module: Path) -> set[Path]:
    """The tests of the module and of its lens; where there are none, of the nearest modules that import it."""
    test_paths, modules, visited = [], [module], {module}
    while modules and not test_paths:
        test_paths = [test for path in modules for test in _test_files(path)]
        modules = [path for path in _importers(modules) if path not in visited]
        visited.update(modules)
    of_lens = [TESTS / "lenses" / f"test_{lens}{about}.py" for lens in _lens(module) for about in ("", "_sentences")]
    return {*test_paths, *(path for path in of_lens if path.exists())}


def _members(module: Path) -> list[str]:
    """The lens that a module belongs to, or the mechanisms that it is part of."""
    if module.parts[0] != "attention":
        return _lens(module)
    if _is_mechanism(module):
        return [module.stem]
    modules = added = {module}
    while added := {*_importers(sorted(added))} - modules:
        modules = modules | added
    return [path.stem for path in modules if _is_mechanism(path)]


def _lens(module: Path) -> list[str]:
    return [module.parts[1]] if module.parts[0] == "lenses" and module.parts[1:-1] not in ((), ("shared",)) else []


def _test_files(module: Path) -> list[Path]:
    """The tests named after a module, and the tests of its part that import it."""
    every, names = sorted((TESTS / module.parts[0]).glob("test_*.py")), {_dotted(module)}
    if _is_mechanism(module):  # which the package of attention offers under its name
        names.add(f"headscope.attention.{module.stem}")
    return [path for path in every if path.stem == f"test_{module.stem}" or names & _imported(path)]


def _is_mechanism(module: Path) -> bool:
    return module.parent == Path("attention/mechanisms")


def _importers(modules: list[Path]) -> list[Path]:
    names = {_dotted(module) for module in modules}
    part = modules[0].parts[0]
    return [path.relative_to(PACKAGE) for path in _modules(PACKAGE / part) if names & _imported(path)]


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


def _fate(module: Path, mutant: Mutant) -> Fate:
    """What the tests of the module do with the mutant.

    Stops where they fail without the mutant, too: that says nothing about it.
    """
    tests = tests_of(module)
    if not tests:
        raise SystemExit(f"{module}: no test file is named after it or after what imports it")
    fate, failed = _tested(module, mutated((PACKAGE / module).read_text(), mutant), tests)
    if fate is Fate.KILLED:
        _check_without_a_mutant(module, (failed,))
    if fate is Fate.UNLOADABLE:
        _check_without_a_mutant(module, ("--collect-only", *tests))
    return fate


@cache
def _check_without_a_mutant(module: Path, tests: tuple[str, ...]) -> None:
    fate, _ = _tested(module, (PACKAGE / module).read_text(), list(tests))
    if fate is not Fate.SURVIVED:
        raise SystemExit(f"{fate} without a mutant: {' '.join(tests)}")


def _tested(module: Path, text: str, tests: list[str]) -> tuple[Fate, str]:
    """Run the tests on a copy of the package with this text of the module.

    Returns the fate of the mutant and the name of the test that failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, first_failure = Path(folder) / "src", Path(folder) / "first_failure"
        shutil.copytree(PACKAGE.parent, source, ignore=shutil.ignore_patterns("__pycache__"))
        (source / "headscope" / module).write_text(text)
        child = os.fork()
        if child == 0:
            os._exit(_run(tests, source, module, first_failure))
        _, status = os.waitpid(child, 0)
        failed = first_failure.read_text() if first_failure.exists() else ""
    return fate_of(os.waitstatus_to_exitcode(status)), failed


@dataclass(eq=False)  # pytest needs plugins that can be hashed
class _FailureNote:
    """A plugin of pytest that writes which test failed first, and notices where tests cannot be collected."""

    path: Path
    collected: bool = True

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.path.exists():
            self.path.write_text(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        self.collected &= not report.failed


def fate_of(code: int) -> Fate:
    """The meaning of an exit code of pytest.

    A code that says nothing about the mutant stops the command.
    """
    fates = {0: Fate.SURVIVED, 1: Fate.KILLED, 2: Fate.UNLOADABLE, -signal.SIGXCPU: Fate.ENDLESS}
    if code not in fates:
        meaning = "tests that do not load the module" if code == NOT_TESTED else f"exit code {code} of pytest"
        raise SystemExit(f"{meaning}: this says nothing about a mutant")
    return fates[code]


def _run(tests: list[str], source: Path, module: Path, first_failure: Path) -> int:
    import pytest

    _bound(CPU_SECONDS)
    sys.path[:] = [str(source), str(ROOT), *(entry for entry in sys.path if entry != str(PACKAGE.parent))]
    os.environ["PYTHONPATH"] = os.pathsep.join((str(source), str(ROOT)))  # for commands that tests start
    for name in [name for name in sys.modules if name.partition(".")[0] == "headscope"]:
        del sys.modules[name]
    with Path(os.devnull).open("w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
        # pytest warns that it cannot rewrite modules that are loaded already; this says nothing about the mutant.
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider"]
        note = _FailureNote(first_failure)
        code = int(pytest.main(["-x", "-q", *quiet, *tests], plugins=[note]))
    if not note.collected:  # with -x this has the exit code of a failed test
        return int(pytest.ExitCode.INTERRUPTED)
    return code if code or _loaded_from(source, module) else NOT_TESTED


def _bound(seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 60))
    size = Path("/proc/self/statm")
    if size.exists():  # only Linux reports the memory of this process
        used = int(size.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def _loaded_from(source: Path, module: Path) -> bool:
    """Whether the tests imported the module from the copy; else they notice nothing."""
    loaded = sys.modules.get(_dotted(module))
    return loaded is not None and str(loaded.__file__).startswith(str(source))


if __name__ == "__main__":
    sys.exit(main())
