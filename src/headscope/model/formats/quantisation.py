"""Quantised safetensors: which tensors together hold one weight, and how it is read back as plain numbers.

`plain_checkpoint` gives a checkpoint whose quantised weights look like plain ones: under the name `….weight`, of their
full shape, decoded when they are read. A format is recognised by what config.json says and by the tensors that are
there; whatever does not add up is refused. `weight_decoders` has the formulas.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headscope.errors import CheckpointError
from headscope.model.formats.checkpoint import Checkpoint, TensorEntry
from headscope.model.formats.weight_decoders import (
    AWQ_ORDER,
    WORD,
    awq_weight,
    gptq_weight,
    nested_maxima,
    scaled_codes,
    table_values,
    unpacked,
)
from headscope.model.transformers.library_messages import reason

METHODS = ("bitsandbytes", "gptq", "awq", "fp8", "fbgemm_fp8", "compressed-tensors")
_OPENED = "bitsandbytes, GPTQ, AWQ, fp8 with scales and compressed-tensors are dequantised"
_FP8 = ("F8_E4M3", "F8_E5M2")
_BITS = (2, 4, 8)  # codes that never straddle two words
_INT8_ROWS = 0  # weight_format of bitsandbytes: rows as they are


@dataclass(frozen=True)
class Packing:
    """How one weight is stored: which tensors hold it, its full shape, its format, and how it is decoded."""

    parts: tuple[str, ...]
    shape: tuple[int, ...]
    form: str
    decode: Callable[[], Tensor]


@dataclass(frozen=True)
class DecodedCheckpoint(Checkpoint):
    """A checkpoint whose quantised weights are decoded when they are read."""

    packings: Mapping[str, Packing]
    warnings: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about the decoded weights."""
        return self.warnings

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The floating dtypes of the tensors that are stored as plain numbers."""
        plain = {name: entry for name, entry in self.tensors.items() if name not in self.packings}
        return Checkpoint(self.folder, self.files, plain, self.reader).dtypes

    @property
    def stored(self) -> str:
        """The quantised formats, then the floating dtypes of what is stored plainly."""
        return ", ".join((*self._counts(), *self.dtypes))

    @property
    def dequantised(self) -> str:
        """The quantised formats with their shares of all numbers, e.g. "bitsandbytes nf4 (86%)"."""
        return ", ".join(f"{form} ({count / self.n_numbers:.0%})" for form, count in self._counts().items())

    def _counts(self) -> dict[str, int]:
        """How many numbers have which format, the most common first."""
        counts: dict[str, int] = {}
        for packing in self.packings.values():
            counts[packing.form] = counts.get(packing.form, 0) + math.prod(packing.shape)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def read(self, name: str, dtype: torch.dtype | None = torch.float32) -> Tensor:
        """One tensor, read and decoded now."""
        packing = self.packings.get(name)
        if packing is None:
            return super().read(name, dtype)
        try:
            weight = packing.decode()
        except (RuntimeError, LookupError, ValueError, TypeError) as error:
            raise _damaged(self, name, reason(error)) from error
        return weight if dtype is None else weight.to(dtype)


def check_method(raw: Mapping[str, Any], where: str) -> None:
    """Raise where config.json names a quantisation that headscope cannot undo."""
    settings = raw.get("quantization_config")
    if not settings:
        return
    method = settings.get("quant_method", "an unnamed method") if isinstance(settings, dict) else settings
    if method not in METHODS:
        raise CheckpointError(
            f"{where}: the weights are quantised by {method}, expected float16, bfloat16 or float32",
            hint=f"dequantise and save the model with transformers, or use a .gguf, which headscope expands; {_OPENED}",
        )


def plain_checkpoint(checkpoint: Checkpoint, raw: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint with its quantised weights as plain ones; itself where config.json names no quantisation."""
    settings = raw.get("quantization_config")
    if not settings:
        return checkpoint
    check_method(raw, str(checkpoint.folder / "config.json"))
    formats = {
        "bitsandbytes": _bitsandbytes,
        "gptq": _gptq,
        "awq": _awq,
        "fp8": _scaled_floats,
        "fbgemm_fp8": _scaled_floats,
        "compressed-tensors": _compressed,
    }
    packings = formats[settings["quant_method"]](checkpoint, settings)
    if not packings:
        raise CheckpointError(
            f"{checkpoint.folder}: config.json says that the weights are quantised by {settings['quant_method']}, "
            "but no tensor is",
            hint="config.json and weights do not belong together: fetch both again",
        )
    used = {part for packing in packings.values() for part in packing.parts}
    tensors = {name: entry for name, entry in checkpoint.tensors.items() if name not in used}
    for name, packing in packings.items():
        entry = checkpoint.tensors[packing.parts[0]]
        tensors[name] = replace(entry, dtype="F32", shape=packing.shape)
    return DecodedCheckpoint(
        checkpoint.folder, checkpoint.files, tensors, checkpoint.reader, packings, _activations(settings)
    )


def _activations(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """A note where the checkpoint is meant to be run with quantised activations too."""
    groups = settings.get("config_groups")
    members = [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []
    schemes = [group.get("input_activations") for group in members]
    by_method = settings.get("quant_method") in ("fp8", "fbgemm_fp8") or settings.get("load_in_8bit") is True
    if not by_method and not any(schemes):
        return ()
    return ("only the weights are dequantised: this checkpoint is meant to be run with quantised activations too",)


def _bitsandbytes(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> dict[str, Packing]:
    packings: dict[str, Packing] = {}
    for name in checkpoint.tensors:
        weight, _, state = name.partition(".quant_state.bitsandbytes__")
        if state:
            packings[weight] = _table_packing(checkpoint, weight, name)
        elif name.endswith(".SCB"):
            weight = f"{name.removesuffix('.SCB')}.weight"
            packings[weight] = _int8_packing(checkpoint, weight, name)
    return packings


def _table_packing(checkpoint: Checkpoint, weight: str, state_name: str) -> Packing:
    state = _quant_state(checkpoint, state_name)
    shape, block = tuple(state["shape"]), state["blocksize"]
    table, maxima = f"{weight}.quant_map", f"{weight}.absmax"
    nested = [f"{weight}.nested_absmax", f"{weight}.nested_quant_map"] if "nested_blocksize" in state else []
    parts = (weight, state_name, table, maxima, *nested)
    _require(checkpoint, weight, parts)
    numbers, entry = math.prod(shape), checkpoint.tensors[weight]
    blocks = math.ceil(numbers / block)
    if 2 * (entry.end - entry.begin) != numbers + numbers % 2 or checkpoint.tensors[maxima].shape != (blocks,):
        raise _damaged(checkpoint, weight, f"shape {shape} in blocks of {block} does not fit the bytes that are there")

    def decode() -> Tensor:
        packed = checkpoint.read_codes(weight).reshape(-1).view(torch.uint8)
        scales = checkpoint.read_codes(maxima)
        if nested:
            outer, outer_table = (checkpoint.read_codes(name) for name in nested)
            scales = nested_maxima(scales, outer_table, outer, state["nested_blocksize"], state["nested_offset"])
        values = table_values(packed, checkpoint.read_codes(table), scales, block)
        return values[:numbers].reshape(shape)

    return Packing(parts, shape, f"bitsandbytes {state['quant_type']}", decode)


def _quant_state(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    try:
        state = json.loads(bytes(checkpoint.read_codes(name).tolist()))
        sizes = [*state["shape"], state["blocksize"], state.get("nested_blocksize", 1)]
        offset = state.get("nested_offset", 0.0)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(checkpoint, name, f"its description cannot be read ({reason(error)})") from error
    right = all(type(size) is int and 0 < size < 1 << 40 for size in sizes) and isinstance(offset, int | float)
    if not right or state.get("quant_type") not in ("nf4", "fp4"):
        raise _damaged(checkpoint, name, f"its description is {state!r:.200}")
    return dict(state)


def _int8_packing(checkpoint: Checkpoint, weight: str, scales: str) -> Packing:
    layout = f"{weight}_format"
    parts = (weight, scales, *([layout] if layout in checkpoint.tensors else []))
    entry = _matrix(checkpoint, weight, ("I8",), parts)
    _expect(checkpoint, scales, (entry.shape[0],))
    if len(parts) == 3 and int(checkpoint.read_codes(layout)) != _INT8_ROWS:
        raise _damaged(checkpoint, weight, "its weight_format is not row by row")

    def decode() -> Tensor:
        rows = checkpoint.read_codes(scales).float()[:, None] / 127
        return scaled_codes(checkpoint.read_codes(weight), rows, (1, entry.shape[1]))

    return Packing(parts, entry.shape, "bitsandbytes int8", decode)


def _gptq(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> dict[str, Packing]:
    bits = settings.get("bits")
    stored = settings.get("checkpoint_format", "gptq")
    if bits not in _BITS or stored not in ("gptq", "gptq_v2"):
        raise CheckpointError(
            f"{checkpoint.folder}: GPTQ with {bits} bits in the form {stored!r}, expected 2, 4 or 8 bits in the form "
            "'gptq' or 'gptq_v2'",
            hint="dequantise and save the model with the library that quantised it",
        )
    shift = 1 if stored == "gptq" else 0
    modules = [name.removesuffix(".qweight") for name in checkpoint.tensors if name.endswith(".qweight")]
    return {f"{module}.weight": _gptq_packing(checkpoint, module, bits, shift) for module in modules}


def _gptq_packing(checkpoint: Checkpoint, module: str, bits: int, shift: int) -> Packing:
    parts = tuple(f"{module}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
    words, zeros, scales, groups = parts
    entry = _matrix(checkpoint, words, ("I32",), parts)
    inputs, outputs = entry.shape[0] * WORD // bits, entry.shape[1]
    n_groups = checkpoint.tensors[scales].shape[0] if checkpoint.tensors[scales].shape else 0
    _expect(checkpoint, scales, (n_groups, outputs))
    _expect(checkpoint, zeros, (n_groups, math.ceil(outputs * bits / WORD)))
    _expect(checkpoint, groups, (inputs,))

    def decode() -> Tensor:
        zero_words = checkpoint.read_codes(zeros)
        if shift and bool((unpacked(zero_words, bits)[:, :outputs] == 2**bits - 1).any()):
            raise CheckpointError(
                f"{checkpoint.folder}: a zero point of {module} is stored as {2**bits - 1}, which libraries for GPTQ "
                "read in different ways",
                hint="save the model in the form gptq_v2, or dequantise it with the library that quantised it",
            )
        index = checkpoint.read_codes(groups)
        return gptq_weight(checkpoint.read_codes(words), zero_words, checkpoint.read_codes(scales), index, bits, shift)

    return Packing(parts, (outputs, inputs), f"GPTQ {bits}-bit", decode)


def _awq(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> dict[str, Packing]:
    bits, version, group = (
        settings.get("bits"),
        str(settings.get("version", "gemm")).lower(),
        settings.get("group_size"),
    )
    if bits != 4 or version != "gemm" or type(group) is not int or group < 1:
        raise CheckpointError(
            f"{checkpoint.folder}: AWQ with {bits} bits, version {version!r} and group size {group!r}, expected "
            "4 bits, version 'gemm' and a positive group size",
            hint="dequantise and save the model with the library that quantised it",
        )
    modules = [name.removesuffix(".qweight") for name in checkpoint.tensors if name.endswith(".qweight")]
    return {f"{module}.weight": _awq_packing(checkpoint, module, group) for module in modules}


def _awq_packing(checkpoint: Checkpoint, module: str, group: int) -> Packing:
    parts = tuple(f"{module}.{part}" for part in ("qweight", "qzeros", "scales"))
    words, zeros, scales = parts
    entry = _matrix(checkpoint, words, ("I32",), parts)
    inputs, outputs = entry.shape[0], entry.shape[1] * len(AWQ_ORDER)
    _expect(checkpoint, scales, (math.ceil(inputs / group), outputs))
    _expect(checkpoint, zeros, (math.ceil(inputs / group), entry.shape[1]))

    def decode() -> Tensor:
        codes, zero_codes, factors = (checkpoint.read_codes(part) for part in parts)
        return awq_weight(codes, zero_codes, factors, group)

    return Packing(parts, (outputs, inputs), "AWQ 4-bit", decode)


def _scaled_floats(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> dict[str, Packing]:
    """fp8 with `weight_scale_inv` or `weight_scale`, either of which multiplies the codes."""
    packings: dict[str, Packing] = {}
    for name, entry in checkpoint.tensors.items():
        if entry.dtype in _FP8 and name.endswith(".weight"):
            inverse = f"{name}_scale_inv"
            scales = inverse if inverse in checkpoint.tensors else f"{name}_scale"
            form = f"fp8 {entry.dtype.removeprefix('F8_').lower()}"
            packings[name] = _scaled_packing(checkpoint, name, scales, settings.get("weight_block_size"), form)
    return packings


def _scaled_packing(checkpoint: Checkpoint, weight: str, scales: str, block: Any, form: str) -> Packing:
    """Codes of one byte with one scale for all, for each row, for each group of a row, or for each block."""
    zeros, module = f"{weight}_zero_point", weight.removesuffix(".weight")
    activation_names = [f"{module}.{end}" for end in ("input_scale", "input_zero_point", "activation_scale")]
    optional = [name for name in (zeros, f"{weight}_shape", *activation_names) if name in checkpoint.tensors]
    parts = (weight, scales, *optional)
    entry = _matrix(checkpoint, weight, (*_FP8, "I8"), parts)
    grid, sizes = _grid(checkpoint, weight, scales, block)

    def decode() -> Tensor:
        factors = checkpoint.read_codes(scales).float().reshape(grid)
        shifts = checkpoint.read_codes(zeros).float().reshape(grid) if zeros in optional else None
        return scaled_codes(checkpoint.read_codes(weight), factors, sizes, shifts)

    return Packing(parts, entry.shape, form, decode)


def _grid(checkpoint: Checkpoint, weight: str, scales: str, block: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """How many scales there are along rows and columns, and how many numbers share one; raises where it is unclear."""
    (rows, columns), shape = checkpoint.tensors[weight].shape, checkpoint.tensors[scales].shape
    if math.prod(shape) == 1:
        return (1, 1), (rows, columns)
    if shape in ((rows,), (rows, 1)):
        return (rows, 1), (1, columns)
    if len(shape) == 2 and isinstance(block, list | tuple) and [type(size) for size in block] == [int, int]:
        height, width = block
        if min(block) > 0 and shape == (math.ceil(rows / height), math.ceil(columns / width)):
            return (shape[0], shape[1]), (height, width)
    raise _damaged(
        checkpoint,
        weight,
        f"scales of shape {shape} do not fit a matrix of shape {(rows, columns)} in blocks of {block}",
    )


def _compressed(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> dict[str, Packing]:
    """compressed-tensors: codes of one byte with scales, or small integers packed along the rows."""
    schemes = _schemes(checkpoint, settings)
    packings: dict[str, Packing] = {}
    for name, entry in checkpoint.tensors.items():
        if name.endswith(".weight_packed"):
            weight = f"{name.removesuffix('_packed')}"
            packings[weight] = _packed_rows(checkpoint, weight, schemes)
        elif name.endswith(".weight") and (entry.dtype in _FP8 or entry.dtype == "I8"):
            block = _block(checkpoint, name, schemes)
            kind = "int8" if entry.dtype == "I8" else f"fp8 {entry.dtype.removeprefix('F8_').lower()}"
            packings[name] = _scaled_packing(checkpoint, name, f"{name}_scale", block, f"compressed-tensors {kind}")
    return packings


def _schemes(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What config.json says about the weights, group by group; formats with a sense of their own are refused."""
    groups_by_name = settings.get("config_groups")
    groups = list(groups_by_name.values()) if isinstance(groups_by_name, dict) else []
    schemes = [group.get("weights") if isinstance(group, dict) else None for group in groups]
    readable = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized", "mixed-precision", None)
    sparse = settings.get("sparsity_config") or {}
    plain = bool(schemes) and all(isinstance(scheme, dict) for scheme in schemes)
    if not plain or any(
        form not in readable for form in (settings.get("format"), *(group.get("format") for group in groups))
    ):
        raise CheckpointError(
            f"{checkpoint.folder}: compressed-tensors in the format {settings.get('format')!r}, expected "
            f"{', '.join(str(form) for form in readable[:4])}",
            hint="decompress and save the model with compressed-tensors",
        )
    if sparse.get("format", "dense") != "dense" or settings.get("transform_config"):
        raise CheckpointError(
            f"{checkpoint.folder}: compressed-tensors with sparse or transformed weights, expected plain ones",
            hint="decompress and save the model with compressed-tensors",
        )
    return [scheme for scheme in schemes if isinstance(scheme, dict)]


def _block(checkpoint: Checkpoint, weight: str, schemes: list[dict[str, Any]]) -> list[int] | None:
    """The numbers that share a scale, as [rows, columns]; None for one scale in all or for each row."""
    blocks: list[list[int] | None] = []
    for scheme in schemes:
        group, block = scheme.get("group_size"), scheme.get("block_structure")
        blocks.append([1, group] if type(group) is int and group > 0 else block)
    if any(other != blocks[0] for other in blocks):
        raise _damaged(checkpoint, weight, f"config.json gives several sizes of groups: {blocks}")
    return blocks[0]


def _packed_rows(checkpoint: Checkpoint, weight: str, schemes: list[dict[str, Any]]) -> Packing:
    packed, scales, shape_name = (f"{weight}_{part}" for part in ("packed", "scale", "shape"))
    zeros, order = f"{weight}_zero_point", f"{weight}_g_idx"
    optional = [name for name in (zeros, order) if name in checkpoint.tensors]
    parts = (packed, scales, shape_name, *optional)
    entry = _matrix(checkpoint, packed, ("I32",), parts)
    _expect(checkpoint, shape_name, (2,))
    rows, columns = (int(size) for size in checkpoint.read_codes(shape_name))
    widths = {scheme.get("num_bits") for scheme in schemes}
    bits = next(iter(widths)) if len(widths) == 1 else None
    if (
        bits not in (4, 8)
        or rows != entry.shape[0]
        or entry.shape[1] != math.ceil(columns * bits / WORD)
        or columns < 1
    ):
        raise _damaged(checkpoint, weight, f"{bits} bits and shape {(rows, columns)} do not fit {entry.shape} words")
    columns_of_scales = checkpoint.tensors[scales].shape[-1] if checkpoint.tensors[scales].shape else 0
    group = _block(checkpoint, weight, schemes) or [1, columns]
    _expect(checkpoint, scales, (rows, math.ceil(columns / group[1])))
    if zeros in optional:
        _expect(checkpoint, zeros, (math.ceil(rows * bits / WORD), columns_of_scales))
    if order in optional:
        _expect(checkpoint, order, (columns,))

    def decode() -> Tensor:
        offset = 2 ** (bits - 1)
        codes = unpacked(checkpoint.read_codes(packed), bits)[:, :columns] - offset
        shifts = None
        if zeros in optional:
            shifts = unpacked(checkpoint.read_codes(zeros).T.contiguous(), bits).T[:rows] - offset
        factors = checkpoint.read_codes(scales)
        if order in optional and bool(((index := checkpoint.read_codes(order).long()) >= 0).all()):
            factors, shifts = factors[:, index], None if shifts is None else shifts[:, index]
            return scaled_codes(codes, factors, (1, 1), shifts)
        return scaled_codes(codes, factors, (1, group[1]), shifts)

    return Packing(parts, (rows, columns), f"compressed-tensors int{bits}", decode)


def _matrix(checkpoint: Checkpoint, name: str, dtypes: tuple[str, ...], parts: tuple[str, ...]) -> TensorEntry:
    """The entry of a matrix of codes; raises where it is none of these dtypes, or a part of the weight is missing."""
    _require(checkpoint, name, parts)
    entry = checkpoint.tensors[name]
    if len(entry.shape) != 2 or entry.dtype not in dtypes:
        raise _damaged(checkpoint, name, f"it is {entry.dtype} of shape {entry.shape}, expected a matrix of {dtypes}")
    return entry


def _require(checkpoint: Checkpoint, weight: str, parts: tuple[str, ...]) -> None:
    missing = [part for part in parts if part not in checkpoint.tensors]
    if missing:
        raise _damaged(checkpoint, weight, f"{', '.join(missing)} is missing")


def _expect(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> None:
    if (entry := checkpoint.tensors[name]).shape != shape:
        raise _damaged(checkpoint, name, f"it has shape {entry.shape}, expected {shape}")


def _damaged(checkpoint: Checkpoint, name: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.folder}: the quantised weight {name!r} cannot be decoded: {why}",
        hint="config.json and weights may not belong together: fetch both again, or dequantise the model yourself",
    )
