"""Writes pages and figures; a half-written one never has the final name."""

import errno
from pathlib import Path

from headscope.files import Destination, write_file

PAGE = Destination(
    failure="cannot write {path}: {reason}",
    hint="check the folder and the disk",
    hints={
        errno.ENOSPC: "the disk is full: free some space or choose another folder",
        errno.EDQUOT: "the quota is used up: free some space or choose another folder",
        errno.EACCES: "choose a folder that you may write to",
        errno.EROFS: "choose a folder that you may write to",
        errno.EISDIR: "this is a folder: name a file in it",
    },
)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a page or a figure in one step."""
    write_file(path, content, PAGE)
