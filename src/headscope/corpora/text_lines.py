"""Reads the lines of a text file, or of standard input."""

from pathlib import Path
from typing import IO

from headscope.corpora.input_bytes import file_bytes, standard_input
from headscope.corpora.text import missing_file
from headscope.errors import UsageError

STDIN = "-"


def file_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file; only a line feed ends one, as in other tools that count them.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        content = file_bytes(path)
    except FileNotFoundError as error:
        raise missing_file(path) from error
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a folder, expected a text file", hint="name one file in it") from error
    except OSError as error:
        raise UsageError(f"the text file {path} cannot be read: {error.strerror}") from error
    return _lines(content)


def sentence_lines(spelling: str) -> list[str]:
    """The sentences of a file with one a line, or of standard input for `-`.

    Raises:
        UsageError: It cannot be read, has no sentence, or a line of it is blank.
    """
    lines = _lines(standard_input()) if spelling == STDIN else file_lines(Path(spelling))
    name = "standard input" if spelling == STDIN else spelling
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise UsageError(f"{name}, line {number}: it is blank, expected a sentence", hint="remove blank lines")
    if not lines:
        raise UsageError(f"{name} is empty", hint="give a sentence a line")
    return [line.strip() for line in lines]


def _lines(content: bytes | IO[bytes]) -> list[str]:
    if not isinstance(content, bytes):
        content.seek(0)
        content = content.read()
    lines = content.decode("utf-8-sig").split("\n")
    return lines if lines[-1] else lines[:-1]
