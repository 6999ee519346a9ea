"""Multimodal models say which towers no measurement reaches: in their notes, in `look` and in the report."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from headscope.core import Run
from headscope.model.look import look
from headscope.model.model import open_model
from headscope.model.transformers.library_messages import quiet
from headscope.report.model_card import card
from tests.model.families import GROUPED, SMALL
from tests.model.test_towers import TEXT, VISION

LLAMA = {**GROUPED, "model_type": "llama"}
ROTARY = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
SOUND = {"d_model": 24, "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "num_mel_bins": 16}

# Configuration, model, options, and the tower that must be named.
MULTIMODAL: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "llava": (
        "LlavaConfig",
        "LlavaForConditionalGeneration",
        {
            "text_config": LLAMA,
            "vision_config": {**VISION, "model_type": "clip_vision_model"},
            "image_token_index": 98,
        },
        "model.vision_tower (CLIPVisionModel)",
    ),
    "gemma3": (
        "Gemma3Config",
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {**GROUPED, "head_dim": 8},
            "vision_config": {**VISION, "model_type": "siglip_vision_model"},
            "mm_tokens_per_image": 4,
            "image_token_index": 98,
        },
        "model.vision_tower (SiglipVisionModel)",
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLConfig",
        "Qwen2_5_VLForConditionalGeneration",
        {
            "text_config": {**GROUPED, "rope_parameters": ROTARY},
            "vision_config": {"depth": 1, "hidden_size": 32, "num_heads": 4, "out_hidden_size": 32, "patch_size": 4},
            "image_token_id": 98,
        },
        "model.visual (Qwen2_5_VisionTransformerPretrainedModel)",
    ),
    "qwen2_audio": (
        "Qwen2AudioConfig",
        "Qwen2AudioForConditionalGeneration",
        {"text_config": {**GROUPED, "model_type": "qwen2"}, "audio_config": SOUND, "audio_token_index": 98},
        "model.audio_tower (Qwen2AudioEncoder)",
    ),
}


def built(config: str, model: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    with quiet():
        return getattr(transformers, model)._from_config(getattr(transformers, config)(**options)).eval()


@pytest.mark.parametrize("name", MULTIMODAL)
def test_a_tower_that_is_not_run_is_named(name: str, tmp_path: Path) -> None:
    config, cls, options, tower = MULTIMODAL[name]
    hf = built(config, cls, options)
    expected = f"not measured, because headscope runs this model on tokens alone: {tower}"
    model = open_model(hf)
    assert model.spec.notes == (expected,)
    with quiet():
        hf.save_pretrained(tmp_path)
    card_of_files = look(tmp_path)
    assert card_of_files.spec.notes == (expected,)
    assert f"note       {expected}" in str(card_of_files)
    assert expected in card(Run(model.spec, model.sites, {}))


def test_a_tower_that_is_run_and_not_seen_is_named_for_that() -> None:
    """BLIP runs on an image and a text; the maps that it returns are those of the image."""
    options = {"text_config": {**SMALL, "encoder_hidden_size": 24, "sep_token_id": 2}, "vision_config": VISION}
    (note,) = open_model(built("BlipConfig", "BlipForConditionalGeneration", options)).spec.notes
    assert note == (
        "not measured, because headscope sees no map of it in a forward of this model: text_decoder "
        "(BlipTextLMHeadModel)"
    )


def test_towers_that_are_run_are_not_named() -> None:
    with_both = built("CLIPConfig", "CLIPModel", {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16})
    assert open_model(with_both).spec.notes == ()
    assert open_model(built("LlamaConfig", "LlamaForCausalLM", GROUPED)).spec.notes == ()


def test_look_prints_the_note_of_an_encoder_that_is_not_seen(tmp_path: Path) -> None:
    sizes = {"d_model": 32, "d_ff": 48, "num_layers": 1, "num_heads": 4, "d_kv": 8, "vocab_size": 99}
    hf = built("LongT5Config", "LongT5ForConditionalGeneration", {**sizes, "decoder_start_token_id": 0})
    with quiet():
        hf.save_pretrained(tmp_path)
    assert "only the decoder is shown" in str(look(tmp_path))
