"""The tensors of a checkpoint by name, read one at a time, whatever the format of its files."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from headscope.errors import CheckpointError
from headscope.model.formats.checkpoint_file import sha256_of

# The types of numbers, in the words of safetensors, with their widths.
BITS: dict[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

NUMBERS: dict[str, torch.dtype] = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
# Codes that mean nothing without their scales: read as they are, by those who know the scales.
CODES: dict[str, torch.dtype] = {**NUMBERS, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
if hasattr(torch, "float8_e8m0fnu"):  # torch 2.6 has no such type
    CODES["F8_E8M0"] = torch.float8_e8m0fnu


@dataclass(frozen=True)
class TensorEntry:
    """What a file says about one tensor.

    `begin` and `end` count bytes from the start of `file`; both are 0 where the bytes are not there as they are.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int = 0
    end: int = 0

    @property
    def is_floating(self) -> bool:
        """Whether the numbers are floating-point ones (of any width)."""
        return self.dtype[0] == "F" or self.dtype == "BF16"

    @property
    def n_bytes(self) -> int:
        """How many bytes the numbers take as they are."""
        return math.prod(self.shape) * BITS[self.dtype] // 8


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint by name, and the files that hold them.

    `reader` reads one tensor as it is stored; it leaves no file open. `folder` is what errors name.
    """

    folder: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorEntry]
    reader: Callable[[str, TensorEntry], Tensor] = field(compare=False, repr=False)

    @property
    def stored(self) -> str:
        """How numbers are stored, for people: the floating dtypes."""
        return ", ".join(self.dtypes)

    @property
    def dequantised(self) -> str:
        """The quantised formats that weights are decoded from; none here, since tensors are read as they are."""
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about how tensors are read."""
        return ()

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The floating dtypes on disk, in words of the format ("F32", "BF16"), the most common first."""
        sizes: dict[str, int] = {}
        for entry in self.tensors.values():
            if entry.is_floating:
                sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.n_bytes
        return tuple(sorted(sizes, key=lambda dtype: (-sizes[dtype], dtype)))

    @property
    def n_numbers(self) -> int:
        """How many numbers all tensors hold together."""
        return sum(math.prod(entry.shape) for entry in self.tensors.values())

    def read(self, name: str, dtype: torch.dtype | None = torch.float32) -> Tensor:
        """One tensor, read now; floating values come as `dtype` (None: as on disk), integers as they are."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.folder} holds no tensor {name!r}")
        entry = self.tensors[name]
        if entry.dtype not in NUMBERS:
            raise CheckpointError(
                f"{entry.file}: tensor {name!r} is stored as {entry.dtype}, expected plain real numbers",
                hint="headscope does not guess the scales of a quantised format: convert it to float16, bfloat16 or "
                "float32",
            )
        tensor = self.read_codes(name)
        return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)

    def read_codes(self, name: str) -> Tensor:
        """One tensor in the dtype in which it is stored, whether or not its values mean anything by themselves."""
        entry = self.tensors[name]
        if entry.dtype not in CODES:
            raise CheckpointError(
                f"{entry.file}: tensor {name!r} is stored as {entry.dtype}, which this torch cannot hold",
                hint="convert the checkpoint to float32, float16 or bfloat16",
            )
        return self.reader(name, entry)

    def sha256(self) -> str:
        """The hash of the weights: of the file, or with several shards of the lines "hash  name" in order."""
        hashes = [(sha256_of(file), file.name) for file in self.files]
        if len(hashes) == 1:
            return hashes[0][0]
        lines = "".join(f"{digest}  {name}\n" for digest, name in hashes)
        return hashlib.sha256(lines.encode()).hexdigest()
