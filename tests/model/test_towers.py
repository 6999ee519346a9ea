"""Models of two towers side by side: each has its own name, maps and weights; what cannot be opened says why."""

import re
from typing import Any

import pytest
import torch
import transformers

from headscope.errors import CaptureError, CheckpointError
from headscope.model.model import Model, open_model
from headscope.model.transformers.attention_hook import implementation
from headscope.model.transformers.probe_inputs import probe_inputs
from headscope.model.verify import verify
from tests.model.families import GROUPED, SMALL, T5, Family, _family, _spread
from tests.tolerances import MAP_AGREEMENT

TEXT = {**SMALL, "projection_dim": 16}
VISION = {
    "hidden_size": 24,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
    "projection_dim": 16,
}


def towers(prefix: str, **more: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(text_config=TEXT, vision_config=VISION, **more)
    return _spread(getattr(transformers, f"{prefix}Model")._from_config(config).eval(), 0)


@pytest.fixture(scope="module")
def clip() -> Model:
    return open_model(towers("CLIP", projection_dim=16))


def test_each_tower_has_its_name(clip: Model) -> None:
    labels = {site.label for site in clip.sites}
    assert labels == {"text.L0", "text.L1", "image.L0", "image.L1", "image.L2"}
    assert clip.spec.kind == "two towers"
    assert {clip.weight_status(site).status for site in clip.sites} == {"exact"}


def test_maps_of_both_towers_equal_eager_attention(clip: Model) -> None:
    inputs = probe_inputs(clip.hf, batch=2, seed=3)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, -2:] = 0
    with torch.no_grad():
        with clip.session() as session:
            captured, rows = session.capture("pattern"), session.stream(at="text")
            clip.hf(**inputs)
            ours = captured.take()["pattern"]
            measured, _ = rows.take()
        with implementation(clip.hf, "eager"):
            output = clip.hf(**inputs, output_attentions=True)
    theirs = {
        **{f"text.L{i}": each for i, each in enumerate(output.text_model_output.attentions)},
        **{f"image.L{i}": each for i, each in enumerate(output.vision_model_output.attentions)},
    }
    real = inputs["attention_mask"].bool()
    for site, got in ours.items():
        error = (got - theirs[site.label]).abs().amax(dim=(1, 3))
        assert float((error[real] if site.stack == "text" else error).max()) <= MAP_AGREEMENT
    # The padding of the text is the text tower's alone.
    assert all(bool(rows.entropy_nats[1, :, -2:].isnan().all()) for rows in measured.values())


def test_a_model_of_two_towers_is_verified_on_texts_and_images(clip: Model) -> None:
    assert not clip.reads_text
    checks = {check.check: check for check in verify(clip)}
    assert all(check.ok for check in checks.values())
    assert checks["maps = transformers' eager attentions"].error is not None


def test_an_encoder_that_is_not_seen_is_said_so() -> None:
    options = {**T5, "local_radius": 3, "encoder_attention_type": "local"}
    model = open_model(_family("longt5", "LongT5", options, "", head="ForConditionalGeneration").build())
    assert {site.stack for site in model.sites} == {"dec"}
    assert any("only the decoder is shown" in note for note in model.spec.notes)


REFUSED = {
    "differential": (
        _family("diffllama", "DiffLlama", GROUPED, ""),
        "attends twice with the same queries and keys",
    ),
    "a-box-for-each-word": (_family("bros", "Bros", SMALL, "", head="Model"), "specify bbox"),
    "characters": (_family("canine", "Canine", {"num_hidden_layers": 1}, "", head="Model"), "names no vocabulary"),
    "no-attention": (
        _family("mamba", "Mamba", {"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 1}, ""),
        "takes no softmax at all",
    ),
}


@pytest.mark.parametrize(("family", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_opened_says_why(family: Family, why: str) -> None:
    with pytest.raises((CaptureError, CheckpointError), match=re.escape(why)) as caught:
        open_model(family.build())
    if family.name == "bros":
        assert "bbox" in caught.value.hint
