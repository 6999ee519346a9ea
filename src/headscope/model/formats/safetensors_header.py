"""The header of one safetensors file, read by hand and checked before a byte of it is believed.

The format: 8 bytes, the length of the header as a little-endian integer; the header, JSON, tensor name →
{dtype, shape, data_offsets}; then the data, without holes. Everything that is said in the header is compared
with the size of the file, so that a broken file is an error here and never a wrong number later.
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.errors import CheckpointError
from headscope.model.formats.checkpoint_file import file_size, unreadable

# A header lists names and numbers: even the largest checkpoints stay far below this.
MAX_HEADER_BYTES = 100_000_000

BITS: dict[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

_MAX_DIMENSIONS = 16  # torch goes further, no weight does

_AGAIN = "the file is damaged: copy or download it again"


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor is: `begin` and `end` count bytes from the start of `file`."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def is_floating(self) -> bool:
        """Whether the numbers are floating-point ones (of any width)."""
        return self.dtype[0] == "F" or self.dtype == "BF16"


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Every tensor of a safetensors file, in the order of its data; raises when anything does not add up."""
    size = file_size(file)
    try:
        with file.open("rb") as source:
            start = source.read(9)
            length = _header_length(file, size, start)
            text = (start[8:] + source.read(max(length - 1, 0)))[:length]
    except OSError as error:
        raise unreadable(file, error) from error
    entries = [_entry(file, name, description, 8 + length) for name, description in _parse(file, text).items()]
    _check_layout(file, size, 8 + length, entries)
    return dict(sorted(entries, key=lambda item: item[1].begin))


def _header_length(file: Path, size: int, start: bytes) -> int:
    if size < 8:
        raise CheckpointError(f"{file} is {size} bytes long, too short for a safetensors file", hint=_AGAIN)
    # A header of 1152 bytes begins like a pickle too (80 04): only what follows the length tells them apart.
    if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04") and start[8:9] != b"{":
        raise CheckpointError(
            f"{file} is called safetensors but begins like a pickle file; headscope never opens pickle",
            hint="ask for real safetensors, or convert it on a machine where you trust the file",
        )
    if start[:8] == b"version ":
        raise CheckpointError(
            f"{file} is a pointer of Git LFS, not the file itself", hint="run `git lfs pull` in that folder"
        )
    (length,) = struct.unpack("<Q", start[:8])
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{file} claims a header of {length} bytes, expected at most {MAX_HEADER_BYTES}",
            hint="this is not a safetensors file, or its first bytes are damaged",
        )
    if length > size - 8:
        raise CheckpointError(
            f"{file} is truncated: its header should be {length} bytes, but only {size - 8} bytes follow",
            hint=_AGAIN,
        )
    return int(length)


class _DuplicateKey(Exception):
    """A JSON object has the same key twice; Python would silently keep the last."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    header: dict[str, Any] = {}
    for name, value in pairs:
        if name in header:
            raise _DuplicateKey(name)
        header[name] = value
    return header


def _parse(file: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except _DuplicateKey as error:
        raise CheckpointError(f"{file}: the header names {str(error)!r} twice", hint=_AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: the header is not JSON ({error})", hint=_AGAIN) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: the header is {type(header).__name__}, expected an object", hint=_AGAIN)
    header.pop("__metadata__", None)
    return header


def _entry(file: Path, name: str, description: Any, data: int) -> tuple[str, TensorEntry]:
    where = f"{file}: tensor {name!r}"
    if not isinstance(description, dict) or not {"dtype", "shape", "data_offsets"} <= description.keys():
        raise CheckpointError(f"{where} lacks dtype, shape or data_offsets in the header", hint=_AGAIN)
    dtype, shape, offsets = description["dtype"], description["shape"], description["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise CheckpointError(
            f"{where} has the unknown dtype {dtype!r}, expected one of {', '.join(BITS)}",
            hint="convert the checkpoint to float32, float16 or bfloat16",
        )
    if (
        not _naturals(shape)
        or len(shape) > _MAX_DIMENSIONS
        or not _naturals(offsets)
        or len(offsets) != 2
        or offsets[0] > offsets[1]
    ):
        raise CheckpointError(
            f"{where} has shape {_short(shape)} and data_offsets {_short(offsets)}, which are malformed", hint=_AGAIN
        )
    bits = math.prod(shape) * BITS[dtype]
    if bits != 8 * (offsets[1] - offsets[0]):
        raise CheckpointError(
            f"{where} of shape {tuple(shape)} and dtype {dtype} needs {bits // 8} bytes, "
            f"but its data_offsets {offsets} span {offsets[1] - offsets[0]}",
            hint=_AGAIN,
        )
    return name, TensorEntry(file, dtype, tuple(shape), data + offsets[0], data + offsets[1])


def _naturals(numbers: Any) -> bool:
    """Whether this is a list of sizes that a machine can count to."""
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)


def _short(numbers: Any) -> str:
    text = repr(numbers)
    return text if len(text) <= 80 else f"{text[:80]} …"


def _check_layout(file: Path, size: int, data: int, entries: list[tuple[str, TensorEntry]]) -> None:
    """The data must be covered without overlap, without holes and up to the end of the file."""
    reached, previous = data, "the header"
    for name, entry in sorted(entries, key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin < reached:
            raise CheckpointError(
                f"{file}: tensor {name!r} begins at {entry.begin}, inside {previous} which ends at {reached}",
                hint=f"tensors overlap: {_AGAIN}",
            )
        if entry.begin > reached:
            raise CheckpointError(
                f"{file}: {entry.begin - reached} bytes before tensor {name!r} belong to no tensor",
                hint=_AGAIN,
            )
        reached, previous = entry.end, f"tensor {name!r}"
    if reached > size:
        raise CheckpointError(
            f"{file} is truncated: its header describes {reached} bytes, the file has {size}",
            hint=_AGAIN,
        )
    if reached < size:
        raise CheckpointError(f"{file}: {size - reached} bytes after {previous} belong to no tensor", hint=_AGAIN)
