"""Folders that are odd but sound are opened, and looking at a damaged one says where and allocates nothing."""

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headscope.errors import CheckpointError, HeadscopeError
from headscope.model.look import look
from headscope.model.model import open_model, open_weights
from headscope.model.sources.names import licence_in
from tests.hostile import broken
from tests.hostile.broken import change_json, change_tensors
from tests.hostile.checkpoint_cases import CONFIG, config, pipe


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    broken.save_llama(folder)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy to break, under a name with spaces and letters beyond ASCII."""
    return Path(shutil.copytree(sound, tmp_path / "ein Mödell, kopiert"))


def test_a_pipe_for_a_model_card_is_not_waited_for(folder: Path) -> None:
    pipe("README.md")(folder)
    assert licence_in(folder) == ""


def test_a_model_card_of_one_endless_line_is_read_in_part(folder: Path) -> None:
    (folder / "README.md").write_text("---\nlicense: mit\n---\n" + "x" * 1_000_000)
    assert licence_in(folder) == "mit"


def alike_twice(folder: Path) -> None:
    file = folder / CONFIG
    file.write_text(file.read_text().replace('"vocab_size": 64', '"vocab_size": 64, "vocab_size": 64'))


SOUND: dict[str, Callable[[Path], Any]] = {
    "twice-the-same": alike_twice,
    "infinity-as-a-limit": config(time_step_limit=[0.0, float("inf")]),
    "base-class-named": config(architectures=["PreTrainedModel"]),
    "quantised-by-nothing": config(quantization_config={}),
    "code-it-does-not-need": config(auto_map={"AutoModel": "evil--modeling.Model"}, trust_remote_code=True),
    "a-link-to-itself": lambda folder: (folder / "self").symlink_to(folder),
    "an-empty-tensor": lambda folder: change_tensors(folder, lambda t: t.update(extra=torch.zeros(0, 5))),
    "generation-settings-that-clash": lambda folder: (folder / "generation_config.json").write_text(
        '{"temperature": -1, "pad_token_id": -7}'
    ),
}


@pytest.mark.parametrize("change", SOUND.values(), ids=SOUND.keys())
def test_odd_but_sound(change: Callable[[Path], Any], folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change(folder)
    model = open_model(folder)
    assert model.spec.architecture == "LlamaForCausalLM"
    assert [site.label for site in model.sites] == ["L0", "L1"]
    assert capfd.readouterr().err == ""


def test_a_model_whose_numbers_are_not_finite(folder: Path) -> None:
    config(rope_parameters={"rope_theta": 0, "rope_type": "default"})(folder)
    with pytest.raises(CheckpointError, match="not finite, in transformers too") as caught:
        open_model(folder)
    assert "rotary base" in caught.value.hint


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "width": ({"intermediate_size": 10**12}, "would have 1000000000000 outputs"),
    "key-heads": ({"num_key_value_heads": 10**9}, "would have 8000000000 outputs"),
    "vocabulary": ({"vocab_size": 10**9}, "would have 1000000000 outputs"),
    "negative": ({"hidden_size": -32}, "negative dimension -32"),
    "no-vocabulary": ({"vocab_size": 0}, "names no vocabulary"),
    "no-rotation": ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "zzz"}}, "KeyError 'zzz'"),
    "groups": ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
}


@pytest.mark.parametrize(("changes", "says"), DAMAGED.values(), ids=DAMAGED.keys())
def test_looking_at_damage(changes: dict[str, Any], says: str, folder: Path) -> None:
    change_json(folder / CONFIG, lambda content: content.update(changes))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError) as caught:
        look(folder)
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes
    with pytest.raises(HeadscopeError):
        open_weights(folder)


@pytest.mark.parametrize("length", [0, 3, 8, 24, 400])
def test_looking_at_a_cut_gguf_says_so(length: int, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    broken.save_gguf(file, broken.save_llama(tmp_path / "whole"))
    os.truncate(file, length)
    with pytest.raises(CheckpointError, match="is not a whole GGUF file") as caught:
        look(file)
    assert "again" in caught.value.hint


def test_a_look_tells_how_the_numbers_are_stored(folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({name: value.bfloat16() for name, value in t.items()}))
    assert "stored as BF16" in str(look(folder))
