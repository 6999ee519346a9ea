"""A folder in Hugging Face form: config.json and safetensors in one file or in shards, plain or quantised."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headscope.model.formats.format import Format

if TYPE_CHECKING:
    from headscope.model.formats.checkpoint import Checkpoint

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class SafetensorsFolder(Format):
    """config.json and safetensors; quantised weights are decoded when they are read."""

    name: ClassVar[str] = "safetensors"
    form: ClassVar[str] = "a folder"
    contents: ClassVar[str] = "config.json and safetensors"
    handling: ClassVar[str] = "reads one file or shards, tensor by tensor where only weights are needed"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Whether a folder holds the weights, or the index of their shards."""
        return path.is_dir() and any((path / file).exists() for file in (SINGLE, INDEX))

    def raw_config(self) -> dict[str, Any]:
        """The content of config.json."""
        from headscope.model.formats.config_json import read_config

        return read_config(self.path)

    def checkpoint(self) -> "Checkpoint":
        """The tensors of all files, plain ones as they are and quantised ones decoded when they are read."""
        from headscope.model.formats.quantisation import plain_checkpoint
        from headscope.model.formats.safetensors_folder import open_checkpoint

        raw = self.raw_config()
        return plain_checkpoint(open_checkpoint(self.path), raw)


FORMAT = SafetensorsFolder
