"""Tiny random models of many families: the ground on which access to attention is checked.

Each entry is a config and what it is there for. Nothing in headscope knows these families by name.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
import transformers

SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}


@dataclass(frozen=True)
class Family:
    """A tiny model to build; `covers` says what it is there to exercise."""

    name: str
    model: str
    config: str
    options: dict[str, Any]
    covers: str
    weights: str = "exact"  # what model.weights should say: exact, clipped, normed or refused

    def build(self, seed: int = 0) -> Any:
        """The model in eval mode, seeded."""
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some families use deprecated parts of torch when imported
            config = getattr(transformers, self.config)(**self.options)
            model = getattr(transformers, self.model)._from_config(config).eval()
        return _spread(model, seed)


def _spread(model: Any, seed: int) -> Any:
    """Make the scores vary: with the tiny default initialisation every map is almost uniform.

    A standard deviation of 1/√d_model keeps the size of the residual stream and gives scores of order one.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, 0.18, generator=generator)
            elif "bias" in name or "sink" in name:
                parameter.normal_(0.0, 0.3, generator=generator)
            else:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return model


def _family(name: str, prefix: str, options: dict[str, Any], covers: str, **more: Any) -> Family:
    head = more.pop("head", "ForCausalLM")
    return Family(name, f"{prefix}{head}", f"{more.pop('config', prefix)}Config", options, covers, **more)


GPT2 = {
    "vocab_size": 99,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
T5 = {
    "vocab_size": 99,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,  # as many as in the encoder: transformers sizes the cache of T5 by the latter
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
BART = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}

DECODERS = (
    _family("gpt2", "GPT2", GPT2, "MHA, absolute positions, fused Conv1D", head="LMHeadModel"),
    _family("llama_mha", "Llama", SMALL, "MHA, rotary"),
    _family("llama_gqa", "Llama", GROUPED, "GQA, rotary"),
    _family("llama_mqa", "Llama", {**SMALL, "num_key_value_heads": 1}, "MQA, rotary"),
    _family("llama_bias", "Llama", {**GROUPED, "attention_bias": True, "head_dim": 12}, "biases, d_head ≠ d_model/heads"),
    _family("mistral", "Mistral", {**GROUPED, "sliding_window": 4}, "sliding window"),
    _family("mixtral", "Mixtral", {**GROUPED, "num_local_experts": 4, "sliding_window": None}, "experts"),
    _family("qwen2", "Qwen2", GROUPED, "biases on q, k, v only"),
    _family("qwen3", "Qwen3", {**GROUPED, "head_dim": 8}, "QK-norm per head", weights="normed"),
    _family("gemma", "Gemma", {**GROUPED, "head_dim": 8}, "scaled embeddings"),
    _family("gemma2", "Gemma2", {**GROUPED, "head_dim": 8, "sliding_window": 4}, "softcap, alternating windows"),
    _family("gemma3", "Gemma3", {**GROUPED, "head_dim": 8, "sliding_window": 4}, "QK-norm, alternating windows", config="Gemma3Text", weights="normed"),
    _family("gpt_oss", "GptOss", {**GROUPED, "head_dim": 8, "sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2}, "sinks, alternating windows"),
    _family("gpt_neox", "GPTNeoX", SMALL, "fused and interleaved q, k, v; partial rotary"),
    _family("opt", "OPT", {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32}, "pre-scaled queries"),
    _family("phi", "Phi", SMALL, "partial rotary, parallel block"),
    _family("phi3", "Phi3", GROUPED, "fused q, k, v in one Linear"),
    _family("stablelm", "StableLm", GROUPED, "partial rotary"),
    _family("olmo", "Olmo", GROUPED, "norms without weights"),
    _family("olmo_clipped", "Olmo", {**GROUPED, "clip_qkv": 0.5}, "q, k, v cut off in place", weights="clipped"),
    _family("olmo2", "Olmo2", GROUPED, "QK-norm over all heads", weights="normed"),
    _family("cohere", "Cohere", GROUPED, "interleaved rotary, parallel block"),
    _family("starcoder2", "Starcoder2", {**GROUPED, "sliding_window": None}, "biases everywhere"),
    _family("granite", "Granite", {**GROUPED, "attention_multiplier": 0.2}, "its own scale"),
    _family("gpt_bigcode", "GPTBigCode", {**GPT2, "multi_query": True}, "MQA, fused Linear"),
    _family("deepseek_v3", "DeepseekV3", {**SMALL, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1}, "latent attention, d_value ≠ d_head", weights="refused"),
    _family("llama4", "Llama4", {**GROUPED, "head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 2, "num_experts_per_tok": 1}, "a router that is a Linear and more; QK-norm", config="Llama4Text", weights="normed"),
    _family("nemotron", "Nemotron", {**GROUPED, "head_dim": 8}, "partial rotary, other norm"),
    _family("glm", "Glm", {**GROUPED, "head_dim": 8}, "interleaved partial rotary"),
)  # fmt: skip

ENCODERS = (
    _family("bert", "Bert", SMALL, "absolute positions, post-norm", head="ForMaskedLM"),
    _family("roberta", "Roberta", {**SMALL, "max_position_embeddings": 66}, "positions offset by padding", head="ForMaskedLM"),
    _family("distilbert", "DistilBert", {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64}, "no layer index", head="ForMaskedLM"),
    _family("albert", "Albert", {**SMALL, "embedding_size": 16}, "one module shared by all layers", head="ForMaskedLM"),
    _family("electra", "Electra", {**SMALL, "embedding_size": 16}, "", head="Model"),
    _family("modernbert", "ModernBert", {**SMALL, "local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2}, "rotary encoder with two-sided windows", head="ForMaskedLM"),
    _family("vit", "ViT", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16, "patch_size": 4}, "images", head="Model"),
)  # fmt: skip

ENCODER_DECODERS = (
    _family("t5", "T5", T5, "relative bias, scale 1, cross-attention", head="ForConditionalGeneration"),
    _family("mt5", "MT5", {**T5, "feed_forward_proj": "gated-gelu"}, "gated feed-forward", head="ForConditionalGeneration"),
    _family("bart", "Bart", BART, "learned positions, cross-attention", head="ForConditionalGeneration"),
    _family("marian", "Marian", {**BART, "eos_token_id": 2}, "sinusoidal positions", head="MTModel"),
    _family("pegasus", "Pegasus", BART, "pre-norm", head="ForConditionalGeneration"),
    _family("nllb_moe", "NllbMoe", {**BART, "num_experts": 2, "expert_capacity": 8, "encoder_sparse_step": 0, "decoder_sparse_step": 0}, "eager only: no mask means that all is visible", head="ForConditionalGeneration"),
    _family("mbart", "MBart", BART, "pre-norm and layer norm of embeddings", head="ForConditionalGeneration"),
    _family("whisper", "Whisper", {**{k: v for k, v in BART.items() if k not in ("max_position_embeddings",)}, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 32, "suppress_tokens": None, "begin_suppress_tokens": None}, "sound, cross-attention", head="ForConditionalGeneration"),
)  # fmt: skip

OUTSIDE = (
    _family("mpnet", "MPNet", SMALL, "", head="ForMaskedLM"),
    _family("mvp", "Mvp", BART, "a head that calls the parts of the body"),
    _family("falcon", "Falcon", {**SMALL, "num_kv_heads": 4, "alibi": False}, ""),
    _family("falcon_alibi", "Falcon", {**SMALL, "num_kv_heads": 4, "alibi": True, "attn_implementation": "eager"}, "a mask with the bias in it, made once for all layers"),
    _family("bloom", "Bloom", {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}, ""),
    _family("mpt", "Mpt", {"vocab_size": 99, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}, ""),
    _family("gptj", "GPTJ", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}, ""),
    _family("gpt_neo", "GPTNeo", {"vocab_size": 99, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4, "max_position_embeddings": 64}, ""),
    _family("codegen", "CodeGen", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}, ""),
    _family("xglm", "XGLM", {"vocab_size": 99, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48, "max_position_embeddings": 64}, ""),
    _family("deberta_v2", "DebertaV2", {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, "", head="ForMaskedLM"),
    _family("big_bird", "BigBird", {**SMALL, "attention_type": "block_sparse", "block_size": 8, "num_random_blocks": 1}, "", head="ForMaskedLM"),
)  # fmt: skip

# More families that compute their attention themselves, by einsum, with grouped heads, or in ways of their own.
OTHER_OUTSIDE = (
    _family("falcon_grouped", "Falcon", {**SMALL, "num_kv_heads": 2, "new_decoder_architecture": True, "alibi": False}, "keys and values copied for each query head"),
    _family("deberta", "Deberta", {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, "biases outside the projection, terms of content and position", head="ForMaskedLM"),
    _family("openai", "OpenAIGPT", GPT2, "hidden scores multiplied by 0", head="LMHeadModel"),
    _family("flaubert", "Flaubert", {"vocab_size": 99, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64, "n_langs": 1}, "no order of layers", head="WithLMHeadModel"),
    _family("xlnet", "XLNet", {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, "einsum, positions before the batch, no linear modules", head="LMHeadModel", weights="refused"),
    _family("convbert", "ConvBert", {**SMALL, "embedding_size": 32, "head_ratio": 2}, "outputs beside those of a convolution", head="ForMaskedLM", weights="refused"),
)  # fmt: skip

# Its experts are one matrix, which no feed-forward reader knows: not among the others.
DBRX = _family("dbrx", "Dbrx", {"vocab_size": 99, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.5, "rope_theta": 10000.0}, "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 2, "moe_top_k": 1, "hidden_size": 32}}, "fused q, k, v, cut off", weights="clipped")  # fmt: skip

DISPATCHING = DECODERS + ENCODERS + ENCODER_DECODERS
