"""One .gguf file that holds configuration, tokenizer and weights, quantised or not."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headscope.errors import WeightsRefused
from headscope.model.formats.format import Format, StoredNumbers
from headscope.model.formats.safetensors_format import SafetensorsFolder
from headscope.model.formats.stated_grid import StatedGrid
from headscope.progress import Step

if TYPE_CHECKING:
    import torch

    from headscope.model.formats.checkpoint import Checkpoint
    from headscope.model.model_builder import LoadedModel


@dataclass(frozen=True)
class GgufFile(Format):
    """A GGUF file; its weights are had from a model that transformers builds, and kept as safetensors in the cache."""

    name: ClassVar[str] = "gguf"
    form: ClassVar[str] = "a .gguf file"
    handling: ClassVar[str] = "expands it once into the cache; every opening compares the sha256 of what was expanded"
    built_because: ClassVar[str] = "a GGUF file stores quantised values and permuted rows"
    tells_initialisation: ClassVar[bool] = False  # transformers puts the family's default there

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Whether the name ends in .gguf."""
        return path.suffix.lower() == ".gguf" and not path.is_dir()

    @property
    def config_file(self) -> Path:
        """The file itself."""
        return self.path

    def raw_config(self) -> dict[str, Any]:
        """The configuration that transformers makes of the file's values."""
        return dict(self.config().to_dict())

    def config(self) -> Any:
        """The configuration that transformers makes of the file's values."""
        from headscope.model.formats import gguf
        from headscope.model.formats.gguf_header import read_gguf_header

        read_gguf_header(self.path)  # refuses a damaged file before another reader follows its lengths
        return gguf.read_gguf_config(self.path)

    def stated_grid(self) -> StatedGrid | None:
        """The layers and heads that the header states; None for an encoder–decoder, and where heads vary."""
        from headscope.model.formats.gguf_header import read_gguf_header

        values = read_gguf_header(self.path).values
        family = values.get("general.architecture")
        sizes = [values.get(f"{family}.{name}") for name in ("block_count", "attention.head_count")]
        is_plain = f"{family}.decoder_block_count" not in values and all(isinstance(size, int) for size in sizes)
        return StatedGrid(int(sizes[0] or 0), int(sizes[1] or 0)) if is_plain else None

    def tokenizer(self, config: Any) -> tuple[Any | None, tuple[str, ...]]:
        """The tokenizer in the file, None where it has none."""
        from headscope.model.formats import gguf
        from headscope.model.formats.gguf_header import read_gguf_header

        return gguf.read_gguf_tokenizer(self.path, read_gguf_header(self.path)), ()

    def stored(self) -> StoredNumbers:
        """The types of the tensors, from the header."""
        from headscope.model.formats.gguf_header import read_gguf_header

        header = read_gguf_header(self.path)
        return StoredNumbers(header.types, header.dequantised)

    def checkpoint(self) -> "Checkpoint":
        """Refused: names and rows are those of transformers only once a model is built."""
        raise WeightsRefused(f"{self.path}: {self.built_because}")

    def unpacked(self, progress: Step | None) -> Format:
        """The expansion, made now unless the cache has it; the file itself where no expansion is kept."""
        from headscope.model.formats import gguf

        try:
            return SafetensorsFolder(gguf.expansion(self.path, progress).folder)
        except WeightsRefused:
            return self

    def load(self, dtype: "torch.dtype", progress: Step | None) -> "LoadedModel":
        """The model from its expansion; on the first opening the very model that the expansion is written from."""
        from headscope.model.formats import gguf
        from headscope.model.model_builder import described_model, filled_model

        try:
            expansion = gguf.expansion(self.path, progress)
        except WeightsRefused as refusal:
            return self._load_in_memory(dtype, refusal.message)
        folder = SafetensorsFolder(expansion.folder)
        model = expansion.model
        if model is not None and model.dtype == dtype:
            loaded = described_model(folder, model, folder.checkpoint(), dtype)
        else:
            loaded = filled_model(folder, dtype)
        return replace(
            loaded, sha256=expansion.sha256, dtype_on_disk=expansion.types, dequantised=expansion.dequantised
        )

    def _load_in_memory(self, dtype: "torch.dtype", why: str) -> "LoadedModel":
        """The model without a kept expansion; the first note says why."""
        from headscope.model.formats import gguf
        from headscope.model.formats.checkpoint_file import sha256_of
        from headscope.model.formats.completeness import check, check_finite
        from headscope.model.formats.gguf_header import read_gguf_header
        from headscope.model.formats.memory import check_memory
        from headscope.model.model_builder import LoadedModel, ready

        header = read_gguf_header(self.path)
        check_memory(header.n_numbers, dtype, str(self.path))
        with gguf.parsed_once():
            model, report = gguf.build(self.path, header, gguf.read_gguf_config(self.path), dtype)
            tokenizer = gguf.read_gguf_tokenizer(self.path, header)
        notes = (why, *check(report, model, str(self.path)))
        check_finite(model, str(self.path))
        return LoadedModel(
            model=ready(model),
            tokenizer=tokenizer,
            sha256=sha256_of(self.path),
            dtype_on_disk=header.types,
            dequantised=header.dequantised,
            notes=notes,
        )

    def reference(self, cls: Any, dtype: "torch.dtype") -> Any:
        """The model as transformers loads the file, expanded in memory."""
        from headscope.model.formats import gguf
        from headscope.model.formats.gguf_header import read_gguf_header

        header = read_gguf_header(self.path)
        with gguf.parsed_once():
            return gguf.build(self.path, header, gguf.read_gguf_config(self.path), dtype)[0]


FORMAT = GgufFile
