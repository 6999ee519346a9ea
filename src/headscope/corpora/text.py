"""Text: named documents, read from the shipped file, from a file of the user, or from standard input.

Documents are separated by a line that holds `***` and nothing else.
"""

import hashlib
import os
import re
import select
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from headscope.errors import UsageError

PATIENCE_S = 20.0  # how long a pipe may be silent before its first byte
SHIPPED, SHIPPED_FILE = "plain-english", "plain_english.txt"
_SEPARATOR = re.compile(r"^[ \t]*\*\*\*[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Text:
    """Documents with a name for the report; their order is part of the text."""

    name: str
    documents: tuple[str, ...]

    def __post_init__(self) -> None:
        if not any(document.strip() for document in self.documents):
            raise UsageError(f"{self.name}: the text is empty", hint="give a text with at least a few sentences")

    @property
    def n_characters(self) -> int:
        """Characters of all documents together."""
        return sum(map(len, self.documents))

    @cached_property
    def sha256(self) -> str:
        """Hash of the documents, which is what the numbers depend on; the name is not part of it."""
        digest = hashlib.sha256()
        for document in self.documents:
            # The length keeps two documents "ab", "c" apart from "a", "bc".
            encoded = document.encode()
            digest.update(f"{len(encoded)}:".encode() + encoded)
        return digest.hexdigest()


def shipped_text() -> Text:
    """The text that ships with the package: varied plain English, written for it."""
    content = files("headscope.corpora").joinpath(SHIPPED_FILE).read_text(encoding="utf-8")
    return Text("plain English (shipped with headscope)", documents_in(content))


def read_text(path: str | Path) -> Text:
    """The text of a UTF-8 file; `-` reads standard input.

    Raises:
        UsageError: The file is missing, unreadable, binary, not UTF-8, or holds no text.
    """
    if str(path) == "-":
        return _decoded(_standard_input(), "standard input")
    return _decoded(_bytes_of(Path(path)), Path(path).name)


def documents_in(content: str) -> tuple[str, ...]:
    """Cut at the separator lines; documents without a visible character are left out."""
    unified = content.replace("\r\n", "\n").replace("\r", "\n")
    return tuple(part.strip("\n") for part in _SEPARATOR.split(unified) if part.strip())


def joined(documents: Sequence[str]) -> str:
    """Documents as one file that `documents_in` cuts into the same ones."""
    return "\n\n***\n\n".join(documents) + "\n"


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise UsageError("standard input is closed", hint="pipe a text into headscope, or give a file")
    try:
        return sys.stdin.buffer.read()
    except (OSError, ValueError) as error:
        raise UsageError(f"standard input cannot be read: {error}", hint="pipe a text, or give a file") from error


def _finite_bytes(path: Path) -> bytes:
    """The content of a file, or of a pipe to which somebody writes; what would never end is refused."""
    mode = path.stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise UsageError(
            f"{path} is a device or a socket, expected a text file",
            hint="give a UTF-8 text file, or `-` to read standard input",
        )
    if not stat.S_ISFIFO(mode):
        return path.read_bytes()
    # Opening without O_NONBLOCK would wait for a writer for ever.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
        waiting = select.poll()
        waiting.register(pipe, select.POLLIN)
        if not waiting.poll(PATIENCE_S * 1000):
            raise UsageError(
                f"nothing was written to the pipe {path} for {PATIENCE_S:g} seconds",
                hint="start its writer first, write the text to a file, or use `-` to wait on standard input",
            )
        os.set_blocking(pipe.fileno(), True)
        return pipe.read()


def _bytes_of(path: Path) -> bytes:
    try:
        return _finite_bytes(path)
    except FileNotFoundError as error:
        raise UsageError(
            f"the text file {path} does not exist (looked in {path.absolute().parent})",
            hint="give the path of a UTF-8 text file, or `-` to read standard input",
        ) from error
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a folder, expected a text file", hint="name one file in it") from error
    except OSError as error:
        raise UsageError(f"the text file {path} cannot be read: {error.strerror}") from error


def _decoded(data: bytes, name: str) -> Text:
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in data and not wide:
        raise UsageError(
            f"{name} is a binary file (it has a zero byte at offset {data.index(0)}), expected UTF-8 text",
            hint="give a plain text file; convert documents such as PDF or DOCX first",
        )
    try:
        return Text(name, documents_in(data.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        encoding = "utf-16" if wide else "latin1"
        raise UsageError(
            f"{name} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start} cannot be read",
            hint=f"convert it first, e.g. `iconv -f {encoding} -t utf-8 FILE > text.txt`",
        ) from error
