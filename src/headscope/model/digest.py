"""The hash of a file, by which weights are known."""

from pathlib import Path

from headscope.fetch import digest
from headscope.model.formats.safetensors_header import unreadable


def sha256_of(file: Path) -> str:
    """The sha256 of one file of a checkpoint, read in blocks."""
    try:
        return digest.sha256_of(file)
    except OSError as error:
        raise unreadable(file, error) from error
