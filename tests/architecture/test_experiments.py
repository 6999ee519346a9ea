"""Every experiment is a folder with the files of its role, and its settings are its command."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from headscope.cli.command_lookup import command_at
from headscope.experiments import ORDER, command_of, experiment_members, experiment_named
from headscope.experiments.experiment import Experiment
from tests.architecture.test_members import LIGHT, imports_of

ROOT = Path(__file__).parents[2] / "src" / "headscope" / "experiments"
EXPERIMENTS = sorted(path.parent.name for path in ROOT.glob("*/experiment.py"))
# What settings of several experiments share, and loads as little as they do.
SHARED_SETTINGS = {"headscope.experiments.command", "headscope.experiments.training_clock"}
ROLES = ("__init__.py", "about.md", "settings.py", "experiment.py", "tables.py", "figures.py", "sentences.py")


def test_the_scan_finds_every_folder() -> None:
    assert set(ORDER) <= set(EXPERIMENTS) <= set(experiment_members())


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("role", ROLES)
def test_every_experiment_has_its_role_files(name: str, role: str) -> None:
    assert (ROOT / name / role).is_file(), f"experiments/{name}/ lacks {role} (CONTRIBUTING.md, Add an experiment)"


def test_nothing_about_an_experiment_lies_elsewhere() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(EXPERIMENTS), f"folders without an experiment.py: {sorted(folders - set(EXPERIMENTS))}"
    assert {path.name for path in ROOT.glob("*.py")} == {
        "__init__.py",
        "command.py",
        "experiment.py",
        "function.py",
        "text_sample.py",
        "training_clock.py",
    }


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings_import_no_torch(name: str) -> None:
    heavy = imports_of(ROOT / name / "settings.py") - LIGHT - SHARED_SETTINGS
    assert not heavy, (
        f"experiments/{name}/settings.py may not import {sorted(heavy)}: help reads it and must be instant"
    )
    assert not imports_of(ROOT / name / "__init__.py"), (
        f"experiments/{name}/__init__.py holds a docstring and no import"
    )


@pytest.mark.parametrize("module", sorted(SHARED_SETTINGS))
def test_what_settings_share_imports_no_torch(module: str) -> None:
    heavy = imports_of(ROOT / f"{module.rpartition('.')[2]}.py") - LIGHT
    assert not heavy, f"{module} may not import {sorted(heavy)}: help reads it and must be instant"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings_are_a_frozen_dataclass_with_help(name: str) -> None:
    settings = experiment_members()[name].settings
    assert settings.__dataclass_params__.frozen
    assert getattr(settings(), "seed", None) == 0, f"Params of {name} has a field `seed` with the default 0"
    for field in dataclasses.fields(settings):
        assert field.metadata.get("help"), f"the setting {field.name} of {name} has no help in its metadata"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_experiment_is_bound_under_its_name(name: str) -> None:
    experiment, member = experiment_named(name), experiment_members()[name]
    assert isinstance(experiment, Experiment)
    assert experiment.name == name
    assert experiment.command == command_of(member).path
    assert experiment.params is member.settings
    assert experiment.about == member.about


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_option_is_in_the_command(name: str) -> None:
    member = experiment_members()[name]
    command, path, _ = command_at(command_of(member).path)
    assert path == command_of(member).path
    options = {option for parameter in command.params for option in parameter.opts}
    for field in dataclasses.fields(member.settings):
        option = field.metadata.get("option", field.name).replace("_", "-")
        assert not option or (option if field.metadata.get("argument") else f"--{option}") in options


def test_no_module_of_an_experiment_holds_prose() -> None:
    for path in ROOT.rglob("*.py"):
        assert "About(" not in path.read_text(encoding="utf-8"), f"{path}: prose belongs to about.md"


@pytest.mark.parametrize(
    "words", [["why", "--help"], ["intervene", "--help"], ["study", "fewshot", "--help"], ["study", "--help"]]
)
def test_help_loads_no_torch(words: list[str]) -> None:
    code = (
        "import sys\nfrom headscope.cli import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\n"
        "sys.exit('torch' in sys.modules or 'polars' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
