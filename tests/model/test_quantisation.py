"""Quantised safetensors: decoded as the libraries decode them, and as plain loops over the codes do.

The quantisers here are written by hand and number by number, so that they share nothing with the decoders; what
bitsandbytes and compressed-tensors themselves write and decode is in `quantised/`, made by `scripts/make_quantised.py`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from headscope.errors import CheckpointError
from headscope.model.formats.quantisation import plain_checkpoint
from headscope.model.formats.safetensors_folder import open_checkpoint
from headscope.model.formats.weight_decoders import scaled_codes
from headscope.model.load import load
from headscope.model.look import look
from headscope.model.model import open_model, open_weights
from headscope.model.sources.names import resolve
from headscope.model.transformers.library_messages import quiet
from tests.hostile.broken import change_json, change_tensors, save_llama

LIBRARIES = Path(__file__).parent / "quantised"
ONE_ROUNDING = 1.2e-7  # of float32, where a library multiplies in another order

Tensors = dict[str, torch.Tensor]
Quantiser = Callable[[str, np.ndarray], tuple[Tensors, np.ndarray]]


def library_cases() -> list[tuple[str, str]]:
    cases = []
    for file in sorted(LIBRARIES.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            cases += [(file.stem, case) for case in sorted(tensors.metadata())]
    return cases


@pytest.mark.parametrize(("library", "case"), library_cases())
def test_what_a_library_wrote_is_decoded_as_the_library_decodes_it(library: str, case: str, tmp_path: Path) -> None:
    file = LIBRARIES / f"{library}.safetensors"
    with safe_open(file, "pt") as tensors:
        raw = {"quantization_config": json.loads(tensors.metadata()[case])}
    parts = {
        key.removeprefix(f"{case}/"): value for key, value in load_file(file).items() if key.startswith(f"{case}/")
    }
    expected = parts.pop("expected")
    save_file(parts, tmp_path / "model.safetensors")
    checkpoint = plain_checkpoint(open_checkpoint(tmp_path), raw)
    assert set(checkpoint.tensors) == {"layer.weight"}
    decoded = checkpoint.read("layer.weight")
    # A library that decodes to bfloat16 rounds once more.
    difference = (decoded.to(expected.dtype).float() - expected.float()).abs().max() / expected.float().abs().max()
    assert float(difference) <= (ONE_ROUNDING if case.startswith("int8") else 0.0)
    assert checkpoint.dequantised.endswith("(100%)")


def bits_of(codes: list[int], bits: int) -> np.ndarray:
    """Codes as 32-bit words, the first code in the lowest bits: written as a string of binary digits."""
    digits = "".join(format(code, f"0{bits}b")[::-1] for code in codes)
    words = [int(digits[at : at + 32][::-1], 2) for at in range(0, len(digits), 32)]
    return np.array(words, dtype=np.uint32).view(np.int32)


def rounded_codes(values: np.ndarray, levels: int) -> tuple[np.ndarray, float, int]:
    """Codes, scale and zero point of numbers that share them; the scale as float16, in which formats keep it."""
    low, high = min(float(values.min()), -0.01), max(float(values.max()), 0.01)
    scale = float(np.float16((high - low) / (levels - 1)))
    zero = min(max(round(-low / scale), 1), levels - 2)
    codes = np.clip(np.round(values / scale) + zero, 0, levels - 1).astype(int)
    return codes, scale, zero


def gptq(bits: int, group: int, *, stored: str = "gptq", shuffled: bool = False) -> Quantiser:
    def quantise(module: str, weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        outputs, inputs = weight.shape
        groups = np.arange(inputs) // group
        if shuffled:
            groups = np.random.default_rng(1).permutation(groups)
        codes, decoded = np.zeros((inputs, outputs), dtype=int), np.zeros((outputs, inputs), dtype=np.float32)
        n_groups = groups.max() + 1
        scales, zeros = np.zeros((n_groups, outputs), dtype=np.float16), np.zeros((n_groups, outputs), dtype=int)
        for g in range(n_groups):
            members = np.flatnonzero(groups == g)
            for o in range(outputs):
                codes[members, o], scales[g, o], zeros[g, o] = rounded_codes(weight[o, members], 2**bits)
                for i in members:
                    decoded[o, i] = np.float32(scales[g, o]) * np.float32(codes[i, o] - zeros[g, o])
        shift = 1 if stored == "gptq" else 0
        words = np.stack([bits_of(list(codes[:, o]), bits) for o in range(outputs)], axis=1)
        zero_words = np.stack([bits_of(list(zeros[g] - shift), bits) for g in range(n_groups)])
        return {
            f"{module}.qweight": torch.from_numpy(words.copy()),
            f"{module}.qzeros": torch.from_numpy(zero_words.copy()),
            f"{module}.scales": torch.from_numpy(scales),
            f"{module}.g_idx": torch.from_numpy(groups.astype(np.int32)),
        }, decoded

    return quantise


def awq(group: int) -> Quantiser:
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def packed(codes: np.ndarray) -> torch.Tensor:
        rows = []
        for row in codes:
            blocks = [[int(row[at + place]) for place in order] for at in range(0, len(row), 8)]
            rows.append(np.concatenate([bits_of(block, 4) for block in blocks]))
        return torch.from_numpy(np.stack(rows))

    def quantise(module: str, weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        outputs, inputs = weight.shape
        n_groups = inputs // group
        codes, decoded = np.zeros((inputs, outputs), dtype=int), np.zeros((outputs, inputs), dtype=np.float32)
        scales, zeros = np.zeros((n_groups, outputs), dtype=np.float16), np.zeros((n_groups, outputs), dtype=int)
        for g in range(n_groups):
            for o in range(outputs):
                members = range(g * group, (g + 1) * group)
                codes[members, o], scales[g, o], zeros[g, o] = rounded_codes(weight[o, members], 16)
                for i in members:
                    decoded[o, i] = np.float32(scales[g, o]) * np.float32(codes[i, o] - zeros[g, o])
        return {
            f"{module}.qweight": packed(codes),
            f"{module}.qzeros": packed(zeros),
            f"{module}.scales": torch.from_numpy(scales),
        }, decoded

    return quantise


def fp8(block: tuple[int, int] | None, name: str = "weight_scale_inv") -> Quantiser:
    """One scale for each block; for each row with block None."""

    def quantise(module: str, weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        height, width = block or (1, columns)
        scales = np.zeros((math.ceil(rows / height), math.ceil(columns / width)), dtype=np.float32)
        codes, decoded = torch.zeros(rows, columns), np.zeros((rows, columns), dtype=np.float32)
        for a in range(scales.shape[0]):
            for b in range(scales.shape[1]):
                place = (slice(a * height, (a + 1) * height), slice(b * width, (b + 1) * width))
                scales[a, b] = np.float32(np.abs(weight[place]).max() / 448)
                codes[place] = torch.from_numpy(weight[place] / scales[a, b]).float()
                decoded[place] = codes[place].to(torch.float8_e4m3fn).float().numpy() * scales[a, b]
        return {
            f"{module}.weight": codes.to(torch.float8_e4m3fn),
            f"{module}.{name}": torch.from_numpy(scales),
            f"{module}.input_scale": torch.tensor(0.5),
        }, decoded

    return quantise


def four_bit_table(block: int, nested: bool) -> Quantiser:
    """Sixteen values of our own in place of nf4: the file brings its table along."""
    table = np.linspace(-1, 1, 16).astype(np.float32) ** 3

    def quantise(module: str, weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        flat = weight.reshape(-1)
        state: dict[str, Any] = {
            "quant_type": "nf4",
            "blocksize": block,
            "dtype": "float32",
            "shape": list(weight.shape),
        }
        maxima = np.array([np.abs(flat[at : at + block]).max() for at in range(0, len(flat), block)], dtype=np.float32)
        parts: dict[str, np.ndarray] = {"weight.quant_map": table}
        if nested:
            outer_table = np.linspace(-1, 1, 256).astype(np.float32)
            offset, outer_block = float(maxima.mean()), 8
            centred = maxima - np.float32(offset)
            starts = range(0, len(maxima), outer_block)
            outer = np.array([np.abs(centred[at : at + outer_block]).max() for at in starts], dtype=np.float32)
            codes = [
                int(np.abs(outer_table - centred[n] / outer[n // outer_block]).argmin()) for n in range(len(maxima))
            ]
            maxima = np.array(
                [outer_table[code] * outer[n // outer_block] + np.float32(offset) for n, code in enumerate(codes)],
                dtype=np.float32,
            )
            state |= {"nested_blocksize": outer_block, "nested_offset": offset, "nested_dtype": "float32"}
            parts |= {"weight.nested_absmax": outer, "weight.nested_quant_map": outer_table}
            parts["weight.absmax"] = np.array(codes, dtype=np.uint8)
        else:
            parts["weight.absmax"] = maxima
        codes = [int(np.abs(table - flat[n] / maxima[n // block]).argmin()) for n in range(len(flat))]
        parts["weight"] = np.array([[16 * a + b] for a, b in zip(codes[::2], codes[1::2], strict=True)], dtype=np.uint8)
        description = np.frombuffer(json.dumps(state).encode(), dtype=np.uint8)
        parts["weight.quant_state.bitsandbytes__nf4"] = description.copy()
        decoded = np.array([table[code] * maxima[n // block] for n, code in enumerate(codes)], dtype=np.float32)
        return {f"{module}.{key}": torch.from_numpy(value) for key, value in parts.items()}, decoded.reshape(
            weight.shape
        )

    return quantise


def int8_rows(module: str, weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
    scales = np.abs(weight).max(axis=1).astype(np.float32)
    codes = np.round(weight / scales[:, None] * 127).astype(np.int8)
    decoded = codes.astype(np.float32) * (scales[:, None] / np.float32(127))
    return {
        f"{module}.weight": torch.from_numpy(codes),
        f"{module}.SCB": torch.from_numpy(scales),
        f"{module}.weight_format": torch.tensor(0, dtype=torch.uint8),
    }, decoded


def packed_int4(group: int, *, ordered: bool) -> Quantiser:
    def quantise(module: str, weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        groups = np.arange(columns) // group
        if not ordered:
            groups = np.random.default_rng(2).permutation(groups)
        scales, zeros = np.zeros((rows, groups.max() + 1), np.float32), np.zeros((rows, groups.max() + 1), int)
        codes, decoded = np.zeros((rows, columns), int), np.zeros((rows, columns), np.float32)
        for r in range(rows):
            for g in range(groups.max() + 1):
                members = np.flatnonzero(groups == g)
                codes[r, members], scales[r, g], zeros[r, g] = rounded_codes(weight[r, members], 16)
                for c in members:
                    decoded[r, c] = scales[r, g] * np.float32(codes[r, c] - zeros[r, g])
        zero_words = np.stack([bits_of(list(zeros[:, g]), 4) for g in range(zeros.shape[1])], axis=1)
        parts = {
            "weight_packed": np.stack([bits_of(list(codes[r]), 4) for r in range(rows)]),
            "weight_scale": scales,
            "weight_zero_point": zero_words.copy(),
            "weight_shape": np.array([rows, columns]),
        }
        if not ordered:
            parts["weight_g_idx"] = groups.astype(np.int32)
        return {f"{module}.{key}": torch.from_numpy(value) for key, value in parts.items()}, decoded

    return quantise


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"weights": weights}}}


BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 8, "symmetric": False}
# What config.json says, the quantiser, and how the format is called.
FORMATS: dict[str, tuple[dict[str, Any], Quantiser, str]] = {
    "gptq-4": ({"quant_method": "gptq", "bits": 4, "group_size": 16}, gptq(4, 16), "GPTQ 4-bit"),
    "gptq-8": ({"quant_method": "gptq", "bits": 8, "group_size": 16}, gptq(8, 16), "GPTQ 8-bit"),
    "gptq-2": ({"quant_method": "gptq", "bits": 2, "group_size": 8}, gptq(2, 8), "GPTQ 2-bit"),
    "gptq-shuffled": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True},
        gptq(4, 16, shuffled=True),
        "GPTQ 4-bit",
    ),
    "gptq-v2": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "checkpoint_format": "gptq_v2"},
        gptq(4, 16, stored="gptq_v2"),
        "GPTQ 4-bit",
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm"}, awq(8), "AWQ 4-bit"),
    "fp8-block": (
        {"quant_method": "fp8", "weight_block_size": [12, 20], "activation_scheme": "dynamic"},
        fp8((12, 20)),
        "fp8 e4m3",
    ),
    "fp8-even": ({"quant_method": "fp8", "weight_block_size": [16, 16]}, fp8((16, 16)), "fp8 e4m3"),
    "fp8-row": ({"quant_method": "fbgemm_fp8"}, fp8(None, "weight_scale"), "fp8 e4m3"),
    "fp8-tensor": (
        {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"},
        fp8((99, 99)),
        "fp8 e4m3",
    ),
    "bitsandbytes": (BITSANDBYTES, four_bit_table(64, nested=False), "bitsandbytes nf4"),
    "bitsandbytes-nested": (BITSANDBYTES, four_bit_table(32, nested=True), "bitsandbytes nf4"),
    "bitsandbytes-int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, int8_rows, "bitsandbytes int8"),
    "int4": (compressed("pack-quantized", **INT4), packed_int4(8, ordered=True), "compressed-tensors int4"),
    "int4-shuffled": (
        compressed("pack-quantized", **INT4, actorder="group"),
        packed_int4(8, ordered=False),
        "compressed-tensors int4",
    ),
    "fp8-group": (
        compressed("float-quantized", num_bits=8, type="float", strategy="group", group_size=8),
        fp8((1, 8), "weight_scale"),
        "compressed-tensors fp8 e4m3",
    ),
}


def save_quantised(folder: Path, name: str) -> LlamaForCausalLM:
    """A checkpoint with every linear layer of its blocks quantised, and the model with the decoded weights."""
    settings, quantise, _ = FORMATS[name]
    model = save_llama(folder, num_hidden_layers=1)
    tensors = load_file(folder / "model.safetensors")
    state = model.state_dict()
    for key in [key for key in tensors if "_proj" in key]:
        parts, decoded = quantise(key.removesuffix(".weight"), tensors.pop(key).numpy().astype(np.float64))
        tensors |= {part: value.clone().contiguous() for part, value in parts.items()}
        state[key] = torch.from_numpy(decoded)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change_json(folder / "config.json", lambda config: config.update(quantization_config=settings))
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantised_checkpoint_opens_with_its_decoded_weights(name: str, tmp_path: Path) -> None:
    expected, form = save_quantised(tmp_path, name), FORMATS[name][2]
    loaded = load(resolve(tmp_path))
    state, tokens = expected.state_dict(), torch.arange(20)[None]
    for key, value in loaded.model.state_dict().items():
        assert torch.allclose(value, state[key], rtol=2 * ONE_ROUNDING, atol=0), key
    with torch.no_grad():
        assert torch.allclose(loaded.model(tokens).logits, expected(tokens).logits, rtol=0, atol=1e-6)
    assert loaded.dequantised == f"{form} (69%)"
    assert loaded.dtype_on_disk == f"{form}, F32"
    assert any("quantised activations" in note for note in loaded.notes) == ("fp8-" in name or "int8" in name) - (
        name == "fp8-group"
    )


def test_file_look_and_model_agree_about_a_quantised_checkpoint(tmp_path: Path) -> None:
    expected = save_quantised(tmp_path, "gptq-4").model.layers[0].self_attn.k_proj.weight.detach()
    model, weights, card = open_model(tmp_path), open_weights(tmp_path), look(tmp_path)
    assert "read from the safetensors files" in weights.method
    for source in (model.weight_source(), weights):
        w_k = source.weights(source.sites[0]).w_k
        assert torch.allclose(torch.cat(list(w_k), dim=1), expected.T, rtol=2 * ONE_ROUNDING, atol=0)
        assert source.spec.dequantised == model.spec.dequantised == card.spec.dequantised != ""
    assert weights.spec.sha256 == model.spec.sha256
    assert "were expanded from GPTQ 4-bit (69%)" in str(card)


def test_fp8_agrees_with_transformers(tmp_path: Path) -> None:
    """transformers dequantises fp8 on a CPU by itself, where blocks divide the matrix."""
    save_quantised(tmp_path, "fp8-even")
    change_tensors(tmp_path, lambda all_: [all_.pop(key) for key in list(all_) if key.endswith("input_scale")])
    with quiet():
        theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ours = load(resolve(tmp_path)).model
    for (key, a), b in zip(theirs.state_dict().items(), ours.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=2 * ONE_ROUNDING, atol=0), key
    change_tensors(tmp_path, lambda all_: all_.update({Q: (all_[Q].float() / 2).to(torch.float8_e4m3fn)}))
    assert not torch.equal(load(resolve(tmp_path)).model.model.layers[0].self_attn.q_proj.weight, ours.state_dict()[Q])


Q = "model.layers.0.self_attn.q_proj.weight"
MODULE = Q.removesuffix(".weight")


def drop(key: str) -> Any:
    return lambda folder: change_tensors(folder, lambda all_: all_.pop(f"{MODULE}.{key}"))


def put(key: str, value: torch.Tensor) -> Any:
    return lambda folder: change_tensors(folder, lambda all_: all_.update({f"{MODULE}.{key}": value}))


def say(**changes: Any) -> Any:
    return lambda folder: change_json(
        folder / "config.json", lambda config: config["quantization_config"].update(changes)
    )


def description(**changes: Any) -> Any:
    def damage(folder: Path) -> None:
        key = f"{Q}.quant_state.bitsandbytes__nf4"
        state = json.loads(bytes(load_file(folder / "model.safetensors")[key].tolist())) | changes
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        change_tensors(folder, lambda all_: all_.update({key: text}))

    return damage


def forget(folder: Path) -> None:
    change_json(folder / "config.json", lambda config: config.pop("quantization_config"))


def all_zero_points(folder: Path) -> None:
    change_tensors(folder, lambda all_: all_[f"{MODULE}.qzeros"].fill_(-1))


DAMAGE: dict[str, tuple[str, Any, str]] = {
    "unknown method": ("gptq-4", say(quant_method="hqq"), "quantised by hqq"),
    "no method": ("gptq-4", say(quant_method=None), "quantised by None"),
    "method that no tensor follows": ("gptq-4", say(quant_method="bitsandbytes"), "but no tensor is"),
    "three bits": ("gptq-4", say(bits=3), "GPTQ with 3 bits"),
    "other bits": ("gptq-4", say(bits=8), "cannot be decoded: it has shape"),
    "other form": ("gptq-4", say(checkpoint_format="marlin"), "in the form 'marlin'"),
    "ambiguous zero points": ("gptq-4", all_zero_points, "read in different ways"),
    "group out of range": ("gptq-4", put("g_idx", torch.full((32,), 7, dtype=torch.int32)), "cannot be decoded"),
    "no scales": ("gptq-4", drop("scales"), "scales is missing"),
    "wrong scales": ("gptq-4", put("scales", torch.ones(2, 31).half()), "has shape (2, 31), expected (2, 32)"),
    "scale not finite": ("gptq-4", put("scales", torch.full((2, 32), torch.inf).half()), "not finite"),
    "awq version": ("awq", say(version="gemv"), "version 'gemv'"),
    "awq group": ("awq", say(group_size=0), "group size 0"),
    "fp8 without scales": ("fp8-block", drop("weight_scale_inv"), "weight_scale is missing"),
    "fp8 of other blocks": ("fp8-block", say(weight_block_size=[16, 16]), "in blocks of [16, 16]"),
    "fp8 of no blocks": ("fp8-block", say(weight_block_size="x"), "do not fit"),
    "fp8 and no word of it": ("fp8-block", forget, "stored as F8_E4M3, expected plain real numbers"),
    "description": ("bitsandbytes", description(shape=[64, 32]), "does not fit the bytes"),
    "description without sizes": ("bitsandbytes", description(blocksize=-1), "its description is"),
    "description of another table": ("bitsandbytes", description(quant_type="xx"), "its description is"),
    "layout": ("bitsandbytes-int8", put("weight_format", torch.tensor(1, dtype=torch.uint8)), "not row by row"),
    "int8 scales": ("bitsandbytes-int8", put("SCB", torch.ones(5)), "expected (32,)"),
    "compressed format": ("int4", say(format="marlin-24"), "in the format 'marlin-24'"),
    "compressed groups": ("int4", say(config_groups={}), "compressed-tensors in the format"),
    "sparse": ("int4", say(sparsity_config={"format": "sparse-24-bitmask"}), "with sparse or transformed weights"),
    "compressed shape": ("int4", put("weight_shape", torch.tensor([32, 99])), "do not fit (32, 4) words"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_does_not_add_up_is_refused(kind: str, tmp_path: Path) -> None:
    name, damage, message = DAMAGE[kind]
    save_quantised(tmp_path, name)
    damage(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load(resolve(tmp_path))
    assert message in caught.value.message


def test_blocks_at_the_edge_are_smaller() -> None:
    codes, scales = torch.arange(15).reshape(3, 5), torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    expected = torch.tensor([[0, 1, 2, 30, 40], [5, 6, 7, 80, 90], [1000, 1100, 1200, 13000, 14000]]).float()
    assert torch.equal(scaled_codes(codes, scales, (2, 3)), expected)


def decoded_by_hand(name: str, tmp_path: Path) -> None:
    settings, quantise, _ = FORMATS[name]
    weight = np.random.default_rng(0).normal(size=(24, 64))
    parts, expected = quantise("layer", weight)
    save_file({key: value.contiguous() for key, value in parts.items()}, tmp_path / "model.safetensors")
    decoded = plain_checkpoint(open_checkpoint(tmp_path), {"quantization_config": settings}).read("layer.weight")
    assert np.array_equal(decoded.numpy(), expected)
    assert 0 < np.abs(expected - weight).max() < 0.5 * np.abs(weight).max()


@pytest.mark.parametrize("name", ["gptq-4", "gptq-8", "gptq-shuffled", "gptq-v2"])
def test_gptq_by_hand(name: str, tmp_path: Path) -> None:
    decoded_by_hand(name, tmp_path)


def test_awq_by_hand(tmp_path: Path) -> None:
    decoded_by_hand("awq", tmp_path)


@pytest.mark.parametrize("name", ["bitsandbytes", "bitsandbytes-nested"])
def test_four_bit_tables_by_hand(name: str, tmp_path: Path) -> None:
    decoded_by_hand(name, tmp_path)
