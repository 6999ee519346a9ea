"""The canonical weights: `q = gain·(x w_q + b_q)` and the input of w_o, checked on what the model computes."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headscope.core import Site, WeightStatus
from headscope.errors import WeightsRefused
from headscope.model.formats.safetensors_folder import open_checkpoint
from headscope.model.model import Model, open_model, open_weights
from headscope.model.tracing.linear_modules import is_linear
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs
from headscope.model.weight_reader import OtherWeights, file_sources
from tests.model.families import DBRX, DISPATCHING, GROUPED, OTHER_OUTSIDE, OUTSIDE, Family, _family
from tests.model.opened_families import opened
from tests.model.test_fidelity import by_name
from tests.tolerances import WEIGHT_AGREEMENT

EXACT = tuple(family for family in DISPATCHING if family.weights == "exact")
HYBRID = Family(
    "lfm2",
    "Lfm2ForCausalLM",
    "Lfm2Config",
    {
        **GROUPED,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "block_auto_adjust_ff_dim": False,
    },
    "layers without attention",
)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))


def projection_inputs(model: Model, site: Site) -> dict[str, torch.Tensor]:
    """What the modules behind a site's q, k, v read, and what its output module reads and returns, in one forward
    over single tokens (rotary positions are the identity there), with the site's own q, k, v, z."""
    plan = model.plan(site).projections
    assert plan is not None
    seen: dict[str, torch.Tensor] = {}
    hooks = []
    calls: dict[str, int] = {}
    for name, rows in (("q", plan.q), ("k", plan.k), ("v", plan.v), ("o", plan.o)):

        def keep(module: torch.nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor, name: str = name) -> None:
            calls[name] = calls.get(name, -1) + 1
            if calls[name] == site.call:  # a shared module runs once per layer
                seen[f"{name}_in"], seen[f"{name}_out"] = args[0], out

        hooks.append(model.hf.get_submodule(rows.module).register_forward_hook(keep))
    try:
        with model.session() as session:
            captured = session.capture("q", "k", "v", "z", at=site)
            with torch.no_grad():
                model.hf(**probe_inputs(model.hf, batch=3, single_token=True, seed=5), **forward_options(model.hf))
            taken = captured.take()
    finally:
        for hook in hooks:
            hook.remove()
    return seen | {what: tensors[site] for what, tensors in taken.items()}


@pytest.mark.parametrize("family", EXACT, ids=by_name)
def test_projections_reproduce_q_k_v_and_the_output(family: Family) -> None:
    model = open_model(family.build())
    assert {model.weight_status(site).status for site in model.sites} == {"exact"}
    for site in model.sites:
        weights, seen = model.weights(site), projection_inputs(model, site)
        for name, w, b, gain in (
            ("q", weights.w_q, weights.b_q, weights.gain_q),
            ("k", weights.w_k, weights.b_k, weights.gain_k),
            ("v", weights.w_v, weights.b_v, weights.gain_v),
        ):
            x = seen[f"{name}_in"].reshape(seen[name].shape[0], seen[name].shape[2], -1)
            expected = torch.einsum("bnm,hmd->bhnd", x, w) + b[None, :, None, :]
            assert relative(gain[None, :, None, :] * expected, seen[name]) <= WEIGHT_AGREEMENT, (
                site.label,
                name,
            )
        written = torch.einsum("bhnd,hdm->bnm", seen["z"], weights.w_o) + weights.b_o
        assert relative(written, seen["o_out"].reshape(written.shape)) <= WEIGHT_AGREEMENT, site.label


def test_at_least_23_families_are_exact() -> None:
    assert len({family.model for family in EXACT}) >= 23


@pytest.mark.parametrize("family", [f for f in DISPATCHING if f.weights == "normed"], ids=by_name)
def test_qk_norm_shows(family: Family) -> None:
    model = open_model(family.build())
    for site in model.sites:
        assert model.weight_status(site).status == "normed"
        assert "normalised" in model.weight_status(site).reason
        weights, seen = model.weights(site), projection_inputs(model, site)
        projected = torch.einsum("bnm,hmd->bhnd", seen["q_in"], weights.w_q) + weights.b_q[None, :, None, :]
        # Normalised, not scaled: the signs follow the projection, the sizes do not.
        assert torch.equal(projected.sign(), seen["q"].sign())
        assert relative(projected, seen["q"]) > 0.01


@pytest.mark.parametrize("family", [*(f for f in DISPATCHING if f.weights == "clipped"), DBRX], ids=by_name)
def test_clipped_projections_show(family: Family) -> None:
    """The equation holds up to the limit, which is found without reading the configuration."""
    model = open_model(family.build())
    for site in model.sites:
        status = model.weight_status(site)
        assert status == WeightStatus(
            "clipped", "queries, keys and values beyond ±0.5 are cut off after the projection"
        )
        weights, seen = model.weights(site), projection_inputs(model, site)
        projected = torch.einsum("bnm,hmd->bhnd", seen["q_in"], weights.w_q) + weights.b_q[None, :, None, :]
        assert relative(projected, seen["q"]) > 0.01
        assert relative(projected.clamp(-0.5, 0.5), seen["q"]) <= WEIGHT_AGREEMENT


def test_a_limit_that_no_token_reaches_is_found_too() -> None:
    """The published limit of OLMo is 8; with normalised queries and keys, the limit of the values is named too."""
    family = next(f for f in DISPATCHING if f.name == "olmo_clipped")
    model = open_model(replace(family, options={**family.options, "clip_qkv": 8.0}).build())
    status = model.weight_status(model.sites[0])
    assert status.reason == "queries, keys and values beyond ±8 are cut off after the projection"
    experts = {**family.options, "clip_qkv": 8.0, "num_experts": 2, "num_experts_per_tok": 1}
    model = open_model(_family("olmoe", "Olmoe", experts, "normed and cut off").build())
    status = model.weight_status(model.sites[0])
    assert status.status == "normed"
    assert status.reason.endswith("values beyond ±8 are cut off after the projection")


def test_latent_attention_is_refused_with_the_reason() -> None:
    family = next(f for f in DISPATCHING if f.weights == "refused")
    model = open_model(family.build())
    site = model.sites[0]
    assert model.weight_status(site).status == "refused"
    with pytest.raises(WeightsRefused, match=r"L0 of .*deepseek_v3.*no canonical projections"):
        model.weights(site)


@pytest.mark.parametrize("family", [*OUTSIDE, *OTHER_OUTSIDE], ids=by_name)
def test_weights_of_families_outside_the_interface_are_traced_where_they_are_linear(family: Family) -> None:
    model = opened(family)
    assert {model.weight_status(site).status for site in model.sites} == {family.weights}
    if family.weights == "refused":
        with pytest.raises(WeightsRefused, match="no single linear module"):
            model.weights(model.sites[0])


class Rounding(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight.round(), self.bias)


class Routing(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).softmax(-1)


class Limiting(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).clamp(-50, 50)


class Separately(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x @ self.weight.T
        return out if self.bias is None else out + self.bias


@pytest.mark.parametrize(
    ("kind", "expected"), [(Rounding, False), (Routing, False), (Limiting, False), (Separately, True)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_module_with_its_own_forward_is_tried(kind: type[torch.nn.Linear], expected: bool, bias: bool) -> None:
    module = kind(7, 9, bias=bias)
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    assert is_linear(module) == expected
    assert all(torch.equal(parameter, before[name]) for name, parameter in module.named_parameters())
    assert is_linear(module.to("meta")) == expected


def test_a_sum_of_two_projections_is_refused() -> None:
    """A low-rank adapter beside the projection: neither matrix alone makes the queries."""
    hf = next(f for f in DISPATCHING if f.name == "llama_gqa").build()
    attention = hf.model.layers[0].self_attn
    attention.q_proj = Adapted(attention.q_proj)
    model = open_model(hf)
    statuses = [model.weight_status(site).status for site in model.sites]
    assert statuses == ["refused", "exact"]


class Adapted(torch.nn.Module):
    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


TEXT = tuple(f for f in DISPATCHING if f.weights != "refused")


@pytest.mark.parametrize("family", TEXT, ids=by_name)
def test_weights_from_the_file_equal_those_of_the_model(family: Family, tmp_path: Path) -> None:
    hf = family.build()
    hf.save_pretrained(tmp_path, max_shard_size="20KB")
    model, source = open_model(hf), open_weights(tmp_path)
    assert source.method == "read from the safetensors files of the checkpoint"
    assert [s.label for s in source.sites] == [s.label for s in model.sites]
    for ours, theirs in zip(source.sites, model.sites, strict=True):
        assert source.status(ours) == model.weight_status(theirs)
        a, b = source.weights(ours), model.weights(theirs)
        for name in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", "gain_q", "gain_k", "gain_v"):
            assert torch.allclose(getattr(a, name), getattr(b, name), atol=0, rtol=1e-6), (ours.label, name)
    built = model.weight_source()
    assert source.feed_forward == built.feed_forward
    assert source.feed_forward_notes == built.feed_forward_notes
    for one in source.feed_forward:
        assert torch.equal(source.feed_forward_matrix(one), built.feed_forward_matrix(one)), one.label


def test_a_file_that_does_not_tell_is_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hf = next(f for f in DISPATCHING if f.name == "deepseek_v3").build()
    hf.save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO, "headscope"):
        source = open_weights(tmp_path)
    assert "the model is built, because the file alone does not tell" in caplog.text
    assert {source.status(site).status for site in source.sites} == {"refused"}


@pytest.mark.parametrize("family", [*DISPATCHING, HYBRID], ids=by_name)
def test_feed_forward_matrices_are_what_the_layers_multiply_by(family: Family) -> None:
    """Every linear module that runs, reads or writes the residual stream, and is neither attention nor head."""
    hf = family.build()
    model = open_model(hf)
    source = model.weight_source()
    found = {one.module: one for one in source.feed_forward}
    experts = any("experts" in note for note in source.feed_forward_notes)
    assert bool(found) or experts
    for one in source.feed_forward:
        assert tuple(source.feed_forward_matrix(one).shape) == one.sizes
        assert 32 in one.sizes, f"{one.label} touches the residual stream"
        assert one.module.endswith(one.name)
    attention = re.compile(r"att|SelfAttention|EncDecAttention|mixer|conv|mamba|lm_head|router|classifier|embed|head")
    beside = {
        name
        for name, module in hf.named_modules()
        if isinstance(module, torch.nn.Linear) and re.search(r"\d", name) and not attention.search(name)
    }
    assert found.keys() >= beside, beside - found.keys()
    assert all("att" not in name.lower() for name in found)
    layers = {(site.stack, site.layer) for site in model.sites}
    assert experts or {(one.stack, one.layer) for one in source.feed_forward} >= layers


def test_layers_without_attention_show_their_feed_forward_part() -> None:
    source = open_model(HYBRID.build()).weight_source()
    assert [site.layer for site in source.sites] == [1]
    assert [one.label for one in source.feed_forward][:4] == [
        "L0.feed_forward.w1", "L0.feed_forward.w3", "L0.feed_forward.w2", "L1.feed_forward.w1",
    ]  # fmt: skip
    assert {one.layer for one in source.feed_forward} == {0, 1, 2}


def test_a_shared_layer_counts_once_per_call() -> None:
    source = open_model(next(f for f in DISPATCHING if f.name == "albert").build()).weight_source()
    assert [one.label for one in source.feed_forward] == ["L0.ffn", "L0.ffn_output", "L1.ffn", "L1.ffn_output"]


def test_stacked_experts_are_left_out_and_said_so() -> None:
    source = open_model(next(f for f in DISPATCHING if f.name == "mixtral").build()).weight_source()
    assert source.feed_forward == ()
    (note,) = source.feed_forward_notes
    assert note.startswith("Left out: the experts of 2 layers (first L0)")


def test_a_feed_forward_matrix_that_the_file_does_not_tell_is_left_out(tmp_path: Path) -> None:
    """transformers merges two tensors of the file into one parameter: attention is read from the file all the same."""
    hf = next(f for f in DISPATCHING if f.name == "llama_gqa").build()
    hf.save_pretrained(tmp_path)
    model = open_model(hf)
    checkpoint = open_checkpoint(tmp_path)
    held = {name: entry for name, entry in checkpoint.tensors.items() if "layers.1.mlp.up" not in name}
    plans = {site: model.plan(site) for site in model.sites}
    other_weights = OtherWeights.of(hf, plans)
    sources, left = file_sources(hf, replace(checkpoint, tensors=held), plans, other_weights)
    kept, found = left.feed_forward, other_weights.feed_forward
    assert left.tables == other_weights.tables
    assert len(kept.matrices) == len(found.matrices) - 1
    assert "model.layers.1.mlp.up_proj.weight" not in sources
    assert kept.notes == (
        "Left out: 1 feed-forward matrices, because parameter 'model.layers.1.mlp.up_proj.weight' corresponds to no "
        "tensor of the file by name alone, expected exactly one.",
    )


def tables_of(name: str) -> list[tuple[str, str, int]]:
    source = open_model(next(f for f in (*DISPATCHING, *OUTSIDE) if f.name == name).build()).weight_source()
    return [(one.label, one.module, one.first) for one in source.embeddings]


def test_tables_of_vectors_are_found_whatever_the_family() -> None:
    assert tables_of("gpt2") == [("token", "transformer.wte", 0), ("position", "transformer.wpe", 0)]
    assert tables_of("llama_gqa") == [("token", "model.embed_tokens", 0), ("output", "lm_head", 0)]
    assert tables_of("opt")[1] == ("position", "model.decoder.embed_positions", 2)  # two rows are never reached
    assert tables_of("bart") == [
        ("token", "model.shared", 0),
        ("enc position", "model.encoder.embed_positions", 2),
        ("dec position", "model.decoder.embed_positions", 2),
    ]
    assert tables_of("t5") == [("token", "shared", 0)]  # its relative biases are no vectors
    assert tables_of("marian") == [("token", "model.encoder.embed_tokens", 0)]  # shared, positions by formula
    assert tables_of("vit") == []


def test_tables_from_the_file_are_those_of_the_model(tmp_path: Path) -> None:
    """Also where a table is tied, which a model without weights cannot tell from its tensors."""
    for name in ("gpt2", "llama_gqa"):
        hf = next(f for f in DISPATCHING if f.name == name).build()
        hf.save_pretrained(tmp_path / name)
        built, read = open_model(hf).weight_source(), open_weights(tmp_path / name)
        assert read.embeddings == built.embeddings
        assert read.embedding_notes == built.embedding_notes
        assert len(built.embeddings) == 2
        for one in built.embeddings:
            assert torch.equal(read.embedding_table(one), built.embedding_table(one))
        assert read.vocabulary is None
