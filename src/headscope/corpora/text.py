"""Text: named documents, from the shipped file, a user's file or standard input.

Documents are separated by a line that holds `***` and nothing else.
"""

import hashlib
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import IO

from headscope.corpora.file_documents import FileDocuments
from headscope.corpora.input_bytes import file_bytes, standard_input
from headscope.corpora.separator import SEPARATOR
from headscope.errors import UsageError

SHIPPED, SHIPPED_FILE = "plain-english", "plain_english.txt"
LARGE = 2**23  # bytes; a larger file stays on the disk and is read piece by piece
_PART = 2**16  # characters


@dataclass(frozen=True)
class Text:
    """Named documents; their order is part of the text.

    The documents of a large file stay on the disk: `streams` reads them in parts.
    """

    name: str
    documents: Sequence[str]

    def __post_init__(self) -> None:
        # The scan of a file has already dropped documents without a visible character.
        are_scanned = isinstance(self.documents, FileDocuments)
        if not (len(self.documents) if are_scanned else any(document.strip() for document in self.documents)):
            raise UsageError(f"{self.name}: the text is empty", hint="give a text with at least a few sentences")

    @property
    def n_characters(self) -> int:
        """Characters of all documents together."""
        if isinstance(self.documents, FileDocuments):
            return self.documents.n_characters
        return sum(map(len, self.documents))

    def streams(self) -> Iterator[Iterator[str]]:
        """Each document in parts; read one document before asking for the next."""
        if isinstance(self.documents, FileDocuments):
            return self.documents.streams()
        return (_parts(document) for document in self.documents)

    def beginning(self, characters: int) -> str:
        """The first characters of the text, with blank lines between documents.

        Reads no more than these.
        """
        documents, room = list[str](), characters
        for parts in self.streams():
            start = list[str]()
            for part in parts:
                start.append(part[:room])
                room -= len(start[-1])
                if room == 0:
                    break
            documents.append("".join(start))
            if room == 0:
                break
        return "\n\n".join(documents)[:characters]

    @cached_property
    def sha256(self) -> str:
        """The hash of the documents; numbers depend on them alone.

        The name is not part of it.
        """
        digest = hashlib.sha256()
        for n_bytes, parts in zip(self._byte_counts(), self.streams(), strict=True):
            # The length distinguishes the documents "ab", "c" from "a", "bc".
            digest.update(f"{n_bytes}:".encode())
            for part in parts:
                digest.update(part.encode())
        return digest.hexdigest()

    def _byte_counts(self) -> Iterator[int]:
        if isinstance(self.documents, FileDocuments):
            return self.documents.byte_counts()
        return (len(document.encode()) for document in self.documents)


def shipped_text() -> Text:
    """The text that ships with the package: varied plain English."""
    content = files("headscope.corpora").joinpath(SHIPPED_FILE).read_text(encoding="utf-8")
    return Text("plain English (shipped with headscope)", documents_in(content))


def read_text(path: str | Path) -> Text:
    """Read a UTF-8 file; `-` reads standard input.

    Raises:
        UsageError: The file is missing, unreadable, a device, a silent pipe, binary, not UTF-8, or holds no text.
    """
    if str(path) == "-":
        return _decode(standard_input(), "standard input")
    file = Path(path)
    try:
        status = file.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size > LARGE:
            return Text(file.name, FileDocuments(file))
        return _decode(file_bytes(file), file.name)
    except FileNotFoundError as error:
        raise missing_file(file) from error
    except IsADirectoryError as error:
        raise UsageError(f"{file} is a folder, expected a text file", hint="name one file in it") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"the text file {file} cannot be read: {reason}") from error


def missing_file(file: Path) -> UsageError:
    """The error for a text file that does not exist."""
    return UsageError(
        f"the text file {file} does not exist (looked in {file.absolute().parent})",
        hint="give the path of a UTF-8 text file, or `-` to read standard input",
    )


def documents_in(content: str) -> tuple[str, ...]:
    """Split at the separator lines; drop documents without a visible character."""
    text = content.replace("\r\n", "\n").replace("\r", "\n")
    return tuple(part.strip("\n") for part in SEPARATOR.split(text) if part.strip())


def joined(documents: Sequence[str]) -> str:
    """Join documents into one file that `documents_in` splits into the same documents."""
    return "\n\n***\n\n".join(documents) + "\n"


def _decode(content: bytes | IO[bytes], name: str) -> Text:
    if isinstance(content, bytes):
        return Text(name, documents_in(content.decode("utf-8-sig")))
    return Text(name, FileDocuments(Path(content.name), content))


def _parts(document: str) -> Iterator[str]:
    return (document[start : start + _PART] for start in range(0, len(document), _PART))
