"""The networks are opened, captured, changed and verified as any other checkpoint is."""

import json

import pytest
import torch

import headscope as hs
from headscope.attention.statistics import Request
from headscope.errors import CaptureError
from headscope.model.verify import verify
from headscope.networks import DecoderConfig, TranslatorConfig
from tests.networks.small_networks import SINGLE_STACKS, SIZES, TRANSLATORS, built, inputs, logits, recurrent, tokens
from tests.tolerances import MAP_AGREEMENT, SAME_FUNCTION, STREAMED_STATISTICS

# Every head has a map, so every check of `verify` can be made.
SOFTMAX = {"window(left=2)": "enc.L0.H0-1,dec.L1.self.H3", "window(left=1, right=1)": "enc.L1.H2,dec.L0.cross.H0"}
WINDOWED = TranslatorConfig(**SIZES, encoder_layers=2, decoder_layers=2, mechanisms=SOFTMAX)
VERIFIED = {
    **TRANSLATORS,
    **SINGLE_STACKS,
    "windowed": WINDOWED,
    "bahdanau": recurrent("lstm", "bahdanau"),
    "luong": recurrent("gru", "luong_general"),
}


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("name", VERIFIED)
def test_saved_networks_open_and_verify(name, tmp_path):
    built(VERIFIED[name]).save_pretrained(tmp_path)
    model = hs.open(tmp_path)
    failed = [check for check in verify(model) if not check.ok]
    assert not failed
    planned = getattr(model.hf.config, "sites", None)
    if planned is not None:
        assert [(site.label, site.n_heads, site.n_kv_heads, site.causal) for site in model.sites] == [
            (site.label, site.n_heads, site.n_kv_heads, site.causal) for site in planned
        ]
        assert all(model.weight_status(site).status == "exact" for site in model.sites)


def test_fresh_networks_open_from_a_configuration_alone(tmp_path):
    config = DecoderConfig.llama(**SIZES, num_hidden_layers=2)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    model = hs.open(f"random:{tmp_path}")
    assert model.spec.kind == "decoder-only"
    assert model.spec.positions == "rotary"
    assert len(model.sites) == 2


def test_the_description_names_the_mechanisms():
    model = hs.open(built(WINDOWED))
    assert "built with window(left=2) in dec.L1.self.H3,enc.L0.self.H0-1" in model.spec.notes
    assert hs.open(built(TRANSLATORS["pre"])).spec.notes == ()


def test_captured_maps_of_windows_are_zero_outside():
    model = hs.open(built(WINDOWED))
    with model.session() as session:
        capture = session.capture("pattern")
        session.run(tokens(2, 9))
        maps = {site.label: tensor for site, tensor in capture.take()["pattern"].items()}
    ahead = torch.arange(9)[:, None] - torch.arange(9)
    assert not maps["enc.L0"][:, :2][..., ahead > 2].any()
    assert maps["enc.L0"][:, 2:][..., ahead > 2].all()
    assert not maps["dec.L1"][:, 3][:, ahead > 2].any()
    assert not maps["enc.L1"][:, 2][:, ahead.abs() > 1].any()
    assert not maps["dec.L0.cross"][:, 0][:, ahead.abs() > 1].any()
    for tensor in maps.values():
        assert torch.allclose(tensor.sum(-1), torch.ones(()), atol=1e-6)


def test_mechanisms_are_computed_in_plain_use():
    """A network with mechanisms gives what the same network gives when a session puts them in place, and trains so."""
    network = built(WINDOWED)
    dense = built(TranslatorConfig(**SIZES, encoder_layers=2, decoder_layers=2))
    dense.load_state_dict(network.state_dict())
    read = inputs(network)
    model = hs.open(dense)
    with model.session() as session:
        for mechanism, heads in SOFTMAX.items():
            session.replace(heads, hs.attention.mechanism_spelling.spelled(mechanism))
        swapped = logits(dense, **read)
    assert relative(logits(network, **read), swapped) < SAME_FUNCTION
    assert relative(logits(dense, **read), swapped) > 1e-2
    labels = tokens(2, 7, seed=4)
    network(input_ids=tokens(2, 9), labels=labels).loss.backward()
    gradient = network.model.encoder.layers[0].self_attention.qkv.weight.grad
    # Token 0 is seen by tokens 0 to 2 alone through the windows: the keys of later ones get gradients all the same.
    assert bool(gradient.abs().sum(dim=1).all())


def test_the_output_is_the_same_inside_a_session():
    for config in (WINDOWED, TRANSLATORS["mechanisms"], SINGLE_STACKS["windows"]):
        network = built(config)
        read = inputs(network)
        plain = logits(network, **read)
        model = hs.open(network)
        with model.session() as session:
            session.capture("z")
            assert relative(logits(network, **read), plain) < SAME_FUNCTION
        assert torch.equal(logits(network, **read), plain)


def test_padded_batches_are_the_same_inside_a_session():
    network = built(WINDOWED)
    read = inputs(network)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    plain = logits(network, attention_mask=mask, **read)
    model = hs.open(network)
    with model.session() as session:
        capture = session.capture("pattern", at="enc")
        assert relative(logits(network, attention_mask=mask, **read), plain) < SAME_FUNCTION
        for maps in capture.take()["pattern"].values():
            assert not maps[1, :, :6, 6:].any()


@pytest.mark.parametrize("cache", [True, False])
def test_generation_is_the_same_inside_a_session(cache):
    for config in (WINDOWED, SINGLE_STACKS["windows"]):
        network = built(config)
        options = {"max_new_tokens": 6, "do_sample": False, "use_cache": cache}
        mask = torch.ones(1, 9, dtype=torch.long)
        plain = network.generate(tokens(1, 9), attention_mask=mask, **options)
        model = hs.open(network)
        with model.session():
            assert torch.equal(network.generate(tokens(1, 9), attention_mask=mask, **options), plain)


def test_a_session_can_put_dense_attention_back():
    """What a session asks for stands above what the network was built with, until it ends."""
    network = built(SINGLE_STACKS["windows"])
    model = hs.open(network)
    before = logits(network, input_ids=tokens(2, 9))
    dense = built(DecoderConfig.llama(**SIZES, num_hidden_layers=2))
    dense.load_state_dict(network.state_dict())
    with model.session() as session:
        session.replace("all", hs.attention.dense())
        assert relative(logits(network, input_ids=tokens(2, 9)), logits(dense, input_ids=tokens(2, 9))) < SAME_FUNCTION
    assert torch.equal(logits(network, input_ids=tokens(2, 9)), before)


def test_statistics_are_those_of_the_mechanisms():
    network = built(SINGLE_STACKS["windows"])
    model = hs.open(network)
    with model.session() as session:
        capture, stream = session.capture("pattern"), session.stream(Request(bands=(1,)))
        session.run(tokens(2, 9))
        maps, (rows, _) = capture.take()["pattern"], stream.take()
    for site in model.sites:
        weights = maps[site].double()
        entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1)
        assert float((rows[site].entropy_nats - entropy).abs().max()) < STREAMED_STATISTICS * 3


def test_heads_without_a_map_say_so():
    model = hs.open(built(TRANSLATORS["mechanisms"]))
    with model.session() as session:
        session.capture("pattern", at="enc.L1")
        with pytest.raises(CaptureError, match="no softmax map"):
            session.run(tokens(1, 9))


def test_edits_and_ablation_reach_the_networks():
    model = hs.open(built(TRANSLATORS["shared"]))
    before = logits(model.hf, **inputs(model.hf))
    with model.session() as session:
        session.ablate("dec.L0.cross.H1")
        assert relative(logits(model.hf, **inputs(model.hf)), before) > 1e-3
    with model.edit() as edit:
        edit.scale_spectrum("v", 2.0)
        assert relative(logits(model.hf, **inputs(model.hf)), before) > 1e-3
    assert torch.equal(logits(model.hf, **inputs(model.hf)), before)


@pytest.mark.parametrize("score", ["bahdanau", "luong_dot", "luong_general"])
def test_recurrent_attention_is_captured(score):
    """Scores, pattern and contexts of the captured call are those of the formula."""
    network = built(recurrent("gru", score))
    model = hs.open(network)
    (site,) = model.sites
    assert site.label == "dec.L0.cross"
    assert site.extras == (("bias",) if score == "bahdanau" else ())
    with model.session() as session:
        capture = session.capture("scores", "pattern", "z", "q", "k", "v")
        logits(network, **inputs(network))
        taken = {name: tensors[site] for name, tensors in capture.take().items()}
    weights = {name: value.double() for name, value in network.state_dict().items()}
    q, k, v = (taken[letter][:, 0].double() for letter in "qkv")
    if score == "bahdanau":
        direction = weights["model.decoder.attention.direction.weight"][0]
        expected = torch.tanh(q[:, :, None] + k[:, None]) @ direction
    else:
        expected = q @ k.transpose(1, 2)
    assert torch.allclose(taken["scores"][:, 0].double(), expected, atol=1e-5)
    pattern = torch.softmax(expected, dim=-1)
    assert float((taken["pattern"][:, 0].double() - pattern).abs().max()) < 10 * MAP_AGREEMENT
    assert torch.allclose(taken["z"][:, 0].double(), pattern @ v, atol=1e-5)


def test_a_recurrent_network_without_attention_is_refused():
    with pytest.raises(CaptureError, match="no attention"):
        hs.open(built(recurrent("lstm", "none")))


def test_a_model_without_a_list_of_layers_has_no_final_norm():
    reading = hs.open(built(recurrent("lstm", "bahdanau"))).weight_source().stream_reading()
    assert reading.final is None
    assert reading.output == ""


def test_ablating_recurrent_attention_changes_the_output():
    network = built(recurrent("lstm", "bahdanau"))
    before = logits(network, **inputs(network))
    model = hs.open(network)
    with model.session() as session:
        session.ablate("dec.L0.cross.H0")
        assert relative(logits(network, **inputs(network)), before) > 1e-3
