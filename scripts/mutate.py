"""Sample mutants of maths, lenses, attention and the experiment swap, and run their tests.

    python scripts/mutate.py                          40 mutants of all these parts
    python scripts/mutate.py maths/normality.py       mutants of one module or folder
    python scripts/mutate.py --count 100 --seed 7

A mutant is killed when a test of its module or a contract test fails that passes without the mutant. A mutant that
does not end counts as alive; one with which the tests cannot be collected is left out. A survivor that changes no
result is listed in tests/equivalent_mutants.toml with the reason; the command fails when more than a tenth of the
others survive.
"""

import argparse
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
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("maths", "lenses", "attention/mechanisms", "attention/sparse", "attention/statistics", "experiments/swap")
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.toml"
FEWEST_KILLED = 0.9
# A mutant may loop forever or allocate any amount of memory.
CPU_SECONDS = 900
MEMORY = 8 << 30
NOT_TESTED = 100
sys.path.insert(0, str(ROOT))

# The script's own folder comes first on the path.
from scripts.module_tests import PACKAGE, ModuleTests, chosen_tests, dotted, modules_at  # noqa: E402
from scripts.mutants import Mutant, mutants, mutated  # noqa: E402


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
    mutants_by_fate: dict[Fate, list[str]] = {fate: [] for fate in Fate}
    with tempfile.TemporaryDirectory() as folder:
        tested_copy = TestedCopy(Path(folder))
        for number, (module, mutant) in enumerate(sample, 1):
            reason = reasons.get(_key(module, mutant))
            fate = None if reason else tested_copy.fate(module, mutant)
            print(f"{number}/{len(sample)} {module}:{mutant}: {fate or f'equivalent: {reason}'}", flush=True)
            if fate is not None:
                mutants_by_fate[fate].append(f"{module}:{mutant}")
        tested_copy.check_without_mutants()
    return _report(mutants_by_fate, sum(_key(module, mutant) in reasons for module, mutant in sample))


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
    places = [path for place in where for path in modules_at(PACKAGE / place)]
    modules = [path.relative_to(PACKAGE) for path in places if path.name != "__init__.py"]
    if not modules:
        raise SystemExit(f"no module at {', '.join(where)} below {PACKAGE.relative_to(ROOT)}")
    every = [(module, mutant) for module in modules for mutant in mutants((PACKAGE / module).read_text())]
    return random.Random(seed).sample(every, min(count, len(every)))


def _reasons() -> dict[tuple[str, str, str, str], str]:
    rows: list[dict[str, Any]] = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {(row["module"], row["scope"], row["before"], row["after"]): row["reason"] for row in rows}


def _key(module: Path, mutant: Mutant) -> tuple[str, str, str, str]:
    return str(module), mutant.scope, mutant.before, mutant.after


class TestedCopy:
    """A copy of the package that holds one mutant at a time; its tests run in forks of this process."""

    def __init__(self, folder: Path) -> None:
        self.source, self.first_failure = folder / "src", folder / "first_failure"
        # Tests that failed and files that could not be collected with some mutant.
        self.killers: set[str] = set()
        self.uncollected: set[str] = set()
        shutil.copytree(PACKAGE.parent, self.source, ignore=shutil.ignore_patterns("__pycache__"))
        _load_what_all_tests_share(folder)

    def fate(self, module: Path, mutant: Mutant) -> Fate:
        """What the tests of the module do with the mutant: the first stage in which one fails decides."""
        tests, text = chosen_tests(module), (PACKAGE / module).read_text()
        if not tests.stages:
            raise SystemExit(f"{module}: no test file is named after it or after what imports it")
        self._write(module, mutated(text, mutant))
        code = NOT_TESTED  # not every stage loads the module, but one must
        for files in tests.stages:
            stage_code = self._exit_code(files, tests, module)
            code = min(code, stage_code) if stage_code in (0, NOT_TESTED) else stage_code
            if code not in (0, NOT_TESTED):
                break
        self._write(module, text)
        fate = fate_of(code)
        if fate is Fate.KILLED:
            self.killers.add(self.first_failure.read_text())
        if fate is Fate.UNLOADABLE:
            self.uncollected.update(files)
        return fate

    def check_without_mutants(self) -> None:
        """Stops where tests that failed with a mutant fail without it, too: that says nothing about a mutant."""
        for tests in (self.killers, {"--collect-only", *self.uncollected} if self.uncollected else ()):
            if tests and self._exit_code(tuple(sorted(tests)), None, None):
                first = self.first_failure.read_text() if self.first_failure.exists() else " ".join(sorted(tests))
                raise SystemExit(f"without a mutant this fails, too: {first}")

    def _write(self, module: Path, text: str) -> None:
        path = self.source / "headscope" / module
        path.write_text(text)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    def _exit_code(self, arguments: tuple[str, ...], tests: ModuleTests | None, module: Path | None) -> int:
        self.first_failure.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            os._exit(_run(arguments, _Watch(self.first_failure, tests), self.source, module))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _load_what_all_tests_share(folder: Path) -> None:
    """Load the large libraries once: every mutant is tested in a fork of this process."""
    # As in conftest.py: threads that wait for work sleep.
    os.environ.update(
        OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", HYPOTHESIS_STORAGE_DIRECTORY=str(folder / "hypothesis")
    )
    for name in ("beartype.door", "hypothesis", "matplotlib.figure", "polars", "scipy.stats", "torch", "transformers"):
        import_module(name)


@dataclass(eq=False)  # pytest needs plugins that can be hashed
class _Watch:
    """A plugin of pytest that leaves out other members, and writes which test failed first.

    It also notices where tests cannot be collected.
    """

    path: Path
    tests: ModuleTests | None
    collected: bool = True

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        tests = self.tests
        if tests is not None:
            items[:] = [item for item in items if tests.includes(item.nodeid)]

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


def _run(arguments: tuple[str, ...], watch: _Watch, source: Path, module: Path | None) -> int:
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
        code = int(pytest.main(["-x", "-q", *quiet, *arguments], plugins=[watch]))
    if not watch.collected:  # with -x this has the exit code of a failed test
        return int(pytest.ExitCode.INTERRUPTED)
    if code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):  # which are all about other members
        return code
    return 0 if module is None or _loaded_from(source, module) else NOT_TESTED


def _bound(seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 60))
    size = Path("/proc/self/statm")
    if size.exists():  # only Linux reports the memory of this process
        used = int(size.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def _loaded_from(source: Path, module: Path) -> bool:
    """Whether the tests imported the module from the copy; else they notice nothing."""
    loaded = sys.modules.get(dotted(module))
    return loaded is not None and str(loaded.__file__).startswith(str(source))


if __name__ == "__main__":
    sys.exit(main())
