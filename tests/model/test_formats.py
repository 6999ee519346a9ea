"""Checkpoint formats: one file adds one, and nothing else knows it by name."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import headscope as hs
from headscope.cli import main
from headscope.errors import CheckpointError, UsageError
from headscope.model import formats as package
from headscope.model.formats.format import Format, described_forms, format_at, formats, forms, recognised_files
from headscope.model.formats.safetensors_format import SafetensorsFolder
from headscope.model.model import open_weights
from headscope.model.sources.names import resolve
from headscope.model.verify import verify
from tests.hostile.broken import save_llama

PROJECT = Path(__file__).parents[2]
PLACE = PROJECT / "tests" / "packages" / "npz_format"


@pytest.fixture
def npz(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Format]]:
    """The format `npz`, as if its one file lay in the folder of formats."""
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(PLACE)])
    yield formats()["npz"]
    sys.modules.pop("headscope.model.formats.npz_format")


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path]:
    """One model in two formats: a folder with safetensors and a folder with weights.npz."""
    plain, other = tmp_path / "plain", tmp_path / "other"
    model = save_llama(plain)
    other.mkdir()
    shutil.copy(plain / "config.json", other)
    np.savez(other / "weights.npz", **{name: value.numpy() for name, value in model.state_dict().items()})
    return plain, other


@pytest.mark.parametrize("name", formats())
def test_a_format_says_what_it_is(name: str) -> None:
    cls = formats()[name]
    assert cls.name == name
    assert cls.form.startswith("a")
    assert cls.handling
    assert not cls.recognises(PROJECT / "nowhere")


def test_the_order_of_help() -> None:
    assert list(formats())[:2] == ["safetensors", "gguf"]
    assert forms()[:2] == ["a folder", "a .gguf file"]
    assert described_forms()[:2] == ["a folder with config.json and safetensors", "a .gguf file"]


def test_a_path_has_the_format_of_its_files(tmp_path: Path, npz: type[Format], saved: tuple[Path, Path]) -> None:
    plain, other = saved
    assert format_at(plain) == SafetensorsFolder(plain)
    assert format_at(other) == npz(other)
    assert format_at(tmp_path) == SafetensorsFolder(tmp_path)  # which says what is missing
    assert format_at(tmp_path / "nowhere") is None
    (tmp_path / "x.gguf").touch()
    (tmp_path / "x.txt").touch()
    assert recognised_files(tmp_path) == [tmp_path / "x.gguf"]


@pytest.mark.usefixtures("npz")
def test_a_new_format_opens_as_the_same_model(saved: tuple[Path, Path]) -> None:
    plain, other = (hs.open(folder) for folder in saved)
    expected, state = plain.hf.state_dict(), other.hf.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert other.spec.sha256 == hashlib.sha256((saved[1] / "weights.npz").read_bytes()).hexdigest()
    assert all(check.ok for check in verify(other))


@pytest.mark.usefixtures("npz")
def test_a_new_format_is_read_without_a_model(saved: tuple[Path, Path]) -> None:
    plain, other = (open_weights(folder) for folder in saved)
    assert other.method == "read from the npz files of the checkpoint"
    for site in plain.sites:
        assert torch.equal(plain.weights(site).w_q, other.weights(site).w_q)
    looks = [hs.look(folder) for folder in saved]
    assert looks[0].spec.dtype == looks[1].spec.dtype == "F32"
    assert looks[0].sites == looks[1].sites


@pytest.mark.usefixtures("npz")
def test_a_new_format_is_measured(saved: tuple[Path, Path]) -> None:
    tables = [hs.measure(folder, lenses=["spectra"]).findings["spectra"].tables for folder in saved]
    assert tables[0].keys() == tables[1].keys()
    assert all(tables[0][name].equals(tables[1][name]) for name in tables[0])


@pytest.mark.usefixtures("npz")
def test_the_commands_know_a_new_format(saved: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for command, words in [(["look", str(saved[1])], "LlamaForCausalLM"), (["models"], "an npz folder with config")]:
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0
        printed = capsys.readouterr()
        assert words in printed.out + printed.err


def test_help_names_a_new_format() -> None:
    program = (
        f"from headscope.model import formats; formats.__path__.append({str(PLACE)!r})\n"
        "from headscope.cli import main; main(['look', '--help'])"
    )
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=wide)
    assert "an npz folder" in done.stdout


def make_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", PROJECT / "scripts" / "make_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("npz")
def test_the_documentation_has_a_row_for_a_new_format() -> None:
    row = "| an npz folder with config.json and weights.npz | reads its arrays one by one |\n"
    assert row in make_docs().checkpoints_page()
    assert row not in (PROJECT / "docs" / "checkpoints.md").read_text()


@pytest.mark.usefixtures("npz")
def test_an_unknown_file_brings_every_form(tmp_path: Path) -> None:
    (tmp_path / "x.txt").touch()
    with pytest.raises(UsageError, match=r"neither a folder nor a \.gguf file.* nor an npz folder"):
        resolve(tmp_path / "x.txt")


@pytest.mark.usefixtures("npz")
def test_damage_of_a_new_format_is_a_checkpoint_error(saved: tuple[Path, Path]) -> None:
    file = saved[1] / "weights.npz"
    for damaged in (b"PK", file.read_bytes()[:-8]):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"weights\.npz is no whole npz file"):
            hs.open(saved[1])


@pytest.mark.usefixtures("npz")
def test_another_type_of_numbers_is_a_checkpoint_error(saved: tuple[Path, Path]) -> None:
    np.savez(saved[1] / "weights.npz", **{"model.norm.weight": np.ones(3)})
    with pytest.raises(CheckpointError, match=r"'model\.norm\.weight' holds float64, expected float32"):
        hs.open(saved[1])


def test_a_file_that_binds_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty_format.py").write_text('"""Binds nothing."""\n')
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    with pytest.raises(UsageError, match="empty_format must bind FORMAT"):
        formats()
    sys.modules.pop("headscope.model.formats.empty_format")
