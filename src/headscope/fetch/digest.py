"""The hash of a file, by which a download is known."""

import hashlib
from pathlib import Path


def sha256_of(file: Path) -> str:
    """The sha256 of one file, read in blocks."""
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
