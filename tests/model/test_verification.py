"""Verify: it passes on every kind of model, and fails on a model or a stream that is wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from headscope.attention.statistics import RowStatistics
from headscope.errors import CaptureError, UsageError
from headscope.model.language import generate_tokens
from headscope.model.model import Model, open_model
from headscope.model.rounding import AGREEMENT
from headscope.model.session.recorder import Stream
from headscope.model.tracing import attention_sites
from headscope.model.verify import Check, verify
from tests.model.families import BART, DBRX, DISPATCHING, OUTSIDE, SMALL, T5, Family, _family
from tests.model.test_fidelity import by_name
from tests.model.test_model_state import changed, state_of

NAMED = {family.name: family for family in (*DISPATCHING, *OUTSIDE)}
START = {key: value for key, value in T5.items() if key != "decoder_start_token_id"}
WAV2VEC = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "conv_dim": [16, 16],
    "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
# A window of 9 keys in a text of 64: the standard deviation of the distance is summed relative to all keys.
SLIDING = {**SMALL, "local_attention": 16, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2}
BLOCKS = {**BART, "block_size": 16, "num_global_tokens": 4}
FRAMES = {
    **{key: value for key, value in BART.items() if key != "max_position_embeddings"},
    "input_feat_per_channel": 12, "conv_channels": 16, "max_source_positions": 40, "max_target_positions": 32,
}  # fmt: skip
KINDS = (
    NAMED["llama_gqa"],
    NAMED["gpt_oss"],
    NAMED["bert"],
    NAMED["bloom"],
    NAMED["big_bird"],
    NAMED["olmo_clipped"],
    DBRX,
    NAMED["vit"],
    NAMED["whisper"],
    _family("t5_without_start", "T5", START, "", head="ForConditionalGeneration"),
    _family("wav2vec2", "Wav2Vec2", WAV2VEC, "raw sound", head="Model"),
    _family("speech_to_text", "Speech2Text", FRAMES, "frames of features", head="ForConditionalGeneration"),
    _family("pegasus_x", "PegasusX", BLOCKS, "maps by blocks, in a dictionary", head="ForConditionalGeneration"),
)


def failed_checks(checks: list[Check]) -> list[Check]:
    return [check for check in checks if not check.ok]


def sharpened(family: Family, factor: float) -> Model:
    """With weights so large that a row pays nearly all to one key, and float32 scores are rounded by 1e-4."""
    hf = family.build()
    with torch.no_grad():
        for weight in hf.parameters():
            if weight.ndim >= 2:
                weight.mul_(factor)
    return open_model(hf)


@pytest.mark.parametrize("family", KINDS, ids=by_name)
def test_every_kind_of_model_is_verified(family: Family) -> None:
    checks = verify(open_model(family.build()))
    assert failed_checks(checks) == []
    assert sum(check.error is not None for check in checks) >= 2


@pytest.mark.parametrize("name", ["mt5", "modernbert"])
def test_sharp_scores_are_no_disagreement(name: str) -> None:
    assert failed_checks(verify(sharpened(NAMED[name], 4.0))) == []


def test_scores_so_sharp_that_float32_disagrees_are_judged_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of some hundreds: rounding grows beyond the tolerance of opening, and a float64 copy agrees."""
    errors: dict[torch.dtype, float] = {}
    measure = attention_sites._disagreement

    def measured(model: Any, tolerance: float) -> float:
        errors[model.dtype] = measure(model, tolerance)
        return errors[model.dtype]

    monkeypatch.setattr(attention_sites, "_disagreement", measured)
    torch.manual_seed(0)
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 3, "num_heads": 4}
    hf = T5ForConditionalGeneration(T5Config(vocab_size=1536, decoder_start_token_id=0, **sizes))
    with torch.no_grad():
        for name, weight in hf.named_parameters():
            if ".q." in name or ".k." in name:
                weight.mul_(6)
    assert len(open_model(hf.eval()).sites) == 9
    assert errors[torch.float32] > AGREEMENT > 100 * errors[torch.float64]


def test_sharp_scores_in_a_window_are_no_disagreement() -> None:
    sliding = _family("modernbert_decoder", "ModernBertDecoder", {**SLIDING, "max_position_embeddings": 128}, "")
    assert failed_checks(verify(sharpened(sliding, 1.9))) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_models_are_verified(dtype: str) -> None:
    model = open_model("tiny", dtype=dtype) if dtype == "bfloat16" else NAMED["bert"].build().to(torch.float16)
    assert failed_checks(verify(open_model(model))) == []


@pytest.mark.parametrize(("name", "factor"), [("modernbert", 1.0), ("modernbert", 4.0)], ids=["plain", "sharp"])
def test_a_stream_that_is_wrong_by_one_per_cent_is_seen(
    name: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Stream.take

    def perturbed(self: Stream) -> tuple[dict[Any, RowStatistics], dict[Any, RowStatistics]]:
        measured, uniform = take(self)
        return {site: replace(rows, entropy_nats=1.01 * rows.entropy_nats) for site, rows in measured.items()}, uniform

    monkeypatch.setattr(Stream, "take", perturbed)
    assert [check.check for check in failed_checks(verify(sharpened(NAMED[name], factor)))] == [
        "streaming statistics = float64 of the same queries and keys"
    ]


def test_a_weight_that_was_changed_in_memory_is_seen() -> None:
    """The checkpoint on disk is loaded again; the opened model is another one by then."""
    model = open_model("tiny")
    with torch.no_grad():
        model.hf.model.layers[1].self_attn.q_proj.weight.mul_(1.01)
    names = [check.check for check in failed_checks(verify(model))]
    assert "weights and state = a freshly loaded model's" in names
    assert "maps = transformers' eager attentions" in names
    state = verify(model)[0]
    assert state.error == 1.0
    assert "model.layers.1.self_attn.q_proj.weight" in state.note
    assert "loaded again by transformers itself" in state.note


def test_a_bird_that_has_left_its_sparse_attention_is_seen(tmp_path: Path) -> None:
    """Which a comparison of the changed model with itself does not show."""
    NAMED["big_bird"].build().save_pretrained(tmp_path)
    model = open_model(tmp_path)
    assert failed_checks(verify(model)) == []
    model.hf.bert.set_attention_type("original_full")
    state = failed_checks(verify(model))[0]
    assert state.check == "weights and state = a freshly loaded model's"
    assert "bert.attention_type" in state.note


@pytest.mark.parametrize("kind", ["folder", "random"])
def test_a_checkpoint_is_loaded_again(kind: str, tmp_path: Path) -> None:
    NAMED["bert"].build().save_pretrained(tmp_path)
    model = open_model(tmp_path if kind == "folder" else f"random:{tmp_path}")
    checks = verify(model)
    assert failed_checks(checks) == []
    assert (
        checks[0].note
        == {
            "folder": "loaded again by transformers itself",
            "random": "drawn again from the same configuration and seed",
        }[kind]
    )


def test_a_model_that_cannot_be_run_on_one_text_says_so() -> None:
    """MusicGen reads as many rows of tokens as it has codebooks: two at a time are one input, one is none."""
    options = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "ffn_dim": 48}
    music = _family("musicgen", "Musicgen", {**options, "num_codebooks": 2}, "")
    model = open_model(replace(music, config="MusicgenDecoderConfig").build())
    with pytest.raises(CaptureError, match="cannot be run on the inputs that headscope makes to verify it"):
        verify(model)


def test_generation_without_a_first_token_says_so() -> None:
    model = open_model(next(family for family in KINDS if family.name == "t5_without_start").build())
    with pytest.raises(UsageError, match="names no first token for its decoder"):
        generate_tokens(model.hf, torch.arange(3, 9), max_new_tokens=2, temperature=0.0, cache=True, seed=0)


def test_verify_leaves_the_model_alone() -> None:
    hf = NAMED["big_bird"].build()
    model = open_model(hf)
    before = state_of(hf)
    verify(model)
    assert changed(before, state_of(hf)) == []
