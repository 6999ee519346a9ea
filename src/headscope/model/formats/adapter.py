"""An adapter on disk: adapter_config.json and adapter_model.safetensors, read and checked before peft sees them."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.errors import CheckpointError
from headscope.model.formats.adapter_folder import CONFIG, WEIGHTS
from headscope.model.formats.checkpoint import Checkpoint
from headscope.model.formats.checkpoint_file import sha256_of
from headscope.model.formats.config_json import read_object
from headscope.model.formats.safetensors_folder import read_tensor
from headscope.model.formats.safetensors_header import read_header


@dataclass(frozen=True)
class Adapter:
    """What an adapter folder holds: the settings of peft by name, and the tensors of the adapter."""

    folder: Path
    settings: dict[str, Any]
    checkpoint: Checkpoint

    @property
    def method(self) -> str:
        """The method in peft's words, e.g. LORA."""
        return str(self.settings.get("peft_type", "of an unnamed method"))

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor in float32; raises where one is not finite."""
        tensors = {name: self.checkpoint.read(name) for name in self.checkpoint.tensors}
        for name, tensor in tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(
                    f"tensor {name!r} in {self.folder / WEIGHTS} has values that are not finite",
                    hint="the training diverged or the file is damaged",
                )
        return tensors

    def sha256(self) -> str:
        """The hash of the lines "hash  name" of its two files."""
        return hash_of_lines((sha256_of(self.folder / name), name) for name in (CONFIG, WEIGHTS))


def hash_of_lines(hashes: Any) -> str:
    """The sha256 of lines "hash  name": one hash for several parts."""
    return hashlib.sha256("".join(f"{digest}  {name}\n" for digest, name in hashes).encode()).hexdigest()


def read_adapter(folder: Path) -> Adapter:
    """Read the settings and the header of an adapter; raises a clear error where a part is missing or damaged."""
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).exists() and not (folder / name).is_symlink():
            raise _incomplete(folder, name)
    entries = read_header(folder / WEIGHTS)
    for name, entry in entries.items():
        if not entry.is_floating:
            raise CheckpointError(
                f"{folder / WEIGHTS}: tensor {name!r} is stored as {entry.dtype}, expected floating values",
                hint="save the adapter in float16, bfloat16 or float32",
            )
    checkpoint = Checkpoint(folder, (folder / WEIGHTS,), entries, read_tensor)
    return Adapter(folder, read_object(folder / CONFIG), checkpoint)


def _incomplete(folder: Path, name: str) -> CheckpointError:
    pickles = sorted(path.name for path in folder.glob("adapter_model*.bin"))
    if name == WEIGHTS and pickles:
        return CheckpointError(
            f"{folder} holds its adapter as pickle ({pickles[0]}), which headscope never opens: a pickle file can run "
            "any program",
            hint="where you trust it, load it with peft and call save_pretrained(FOLDER), which writes safetensors",
        )
    return CheckpointError(
        f"{folder} holds a part of an adapter, but no {name}",
        hint=f"fetch {name} too; to open the base model alone, move the adapter_* files away",
    )
