"""A lens of another package is found through its entry point: pip installs the package, the command line uses it."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "packages" / "colour_lens"


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


def headscope(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": places}
    command = [sys.executable, "-m", "headscope", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def test_it_is_listed_and_has_help(installed: Path) -> None:
    listed = json.loads(headscope(installed, "lenses", "--format", "json").stdout)
    assert listed[-1]["lens"] == "colour"
    assert "token itself" in listed[-1]["question"]
    assert "--shade" in headscope(installed, "lens", "colour", "--help").stdout


def test_it_measures_a_model(installed: Path) -> None:
    options = ["--shade", "2", "--first-tokens", "60", "--window", "30", "--format", "json"]
    answer = json.loads(headscope(installed, "lens", "colour", "tiny", *options).stdout)
    rows = answer["tables"]["heads"] if "tables" in answer else answer
    assert len(rows) == len({(row["layer"], row["head"]) for row in rows}) > 1
    assert all(0 < row["value"] <= 2 for row in rows)
