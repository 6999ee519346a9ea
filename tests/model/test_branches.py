"""Skip connections and branches: what was found, against forwards written down family by family."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headscope.errors import UsageError, VariantRefused
from headscope.model.model import open_model
from headscope.model.tracing.random_codes import is_linear
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs
from tests.model.families import DISPATCHING, GPT2, SMALL, T5, Family, _family
from tests.model.test_fidelity import first_output, relative_error
from tests.model.test_session import opened

# float32, a few matrix products in another order.
ROUNDING = 2e-6
# Every way of adding: experts, norms behind a branch, parallel blocks, shared modules, two stacks, biases, scales.
NAMES = "mixtral deepseek_v3 gemma2 phi granite distilbert albert bart t5"
FAMILIES = [one for one in DISPATCHING if one.name in NAMES.split()]
# x + f(norm(x)), so that a layer without branches gives what it was given; gemma3 and olmo2 norm the branch as well.
POST_NORM = {"distilbert", "albert", "bart"}


def run(hf: Any, ids: Tensor) -> Tensor:
    body, inputs = hf.base_model, {"input_ids": ids}
    if hf.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, :5]
    with torch.no_grad():
        return first_output(body(**inputs, **forward_options(body)))


def tokens(hf: Any) -> Tensor:
    return probe_inputs(hf, batch=2, seed=3)["input_ids"]


def causal(x: Tensor) -> Tensor:
    n = x.shape[1]
    return torch.zeros(1, 1, n, n).masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)


def llama(hf: Any, ids: Tensor, s: float) -> Tensor:
    x = hf.model.embed_tokens(ids)
    rotary = hf.model.rotary_emb(x, torch.arange(ids.shape[1])[None])
    for layer in hf.model.layers:
        given = layer.input_layernorm(x)
        x = s * x + layer.self_attn(given, position_embeddings=rotary, attention_mask=causal(x))[0]
        x = s * x + layer.mlp(layer.post_attention_layernorm(x))
    return hf.model.norm(x)


def cohere(hf: Any, ids: Tensor, s: float) -> Tensor:
    x = hf.model.embed_tokens(ids)
    rotary = hf.model.rotary_emb(x, torch.arange(ids.shape[1])[None])
    for layer in hf.model.layers:
        given = layer.input_layernorm(x)
        attended = layer.self_attn(given, position_embeddings=rotary, attention_mask=causal(x))[0]
        x = s * x + attended + layer.mlp(given)
    return hf.model.norm(x)


def gpt2(hf: Any, ids: Tensor, s: float) -> Tensor:
    body = hf.base_model
    x = body.wte(ids) + body.wpe(torch.arange(ids.shape[1]))[None]
    for block in body.h:
        x = s * x + block.attn(block.ln_1(x), attention_mask=causal(x))[0]
        x = s * x + block.mlp(block.ln_2(x))
    return body.ln_f(x)


def neox(hf: Any, ids: Tensor, s: float) -> Tensor:
    body = hf.gpt_neox
    x = body.embed_in(ids)
    rotary = body.rotary_emb(x, torch.arange(ids.shape[1])[None])
    for layer in body.layers:
        attended = layer.attention(layer.input_layernorm(x), position_embeddings=rotary, attention_mask=causal(x))[0]
        x = s * x + attended + layer.mlp(layer.post_attention_layernorm(x))
    return body.final_layer_norm(x)


def bert(hf: Any, ids: Tensor, s: float) -> Tensor:
    x = hf.bert.embeddings(ids)
    for layer in hf.bert.encoder.layer:
        out, end = layer.attention.output, layer.output
        x = out.LayerNorm(s * x + out.dense(layer.attention.self(x)[0]))
        x = end.LayerNorm(s * x + end.dense(layer.intermediate(x)))
    return x


def opt(hf: Any, ids: Tensor, s: float) -> Tensor:
    body = hf.model.decoder
    x = body.embed_tokens(ids) + body.embed_positions.weight[torch.arange(ids.shape[1]) + 2][None]
    for layer in body.layers:
        pre = layer.do_layer_norm_before
        given = layer.self_attn_layer_norm(x) if pre else x
        x = s * x + layer.self_attn(hidden_states=given, attention_mask=causal(x))[0]
        x = x if pre else layer.self_attn_layer_norm(x)
        given = layer.final_layer_norm(x) if pre else x
        x = s * x + layer.fc2(layer.activation_fn(layer.fc1(given)))
        x = x if pre else layer.final_layer_norm(x)
    return x if body.final_layer_norm is None else body.final_layer_norm(x)


def t5(hf: Any, ids: Tensor, s: float) -> Tensor:
    def stack(body: Any, x: Tensor, source: Tensor | None) -> Tensor:
        n = x.shape[1]
        first = body.block[0].layer[0].SelfAttention
        bias = first.compute_bias(n, n, device=x.device) + (0 if source is None else causal(x))
        for block in body.block:
            own, last = block.layer[0], block.layer[-1]
            x = s * x + own.SelfAttention(own.layer_norm(x), position_bias=bias)[0]
            if source is not None:
                other = block.layer[1]
                x = s * x + other.EncDecAttention(other.layer_norm(x), key_value_states=source)[0]
            x = s * x + last.DenseReluDense(last.layer_norm(x))
        return body.final_layer_norm(x)

    source = stack(hf.encoder, hf.shared(ids), None)
    return stack(hf.decoder, hf.shared(ids[:, :5]), source)


POST_OPT = {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32, "do_layer_norm_before": False}
REFERENCES: dict[str, Callable[[Any, Tensor, float], Tensor]] = {
    "llama_gqa": llama, "cohere": cohere, "gpt2": gpt2, "gpt_neox": neox, "bert": bert, "opt": opt
}  # fmt: skip
PARTICULAR = {
    "t5": (_family("t5", "T5", T5, "", head="Model"), t5),
    "opt, norm behind": (_family("opt", "OPT", POST_OPT, ""), opt),
    "gpt2, feed-forward as wide as the stream": (_family("g", "GPT2", {**GPT2, "n_inner": 32}, "", head="Model"), gpt2),
}  # fmt: skip


@pytest.mark.parametrize("name", [*REFERENCES, *PARTICULAR])
def test_skip_connections_against_a_forward_written_down(name: str) -> None:
    family, reference = PARTICULAR.get(name, (None, REFERENCES.get(name)))
    model = opened(name) if family is None else open_model(family.build())
    ids = tokens(model.hf)
    with torch.no_grad():
        expected = {s: reference(model.hf, ids, s) for s in (1.0, 0.5, 0.0)}
    assert relative_error(run(model.hf, ids), expected[1.0]) <= ROUNDING, "the reference itself"
    with model.edit() as edit:
        for s in (0.5, 0.0):
            edit.skip(s)
            assert (
                relative_error(run(model.hf, ids), expected[s]) <= ROUNDING < relative_error(expected[1.0], expected[s])
            )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_every_family_is_understood_and_left_as_it_was(family: Family) -> None:
    model = open_model(family.build())
    ids = tokens(model.hf)
    before = run(model.hf, ids)
    with model.edit() as edit:
        edit.skip(1.0)
        assert torch.equal(run(model.hf, ids), before), "s = 1 is the model itself, to the last bit"
        edit.skip(0.0)
        assert relative_error(run(model.hf, ids), before) > 1e-3
    with model.edit() as edit:
        edit.without("attention", "mlp")
        with model.session() as session:
            seen = session.capture("resid", "final")
            run(model.hf, ids)
            shown = seen.take()
        streams = [shown["resid"][site] for site in model.sites if site.stack != "enc"]
        still = all(torch.equal(x, streams[0]) for x in streams)
        assert still == (family.name not in POST_NORM), "nothing is added to the stream any more"
    assert torch.equal(run(model.hf, ids), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.hf.modules())


@pytest.mark.parametrize("name", ["llama_bias", "gpt2", "bert", "t5", "cohere"])
def test_branches_taken_out_are_matrices_set_to_zero(name: str) -> None:
    """The matrices that write to the stream, with their biases, are what the branches end with in these families."""
    model = opened(name)
    ids = tokens(model.hf)
    plans = [model.plan(site).projections for site in model.sites]
    writing = {
        "attention": {plan.o.module for plan in plans if plan is not None},
        "mlp": {one.module for one in model.weight_source().feed_forward if one.sizes == (48, 32)},
    }
    if name == "gpt2":
        writing["mlp"] = {f"transformer.h.{layer}.mlp.c_proj" for layer in (0, 1)}
    for part, modules in writing.items():
        with model.edit() as edit:
            edit.without(part)
            ours = run(model.hf, ids)
        assert len(modules) >= 2
        kept = {module: _zeroed(model.hf.get_submodule(module)) for module in modules}
        theirs = run(model.hf, ids)
        for module, parameters in kept.items():
            _restored(model.hf.get_submodule(module), parameters)
        assert relative_error(ours, theirs) <= ROUNDING < relative_error(ours, run(model.hf, ids)), part


def _zeroed(module: nn.Module) -> list[Tensor]:
    assert is_linear(module)
    with torch.no_grad():
        kept = [parameter.clone() for parameter in module.parameters()]
        for parameter in module.parameters():
            parameter.zero_()
    return kept


def _restored(module: nn.Module, kept: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, before in zip(module.parameters(), kept, strict=True):
            parameter.copy_(before)


def test_attention_alone() -> None:
    """Without skips and with the feed-forward part passed by, only attention is applied, again and again."""
    model = opened("llama_gqa")
    ids = tokens(model.hf)
    with torch.no_grad():
        body = model.hf.model
        x = body.embed_tokens(ids)
        rotary = body.rotary_emb(x, torch.arange(ids.shape[1])[None])
        for layer in body.layers:
            given = layer.input_layernorm(x)
            x = layer.self_attn(given, position_embeddings=rotary, attention_mask=causal(x))[0]
        expected = body.norm(x)
    with model.edit() as edit:
        edit.skip(0.0)
        edit.without("mlp")
        assert relative_error(run(model.hf, ids), expected) <= ROUNDING


def test_frozen_weights_are_looked_into_as_well() -> None:
    model = open_model(_family("llama", "Llama", SMALL, "").build().requires_grad_(False))
    assert len(model.branches().roles) == 4


def test_a_family_that_scales_what_it_carries_is_refused() -> None:
    hf = _family("llama", "Llama", SMALL, "").build()
    layer = hf.model.layers[1]
    plain = type(layer).forward

    def scaled(hidden_states: Tensor, **options: Any) -> Tensor:
        attended = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **options)[0]
        x = 0.5 * hidden_states + attended
        return x + layer.mlp(layer.post_attention_layernorm(x))

    layer.forward = scaled
    assert plain is not scaled
    model = open_model(hf)
    before = run(hf, tokens(hf))
    with model.edit() as edit:
        with pytest.raises(VariantRefused, match="no skip connection was found around the attention of L1"):
            edit.skip(0.0)
        assert torch.equal(run(hf, tokens(hf)), before)


def test_a_layer_that_takes_another_way_is_refused() -> None:
    hf = _family("llama", "Llama", SMALL, "").build()
    layer = hf.model.layers[0]
    plain = layer.forward
    layer.forward = lambda x, **options: plain(x, **options) if x.shape[1] < 12 else x
    model = open_model(hf)
    with model.edit() as edit:
        edit.skip(0.0)
        run(hf, torch.arange(10)[None])
        with pytest.raises(VariantRefused, match=r"model.layers.0 adds differently on this text"):
            run(hf, torch.arange(20)[None])


def test_layers_without_a_feed_forward_part() -> None:
    hf = _family("llama", "Llama", SMALL, "").build()
    layer = hf.model.layers[1]
    layer.forward = lambda x, **options: x + layer.self_attn(hidden_states=layer.input_layernorm(x), **options)[0]
    with open_model(hf).edit() as edit:
        edit.skip(0.0)
        with pytest.raises(VariantRefused, match="no feed-forward branch was found beside the attention of L1"):
            edit.without("mlp")


def test_wrong_words_and_open_sessions() -> None:
    model = opened("llama_gqa")
    with pytest.raises(UsageError, match="not open"):
        model.edit().skip(0.0)
    with model.edit() as edit:
        with pytest.raises(UsageError, match="from 0 on"):
            edit.skip(-1.0)
        with pytest.raises(UsageError, match="cannot remove heads"):
            edit.without("heads")
        with pytest.raises(UsageError, match="nothing"):
            edit.without()
    fresh = open_model(_family("llama", "Llama", SMALL, "").build())
    with fresh.session(), fresh.edit() as edit:
        edit.skip(0.0)  # the additions are looked up inside a session as well as outside
