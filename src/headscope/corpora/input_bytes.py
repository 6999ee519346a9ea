"""Reads a text that cannot be read twice: a small file, standard input, a pipe.

A short text stays in memory. A long one goes to a temporary file, which can be read several times and is removed when
nobody refers to it. Input that might never end is refused: devices, a pipe without a writer, more than a gibibyte.
"""

import os
import select
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from headscope.corpora.file_documents import BLOCK, EncodingCheck
from headscope.errors import ResourceError, UsageError

PATIENCE_S = 20.0  # how long a pipe may be silent
MOST_BYTES = 2**30
MOST_HELD = 2**23  # bytes in memory


def standard_input() -> bytes | IO[bytes]:
    """All of standard input; as a temporary file where it is long.

    Raises:
        UsageError: It is closed, too long, or not UTF-8.
        ResourceError: It is long, and there is no room for temporary files.
    """
    name = "standard input"
    stream = None if sys.stdin is None else getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise UsageError("standard input is closed", hint="pipe a text into headscope, or give a file")
    try:
        return _gather(iter(lambda: stream.read(BLOCK), b""), name)
    except (OSError, ValueError) as error:
        raise UsageError(f"standard input cannot be read: {error}", hint="pipe a text, or give a file") from error


def file_bytes(path: Path, patience_s: float = PATIENCE_S) -> bytes | IO[bytes]:
    """The content of a file or a pipe.

    A long content comes as a temporary file.

    Raises:
        UsageError: It is a device, a silent pipe, too long, or not UTF-8.
        ResourceError: It is long, and there is no room for temporary files.
    """
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode):
        return _gather(_pipe_blocks(path, patience_s), path.name)
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise UsageError(
            f"{path} is a device or a socket, expected a text file",
            hint="give a UTF-8 text file, or `-` to read standard input",
        )
    with path.open("rb") as file:
        return _gather(iter(lambda: file.read(BLOCK), b""), path.name)


def _gather(blocks: Iterator[bytes], name: str) -> bytes | IO[bytes]:
    buffer, file, check, n_bytes = bytearray(), None, EncodingCheck(name), 0
    for block in blocks:
        check.add(block)
        n_bytes += len(block)
        if n_bytes > MOST_BYTES:
            raise UsageError(
                f"{name} is longer than {MOST_BYTES / 2**30:.0f} GiB",
                hint="write the text to a file first: a file is read piece by piece",
            )
        buffer += block
        if len(buffer) > MOST_HELD:
            file = _move_to_file(buffer, file, name)
    check.end()
    return bytes(buffer) if file is None else _move_to_file(buffer, file, name)


def _move_to_file(buffer: bytearray, file: IO[bytes] | None, name: str) -> IO[bytes]:
    """Move the buffer to the end of a temporary file, a new one where there is none."""
    try:
        target = tempfile.NamedTemporaryFile(prefix="headscope-") if file is None else file  # noqa: SIM115  it is returned
        target.write(buffer)
        target.flush()
    except OSError as error:
        raise ResourceError(
            f"{name} is too long to be held, and cannot be written to {tempfile.gettempdir()}: {error.strerror}",
            hint="free some space there, or name another folder by TMPDIR",
        ) from error
    buffer.clear()
    return target


def _pipe_blocks(path: Path, patience_s: float) -> Iterator[bytes]:
    """The blocks written to a pipe, until the last writer closes it."""
    # Opening without O_NONBLOCK would wait for a writer forever.
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
