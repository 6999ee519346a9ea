"""The contract of a checkpoint format, and the scan that finds them.

A format is a class that knows where configuration, tokenizer and weights are in the files at a path. One file in this
folder is enough to add one: `NAME_format.py` binds `FORMAT` to the class. Names, help, documentation, `look`, opening
and the lenses that read weights follow. Such a file loads no torch until a method is called, so that help is instant.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from headscope.errors import UsageError
from headscope.model.formats.stated_grid import StatedGrid, stated_grid
from headscope.progress import Step

if TYPE_CHECKING:
    import torch

    from headscope.model.formats.checkpoint import Checkpoint
    from headscope.model.model_builder import LoadedModel

_FOLDER = "headscope.model.formats"
_ENDING = "_format"

# The order of help and documentation, and the order in which a path is tried; other formats follow by name.
ORDER = ("safetensors", "gguf")


class StoredNumbers(NamedTuple):
    """What the files say about their numbers: the types on disk, the quantised formats, and notes."""

    types: str
    dequantised: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format(ABC):
    """A checkpoint of one format: what lies at `path`, a file or a folder.

    Subclasses set the first four names below and implement `recognises`, `raw_config` and `checkpoint`. Everything else
    has a default that builds on these. Where tensors cannot be had without a built model, `built_because`
    says why, `checkpoint` raises `WeightsRefused` and `load` builds the model.
    """

    path: Path

    name: ClassVar[str]
    form: ClassVar[str]  # what a user gives: "a folder", "a .gguf file"
    contents: ClassVar[str] = ""  # what lies in it: "config.json and safetensors"
    handling: ClassVar[str]  # what headscope does with it, for the documentation
    # Why tensors cannot be had without a built model; empty where `checkpoint` reads them from the files.
    built_because: ClassVar[str] = ""
    # Whether the configuration says with which spread the model was initialised.
    tells_initialisation: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def recognises(cls, path: Path) -> bool:
        """Whether a path is of this format, by its name and the names of the files in it; nothing is opened.

        A file that does not exist is judged by its name.
        """

    @property
    def folder(self) -> Path:
        """The folder in which configuration, tokenizer and model card lie."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def config_file(self) -> Path:
        """The file of the configuration, for errors."""
        return self.folder / "config.json"

    @abstractmethod
    def raw_config(self) -> dict[str, Any]:
        """The configuration as config.json has it, with a `model_type`; raises `CheckpointError` otherwise."""

    @abstractmethod
    def checkpoint(self) -> "Checkpoint":
        """The tensors by name, checked but not read; raises `WeightsRefused` where only a built model has them."""

    def config(self) -> Any:
        """The configuration as transformers has it."""
        from headscope.model.transformers.classes import parsed_config

        return parsed_config(self.raw_config(), str(self.config_file))

    def stated_grid(self) -> StatedGrid | None:
        """The layers and heads that the configuration states; None where it is not clear, or has several stacks."""
        return stated_grid(self.raw_config())

    def tokenizer(self, config: Any) -> tuple[Any | None, tuple[str, ...]]:
        """The tokenizer, None where there is none, and notes about it."""
        from headscope.model.tokenizer import open_tokenizer

        return open_tokenizer(self.folder, config)

    def stored(self) -> StoredNumbers:
        """How the numbers are stored, without reading them."""
        checkpoint = self.checkpoint()
        return StoredNumbers(checkpoint.stored, checkpoint.dequantised, checkpoint.notes)

    def unpacked(self, progress: Step | None) -> "Format":
        """The same checkpoint in the form that is read fastest; itself unless a format keeps an expansion."""
        return self

    def load(self, dtype: "torch.dtype", progress: Step | None) -> "LoadedModel":
        """The model: whole, of the right shapes, finite."""
        from headscope.model.model_builder import filled_model

        loaded = filled_model(self, dtype)
        return loaded if loaded.checkpoint is None else replace(loaded, sha256=loaded.checkpoint.sha256())

    def reference(self, cls: Any, dtype: "torch.dtype") -> Any:
        """The model as transformers itself loads these files, for `verify`; may raise whatever transformers raises."""
        return cls.from_pretrained(
            self.folder, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )


def formats() -> dict[str, type[Format]]:
    """Every format by name, in the order of help: one per file `NAME_format.py` of this folder."""
    places = importlib.import_module(_FOLDER).__path__
    names = {info.name.removesuffix(_ENDING) for info in pkgutil.iter_modules(places) if info.name.endswith(_ENDING)}
    ordered = [*(name for name in ORDER if name in names), *sorted(names.difference(ORDER))]
    return {name: _format_named(name) for name in ordered}


def format_at(path: Path) -> Format | None:
    """The checkpoint at a path; a folder that nobody recognises is read as safetensors, which say what is missing."""
    for cls in formats().values():
        if cls.recognises(path):
            return cls(path)
    return formats()["safetensors"](path) if path.is_dir() else None


def recognised_files(folder: Path) -> list[Path]:
    """The files of a folder that are whole checkpoints by themselves."""
    classes = formats().values()
    paths = sorted(path for path in folder.glob("*") if not path.is_dir())
    return [path for path in paths if any(cls.recognises(path) for cls in classes)]


def forms() -> list[str]:
    """What a user may give as a path, for help: "a folder", "a .gguf file"."""
    return [cls.form for cls in formats().values()]


def described_forms() -> list[str]:
    """The same, with what lies in each: "a folder with config.json and safetensors"."""
    return [f"{cls.form} with {cls.contents}" if cls.contents else cls.form for cls in formats().values()]


def _format_named(name: str) -> type[Format]:
    module = importlib.import_module(f"{_FOLDER}.{name}{_ENDING}")
    cls: object = getattr(module, "FORMAT", None)
    if not (isinstance(cls, type) and issubclass(cls, Format) and cls.name == name):
        raise UsageError(f"{module.__name__} must bind FORMAT to a Format class with the name {name!r}, found {cls!r}")
    return cls
