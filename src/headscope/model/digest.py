"""The hash of a file, by which weights are known."""

import hashlib
from pathlib import Path

from headscope.model.header import unreadable


def sha256_of(file: Path) -> str:
    """The sha256 of one file, read in blocks."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as source:
            while block := source.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise unreadable(file, error) from error
    return digest.hexdigest()
