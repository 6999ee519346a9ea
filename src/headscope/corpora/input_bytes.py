"""The bytes of a text that cannot be read twice: a small file, standard input, a pipe.

What would never end is refused: devices, a pipe to which nobody writes, more than a gibibyte.
"""

import os
import select
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from headscope.corpora.file_documents import BLOCK, EncodingCheck
from headscope.errors import UsageError

PATIENCE_S = 20.0  # how long a pipe may be silent
MOST_BYTES = 2**30


def standard_input() -> bytes:
    """Everything on standard input.

    Raises:
        UsageError: It is closed, too long, or not UTF-8.
    """
    name = "standard input"
    stream = None if sys.stdin is None else getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise UsageError("standard input is closed", hint="pipe a text into headscope, or give a file")
    try:
        return _gathered(iter(lambda: stream.read(BLOCK), b""), name)
    except (OSError, ValueError) as error:
        raise UsageError(f"standard input cannot be read: {error}", hint="pipe a text, or give a file") from error


def file_bytes(path: Path, patience_s: float = PATIENCE_S) -> bytes:
    """The content of a file or a pipe.

    Raises:
        UsageError: It is a device, a silent pipe, too long, or not UTF-8.
    """
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode):
        return _gathered(_pipe_blocks(path, patience_s), path.name)
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise UsageError(
            f"{path} is a device or a socket, expected a text file",
            hint="give a UTF-8 text file, or `-` to read standard input",
        )
    with path.open("rb") as file:
        return _gathered(iter(lambda: file.read(BLOCK), b""), path.name)


def _gathered(blocks: Iterator[bytes], name: str) -> bytes:
    parts, check = bytearray(), EncodingCheck(name)
    for block in blocks:
        check.add(block)
        parts += block
        if len(parts) > MOST_BYTES:
            raise UsageError(
                f"{name} is longer than {MOST_BYTES / 2**30:.0f} GiB",
                hint="write the text to a file first: a file is read piece by piece",
            )
    check.end()
    return bytes(parts)


def _pipe_blocks(path: Path, patience_s: float) -> Iterator[bytes]:
    """What is written to a pipe, until the last writer closes it."""
    # Opening without O_NONBLOCK would wait for a writer for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        while True:
            if not waiting.poll(patience_s * 1000):
                raise UsageError(
                    f"nothing was written to the pipe {path} for {patience_s:g} seconds",
                    hint="start its writer first, write the text to a file, or use `-` to wait on standard input",
                )
            block = os.read(descriptor, BLOCK)
            if not block:
                return
            yield block
    finally:
        os.close(descriptor)
