"""The header of one safetensors file: judged by the safetensors library, and explained here where it is refused.

The format: 8 bytes, the length of the header as a little-endian integer; the header, JSON, tensor name →
{dtype, shape, data_offsets}; then the data, without holes. The library compares all of it with the size of the file,
so that a broken file is an error here and never a wrong number later. It lets two things pass that are refused here: a
tensor that is named twice, and more dimensions than any weight has. Its errors do not name the file, and for most kinds
of damage not the tensor; `_damage` does.
"""

import json
import struct
from pathlib import Path
from typing import Any

from headscope.errors import CheckpointError
from headscope.model.formats.checkpoint import BITS, TensorEntry
from headscope.model.formats.checkpoint_file import file_size, unreadable
from headscope.model.transformers.library_messages import reason

# A header lists names and numbers: even the largest checkpoints stay far below this, and the library reads no more.
MAX_HEADER_BYTES = 100_000_000

_MAX_DIMENSIONS = 16  # torch goes further, no weight does

_AGAIN = "the file is damaged: copy or download it again"
_CONVERT = "convert the checkpoint to float32, float16 or bfloat16"


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Every tensor of a safetensors file, in the order of its data; raises when anything does not add up."""
    from safetensors import SafetensorError, safe_open

    size = file_size(file)
    text = _header_text(file, size)
    try:
        with safe_open(file, framework="numpy"):
            pass
    except SafetensorError as error:
        words = reason(error).removeprefix("Error while deserializing header: ")
        raise _damage(file, size, text, words) from error
    except OSError as error:
        raise unreadable(file, error) from error
    entries = {name: _entry(file, 8 + len(text), entry) for name, entry in _parsed(file, text).items()}
    for name, entry in entries.items():
        if entry.dtype not in BITS:
            raise CheckpointError(f"{file}: tensor {name!r} has the unknown dtype {entry.dtype!r}", hint=_CONVERT)
        if (dimensions := len(entry.shape)) > _MAX_DIMENSIONS:
            raise CheckpointError(
                f"{file}: tensor {name!r} is malformed: {dimensions} dimensions, expected at most {_MAX_DIMENSIONS}",
                hint=_AGAIN,
            )
    return dict(sorted(entries.items(), key=lambda item: item[1].begin))


def _header_text(file: Path, size: int) -> bytes:
    """The header as it is in the file; what is no safetensors file at all is refused, with what it is instead."""
    try:
        with file.open("rb") as source:
            start = source.read(9)
            length = _header_length(file, size, start)
            return (start[8:] + source.read(max(length - 1, 0)))[:length]
    except OSError as error:
        raise unreadable(file, error) from error


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


def _parsed(file: Path, text: bytes) -> Any:
    """The header without its metadata; raises on a name that is there twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Python and the library keep the last of two equal names; another reader may keep the first.
        values: dict[str, Any] = {}
        for name, value in pairs:
            if name in values:
                raise CheckpointError(f"{file}: the header names {name!r} twice", hint=_AGAIN)
            values[name] = value
        return values

    header = json.loads(text, object_pairs_hook=unique)
    if isinstance(header, dict):
        header.pop("__metadata__", None)
    return header


def _entry(file: Path, start: int, description: dict[str, Any]) -> TensorEntry:
    begin, end = description["data_offsets"]
    return TensorEntry(file, description["dtype"], tuple(description["shape"]), start + begin, start + end)


def _damage(file: Path, size: int, text: bytes, words: str) -> CheckpointError:
    """What is wrong with a header that the library refuses, and where; `words` is what the library says."""
    try:
        header = _parsed(file, text)
    except CheckpointError as error:
        return error
    except (ValueError, RecursionError):
        return CheckpointError(f"{file}: the header is not JSON ({words})", hint=_AGAIN)
    if not isinstance(header, dict):
        return CheckpointError(f"{file}: the header is {type(header).__name__}, expected an object", hint=_AGAIN)
    for name, description in header.items():
        if not _is_well_formed(description):
            return CheckpointError(
                f"{file}: tensor {name!r} is malformed in the header, {description!r:.120}: {words}",
                hint=_CONVERT if "unknown variant" in words else _AGAIN,
            )
    entries = {name: _entry(file, 8 + len(text), description) for name, description in header.items()}
    return CheckpointError(_misfit(file, size, 8 + len(text), entries) or f"{file}: {words}", hint=_AGAIN)


def _is_well_formed(description: Any) -> bool:
    """Whether this describes a tensor: a type, sizes that a machine can count to, and where its bytes are."""
    if not isinstance(description, dict) or not description.keys() >= {"dtype", "shape", "data_offsets"}:
        return False
    dtype, shape, offsets = description["dtype"], description["shape"], description["data_offsets"]
    lists = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    counts = lists and all(type(number) is int and 0 <= number < 1 << 63 for number in (*shape, *offsets))
    return bool(counts) and offsets[0] <= offsets[1] and isinstance(dtype, str) and dtype in BITS


def _misfit(file: Path, size: int, start: int, entries: dict[str, TensorEntry]) -> str:
    """What in a well-formed header does not fit together; empty where nothing is noticed."""
    for name, entry in entries.items():
        if (needed := entry.n_bytes) != entry.end - entry.begin:
            return (
                f"{file}: tensor {name!r} of shape {entry.shape!s:.80} and dtype {entry.dtype} needs {needed} bytes, "
                f"but its data_offsets span {entry.end - entry.begin}"
            )
    reached, previous = start, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin < reached:
            return f"{file}: tensor {name!r} overlaps: it begins at {entry.begin}, inside {previous}, up to {reached}"
        if entry.begin > reached:
            return f"{file}: {entry.begin - reached} bytes before tensor {name!r} belong to no tensor"
        reached, previous = entry.end, f"tensor {name!r}"
    if reached > size:
        return f"{file} is truncated: its header describes {reached} bytes, the file has {size}"
    return f"{file}: {size - reached} bytes after {previous} belong to no tensor" if reached < size else ""
