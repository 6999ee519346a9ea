"""The weights of a folder in Hugging Face form, without building a model: find, check, read one tensor.

Only safetensors are opened. A file is open while one tensor is read and closed again, so a checkpoint that is
larger than memory can be measured tensor by tensor.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.errors import CheckpointError
from headscope.model.formats.checkpoint_file import file_size, sha256_of, unreadable
from headscope.model.formats.safetensors_header import TensorEntry, read_header

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MOST_INDEX_BYTES = 64 * 2**20  # the index of a model of a trillion parameters has 10 MB
_LONGEST_NAME = 255  # bytes; no file system takes more
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.th")

_TORCH: dict[str, torch.dtype] = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
# Codes that mean nothing without their scales: read as they are, by those who know the scales.
_CODES: dict[str, torch.dtype] = {**_TORCH, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
if hasattr(torch, "float8_e8m0fnu"):  # torch 2.6 has no such type
    _CODES["F8_E8M0"] = torch.float8_e8m0fnu


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint by name, and the files that hold them."""

    folder: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorEntry]

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
                sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.end - entry.begin
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
        if entry.dtype not in _TORCH:
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
        if entry.dtype not in _CODES:
            raise CheckpointError(
                f"{entry.file}: tensor {name!r} is stored as {entry.dtype}, which this torch cannot hold",
                hint="convert the checkpoint to float32, float16 or bfloat16",
            )
        tensor = torch.empty(entry.shape, dtype=_CODES[entry.dtype])
        _fill(tensor, entry, name)
        return tensor

    def sha256(self) -> str:
        """The hash of the weights: of the file, or with several shards of the lines "hash  name" in order."""
        hashes = [(sha256_of(file), file.name) for file in self.files]
        if len(hashes) == 1:
            return hashes[0][0]
        lines = "".join(f"{digest}  {name}\n" for digest, name in hashes)
        return hashlib.sha256(lines.encode()).hexdigest()


def open_checkpoint(folder: Path) -> Checkpoint:
    """Find and check the safetensors of `folder`: every header is read, no tensor is."""
    if (folder / _SINGLE).exists() or (folder / _SINGLE).is_symlink():
        shards: dict[str, list[str]] = {_SINGLE: []}
    elif (folder / _INDEX).exists():
        shards = _shards(folder / _INDEX)
    else:
        raise _no_weights(folder)
    tensors: dict[str, TensorEntry] = {}
    for file, expected in shards.items():
        _add(tensors, read_header(folder / file), expected, folder / file)
    if not tensors:
        raise CheckpointError(f"{folder} holds no tensor at all", hint="the checkpoint is empty: fetch it again")
    return Checkpoint(folder, tuple(folder / file for file in shards), tensors)


def _fill(tensor: Tensor, entry: TensorEntry, name: str) -> None:
    """Read the bytes of one tensor straight into its memory; the file is open only meanwhile."""
    if not tensor.numel():
        return
    memory: Any = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    try:
        with entry.file.open("rb", buffering=0) as source:
            source.seek(entry.begin)
            got = 0
            while got < len(memory) and (more := source.readinto(memory[got:])):
                got += more
    except OSError as error:
        raise unreadable(entry.file, error) from error
    if got != len(memory):
        raise CheckpointError(
            f"{entry.file} changed while it was read: tensor {name!r} is cut short", hint="open it again"
        )


def _add(tensors: dict[str, TensorEntry], shard: dict[str, TensorEntry], expected: list[str], file: Path) -> None:
    for name in expected:
        if name not in shard:
            raise CheckpointError(
                f"the index says that {file.name} holds {name!a:.100}, but it does not (in {file.parent})",
                hint="index and shards are of different versions: fetch all of them again",
            )
    for name, entry in shard.items():
        if name in tensors:
            raise CheckpointError(
                f"{file.parent}: tensor {name!a:.100} is in two files, {tensors[name].file.name} and {file.name}",
                hint="shards of different checkpoints were mixed: fetch all of them again",
            )
        tensors[name] = entry


def _shards(index: Path) -> dict[str, list[str]]:
    """Which file should hold which tensors, from the index; its file names are checked, not trusted."""
    if file_size(index) > _MOST_INDEX_BYTES:
        raise CheckpointError(f"{index} is larger than {_MOST_INDEX_BYTES} bytes", hint="this is no index of tensors")
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(index, error) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{index} is not JSON ({error})", hint="fetch the index again") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map with tensors", hint="fetch the index again")
    shards: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _is_shard_name(file):
            raise CheckpointError(
                f"{index} puts tensor {name!a:.100} into {file!a:.100}, expected a safetensors file beside it",
                hint="an index that leads out of its folder is not to be trusted",
            )
        shards.setdefault(file, []).append(name)
    for file in shards:
        if not (folder_file := index.parent / file).exists() and not folder_file.is_symlink():
            have = sum((index.parent / other).exists() for other in shards)
            raise CheckpointError(
                f"the shard {file} is missing from {index.parent} ({have} of {len(shards)} are there)",
                hint="fetch the missing file",
            )
    return dict(sorted(shards.items()))


def _is_shard_name(file: str) -> bool:
    """Whether this can be the name of a safetensors file in the same folder, on any system."""
    fits = file == Path(file).name and len(file.encode(errors="replace")) <= _LONGEST_NAME
    return fits and file.isprintable() and "\\" not in file and file.endswith(".safetensors")


def _no_weights(folder: Path) -> CheckpointError:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        return CheckpointError(
            f"{folder} holds its weights as pickle ({', '.join(pickles[:3])}), which headscope never opens: "
            "a pickle file can run any program",
            hint="where you trust it, convert it once: load it with transformers and call "
            "save_pretrained(FOLDER), which writes safetensors",
        )
    if ggufs := sorted(path.name for path in folder.glob("*.gguf")):
        return CheckpointError(f"{folder} holds no safetensors", hint=f"give the file itself: {folder / ggufs[0]}")
    if file_names := sorted(path.name for path in folder.glob("*.safetensors")):
        return CheckpointError(
            f"{folder} holds {', '.join(file_names[:3])} but neither {_SINGLE} nor {_INDEX}",
            hint=f"rename a single file to {_SINGLE}; for several fetch the index too",
        )
    return CheckpointError(
        f"{folder} holds no weights, expected {_SINGLE} or {_INDEX}",
        hint=f"to look at the untrained architecture say random:{folder}",
    )
