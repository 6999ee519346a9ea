"""Where a person would hook each place of many families, written by hand, and the hooks themselves.

A row of `BY_HAND` maps a place to modules: `"self_attn.o_proj out"` is what that module gives, `"mlp in"` what it is
given; several modules after each other are given the same tensor. Paths are relative to the layer; a leading slash
makes them absolute, `{i}` is the number of the layer. `#{i}` names the call of a module that runs several times, `*0.3`
a factor that the layer's own code puts on the tensor. A norm is named without a side: its scale is a formula of what it
is given. `first …` holds at layer 0 alone, `cross …` at the cross-attention of a layer. A place that a row does not
name cannot be hooked: `MISSING` says why.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headscope.core.site import Site
from headscope.model.model import Model
from tests.model.families import BART, DBRX, DISPATCHING, GPT2, GROUPED, OUTSIDE, SMALL, _family

MORE = (
    _family("granite_scaled", "Granite", {**GROUPED, "residual_multiplier": 0.3}, "a factor on each branch"),
    _family(
        "qwen3_moe",
        "Qwen3Moe",
        {**GROUPED, "head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
        "experts",
    ),
    _family(
        "olmoe", "Olmoe", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}, "experts, QK-norm over all heads"
    ),
    _family(
        "neox_sequential",
        "GPTNeoX",
        {**SMALL, "use_parallel_residual": False},
        "the same family, one part after the other",
    ),
    _family(
        "opt_post_norm",
        "OPT",
        {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
        "post-norm decoder",
    ),
    _family(
        "falcon_sequential",
        "Falcon",
        {**SMALL, "num_kv_heads": 4, "alibi": False, "parallel_attn": False},
        "outside, one part after the other",
    ),
    _family("glm4", "Glm4", {**GROUPED, "head_dim": 8}, "sandwich norms"),
    _family("cohere2", "Cohere2", {**GROUPED, "head_dim": 8, "sliding_window": 4}, "parallel block"),
    _family("blenderbot", "Blenderbot", BART, "pre-norm encoder–decoder", head="ForConditionalGeneration"),
    _family(
        "gpt2_wide", "GPT2", {**GPT2, "n_inner": 16}, "a feed-forward part narrower than the stream", head="LMHeadModel"
    ),
)
FAMILIES = {family.name: family for family in (*DISPATCHING, *OUTSIDE, DBRX, *MORE)}

Row = Mapping[str, str]

_LLAMA: Row = {
    "layer": "model.layers.{i}",
    "embed": "/model.embed_tokens out",
    "x": "self_attn.q_proj self_attn.k_proj self_attn.v_proj in",
    "x_scale": "input_layernorm",
    "attn_out": "self_attn.o_proj out",
    "attn_add": "self_attn out",
    "resid_mid": "post_attention_layernorm in",
    "mlp_in": "mlp in",
    "mlp_scale": "post_attention_layernorm",
    "mlp_act": "mlp.down_proj in",
    "mlp_out": "mlp out",
    "mlp_add": "mlp out",
    "final_scale": "/model.norm",
    "logits": "/lm_head out",
}
_GPT2: Row = {
    "layer": "transformer.h.{i}",
    "embed": "/transformer.wte out",
    "x": "attn.c_attn in",
    "x_scale": "ln_1",
    "attn_out": "attn.c_proj out",
    "attn_add": "attn out",
    "resid_mid": "ln_2 in",
    "mlp_in": "mlp in",
    "mlp_scale": "ln_2",
    "mlp_act": "mlp.c_proj in",
    "mlp_out": "mlp out",
    "mlp_add": "mlp out",
    "final_scale": "/transformer.ln_f",
    "logits": "/lm_head out",
}
_NEOX: Row = {
    "layer": "gpt_neox.layers.{i}",
    "embed": "/gpt_neox.embed_in out",
    "x": "attention.query_key_value in",
    "x_scale": "input_layernorm",
    "attn_out": "attention.dense out",
    "attn_add": "attention out",
    "mlp_in": "mlp in",
    "mlp_scale": "post_attention_layernorm",
    "mlp_act": "mlp.dense_4h_to_h in",
    "mlp_out": "mlp out",
    "mlp_add": "mlp out",
    "final_scale": "/gpt_neox.final_layer_norm",
    "logits": "/lm_head out",
}
_OPT: Row = {
    "layer": "model.decoder.layers.{i}",
    "embed": "/model.decoder.embed_tokens out",
    "x": "self_attn.q_proj self_attn.k_proj self_attn.v_proj in",
    "x_scale": "self_attn_layer_norm",
    "attn_out": "self_attn.out_proj out",
    "attn_add": "self_attn out",
    "resid_mid": "final_layer_norm in",
    "mlp_in": "fc1 in",
    "mlp_scale": "final_layer_norm",
    "mlp_act": "fc2 in",
    "mlp_out": "fc2 out",
    "mlp_add": "fc2 out",
    "final_scale": "/model.decoder.final_layer_norm",
    "logits": "/lm_head out",
}
_BERT: Row = {
    "layer": "bert.encoder.layer.{i}",
    "embed": "/bert.embeddings.word_embeddings out",
    "x": "attention.self.query attention.self.key attention.self.value in",
    "attn_out": "attention.output.dense out",
    "attn_add": "attention.output.dense out",
    "resid_mid": "attention.output.LayerNorm in",
    "mlp_in": "intermediate in",
    "mlp_scale": "attention.output.LayerNorm",
    "mlp_act": "output.dense in",
    "mlp_out": "output.dense out",
    "mlp_add": "output.dense out",
    "logits": "/cls.predictions.decoder out",
}
_BART: Row = {
    "x": "self_attn.q_proj self_attn.k_proj self_attn.v_proj in",
    "attn_out": "self_attn.out_proj out",
    "attn_add": "self_attn out",
    "mlp_in": "fc1 in",
    "mlp_act": "fc2 in",
    "mlp_out": "fc2 out",
    "mlp_add": "fc2 out",
    "cross x": "encoder_attn.q_proj in",
    "cross attn_out": "encoder_attn.out_proj out",
    "cross attn_add": "encoder_attn out",
}
_BART_ENCODER: Row = {
    **_BART,
    "layer": "model.encoder.layers.{i}",
    "embed": "/model.encoder.embed_tokens out",
    "resid_mid": "self_attn_layer_norm in",
    "mlp_scale": "self_attn_layer_norm",
}
_BART_DECODER: Row = {
    **_BART,
    "layer": "model.decoder.layers.{i}",
    "embed": "/model.decoder.embed_tokens out",
    "resid_mid": "self_attn_layer_norm in",
    "cross x_scale": "self_attn_layer_norm",
    "cross resid_mid": "encoder_attn_layer_norm in",
    "mlp_scale": "encoder_attn_layer_norm",
    "logits": "/lm_head out",
}
_PEGASUS_ENCODER: Row = {
    **_BART_ENCODER,
    "x_scale": "self_attn_layer_norm",
    "resid_mid": "final_layer_norm in",
    "mlp_scale": "final_layer_norm",
    "final_scale": "/model.encoder.layer_norm",
}
_PEGASUS_DECODER: Row = {
    **_BART_DECODER,
    "x_scale": "self_attn_layer_norm",
    "resid_mid": "encoder_attn_layer_norm in",
    "cross x_scale": "encoder_attn_layer_norm",
    "cross resid_mid": "final_layer_norm in",
    "mlp_scale": "final_layer_norm",
    "final_scale": "/model.decoder.layer_norm",
}
_T5: Row = {
    "x": "layer.0.SelfAttention.q layer.0.SelfAttention.k layer.0.SelfAttention.v in",
    "x_scale": "layer.0.layer_norm",
    "attn_out": "layer.0.SelfAttention.o out",
    "attn_add": "layer.0.SelfAttention out",
    "resid_mid": "layer.0 out",
}
_T5_ENCODER: Row = {
    **_T5,
    "layer": "encoder.block.{i}",
    "embed": "/encoder.embed_tokens out",
    "mlp_in": "layer.1.DenseReluDense in",
    "mlp_scale": "layer.1.layer_norm",
    "mlp_act": "layer.1.DenseReluDense.wo in",
    "mlp_out": "layer.1.DenseReluDense out",
    "mlp_add": "layer.1.DenseReluDense out",
    "final_scale": "/encoder.final_layer_norm",
}
_T5_DECODER: Row = {
    **_T5,
    "layer": "decoder.block.{i}",
    "embed": "/decoder.embed_tokens out",
    "cross resid": "layer.1 in",  # T5 has a module for each part, and the stream that enters it is that of the part
    "cross x": "layer.1.EncDecAttention.q in",
    "cross x_scale": "layer.1.layer_norm",
    "cross attn_out": "layer.1.EncDecAttention.o out",
    "cross attn_add": "layer.1.EncDecAttention out",
    "cross resid_mid": "layer.1 out",
    "mlp_in": "layer.2.DenseReluDense in",
    "mlp_scale": "layer.2.layer_norm",
    "mlp_act": "layer.2.DenseReluDense.wo in",
    "mlp_out": "layer.2.DenseReluDense out",
    "mlp_add": "layer.2.DenseReluDense out",
    "final_scale": "/decoder.final_layer_norm",
    "logits": "/lm_head out",
}


def _without(row: Row, *places: str) -> Row:
    return {place: modules for place, modules in row.items() if place.split()[-1] not in places}


def _renamed(row: Row, before: str, after: str) -> Row:
    return {place: modules.replace(before, after) for place, modules in row.items()}


_EXPERTS: Row = _without(_LLAMA, "mlp_act")
_SANDWICH: Row = {
    **_LLAMA,
    "attn_add": "post_attention_layernorm out",
    "resid_mid": "pre_feedforward_layernorm in",
    "mlp_scale": "pre_feedforward_layernorm",
    "mlp_add": "post_feedforward_layernorm out",
}
_COHERE: Row = {**_without(_LLAMA, "resid_mid"), "mlp_scale": "input_layernorm"}
_GPTJ: Row = {
    **_without(_GPT2, "resid_mid"),
    "x": "attn.q_proj attn.k_proj attn.v_proj in",
    "attn_out": "attn.out_proj out",
    "mlp_scale": "ln_1",
    "mlp_act": "mlp.fc_out in",
}
_FALCON: Row = {
    **_renamed(_without(_NEOX, "resid_mid"), "gpt_neox.layers", "transformer.h"),
    "embed": "/transformer.word_embeddings out",
    "x": "self_attention.query_key_value in",
    "attn_out": "self_attention.dense out",
    "attn_add": "self_attention out",
    "mlp_scale": "input_layernorm",
    "final_scale": "/transformer.ln_f",
}
_XGLM: Row = {
    **_renamed(_OPT, "model.decoder.", "model."),
    "final_scale": "/model.layer_norm",
}
_ALBERT_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"

BY_HAND: dict[str, Row | tuple[Row, Row]] = {
    "gpt2": _GPT2,
    "gpt2_wide": _GPT2,
    "gpt_bigcode": _GPT2,
    "llama_mha": _LLAMA,
    "llama_gqa": _LLAMA,
    "llama_mqa": _LLAMA,
    "llama_bias": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": _LLAMA,
    "stablelm": _LLAMA,
    "olmo": _LLAMA,
    "olmo_clipped": _LLAMA,
    "nemotron": _LLAMA,
    "glm": _LLAMA,
    "granite": _LLAMA,
    "granite_scaled": {**_LLAMA, "attn_add": "self_attn out *0.3", "mlp_add": "mlp out *0.3"},
    "starcoder2": {**_LLAMA, "mlp_act": "mlp.c_proj in"},
    "phi3": {**_LLAMA, "x": "self_attn.qkv_proj in"},
    "gemma2": _SANDWICH,
    "gemma3": _SANDWICH,
    "glm4": {
        **_LLAMA,
        "attn_add": "post_self_attn_layernorm out",
        "mlp_add": "post_mlp_layernorm out",
    },
    "olmo2": {
        **_without(_LLAMA, "x_scale", "mlp_scale"),
        "attn_add": "post_attention_layernorm out",
        "resid_mid": "mlp in",
        "mlp_add": "post_feedforward_layernorm out",
    },
    "mixtral": _EXPERTS,
    "gpt_oss": _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "olmoe": _EXPERTS,
    "llama4": _renamed(_EXPERTS, "mlp", "feed_forward"),
    "deepseek_v3": {
        **_without(_LLAMA, "mlp_act"),
        "x": "self_attn.q_a_proj self_attn.kv_a_proj_with_mqa in",
        "first mlp_act": "mlp.down_proj in",
    },
    "dbrx": {
        **_without(_GPT2, "mlp_act"),
        "layer": "transformer.blocks.{i}",
        "x": "norm_attn_norm.attn.Wqkv in",
        "x_scale": "norm_attn_norm.norm_1",
        "attn_out": "norm_attn_norm.attn.out_proj out",
        "attn_add": "norm_attn_norm.attn out",
        "resid_mid": "norm_attn_norm.norm_2 in",
        "mlp_scale": "norm_attn_norm.norm_2",
        "final_scale": "/transformer.norm_f",
        **{place: "ffn in" if place == "mlp_in" else "ffn out" for place in ("mlp_in", "mlp_out", "mlp_add")},
    },
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "phi": {
        **_COHERE,
        "attn_out": "self_attn.dense out",
        "mlp_act": "mlp.fc2 in",
        "final_scale": "/model.final_layernorm",
    },
    "gpt_neox": _NEOX,
    "neox_sequential": {**_NEOX, "resid_mid": "post_attention_layernorm in"},
    "opt": _OPT,
    "opt_post_norm": {
        **_without(_OPT, "x_scale", "final_scale"),
        "resid_mid": "self_attn_layer_norm in",
        "mlp_scale": "self_attn_layer_norm",
    },
    "bert": _BERT,
    "roberta": {**_renamed(_BERT, "bert.", "roberta."), "logits": "/lm_head.decoder out"},
    "electra": _without(_renamed(_BERT, "bert.", ""), "logits"),
    "distilbert": {
        "layer": "distilbert.transformer.layer.{i}",
        "embed": "/distilbert.embeddings.word_embeddings out",
        "x": "attention.q_lin attention.k_lin attention.v_lin in",
        "attn_out": "attention.out_lin out",
        "attn_add": "attention out",
        "resid_mid": "sa_layer_norm in",
        "mlp_in": "ffn in",
        "mlp_scale": "sa_layer_norm",
        "mlp_act": "ffn.lin2 in",
        "mlp_out": "ffn out",
        "mlp_add": "ffn out",
        "logits": "/vocab_projector out",
    },
    "albert": {
        "layer": f"{_ALBERT_LAYER}#{{i}}",
        "embed": "/albert.embeddings.word_embeddings out",
        "x": "attention.query#{i} attention.key#{i} attention.value#{i} in",
        "attn_out": "attention.dense#{i} out",
        "attn_add": "attention.dense#{i} out",
        "resid_mid": "attention.LayerNorm#{i} in",
        "mlp_in": "ffn#{i} in",
        "mlp_scale": "attention.LayerNorm#{i}",
        "mlp_act": "ffn_output#{i} in",
        "mlp_out": "ffn_output#{i} out",
        "mlp_add": "ffn_output#{i} out",
        "logits": "/predictions.decoder out",
    },
    "modernbert": {
        "layer": "model.layers.{i}",
        "embed": "/model.embeddings.tok_embeddings out",
        "x": "attn.Wqkv in",
        "first x_scale": "",  # the norm of the embeddings is before the layer
        "x_scale": "attn_norm",
        "attn_out": "attn.Wo out",
        "attn_add": "attn out",
        "resid_mid": "mlp_norm in",
        "mlp_in": "mlp in",
        "mlp_scale": "mlp_norm",
        "mlp_act": "mlp.Wo in",
        "mlp_out": "mlp out",
        "mlp_add": "mlp out",
        "final_scale": "/model.final_norm",
        "logits": "/decoder out",
    },
    "vit": {
        "layer": "layers.{i}",
        "x": "attention.q_proj attention.k_proj attention.v_proj in",
        "x_scale": "layernorm_before",
        "attn_out": "attention.o_proj out",
        "attn_add": "attention out",
        "resid_mid": "layernorm_after in",
        "mlp_in": "mlp in",
        "mlp_scale": "layernorm_after",
        "mlp_act": "mlp.fc2 in",
        "mlp_out": "mlp out",
        "mlp_add": "mlp out",
        "final_scale": "/layernorm",
    },
    "t5": (_T5_ENCODER, _T5_DECODER),
    "mt5": (_T5_ENCODER, _T5_DECODER),
    "bart": (_BART_ENCODER, _BART_DECODER),
    "marian": (_BART_ENCODER, _BART_DECODER),
    "pegasus": (_PEGASUS_ENCODER, _PEGASUS_DECODER),
    "mbart": (_PEGASUS_ENCODER, _PEGASUS_DECODER),
    "blenderbot": (_PEGASUS_ENCODER, _PEGASUS_DECODER),
    "whisper": (_without(_PEGASUS_ENCODER, "embed"), {**_PEGASUS_DECODER, "logits": "/proj_out out"}),
    "nllb_moe": (
        {
            **_renamed(_PEGASUS_ENCODER, "final_layer_norm", "ff_layer_norm"),
            "mlp_in": "ffn in",
            "mlp_act": "ffn.fc2 in",
            "mlp_out": "ffn out",
            "mlp_add": "ffn out",
        },
        {
            **_renamed(
                _renamed(_PEGASUS_DECODER, "final_layer_norm", "ff_layer_norm"), "encoder_attn", "cross_attention"
            ),
            "mlp_in": "ffn in",
            "mlp_act": "ffn.fc2 in",
            "mlp_out": "ffn out",
            "mlp_add": "ffn out",
        },
    ),
    "bloom": {
        **_renamed(_NEOX, "gpt_neox.layers", "transformer.h"),
        "embed": "/transformer.word_embeddings out",
        "x": "self_attention.query_key_value in",
        "attn_out": "self_attention.dense out",
        "attn_add": "self_attention.dense out",
        "resid_mid": "self_attention out",
        "mlp_out": "mlp.dense_4h_to_h out",
        "mlp_add": "mlp.dense_4h_to_h out",
        "final_scale": "/transformer.ln_f",
    },
    "mpt": {
        **_GPT2,
        "layer": "transformer.blocks.{i}",
        "x": "attn.Wqkv in",
        "x_scale": "norm_1",
        "attn_out": "attn.out_proj out",
        "resid_mid": "norm_2 in",
        "mlp_in": "ffn in",
        "mlp_scale": "norm_2",
        "mlp_act": "ffn.down_proj in",
        "mlp_out": "ffn.down_proj out",
        "mlp_add": "ffn.down_proj out",
        "final_scale": "/transformer.norm_f",
    },
    "falcon": _FALCON,
    "falcon_alibi": _FALCON,
    "falcon_sequential": {
        **_FALCON,
        "resid_mid": "post_attention_layernorm in",
        "mlp_scale": "post_attention_layernorm",
    },
    "gptj": _GPTJ,
    "codegen": {**_GPTJ, "x": "attn.qkv_proj in"},
    "gpt_neo": {
        **_GPT2,
        "x": "attn.attention.q_proj attn.attention.k_proj attn.attention.v_proj in",
        "attn_out": "attn.attention.out_proj out",
    },
    "xglm": _XGLM,
    "mvp": {
        **{place: modules for place, modules in _BART_DECODER.items() if not place.startswith("cross")},
        "mlp_scale": "self_attn_layer_norm",
    },
    "mpnet": {
        **_renamed(_BERT, "bert.", "mpnet."),
        "x": "attention.attn.q attention.attn.k attention.attn.v in",
        "attn_out": "attention.attn.o out",
        "attn_add": "attention.attn out",
        "resid_mid": "attention.LayerNorm in",
        "mlp_scale": "attention.LayerNorm",
        "logits": "/lm_head.decoder out",
    },
    "deberta_v2": {
        **_renamed(_BERT, "bert.", "deberta."),
        "x": "attention.self.query_proj attention.self.key_proj attention.self.value_proj in",
    },
    "big_bird": _BERT,
}  # fmt: skip

# The norms that divide by the root mean square; the others take the mean away first.
RMS = {
    "llama_mha",
    "llama_gqa",
    "llama_mqa",
    "llama_bias",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "glm",
    "glm4",
    "granite",
    "granite_scaled",
    "phi3",
    "olmo2",
    "mixtral",
    "gpt_oss",
    "qwen3_moe",
    "olmoe",
    "llama4",
    "deepseek_v3",
    "t5",
    "mt5",
}

# Families in which the module that the table names is the only reader of the stream after the attention: a hook there
# changes the stream itself. In the others the next addition reads it too, beside the norm.
ONLY_READER_OF_MID = {
    "albert",
    "bart",
    "bert",
    "big_bird",
    "bloom",
    "deberta_v2",
    "distilbert",
    "electra",
    "marian",
    "mpnet",
    "mt5",
    "mvp",
    "opt_post_norm",
    "roberta",
    "t5",
}

# Places of the whole stack, which stand at its first or last self-attention, and of a whole layer, at its first site.
_OF_FIRST, _OF_LAST = ("embed",), ("final", "final_scale", "logits")
_OF_LAYER = ("mlp_in", "mlp_scale", "mlp_act", "mlp_out", "mlp_add", "resid_post")
_OF_SITE = ("resid", "x", "x_scale", "attn_out", "attn_add", "resid_mid")
PLACES = (*_OF_FIRST, *_OF_SITE, *_OF_LAYER, *_OF_LAST)
SCALES = ("x_scale", "mlp_scale", "final_scale")


@dataclass(frozen=True)
class Spot:
    """Modules by path and call, the side on which the tensor passes ("" for a norm), and a factor that follows."""

    modules: tuple[tuple[str, int], ...]
    side: str
    factor: float = 1.0


def spots_by_hand(name: str, model: Model) -> dict[str, dict[Site, Spot]]:
    """Where each place of a family is hooked by hand, at each site that has it."""
    rows = BY_HAND[name]
    spots: dict[str, dict[Site, Spot]] = {place: {} for place in PLACES}
    for stack in dict.fromkeys(site.stack for site in model.sites):
        row = rows[stack == "dec"] if isinstance(rows, tuple) else rows
        row = {**row, "resid": "layer in", "resid_post": "layer out", "final": "layer out", **_own_resid(row)}
        sites = [site for site in model.sites if site.stack == stack]
        first, last = ([site for site in sites if site.kind == "self"][end] for end in (0, -1))
        for site in sites:
            places = [*_OF_SITE]
            places += _OF_LAYER if site.kind == "self" else ()
            places += (_OF_FIRST if site is first else ()) + (_OF_LAST if site is last else ())
            for place in places:
                if modules := _entry(row, site, place):
                    spots[place][site] = _spot(modules, row["layer"], site.layer)
    return spots


def _own_resid(row: Row) -> Row:
    return {place: modules for place, modules in row.items() if place == "cross resid"}


def _entry(row: Row, site: Site, place: str) -> str:
    if site.kind == "cross":
        return row.get(f"cross {place}", row["resid"] if place == "resid" else "")
    return row.get(f"first {place}", row.get(place, "")) if site.layer == 0 else row.get(place, "")


def _spot(entry: str, layer: str, number: int) -> Spot:
    words = entry.split()
    factor = float(words.pop().removeprefix("*")) if words[-1].startswith("*") else 1.0
    side = words.pop() if words[-1] in ("in", "out") else ""
    stem = layer.partition("#")[0]
    modules = []
    for word in words:
        path, _, own_call = word.partition("#")
        whole = layer if path == "layer" else path[1:] if path.startswith("/") else f"{stem}.{path}#{own_call}"
        path, _, own_call = whole.format(i=number).partition("#")
        modules.append((path, int(own_call or 0)))
    return Spot(tuple(modules), side, factor)


Act = Callable[[Tensor], Tensor]


@contextmanager
def hooked(hf: Any, spot: Spot, act: Act) -> Iterator[None]:
    """Hooks on the modules of a spot: what `act` makes of the tensor goes on in its place."""
    given: dict[int, tuple[Tensor, Tensor]] = {}
    calls: Counter[str] = Counter()

    def passed(path: str, call: int, tensor: Tensor) -> Tensor:
        number = calls[path]
        calls[path] += 1
        if number != call:
            return tensor
        # Modules that are given the same tensor are given the same thing in its place.
        if id(tensor) not in given:
            given[id(tensor)] = tensor, act(tensor)
        return given[id(tensor)][1]

    with ExitStack() as stack:
        for path, call in spot.modules:
            module = hf.get_submodule(path)
            if spot.side == "in":

                def enter(_: Any, args: Any, kwargs: Any, path: str = path, call: int = call) -> Any:
                    if args:
                        return (passed(path, call, args[0]), *args[1:]), kwargs
                    return args, {**kwargs, "hidden_states": passed(path, call, kwargs["hidden_states"])}

                stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            else:

                def leave(_: Any, args: Any, output: Any, path: str = path, call: int = call) -> Any:
                    if isinstance(output, Tensor):
                        return passed(path, call, output)
                    return (passed(path, call, output[0]), *output[1:])

                stack.callback(module.register_forward_hook(leave).remove)
        yield


@contextmanager
def recorded(hf: Any, spot: Spot) -> Iterator[list[Tensor]]:
    """What passes at a spot in the forwards of the block: copies, one for each forward."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor.detach().clone() * spot.factor)
        return tensor

    with hooked(hf, spot, note):
        yield tensors


def scale_by_hand(norm: Any, stream: Tensor, is_rms: bool) -> Tensor:
    """What a norm divides by, from its formula in float64."""
    eps = next((value for name in ("eps", "variance_epsilon") if (value := getattr(norm, name, None))), 1e-5)
    x = stream.double()
    x = x if is_rms else x - x.mean(-1, keepdim=True)
    return (x.square().mean(-1, keepdim=True) + eps).sqrt()


def output_projection(name: str, model: Model, site: Site) -> Any:
    """The module that reads what the heads of a site give."""
    return model.hf.get_submodule(spots_by_hand(name, model)["attn_out"][site].modules[0][0])


def output_matrix(linear: Any) -> Tensor:
    """Its matrix as it acts on rows; transformers' Conv1D stores it that way round."""
    return linear.weight.detach() if type(linear).__name__ == "Conv1D" else linear.weight.detach().T
