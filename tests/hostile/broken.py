"""Checkpoints to break: a tiny random Llama as transformers saves it, and the same as GGUF."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headscope.model.transformers.library_messages import quiet

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def llama_config(**changes: Any) -> LlamaConfig:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }
    return LlamaConfig(**(sizes | changes))


def save_llama(folder: Path, *, shard_size: str = "50GB", **changes: Any) -> LlamaForCausalLM:
    """A whole and sound checkpoint; `shard_size` such as "20KB" cuts it into several files."""
    torch.manual_seed(0)
    with quiet():
        model = LlamaForCausalLM(llama_config(**changes)).eval()
        model.save_pretrained(folder, max_shard_size=shard_size)
    return model


def save_tokenizer(folder: Path, n_words: int) -> None:
    """A tokenizer that knows the words w0, w1, …; every other word is w0."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(n_words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def header_of(file: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file as an object, and the data behind it."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write(file: Path, header: Any, data: bytes) -> None:
    """A safetensors file with this header, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def change_header(folder: Path, change: Callable[[dict[str, Any]], object], file: str = WEIGHTS) -> None:
    header, data = header_of(folder / file)
    change(header)
    write(folder / file, header, data)


def change_json(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Rewrite the weights as a sound file with other tensors."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def save_gguf(file: Path, model: LlamaForCausalLM, kind: str = "F32", *, layers: int = 2, width: int = 32) -> None:
    """The Llama as a GGUF file: names, the order of rotary rows and metadata as llama.cpp writes them."""
    config, state = model.config, {name: value.numpy() for name, value in model.state_dict().items()}
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    for name, value in state.items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        count = next((count for part, count in heads.items() if part in name), None)
        rows = value if count is None else _interleaved(value, count)
        # As llama.cpp does: norms stay float32, matrices are quantised.
        if kind == "F32" or value.ndim == 1:
            writer.add_tensor(_gguf_name(name), np.ascontiguousarray(rows))
        else:
            packed = gguf.quantize(rows, gguf.GGMLQuantizationType[kind])
            writer.add_tensor(_gguf_name(name), packed, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
    "model.layers": "blk",
}


def _gguf_name(name: str) -> str:
    for ours, theirs in _GGUF_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _interleaved(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring rows, transformers the two halves of a head."""
    halves = rows.reshape(n_heads, 2, rows.shape[0] // n_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)
