"""The script's own tests, and what Python and the script must write alike."""

import json
import math
import shutil
import subprocess

import pytest
from scripts.build_frontend import FRONTEND

from headscope.core.numbers import cell, decimals, number
from headscope.report.colours import LEVELS, STEPS, paper

FORMATS = json.loads((FRONTEND / "tests" / "number_formats.json").read_text(encoding="utf-8"))


def value(written: float | str) -> float:
    return float(written.replace("Infinity", "inf")) if isinstance(written, str) else written


@pytest.mark.parametrize(("written", "text"), FORMATS["number"])
def test_numbers(written: float | str, text: str) -> None:
    assert number(value(written)) == text


@pytest.mark.parametrize(("written", "digits", "text"), FORMATS["cell"])
def test_cells(written: float | str, digits: int | None, text: str) -> None:
    assert cell(value(written), digits) == text


@pytest.mark.parametrize(("written", "digits"), FORMATS["decimals"])
def test_decimals(written: list[float | str], digits: int | None) -> None:
    assert decimals(value(entry) for entry in written) == digits


def test_the_formats_hold_the_hard_cases() -> None:
    numbers = [value(written) for written, _ in FORMATS["number"]]
    assert any(math.isnan(entry) for entry in numbers)
    assert math.inf in numbers
    assert 1.125 in numbers  # a half, which Python rounds to the even digit


def test_the_script_knows_how_many_colours_there_are() -> None:
    source = (FRONTEND / "src" / "drawing" / "colour.ts").read_text(encoding="utf-8")
    for name, amount in (("LEVELS", LEVELS), ("STEPS", STEPS), ("SERIES", len(paper().series))):
        assert f"export const {name} = {amount};" in source


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not on this machine")
@pytest.mark.skipif(not (FRONTEND / "node_modules").is_dir(), reason="scripts/build_frontend.py was not called here")
def test_the_tests_of_the_script_pass() -> None:
    npm = shutil.which("npm")
    assert npm is not None
    done = subprocess.run([npm, "test", "--silent"], cwd=FRONTEND, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
