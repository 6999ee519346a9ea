"""Every GGUF type that opens gives exactly the numbers that the gguf package decodes, in two architectures."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from headscope.model.load import load
from headscope.model.sources.names import resolve

pytestmark = pytest.mark.usefixtures("own_cache")

WIDTH, KEY_WIDTH, HEADS, KEY_HEADS, VOCABULARY = 256, 128, 4, 2, 32
EXACT = ("F32", "F16", "BF16")

# gguf has no Python quantiser for these: blocks of random bytes, with half-precision scales written at these offsets
# (one byte of a power of two for MXFP4), so that every decoded number is finite and of moderate size.
SCALES_AT = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "IQ2_XXS": (0,),
    "IQ3_S": (0,),
    "TQ2_0": (64,),
    "MXFP4": (0,),
}
TYPES = [*EXACT, "Q8_0", "Q4_0", "Q5_1", *SCALES_AT]

MATRICES = {
    "token_embd": (VOCABULARY, WIDTH),
    "output": (VOCABULARY, WIDTH),
    "blk.0.attn_q": (WIDTH, WIDTH),
    "blk.0.attn_k": (KEY_WIDTH, WIDTH),
    "blk.0.attn_v": (KEY_WIDTH, WIDTH),
    "blk.0.attn_output": (WIDTH, WIDTH),
    "blk.0.ffn_gate": (WIDTH, WIDTH),
    "blk.0.ffn_up": (WIDTH, WIDTH),
    "blk.0.ffn_down": (WIDTH, WIDTH),
}
TRANSFORMERS_NAMES = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "blk.0.attn_q": "model.layers.0.self_attn.q_proj",
    "blk.0.attn_k": "model.layers.0.self_attn.k_proj",
    "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
    "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
    "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj",
    "blk.0.ffn_up": "model.layers.0.mlp.up_proj",
    "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
}


def packed_matrix(kind: str, shape: tuple[int, int], draw: np.random.Generator) -> np.ndarray:
    """Random numbers of a GGUF type, as the bytes of its blocks."""
    code = gguf.GGMLQuantizationType[kind]
    if kind not in SCALES_AT:
        return gguf.quantize(draw.normal(size=shape).astype(np.float32) / 16, code)
    numbers, size = gguf.GGML_QUANT_SIZES[code]
    rows, blocks = shape[0], shape[1] // numbers
    data = draw.integers(0, 256, size=(rows, blocks, size), dtype=np.uint8)
    for offset in SCALES_AT[kind]:
        if kind == "MXFP4":
            data[..., offset] = draw.integers(115, 125, size=(rows, blocks))
        else:
            scales = draw.uniform(0.001, 0.01, size=(rows, blocks, 1)).astype(np.float16)
            data[..., offset : offset + 2] = scales.view(np.uint8)
    return data.reshape(rows, blocks * size)


def save_types(file: Path, architecture: str, kind: str) -> dict[str, np.ndarray]:
    """Write a model of one layer whose matrices all have one type; return the packed matrices by name."""
    draw = np.random.default_rng(0)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    matrices = {name: packed_matrix(kind, shape, draw) for name, shape in MATRICES.items()}
    for name, data in matrices.items():
        writer.add_tensor(f"{name}.weight", data, raw_dtype=gguf.GGMLQuantizationType[kind])
    vectors = {"output_norm.weight": WIDTH, "blk.0.attn_norm.weight": WIDTH, "blk.0.ffn_norm.weight": WIDTH}
    if architecture == "qwen2":
        vectors |= {"blk.0.attn_q.bias": WIDTH, "blk.0.attn_k.bias": KEY_WIDTH, "blk.0.attn_v.bias": KEY_WIDTH}
    for name, size in vectors.items():
        writer.add_tensor(name, draw.normal(size=size).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return matrices


def rotary_halves(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Llama's rows in a GGUF file alternate between the two halves of a head; transformers keeps halves together."""
    pairs = rows.reshape(n_heads, -1, 2, rows.shape[1])
    return np.concatenate([pairs[:, :, 0], pairs[:, :, 1]], axis=1).reshape(rows.shape)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", TYPES)
def test_a_type_opens_as_the_gguf_package_decodes_it(kind: str, architecture: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    matrices = save_types(file, architecture, kind)
    loaded = load(resolve(file))
    state = loaded.model.state_dict()
    for name, data in matrices.items():
        expected = gguf.dequantize(data, gguf.GGMLQuantizationType[kind]).reshape(MATRICES[name])
        if architecture == "llama" and name.endswith(("attn_q", "attn_k")):
            expected = rotary_halves(expected, HEADS if name.endswith("q") else KEY_HEADS)
        assert np.isfinite(expected).all()
        assert expected.std() > 0
        assert torch.equal(state[f"{TRANSFORMERS_NAMES[name]}.weight"], torch.from_numpy(expected.copy())), name
    assert loaded.dequantised.startswith("" if kind in EXACT else f"{kind} (")
    assert (loaded.dequantised == "") == (kind in EXACT)
