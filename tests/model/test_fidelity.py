"""Our maps against transformers' own eager ones, on many families, padded and not."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, FlaubertConfig, XLNetConfig

from headscope.core import Site
from headscope.errors import CaptureError, CheckpointError
from headscope.model.model import Model, open_model
from headscope.model.transformers.attention_hook import implementation
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs
from tests.model.families import DISPATCHING, OUTSIDE, Family
from tests.model.opened_families import opened
from tests.tolerances import MAP_AGREEMENT, SAME_FUNCTION


def by_name(family: Family) -> str:
    return family.name


def padded_inputs(hf: Any, seed: int = 3) -> dict[str, Tensor]:
    """Two sequences, the second with two tokens of padding on the right."""
    inputs = probe_inputs(hf, batch=2, seed=seed)
    if "input_ids" in inputs:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][1, -2:] = 0
    return inputs


def eager_maps(model: Model, inputs: dict[str, Tensor]) -> dict[Site, Tensor]:
    """What transformers itself returns as attentions, by our sites."""
    with torch.no_grad(), implementation(model.hf, "eager"):
        output = model.hf(**inputs, **forward_options(model.hf), output_attentions=True)
    if not model.hf.config.is_encoder_decoder:
        return dict(zip(model.sites, output.attentions, strict=True))
    wanted = {
        ("enc", "self"): output.encoder_attentions,
        ("dec", "self"): output.decoder_attentions,
        ("dec", "cross"): output.cross_attentions,
    }
    maps: dict[Site, Tensor] = {}
    for (stack, kind), attentions in wanted.items():
        sites = [site for site in model.sites if (site.stack, site.kind) == (stack, kind)]
        maps.update(zip(sites, attentions, strict=True))
    return maps


def worst_error(model: Model, inputs: dict[str, Tensor]) -> float:
    with model.session() as session:
        captured = session.capture("pattern")
        with torch.no_grad():
            model.hf(**inputs, **forward_options(model.hf))
        ours = captured.take()["pattern"]
    theirs = eager_maps(model, inputs)
    assert set(ours) == set(theirs) == set(model.sites)
    errors = []
    for site, expected in theirs.items():
        error = (ours[site] - expected).abs().amax(dim=(1, 3))
        is_padded = "attention_mask" in inputs and site.stack != "dec"
        errors.append(error[inputs["attention_mask"].bool()] if is_padded else error.flatten())
    return float(torch.cat(errors).max())


@pytest.mark.parametrize("family", DISPATCHING, ids=by_name)
def test_maps_equal_eager_attention(family: Family) -> None:
    model = opened(family)
    assert worst_error(model, probe_inputs(model.hf, batch=2, seed=2)) <= MAP_AGREEMENT
    assert worst_error(model, padded_inputs(model.hf)) <= MAP_AGREEMENT


@pytest.mark.parametrize("family", OUTSIDE, ids=by_name)
def test_maps_of_families_outside_the_interface(family: Family) -> None:
    model = opened(family)
    assert worst_error(model, padded_inputs(model.hf)) <= MAP_AGREEMENT


@pytest.mark.parametrize("family", OUTSIDE, ids=by_name)
def test_streams_of_families_outside_the_interface(family: Family) -> None:
    model = opened(family)
    inputs, options = probe_inputs(model.hf, batch=2, seed=3), forward_options(model.hf)
    with model.session() as session, torch.no_grad():
        captured = session.capture("resid", "final", "pattern", "corner", "pairs")
        model.hf(**inputs, **options)
        ours = captured.take()
    with torch.no_grad():
        output = model.hf(**inputs, **options, output_hidden_states=True)
    for site, expected in zip(model.sites, output.hidden_states[:-1], strict=True):
        assert relative_error(ours["resid"][site], expected) <= SAME_FUNCTION
        assert torch.equal(ours["corner"][site], ours["pattern"][site])  # a short text is all corner
        assert torch.equal(ours["pairs"][site], ours["pattern"][site])
    assert set(ours["final"]) == {model.sites[-1]}
    assert ours["final"][model.sites[-1]].shape == output.hidden_states[-1].shape


def test_a_family_whose_eager_attention_computes_something_else_is_refused() -> None:
    """Eager Falcon adds its ALiBi bias twice: maps of it would not be those of the model that the user runs."""
    family = next(family for family in OUTSIDE if family.name == "falcon_alibi")
    fused = replace(family, options={**family.options, "attn_implementation": "sdpa"})
    with pytest.raises(CheckpointError, match="two ways that disagree"):
        open_model(fused.build())


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(XLNetConfig(vocab_size=99, d_model=32, n_layer=2, n_head=4, d_inner=64), id="tokens come first"),
        pytest.param(FlaubertConfig(vocab_size=99, emb_dim=32, n_layers=2, n_heads=4), id="no module is a layer"),
    ],
)
def test_a_stream_that_is_not_known_is_not_shown(config: Any) -> None:
    model = open_model(AutoModel.from_config(config).eval())
    with model.session() as session:
        assert session.shown >= {"pattern", "scores"}
        assert not session.shown & {"resid", "final"}
        with pytest.raises(CaptureError, match="resid"):
            session.capture("resid")


@pytest.mark.parametrize("family", DISPATCHING, ids=by_name)
def test_a_session_that_only_looks_changes_nothing(family: Family) -> None:
    model = opened(family)
    inputs, options = padded_inputs(model.hf), forward_options(model.hf)
    with torch.no_grad():
        before = first_output(model.hf(**inputs, **options))
        with model.session():
            inside = first_output(model.hf(**inputs, **options))
        after = first_output(model.hf(**inputs, **options))
    real = real_rows(model, inputs, before)
    assert relative_error(inside[real], before[real]) <= SAME_FUNCTION
    assert torch.equal(after, before)


def first_output(output: Any) -> Tensor:
    return next(value for value in output.values() if isinstance(value, Tensor) and value.is_floating_point())


def real_rows(model: Model, inputs: dict[str, Tensor], output: Tensor) -> Tensor:
    """Rows of padding differ between implementations and mean nothing."""
    if "attention_mask" in inputs and output.shape[:2] == inputs["attention_mask"].shape:
        return inputs["attention_mask"].bool()
    return torch.ones(output.shape[:2], dtype=torch.bool)


def relative_error(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def test_the_families_cover_what_they_promise() -> None:
    covers = " ".join(family.covers for family in DISPATCHING)
    for feature in (
        "MHA",
        "MQA",
        "GQA",
        "rotary",
        "absolute",
        "relative bias",
        "sliding window",
        "softcap",
        "sinks",
        "cross",
    ):
        assert feature in covers
    assert len(DISPATCHING) >= 28
