"""A format as CONTRIBUTING.md tells to write one: a folder with config.json and the tensors as weights.npz."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headscope.errors import CheckpointError
from headscope.model.formats.format import Format

if TYPE_CHECKING:
    from headscope.model.formats.checkpoint import Checkpoint

WEIGHTS = "weights.npz"


@dataclass(frozen=True)
class NpzFolder(Format):
    """config.json and float32 tensors in one .npz file of numpy."""

    name: ClassVar[str] = "npz"
    form: ClassVar[str] = "an npz folder"
    contents: ClassVar[str] = "config.json and weights.npz"
    handling: ClassVar[str] = "reads its arrays one by one"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Whether a folder holds the arrays."""
        return (path / WEIGHTS).is_file()

    def raw_config(self) -> dict[str, Any]:
        """The content of config.json."""
        from headscope.model.formats.config_json import read_config

        return read_config(self.path)

    def checkpoint(self) -> "Checkpoint":
        """The arrays by name; none of them can be an object of Python, which would be pickle."""
        from zipfile import BadZipFile

        import numpy as np
        import torch

        from headscope.model.formats.checkpoint import Checkpoint, TensorEntry

        file = self.path / WEIGHTS
        try:
            # Opened here, because numpy leaves a damaged file open.
            with file.open("rb") as content, np.load(content, allow_pickle=False) as arrays:
                facts = {name: (arrays[name].dtype, arrays[name].shape) for name in arrays.files}
        except (OSError, ValueError, BadZipFile) as error:
            raise CheckpointError(f"{file} is no whole npz file: {error}", hint="copy it again") from error
        for name, (dtype, _) in facts.items():
            if dtype != np.float32:
                raise CheckpointError(f"{file}: {name!r} holds {dtype}, expected float32", hint="convert the array")

        def read(name: str, entry: TensorEntry) -> torch.Tensor:
            with np.load(entry.file, allow_pickle=False) as arrays:
                return torch.from_numpy(arrays[name])

        entries = {name: TensorEntry(file, "F32", shape) for name, (_, shape) in facts.items()}
        return Checkpoint(self.path, (file,), entries, read)


FORMAT = NpzFolder
