"""What the table does not say about damaged checkpoints: headers alone, permissions, files that change, names."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from headscope.errors import CheckpointError, HeadscopeError, UsageError
from headscope.model.formats import completeness
from headscope.model.formats.config_json import read_config
from headscope.model.formats.safetensors_folder import open_checkpoint
from headscope.model.load import load
from headscope.model.sources.names import resolve
from headscope.model.transformers import classes
from tests.hostile import broken
from tests.hostile.broken import WEIGHTS
from tests.hostile.checkpoint_cases import CONFIG, FOLDERS, Case


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    broken.save_llama(folder)
    return folder


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    broken.save_llama(folder, shard_size="20KB")
    return folder


FROM_HEADERS = ("fewer-layers-than-weights", "vocabulary-too-large", "heads-of-another-model", "shape-wrong",
                "bias-without-a-place", "norm-without-a-place", "stored-as-codes")  # fmt: skip


@pytest.mark.parametrize(
    "case", [case for cases in FOLDERS.values() for case in cases if case.id in FROM_HEADERS], ids=lambda case: case.id
)
def test_what_headers_alone_tell(case: Case, sound: Path, tmp_path: Path) -> None:
    """Weights that are read from the file, without a model, are refused for the same reasons."""
    folder = Path(shutil.copytree(sound, tmp_path / "model"))
    case.break_it(folder)
    with pytest.raises(CheckpointError) as caught:
        check_headers(folder)
    assert all(part in caught.value.message for part in case.says)


def check_headers(folder: Path) -> None:
    config = classes.parsed_config(read_config(folder), CONFIG)
    empty = classes.empty_model(classes.model_class(config, CONFIG), config, CONFIG)
    completeness.check_file(empty, open_checkpoint(folder).tensors, str(folder))


def test_sound_headers_pass(sound: Path, sharded: Path) -> None:
    check_headers(sound)
    check_headers(sharded)


def test_the_unbroken_folders_open(sound: Path, sharded: Path) -> None:
    """Otherwise every case above could be red for one and the same wrong reason."""
    for folder in (sound, sharded):
        assert sum(weight.numel() for weight in load(resolve(folder)).model.parameters()) > 0


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_permission_denied(sound: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    genuine = Path.open

    def forbid(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == name:  # tests may run as root, for whom nothing is forbidden
            raise PermissionError(13, "Permission denied")
        return genuine(path, *args, **options)

    monkeypatch.setattr(Path, "open", forbid)
    with pytest.raises(CheckpointError, match=f"cannot read .*{name}: Permission denied") as caught:
        load(resolve(sound))
    assert "who may read" in caught.value.hint


def test_a_file_that_shrinks_while_it_is_read(sound: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "model"))
    checkpoint = open_checkpoint(folder)
    os.truncate(folder / WEIGHTS, 5000)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        checkpoint.read("model.norm.weight")


def test_hints_for_other_kinds_of_folders(tmp_path: Path) -> None:
    for name, hint in [
        ("adapter_config.json", "BASE+"),
        ("model_index.json", "one of them"),
        ("x.gguf", "x.gguf"),
    ]:
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("{}")
        with pytest.raises(CheckpointError) as caught:
            load(resolve(folder))
        assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"layers": 3}, "lacks 9 tensors"),
        ({"width": 10**7}, "numbers, but LlamaForCausalLM needs"),
        ({"width": 40}, "has shape"),
    ],
    ids=["layers-absurd", "layers-too-many", "width-absurd", "width-wrong"],
)
def test_gguf_that_lies_about_itself(
    lie: dict[str, int], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    broken.save_gguf(tmp_path / "m.gguf", broken.save_llama(tmp_path / "hf"), **lie)
    with pytest.raises(CheckpointError, match=message):
        load(resolve(tmp_path / "m.gguf"))


def test_gguf_of_a_family_that_cannot_be_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "unheard-of")
    writer.add_tensor("x", torch.ones(32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"m\.gguf cannot be expanded by transformers: .*unheard-of"):
        load(resolve(tmp_path / "m.gguf"))


@pytest.mark.parametrize("name", ["", "  ", "random:", "~nobody-has-this-name/x", "x" * 5000, "a\0b", "no/such/folder"])
def test_names_that_name_nothing(name: str) -> None:
    with pytest.raises(HeadscopeError) as caught:
        resolve(name)
    assert isinstance(caught.value, UsageError | CheckpointError)
    assert caught.value.hint
