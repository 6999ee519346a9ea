"""Packages that are broken: who uses their members is told why, and everything else goes on."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headscope
from headscope.cli import main
from headscope.errors import ResourceError
from headscope.lenses import lenses
from headscope.members import MemberWarning

GOOD = Path(__file__).parents[1] / "packages" / "colour_members"
LENSES, MECHANISMS, EXPERIMENTS = "headscope.lenses", "headscope.mechanisms", "headscope.experiments"
NO_SETTINGS = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Params:\n    'Nothing.'\n"
Install = Callable[..., None]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package of files with one entry point, for the length of a test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(GOOD))  # code to point to; without metadata it brings no entry point
    packages = {"colour_members"}

    def put(package: str, group: str, entry: str, files: dict[str, str] | None = None) -> None:
        packages.add(package)
        notes = tmp_path / f"{package}-0.1.dist-info"
        notes.mkdir()
        (notes / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
        (notes / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
        for name, text in (files or {}).items():
            path = tmp_path / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    yield put
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        sys.modules.pop(name)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command; its exit code, output and messages."""
    monkeypatch.setenv("COLUMNS", "300")

    def call(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main(words)
        return int(end.value.code or 0), *capfd.readouterr()

    return call


def listed(run: Run, kind: str) -> dict[str, dict[str, str]]:
    code, out, _ = run(kind, "--format", "json")
    assert code == 0
    return {next(iter(row.values())): row for row in json.loads(out)}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "ModuleNotFoundError: No module named 'broken'"),
        ({"__init__.py": "1 / 0"}, "ZeroDivisionError"),
        ({"__init__.py": ""}, "broken must bind MECHANISM"),
        ({"__init__.py": "MECHANISM = 3"}, "must bind MECHANISM to a Mechanism class, found 3"),
        ({"__init__.py": "from colour_members.tint import MECHANISM"}, "the mechanism 'tint', expected 'wash'"),
    ],
)
def test_a_broken_mechanism_is_listed_with_the_reason(
    install: Install, run: Run, files: dict[str, str], reason: str
) -> None:
    install("broken", MECHANISMS, "wash = broken", files)
    rows = listed(run, "mechanisms")
    assert rows["wash"]["what"].startswith("broken: mechanism 'wash' of broken cannot be used")
    assert reason in rows["wash"]["what"]
    assert rows["window"]["Mflop_16k"]
    for words in (("mechanisms", "wash"), ("mechanisms", "--draw", "wash(strength=2)")):
        code, _, message = run(*words)
        assert code == ResourceError.exit_code
        assert reason in message
        assert "hint: repair or uninstall its package" in message
    with pytest.warns(MemberWarning, match="'wash'"):
        assert "wash" not in headscope.mechanisms()


def test_a_mechanism_that_fails_in_its_own_code_is_listed_with_the_reason(install: Install, run: Run) -> None:
    code = (
        "from colour_members.tint import Tint\nclass Wash(Tint):\n    name = 'wash'\n    def cost(self, n, d): 1 / 0\n"
    )
    install("broken", MECHANISMS, "wash = broken", {"__init__.py": f"{code}MECHANISM = Wash\n"})
    assert "ZeroDivisionError" in listed(run, "mechanisms")["wash"]["what"]
    code, _, message = run("mechanisms", "wash")
    assert (code, "ZeroDivisionError" in message) == (ResourceError.exit_code, True)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "No module named 'broken'"),
        ({"__init__.py": ""}, "broken.wash'"),
        ({"__init__.py": "", "wash/__init__.py": "", "wash/settings.py": NO_SETTINGS}, "about.md cannot be read"),
    ],
)
def test_a_broken_lens_is_listed_with_the_reason(
    install: Install, run: Run, files: dict[str, str], reason: str
) -> None:
    install("broken", LENSES, "wash = broken.wash", files)
    rows = listed(run, "lenses")
    assert rows["wash"]["question"].startswith("broken: lens 'wash'")
    assert reason in rows["wash"]["question"]
    code, out, _ = run("lens", "--help")
    assert code == 0
    assert "Broken: lens 'wash'" in out
    code, _, message = run("lens", "wash", "tiny")
    assert code == ResourceError.exit_code
    assert reason in message


def test_a_lens_that_binds_nothing_is_left_out_of_all_lenses(install: Install, run: Run) -> None:
    about = (GOOD / "colour_members" / "colour" / "about.md").read_text()
    files = {"__init__.py": "", "lens.py": "", "about.md": about, "settings.py": NO_SETTINGS}
    install("broken", LENSES, "wash = broken", files)
    with pytest.warns(MemberWarning, match="broken.lens must bind LENS"):
        assert list(lenses()) == [name for name in listed(run, "lenses") if name != "wash"]
    code, _, message = run("lens", "wash", "tiny")
    assert code == ResourceError.exit_code
    assert "broken.lens must bind LENS" in message


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "No module named 'broken'"),
        ({"__init__.py": "", "settings.py": "import nothing_of_this_name"}, "No module named 'nothing_of_this_name'"),
        ({"__init__.py": "", "settings.py": ""}, "broken.settings must bind COMMAND"),
        ({"__init__.py": "", "settings.py": "COMMAND = 'wash'"}, "must bind COMMAND to a Command with a path"),
    ],
)
def test_a_broken_experiment_is_listed_with_the_reason(
    install: Install, run: Run, files: dict[str, str], reason: str
) -> None:
    install("broken", EXPERIMENTS, "wash = broken", files)
    code, out, _ = run("--help")
    assert code == 0
    assert "Broken: experiment 'wash'" in out
    assert "intervene" in out
    code, _, message = run("wash", "tiny", "--strength", "2")
    assert code == ResourceError.exit_code
    assert reason in message
    with pytest.raises(ResourceError, match="experiment 'wash'"):
        headscope.catalogue.experiment_function("wash")("tiny")


def test_a_name_of_headscope_cannot_be_taken(install: Install, run: Run) -> None:
    install("other", LENSES, "focus = colour_members.colour")
    install("another", MECHANISMS, "window = colour_members.tint")
    install("athird", EXPERIMENTS, "intervene = colour_members.repaint")
    lens_rows, mechanism_rows = listed(run, "lenses"), listed(run, "mechanisms")
    assert not lens_rows["focus"]["question"].startswith("broken")
    assert "headscope has a lens of this name" in lens_rows["colour_members.colour"]["question"]
    assert mechanism_rows["window"]["parameters"] == "left=None, right=None, dilation=1"
    assert "headscope has a mechanism of this name" in mechanism_rows["colour_members.tint"]["what"]
    assert "--scale" in run("intervene", "--help")[1]
    code, _, message = run("colour_members.repaint", "tiny")
    assert code == ResourceError.exit_code
    assert "headscope has an experiment of this name" in message


def test_two_packages_with_one_name_are_both_refused(install: Install, run: Run) -> None:
    install("first", MECHANISMS, "tint = colour_members.tint")
    install("second", MECHANISMS, "tint = second.tint")
    reason = "two packages hold a mechanism of this name: colour_members.tint and second.tint"
    assert reason in listed(run, "mechanisms")["tint"]["what"]
    code, _, message = run("mechanisms", "tint")
    assert code == ResourceError.exit_code
    assert reason in message


def test_an_experiment_cannot_take_a_command_of_headscope(install: Install, run: Run) -> None:
    settings = (GOOD / "colour_members" / "repaint" / "settings.py").read_text()
    moved = settings.replace('path=("repaint",)', 'path=("report",)')
    install("broken", EXPERIMENTS, "wash = broken", {"__init__.py": "", "settings.py": moved})
    assert "--strength" not in run("report", "--help")[1]
    code, _, message = run("broken", "tiny")
    assert code == ResourceError.exit_code
    assert "headscope has a command 'report'" in message


def test_an_unknown_mechanism_is_told_the_nearest_names(run: Run) -> None:
    code, _, message = run("mechanisms", "wimdow")
    assert code == 2
    assert "did you mean window?" in message
