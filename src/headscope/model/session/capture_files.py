"""Captured tensors on disk: what does not fit into the memory that a capture may take goes to safetensors files.

A file is mapped into memory, so that its tensor reads as any other and takes memory only while it is looked at.
"""

from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from headscope.errors import ResourceError, UsageError

MEMORY = 2**30  # bytes that a capture holds before it writes files
_NAME = "tensor"


class CaptureFiles:
    """The files of one capture: numbered, so that each forward has its own.

    Properties:
        - a tensor reads back bit by bit  (tested: test_captures_on_disk_are_the_same)
    """

    def __init__(self, folder: Path, above: int) -> None:
        if above < 0:
            raise UsageError(f"a capture holds a number of bytes in memory, got above={above}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(f"captures cannot be written to {folder}: {error.strerror}") from error
        if any(folder.glob("*.safetensors")):
            raise UsageError(f"{folder} holds tensors already", hint="give each capture a folder of its own")
        self.folder, self._above = folder, above
        self._in_memory = 0
        self.paths: list[Path] = []

    def keep(self, label: str, tensor: Tensor) -> Tensor:
        """The tensor, in memory or on disk."""
        if self._in_memory + tensor.nbytes <= self._above:
            self._in_memory += tensor.nbytes
            return tensor
        path = self.folder / f"{len(self.paths):06d}-{label}.safetensors"
        try:
            save_file({_NAME: tensor.cpu().contiguous()}, path)
        except OSError as error:
            raise ResourceError(f"a capture cannot be written to {path}: {error.strerror}") from error
        self.paths.append(path)
        with safe_open(path, framework="pt") as stored:
            mapped: Tensor = stored.get_tensor(_NAME)
        return mapped
