"""config.json: what transformers writes as an object is read as the number that it stands for."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedConfig

from headscope.errors import CaptureError, CheckpointError
from headscope.model.formats.config_json import read_config
from headscope.model.model import open_model
from headscope.model.transformers.library_messages import quiet

SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
STATE = {"n_groups": 1, "chunk_size": 8}

# The families whose time_step_limit ends at infinity, and how many of their two layers attend.
FAMILIES: dict[str, tuple[dict[str, Any], int]] = {
    "Bamba": ({**SMALL, **MAMBA, "attn_layer_indices": [1]}, 1),
    "FalconH1": ({**SMALL, **MAMBA, "mamba_d_ssm": 64}, 2),
    "GraniteMoeHybrid": ({**SMALL, **MAMBA, "layer_types": ["mamba", "attention"], "num_local_experts": 2}, 1),
    "NemotronH": (
        {**SMALL, **STATE, "layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 16},
        1,
    ),
    "Mamba2": (
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16, **STATE},
        0,
    ),
}


def saved_family(name: str, folder: Path) -> Any:
    options, _ = FAMILIES[name]
    torch.manual_seed(0)
    with quiet():
        config = getattr(transformers, f"{name}Config")(**options)
        model = getattr(transformers, f"{name}ForCausalLM")(config).eval().requires_grad_(False)
        model.save_pretrained(folder)
    assert '"__float__": "Infinity"' in (folder / "config.json").read_text()
    return model


@pytest.mark.parametrize("name", [name for name, (_, attending) in FAMILIES.items() if attending])
def test_a_family_with_infinity_in_its_configuration_opens(name: str, tmp_path: Path) -> None:
    saved = saved_family(name, tmp_path)
    model = open_model(tmp_path)
    tokens = torch.arange(3, 20)[None]
    assert len(model.sites) == FAMILIES[name][1]
    with quiet(), torch.no_grad():
        assert torch.equal(model.hf(tokens).logits, saved(tokens).logits)


def test_one_without_attention_is_refused_for_that(tmp_path: Path) -> None:
    saved_family("Mamba2", tmp_path)
    with pytest.raises(CaptureError, match="it seems to have no attention"):
        open_model(tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        {"__float__": "Infinity"},
        [0.0, {"__float__": "-Infinity"}],
        {"deep": [{"__float__": "Infinity"}]},
        {"__float__": "1.5"},
        {"__float__": "Infinity", "other": 1},
        {"__float__": {"__float__": "Infinity"}},
        {"__float__": 3},
    ],
    ids=str,
)
def test_tags_are_read_as_transformers_reads_them(value: Any, tmp_path: Path) -> None:
    content = {"model_type": "llama", "value": value}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert read_config(tmp_path) == PreTrainedConfig._dict_from_json_file(tmp_path / "config.json")


@pytest.mark.parametrize("text", ["NaN", '{"__float__": "NaN"}'])
def test_nan_is_never_meant(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "value": ' + text + "}")
    with pytest.raises(CheckpointError, match="a value is NaN"):
        read_config(tmp_path)


def test_plain_infinity_is_read_as_before(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "value": Infinity}')
    assert read_config(tmp_path)["value"] == math.inf
