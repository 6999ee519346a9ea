"""Turns the files of a package into clean documents.

Nothing in a package is executed. Each function returns the documents of every part of its package: one part per
language, or the single part "".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from headscope.corpora.html_text import paragraphs
from headscope.errors import ResourceError

ORIGINAL = "en-US"
SENTENCE = 60  # characters; shorter lines are headings and entries of lists


@dataclass(frozen=True)
class Document:
    """One document; `key` decides its split, and its translations have the same key."""

    key: str
    text: str


def plain_files(files: Mapping[str, bytes]) -> dict[str, list[Document]]:
    """One document per plain text file, ordered by the numbers in the file names.

    An epilogue comes last.
    """
    names = sorted(files, key=lambda name: ("epilogue" in name, [int(word) for word in re.findall(r"\d+", name)]))
    return {"": [Document(_stem(name), _plain(_decode(files[name], name))) for name in names]}


def bible(files: Mapping[str, bytes]) -> dict[str, list[Document]]:
    """One document per chapter of a Bible module.

    The module holds the text as one string and the start of each verse. The module is read as text. A verse has a
    number of seven or eight digits: book, chapter (3), verse (3).
    """
    source = "\n".join(_decode(content, name) for name, content in files.items())
    match = re.search(r'"""(.*?)""",\s*\{([\d\s:,]*)\}', source, re.DOTALL)
    verses = [] if match is None else [(int(a), int(b)) for a, b in re.findall(r"(\d+): (\d+)", match[2])]
    if match is None or not verses:
        raise ResourceError("the Bible module does not have the expected form", hint="update headscope")
    starts: dict[int, int] = {}
    for number, start in sorted(verses):
        starts.setdefault(number // 1000, start)
    ends = [*list(starts.values())[1:], len(match[1])]
    chapters = zip(starts.items(), ends, strict=True)
    return {"": [Document(f"chapter {n}", _plain(match[1][a:b].replace("`", "'"))) for (n, a), b in chapters]}


def declaration(files: Mapping[str, bytes]) -> dict[str, list[Document]]:
    """One document per article of the declaration, preamble first, in every language."""
    parts = {}
    for name, content in files.items():
        page = _decode(content, name)
        pieces = re.findall(r"<(header|article)\b[^>]*>(.*?)</\1>", page, re.DOTALL)
        parts[_stem(name)] = [
            Document(f"article {number}", _plain("\n\n".join(paragraphs(inside))))
            for number, (_, inside) in enumerate(pieces)
        ]
    return parts


def handbook(files: Mapping[str, bytes]) -> dict[str, list[Document]]:
    """One document per page of the book, in every language.

    An unfinished translation shows paragraphs of the original, with translated references or without. These paragraphs
    are left out, and so are pages without a sentence of their own.
    """
    pages: dict[str, dict[str, list[str]]] = {}
    for name, content in sorted(files.items()):
        path = PurePosixPath(name)
        if path.name != "index.html":
            lines = paragraphs(_decode(content, name), _is_menu)
            pages.setdefault(path.parent.name, {})[path.stem] = lines
    original = {line for lines in pages.get(ORIGINAL, {}).values() for line in lines}
    runs = {run for line in original for run in _runs(line)}
    parts = {}
    for part, lines_of_page in pages.items():
        lines_by_page = {
            page: [line for line in lines if part == ORIGINAL or not _is_of(line, original, runs)]
            for page, lines in lines_of_page.items()
        }
        parts[part] = [
            Document(page, _plain("\n\n".join(lines)))
            for page, lines in lines_by_page.items()
            if any(len(line) >= SENTENCE for line in lines)
        ]
    return parts


def _is_of(line: str, original: set[str], runs: set[str]) -> bool:
    """Whether a paragraph is from the original, or mostly made of its word sequences."""
    line_runs = _runs(line)
    return line in original or (bool(line_runs) and sum(run in runs for run in line_runs) >= len(line_runs) / 2)


def _runs(line: str) -> list[str]:
    words = re.findall(r"\w+", line)
    return [" ".join(words[start : start + 4]) for start in range(len(words) - 3)]


def _is_menu(tag: str, attributes: Mapping[str, str]) -> bool:
    classes = set(attributes.get("class", "").split())
    return attributes.get("id") in ("banner", "title") or bool(classes & {"docnav", "toc", "screen", "programlisting"})


def _plain(text: str) -> str:
    """Clean text: Unix lines, single spaces, no invisible characters, no `***`."""
    clean = (
        text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ").replace("\xad", "").replace("\ufeff", "")
    )
    lines = (line.rstrip() for line in clean.split("\n"))
    text_lines = "\n".join(line for line in lines if line.strip() != "***")
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]{2,}", " ", text_lines)).strip()


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ResourceError(f"{name} is not UTF-8", hint="update headscope: the package has changed") from error


def _stem(name: str) -> str:
    return PurePosixPath(name).stem
