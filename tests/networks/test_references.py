"""The networks against torch's layers and transformers' models of the same weights."""

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MarianConfig, MarianMTModel

from headscope.networks import DecoderConfig, TranslatorConfig
from headscope.networks.layer import TransformerLayer
from headscope.networks.view import View
from tests.networks.small_networks import SIZES, built, inputs, logits, tokens

LOGITS = 1e-5  # relative to the largest: two float32 networks of a dozen layers of sums


def agree(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return float((ours - theirs).abs().max() / theirs.abs().max()) < LOGITS


def put(layer: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)


def copied(ours: nn.Module, theirs: nn.Module) -> None:
    put(theirs, ours.weight, ours.bias)


def put_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    parts = [ours.qkv] if hasattr(ours, "qkv") else [ours.q, ours.kv]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    copied(ours.out, theirs.out_proj)


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("stack", ["enc", "dec"])
def test_blocks_equal_torch(place, stack):
    torch.manual_seed(0)
    config = TranslatorConfig(**SIZES, norm_place=place)
    config._attn_implementation = "sdpa"
    ours = TransformerLayer(config, stack, 0).eval()
    cls = nn.TransformerEncoderLayer if stack == "enc" else nn.TransformerDecoderLayer
    theirs = cls(24, 4, 40, batch_first=True, norm_first=place == "pre").eval()
    pairs = [("feed_forward.widen", "linear1"), ("feed_forward.narrow", "linear2"), ("self_attention_norm", "norm1")]
    pairs += [("feed_forward_norm", "norm2" if stack == "enc" else "norm3")]
    pairs += [("cross_attention_norm", "norm2")] if stack == "dec" else []
    for mine, torchs in pairs:
        copied(ours.get_submodule(mine), theirs.get_submodule(torchs))
    put_attention(ours.self_attention, theirs.self_attn)
    x, memory = torch.randn(2, 7, 24), torch.randn(2, 9, 24)
    hidden = nn.Transformer.generate_square_subsequent_mask(7)
    if stack == "dec":
        put_attention(ours.cross_attention, theirs.multihead_attn)
    with torch.no_grad():
        if stack == "enc":
            assert agree(ours(x, View(None)), theirs(x))
            return
        assert agree(ours(x, View(None), memory, View(None)), theirs(x, memory, tgt_mask=hidden))


def test_translator_equals_marian():
    config = TranslatorConfig(**SIZES, encoder_layers=2, decoder_layers=2, norm_place="post")
    ours = built(config)
    theirs = MarianMTModel(
        MarianConfig(
            vocab_size=50, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, activation_function="relu",
            scale_embedding=True, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None,
            max_position_embeddings=64, dropout=0.0,
        )
    ).eval()  # fmt: skip
    put(theirs.model.shared, ours.model.encoder.embed_tokens.weight)
    for mine, marians in ((ours.model.encoder, theirs.model.encoder), (ours.model.decoder, theirs.model.decoder)):
        put(marians.embed_positions, mine.positions(torch.arange(64)[None], torch.float32)[0])
        for a, b in zip(mine.layers, marians.layers, strict=True):
            put_marian_layer(a, b)
    read = {**inputs(ours), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    read["attention_mask"][1, 6:] = 0
    assert agree(logits(ours, **read), logits(theirs, **read))
    options = {"max_new_tokens": 8, "do_sample": False, "num_beams": 3}
    source = {name: read[name] for name in ("input_ids", "attention_mask")}
    assert torch.equal(ours.generate(**source, **options), theirs.generate(**source, **options))


def put_marian_layer(ours, theirs):
    for mine, marians in (("self_attention", "self_attn"), ("cross_attention", "encoder_attn")):
        layer = getattr(ours, mine)
        if layer is None:
            continue
        parts = [layer.qkv] if mine == "self_attention" else [layer.q, layer.kv]
        weight, bias = (torch.cat([getattr(part, name) for part in parts]).chunk(3) for name in ("weight", "bias"))
        for letter, w, b in zip("qkv", weight, bias, strict=True):
            put(getattr(theirs, marians).get_submodule(f"{letter}_proj"), w, b)
        copied(layer.out, getattr(theirs, marians).out_proj)
        copied(getattr(ours, f"{mine}_norm"), getattr(theirs, f"{marians}_layer_norm"))
    copied(ours.feed_forward.widen, theirs.fc1)
    copied(ours.feed_forward.narrow, theirs.fc2)
    copied(ours.feed_forward_norm, theirs.final_layer_norm)


def test_decoder_equals_gpt2():
    ours = built(DecoderConfig.gpt(**SIZES, num_hidden_layers=2, max_position_embeddings=32))
    theirs = GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_embd=24, n_layer=2, n_head=4, n_inner=40, n_positions=32,
                   activation_function="gelu", bos_token_id=None, eos_token_id=1)
    ).eval()  # fmt: skip
    put(theirs.transformer.wte, ours.model.embed_tokens.weight)
    put(theirs.transformer.wpe, ours.model.positions.position_embeddings.weight)
    copied(ours.model.norm, theirs.transformer.ln_f)
    for mine, gpts in zip(ours.model.layers, theirs.transformer.h, strict=True):
        copied(mine.self_attention_norm, gpts.ln_1)
        copied(mine.feed_forward_norm, gpts.ln_2)
        for a, b in (
            (mine.self_attention.qkv, gpts.attn.c_attn),
            (mine.self_attention.out, gpts.attn.c_proj),
            (mine.feed_forward.widen, gpts.mlp.c_fc),
            (mine.feed_forward.narrow, gpts.mlp.c_proj),
        ):
            put(b, a.weight.T, a.bias)
    assert agree(logits(ours, input_ids=tokens(2, 9)), logits(theirs, input_ids=tokens(2, 9)))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_decoder_equals_llama(kv_heads):
    config = DecoderConfig.llama(**SIZES, num_hidden_layers=2, num_key_value_heads=kv_heads, tie_word_embeddings=False)
    ours = built(config)
    theirs = LlamaForCausalLM(
        LlamaConfig(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=kv_heads, intermediate_size=40, rms_norm_eps=1e-5, tie_word_embeddings=False)
    ).eval()  # fmt: skip
    put(theirs.model.embed_tokens, ours.model.embed_tokens.weight)
    put(theirs.model.norm, ours.model.norm.weight)
    put(theirs.lm_head, ours.lm_head.weight)
    for mine, llamas in zip(ours.model.layers, theirs.model.layers, strict=True):
        split = mine.self_attention.qkv.weight.split([24, 6 * kv_heads, 6 * kv_heads])
        for letter, weight in zip("qkv", split, strict=True):
            put(llamas.self_attn.get_submodule(f"{letter}_proj"), weight)
        for a, b in (
            (mine.self_attention.out, llamas.self_attn.o_proj),
            (mine.feed_forward.gate, llamas.mlp.gate_proj),
            (mine.feed_forward.widen, llamas.mlp.up_proj),
            (mine.feed_forward.narrow, llamas.mlp.down_proj),
            (mine.self_attention_norm, llamas.input_layernorm),
            (mine.feed_forward_norm, llamas.post_attention_layernorm),
        ):
            put(b, a.weight)
    assert agree(logits(ours, input_ids=tokens(2, 9)), logits(theirs, input_ids=tokens(2, 9)))
