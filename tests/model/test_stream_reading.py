"""Norms and rotary planes that are found in real families, by probing alone."""

import pytest
import torch

from headscope.errors import CaptureError, WeightsRefused
from headscope.model.model import open_model, open_weights
from tests.model.test_verification import KINDS


@pytest.fixture(scope="module")
def tiny():
    return open_model("tiny")


def test_norms_before_heads_are_those_of_the_model(tiny):
    reading = tiny.weight_source().stream_reading()
    for site in tiny.sites:
        norm = reading.before[site]
        assert norm is not None
        assert not norm.centred
        assert torch.allclose(norm.gain, tiny.hf.model.layers[site.layer].input_layernorm.weight, rtol=1e-4, atol=1e-5)
    assert torch.allclose(reading.final.gain, tiny.hf.model.norm.weight, rtol=1e-4, atol=1e-5)
    assert (reading.output, reading.embedding, dict(reading.not_a_sum)) == ("token", "", {})


def test_rotary_planes_turn_queries_as_the_model_does(tiny):
    weights = tiny.weight_source()
    for site in tiny.sites:
        rotary = weights.rotary(site)
        assert rotary.first.tolist() == list(range(8))
        assert rotary.second.tolist() == list(range(8, 16))
        assert torch.allclose(rotary.angle, tiny.hf.model.rotary_emb.inv_freq.double(), rtol=1e-3, atol=1e-7)


def test_the_turn_gives_the_scores_of_the_model(tiny):
    """q T kᵀ at the distance of a pair is the score before scale of the same vectors anywhere."""
    tokens = torch.arange(40, 52)[None]
    with tiny.session() as session:
        capture = session.capture("q", "k", "x")
        session.run(tokens)
        tensors = capture.take()
    site, weights = tiny.sites[1], tiny.weight_source()
    w, rotary = weights.weights(site), weights.rotary(site)
    x = tensors["x"][site][0]
    q, k = x @ w.w_q[3], x @ w.w_k[site.kv_head(3)]
    score = tensors["q"][site][0, 3, 9] @ tensors["k"][site][0, site.kv_head(3), 4]
    assert torch.allclose((q[9] * w.gain_q[3]) @ rotary.turn(5).float() @ (k[4] * w.gain_k[0]), score, rtol=1e-3)


def test_a_file_has_no_norms_to_look_at():
    weights = open_weights("tiny")
    with pytest.raises(WeightsRefused, match="come from a file"):
        weights.stream_reading()
    with pytest.raises(WeightsRefused, match="come from a file"):
        weights.rotary(weights.sites[0])


@pytest.mark.parametrize("name", ["wav2vec2", "vit"])
def test_a_model_that_reads_no_tokens_has_norms_and_no_table(name):
    """The method that gives the table raises for sound, and gives no table of tokens for images."""
    model = open_model(next(family for family in KINDS if family.name == name).build())
    reading = model.weight_source().stream_reading()
    assert {*reading.before, *reading.unclear} == set(model.sites)
    with pytest.raises(CaptureError, match="no table of token vectors is read"), model.session() as session:
        session.capture("embed", at=model.sites[0].label)
