"""The weights of a folder in Hugging Face form, without building a model: find, check, read one tensor.

Only safetensors are opened. A file is open while one tensor is read and closed again, so a checkpoint that is
larger than memory can be measured tensor by tensor.

The safetensors library judges each header (`safetensors_header`). The bytes of a tensor are read here, straight into
its memory: the library maps the file, so that a file that is cut short meanwhile would end the process, and it reads
the whole header again for each tensor unless the file stays mapped, which then takes the memory of the model twice.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.errors import CheckpointError
from headscope.model.formats.checkpoint import CODES, Checkpoint, TensorEntry
from headscope.model.formats.checkpoint_file import file_size, unreadable
from headscope.model.formats.format import recognised_files
from headscope.model.formats.safetensors_format import INDEX, SINGLE
from headscope.model.formats.safetensors_header import read_header

_MOST_INDEX_BYTES = 64 * 2**20  # the index of a model of a trillion parameters has 10 MB
_LONGEST_NAME = 255  # bytes; no file system takes more
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.th")


def open_checkpoint(folder: Path) -> Checkpoint:
    """Find and check the safetensors of `folder`: every header is read, no tensor is."""
    if (folder / SINGLE).exists() or (folder / SINGLE).is_symlink():
        shards: dict[str, list[str]] = {SINGLE: []}
    elif (folder / INDEX).exists():
        shards = _shards(folder / INDEX)
    else:
        raise _no_weights(folder)
    tensors: dict[str, TensorEntry] = {}
    for file, expected in shards.items():
        _add(tensors, read_header(folder / file), expected, folder / file)
    if not tensors:
        raise CheckpointError(f"{folder} holds no tensor at all", hint="the checkpoint is empty: fetch it again")
    return Checkpoint(folder, tuple(folder / file for file in shards), tensors, read_tensor)


def read_tensor(name: str, entry: TensorEntry) -> Tensor:
    """One tensor as it is stored, in its own memory; the file is open only meanwhile."""
    tensor = torch.empty(entry.shape, dtype=CODES[entry.dtype])
    if not tensor.numel():
        return tensor
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
    return tensor


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
    if other_files := recognised_files(folder):
        return CheckpointError(f"{folder} holds no safetensors", hint=f"give the file itself: {other_files[0]}")
    if file_names := sorted(path.name for path in folder.glob("*.safetensors")):
        return CheckpointError(
            f"{folder} holds {', '.join(file_names[:3])} but neither {SINGLE} nor {INDEX}",
            hint=f"rename a single file to {SINGLE}; for several fetch the index too",
        )
    return CheckpointError(
        f"{folder} holds no weights, expected {SINGLE} or {INDEX}",
        hint=f"to look at the untrained architecture say random:{folder}",
    )
