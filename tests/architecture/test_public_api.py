"""The public names: a change here is a change for users, to be made on purpose and told in CHANGELOG.md."""

import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import headscope

PUBLIC = {
    "HeadscopeError",
    "Plan",
    "Selection",
    "__version__",
    "apply",
    "attention",
    "compare",
    "fewshot",
    "head",
    "heads",
    "intervene",
    "lenses",
    "load",
    "look",
    "measure",
    "mechanisms",
    "models",
    "open",
    "report",
    "save_figure",
    "text",
    "texts",
    "translate",
    "trajectory",
    "verify",
}


def test_public_names():
    assert set(headscope.__all__) == PUBLIC
    assert set(dir(headscope)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_there_and_documented(name):
    value = getattr(headscope, name)
    assert value.__doc__
    assert isinstance(value, ModuleType) == (name == "attention")


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert headscope.__version__ == project["version"]


@pytest.mark.parametrize(
    "first", ["headscope.report", "headscope.lenses", "headscope.lenses.focus.lens", "headscope.api"]
)
def test_report_and_lenses_are_functions_in_any_order_of_imports(first):
    code = (
        f"import {first}, headscope\n"
        "assert callable(headscope.report) and callable(headscope.lenses)\n"
        "from headscope.report.page import render\n"
        "import headscope.lenses.spectra.lens, headscope.report.page\n"
        "assert 'spectra' in headscope.lenses() and callable(headscope.report)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_say_so():
    with pytest.raises(AttributeError, match="no attribute 'reprot'"):
        headscope.reprot  # noqa: B018
