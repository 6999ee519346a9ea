r"""The documents of a large text file, read from the disk when needed.

Properties:
    - they equal the documents of the same file read at once  (tested: test_a_large_file_is_read_as_a_small_one)
    - reading takes the memory of one part, whatever the length  (tested: test_a_large_file_is_never_held_whole)
"""

import codecs
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, overload

from headscope.corpora.separator import SEPARATOR_LINE
from headscope.errors import UsageError

BLOCK = 2**20  # bytes read at once
LINE = 2**16  # characters of a line that are read at once


class FileDocuments(Sequence[str]):
    """A sequence of documents, separated by lines `***` in a UTF-8 file.

    `temporary` is that file where nobody else holds it; it is removed with the documents.
    """

    def __init__(self, path: Path, temporary: IO[bytes] | None = None) -> None:
        self._temporary = temporary
        check_encoding(path)
        self.path = path
        self._state = _state(path)
        self._is_visible = bytearray()  # a byte per document: a file may hold millions of them
        self.n_characters = 0
        for parts in self._every_document():
            characters, is_visible = 0, False
            for part in parts:
                characters += len(part)
                is_visible = is_visible or not part.isspace()
            self._is_visible.append(is_visible)
            self.n_characters += characters if is_visible else 0
        self._count = sum(self._is_visible)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return tuple(self)[index]
        place = range(len(self))[index]
        return next(document for at, document in enumerate(self) if at == place)

    def __iter__(self) -> Iterator[str]:
        return ("".join(parts) for parts in self.streams())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other))  # noqa: B905

    __hash__ = None  # type: ignore[assignment]

    def streams(self) -> Iterator[Iterator[str]]:
        """Each document in parts.

        Read all parts of a document before asking for the next one.
        """
        if _state(self.path) != self._state:
            raise UsageError(f"{self.path} was changed while it was read", hint="run it again")
        for is_visible, parts in zip(self._is_visible, self._every_document(), strict=True):
            if is_visible:
                yield parts
            else:
                for _ in parts:
                    pass

    def byte_counts(self) -> Iterator[int]:
        """UTF-8 bytes of each document, counted while the file is read once more."""
        return (sum(len(part.encode()) for part in parts) for parts in self.streams())

    def _every_document(self) -> Iterator[Iterator[str]]:
        """All documents in parts, including those without a visible character."""
        with self.path.open(encoding="utf-8-sig") as file:
            lines = _Lines(file)
            while not lines.is_over:
                yield _trim(lines.until_separator())


class _Lines:
    """The lines of a file; long lines come in parts."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._is_start = True
        self.is_over = False

    def until_separator(self) -> Iterator[str]:
        """The parts up to the next separator or the end of the file."""
        while part := self._file.readline(LINE):
            is_start, self._is_start = self._is_start, part.endswith("\n")
            if is_start and SEPARATOR_LINE.fullmatch(part):
                return
            yield part
        self.is_over = True


def _trim(parts: Iterator[str]) -> Iterator[str]:
    """The parts without line breaks at the ends of the document."""
    breaks, is_begun = 0, False
    for part in parts:
        text = part if is_begun else part.lstrip("\n")
        stripped = text.rstrip("\n")
        if stripped:
            yield "\n" * breaks + stripped
            breaks, is_begun = 0, True
        breaks += len(text) - len(stripped) if is_begun else 0


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def check_encoding(path: Path) -> None:
    """Refuse a file with a zero byte, or one that is not UTF-8.

    Raises:
        UsageError: Names the position of the first wrong byte.
    """
    check = EncodingCheck(path.name)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            check.add(block)
    check.end()


class EncodingCheck:
    """Checks a text block by block and refuses what is not UTF-8."""

    def __init__(self, name: str) -> None:
        self._name, self._n_bytes = name, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_wide = False

    def add(self, block: bytes) -> None:
        """Check the next block."""
        if self._n_bytes == 0:
            self._is_wide = block.startswith((b"\xff\xfe", b"\xfe\xff"))
        if b"\0" in block and not self._is_wide:
            raise UsageError(
                f"{self._name} is a binary file (it has a zero byte at offset {self._n_bytes + block.index(0)}), "
                "expected UTF-8 text",
                hint="give a plain text file; convert documents such as PDF or DOCX first",
            )
        self._decode(block, final=False)
        self._n_bytes += len(block)

    def end(self) -> None:
        """Refuse a text that ends within a character."""
        self._decode(b"", final=True)

    def _decode(self, block: bytes, *, final: bool) -> None:
        try:
            self._decoder.decode(block, final)
        except UnicodeDecodeError as error:
            offset = self._n_bytes + len(block) - len(error.object) + error.start
            encoding = "utf-16" if self._is_wide else "latin1"
            raise UsageError(
                f"{self._name} is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {offset} cannot be read",
                hint=f"convert it first, e.g. `iconv -f {encoding} -t utf-8 FILE > text.txt`",
            ) from error
