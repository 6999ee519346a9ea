"""The header of a GGUF file, walked once before any reader trusts it.

The format: magic, version, counts; then key–value pairs; then for each tensor its name, dimensions, type and
offset; then the data. Every length in it is compared with the size of the file before it is followed, so that
a damaged count cannot send a reader off for hours.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from headscope.errors import CheckpointError
from headscope.model.formats.checkpoint_file import file_size, unreadable

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_MAX_ITEMS = 10_000_000  # of one array: the largest vocabularies have a tenth of this
_MAX_DIMENSIONS = 4
_EXACT = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says about itself: its single values by key, and how many numbers have which type."""

    values: dict[str, Any]
    counts: dict[str, int]
    has_tokenizer: bool

    @property
    def n_numbers(self) -> int:
        """How many numbers all tensors hold together."""
        return sum(self.counts.values())

    @property
    def types(self) -> str:
        """The types of the tensors, the most common first."""
        return ", ".join(self._ordered())

    @property
    def dequantised(self) -> str:
        """The quantised types with their shares of all numbers, e.g. "Q4_1 (79%), Q8_0 (21%)"; or ""."""
        quantised = [kind for kind in self._ordered() if kind not in _EXACT]
        return ", ".join(f"{kind} ({self.counts[kind] / self.n_numbers:.0%})" for kind in quantised)

    def _ordered(self) -> list[str]:
        return sorted(self.counts, key=lambda kind: (-self.counts[kind], kind))


def read_gguf_header(file: Path) -> GgufHeader:
    """Walk the header; raises `CheckpointError` on anything that does not fit into the file."""
    size = file_size(file)
    try:
        with file.open("rb") as source:
            start = source.read(8)
            if start[:4] != b"GGUF":
                raise _broken(file, f"it begins with {start[:4]!r}, expected b'GGUF'")
            with mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _walk(file, _Cursor(data, size))
    except OSError as error:
        raise unreadable(file, error) from error
    except (struct.error, UnicodeDecodeError, _Overrun) as error:
        raise _broken(file, f"its header does not fit into its {size} bytes") from error


class _Overrun(Exception):
    """A length in the header leads beyond the end of the file."""


class _Cursor:
    """A place in the file that only moves forward, and never beyond the end."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self.data, self.size, self.at = data, size, 0

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.skip(struct.calcsize(form))
        return value

    def skip(self, length: int) -> None:
        self.at += length
        if self.at > self.size:
            raise _Overrun

    def text(self) -> str:
        length = self.number("<Q")
        begin = self.at
        self.skip(length)
        return self.data[begin : self.at].decode("utf-8")

    def value(self, kind: int, refuse: Callable[[str], CheckpointError]) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise refuse(f"a value has the unknown type {kind}")
            return self.number(_SCALARS[kind])
        inner, count = self.number("<I"), self.number("<Q")
        if count > _MAX_ITEMS or inner == _ARRAY:
            raise refuse(f"an array claims {count} items" if inner != _ARRAY else "it holds nested arrays")
        if inner in _SCALARS:
            self.skip(count * struct.calcsize(_SCALARS[inner]))
        elif inner == _STRING:
            self.skip_texts(count)
        else:
            raise refuse(f"an array has items of the unknown type {inner}")
        return None

    def skip_texts(self, count: int) -> None:
        # Vocabularies are long: no call per item but this one.
        at, read = self.at, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + read(self.data, at)[0]
            if at > self.size:
                raise _Overrun
        self.at = at


def _walk(file: Path, cursor: _Cursor) -> GgufHeader:
    def refuse(reason: str) -> CheckpointError:
        return _broken(file, reason)

    cursor.skip(4)
    version, n_tensors, n_values = cursor.number("<I"), cursor.number("<Q"), cursor.number("<Q")
    if version not in (2, 3):
        raise refuse(f"its version is {version}, expected 2 or 3 (little-endian)")
    # The shortest entry takes more than eight bytes: larger counts cannot be true.
    if 8 * (n_tensors + n_values) > cursor.size:
        raise refuse(f"it claims {n_tensors} tensors and {n_values} values in {cursor.size} bytes")
    values: dict[str, Any] = {}
    for _ in range(n_values):
        key = cursor.text()
        values[key] = cursor.value(cursor.number("<I"), refuse)
    tensors = [_tensor(cursor, refuse) for _ in range(n_tensors)]
    _check_data(tensors, cursor, values.get("general.alignment", 32), refuse)
    counts: dict[str, int] = {}
    for _, kind, numbers, _, _ in tensors:
        counts[kind] = counts.get(kind, 0) + numbers
    return GgufHeader(
        {key: value for key, value in values.items() if value is not None},
        counts,
        "tokenizer.ggml.tokens" in values,
    )


_Tensor = tuple[str, str, int, int, int]  # name, type, numbers, offset, bytes


def _tensor(cursor: _Cursor, refuse: Callable[[str], CheckpointError]) -> _Tensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    name, n_dimensions = cursor.text(), cursor.number("<I")
    if n_dimensions > _MAX_DIMENSIONS:
        raise refuse(f"tensor {name!r} claims {n_dimensions} dimensions")
    numbers = prod(cursor.number("<Q") for _ in range(n_dimensions))
    code, offset = cursor.number("<I"), cursor.number("<Q")
    try:
        kind = GGMLQuantizationType(code)
    except ValueError as error:
        raise refuse(f"tensor {name!r} has the unknown type {code}") from error
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return name, str(kind.name), numbers, offset, numbers // block * block_bytes


def _check_data(
    tensors: list[_Tensor], cursor: _Cursor, alignment: object, refuse: Callable[[str], CheckpointError]
) -> None:
    if not any(numbers for _, _, numbers, _, _ in tensors):
        raise refuse("it holds no tensor with numbers")
    if not isinstance(alignment, int) or alignment < 1:
        raise refuse(f"its alignment is {alignment!r}, expected a positive number")
    start = -(-cursor.at // alignment) * alignment
    for name, _, _, offset, length in tensors:
        if start + offset + length > cursor.size:
            end = start + offset + length
            raise refuse(f"it is truncated: tensor {name!r} ends at byte {end}, the file has {cursor.size}")


def _broken(file: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{file} is not a whole GGUF file: {reason}", hint="the file is damaged: copy or download it again"
    )
