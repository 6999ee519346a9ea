"""A lens, a mechanism and an experiment of another package: pip installs it, the command line and Python use them."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "packages" / "colour_members"


def wheel_of(package: Path, folder: Path) -> Path:
    """The wheel that a build of the package gives, made without a build tool: a zip of its files and four notes."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    points = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    notes = {
        "METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": points,
        "RECORD": "",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in sorted((package / name).rglob("*")):
            if file.suffix in (".py", ".md"):
                wheel.write(file, file.relative_to(package))
        for note, text in notes.items():
            wheel.writestr(f"{name}-{version}.dist-info/{note}", text)
    return path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the package."""
    folder = tmp_path_factory.mktemp("wheels")
    target = folder / "site"
    offline = ["--no-index", "--no-deps", "--no-compile", "--quiet", "--disable-pip-version-check"]
    wheel = wheel_of(PACKAGE, folder)
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    return target


def environment_of(installed: Path) -> dict[str, str]:
    places = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": places, "COLUMNS": "200"}


def headscope(installed: Path, *words: str) -> str:
    command = [sys.executable, "-m", "headscope", *words]
    done = subprocess.run(command, env=environment_of(installed), capture_output=True, text=True, check=True)
    return done.stdout


def python(installed: Path, code: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment_of(installed), capture_output=True, text=True, check=True)
    return done.stdout


def test_the_lens_is_listed_and_has_help(installed: Path) -> None:
    listed = json.loads(headscope(installed, "lenses", "--format", "json"))
    assert listed[-1]["lens"] == "colour"
    assert "token itself" in listed[-1]["question"]
    assert "--keys" in headscope(installed, "lens", "colour", "--help")


def test_the_lens_measures_a_model(installed: Path) -> None:
    options = ["--keys", "3", "--first-tokens", "60", "--window", "30", "--format", "json"]
    answer = json.loads(headscope(installed, "lens", "colour", "tiny", *options))
    rows = answer["tables"]["heads"] if "tables" in answer else answer
    assert len(rows) == len({(row["layer"], row["head"]) for row in rows}) > 1
    assert all(0 < row["value"] <= 1 for row in rows)


def test_the_mechanism_is_listed_with_its_cost(installed: Path) -> None:
    listed = {row["mechanism"]: row for row in json.loads(headscope(installed, "mechanisms", "--format", "json"))}
    assert listed["tint"]["parameters"] == "strength=1.0"
    assert listed["tint"]["Mflop_16k"] == listed["dense"]["Mflop_16k"]
    assert "Tinted attention" in headscope(installed, "mechanisms", "tint")


def test_the_mechanism_is_drawn_as_it_is_spelled(installed: Path, tmp_path: Path) -> None:
    drawings = headscope(installed, "mechanisms", "--draw", "tint(strength=2)", "--n", "6", "--out", str(tmp_path))
    assert {Path(line).name for line in drawings.split()} >= {"tint.map.svg"}
    assert all(Path(line).is_file() for line in drawings.split())


def test_the_mechanism_stands_in_for_attention_in_a_model(installed: Path) -> None:
    code = """
import headscope as hs, torch
from headscope.attention.mechanism_spelling import spelled

assert "tint" in hs.mechanisms() and "tint" in dir(hs.attention)
model, tokens = hs.open("tiny"), torch.arange(5, 25)[None]

def states(mechanism):
    with model.session() as session, torch.no_grad():
        if mechanism is not None:
            session.replace("L1", mechanism)
        return model.hf.base_model(input_ids=tokens).last_hidden_state

original, same, tinted = states(None), states(hs.attention.tint()), states(spelled("tint(strength=2)"))
print(float((same - original).norm()) < 1e-4 * float(original.norm()), not torch.allclose(tinted, original, rtol=0.01))
"""
    assert python(installed, code).split() == ["True", "True"]


def test_the_experiment_is_a_command_that_writes_a_report(installed: Path, tmp_path: Path) -> None:
    assert "repaint" in headscope(installed, "--help")
    help_text = headscope(installed, "repaint", "--help")
    assert "--strength" in help_text
    assert "--tokens" in help_text
    out = tmp_path / "out"
    options = ["--strength", "1", "--strength", "3", "--format", "json", "--out", str(out)]
    answer = json.loads(headscope(installed, "repaint", "tiny", *options))
    (unchanged, changed) = answer["tables"]["changes"]
    assert unchanged["change"] < 1e-4 < changed["change"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Repainted attention" in page
    assert answer["headlines"][0] in page


def test_the_experiment_is_a_function_with_its_settings(installed: Path) -> None:
    code = """
import inspect, sys, headscope as hs

function = hs.repaint
print("repaint" in dir(hs), list(inspect.signature(function).parameters)[:4], "torch" in sys.modules)
print("Factors on W_Q." in inspect.getdoc(function))
print(hs.repaint("tiny", strengths=[1, 4], tokens=8)["repaint"].table["strength"].to_list())
"""
    assert python(installed, code).splitlines() == [
        "True ['what', 'strengths', 'tokens', 'seed'] False",
        "True",
        "[1.0, 4.0]",
    ]
