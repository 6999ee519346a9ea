"""Reads the paragraphs of LibreOffice's help pages by their identifiers.

A page holds the variants of a text for all platforms and applications, and a script hides all but one. Read as they
stand, "Command" and "Ctrl" become "CommandCtrl", and a link comes twice. Here one variant is chosen: the one called
`default`, else the first that is not for a Mac. Where two elements touch and glue two words ("buttonBack"), a space
is put between them; where nothing tells a glued word from a compound, the paragraph is left out.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import PurePosixPath

from headscope.errors import ResourceError

# A paragraph by its page, its identifier, and its number among those of the page with this identifier.
Place = tuple[str, str, int]

_PARAGRAPHS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
_SWITCHES = {"switch", "switchinline"}
_CODE = {"bascode", "code", "codeintable", "pycode", "smathcode"}
_UNREADABLE = {"sub", "sup"}  # plain text has no place for them: 10<sup>2</sup> would become 102
_VOID = {"br", "img", "input", "hr", "wbr"}


def help_paragraphs(files: Mapping[str, bytes]) -> dict[Place, str]:
    """The paragraphs of all pages; names of files begin with the folder of the language."""
    return {
        (page, identifier, number): text
        for name, content in files.items()
        for page in [_page(name)]
        for identifier, texts in page_paragraphs(_content(content, name)).items()
        for number, text in enumerate(texts)
    }


def page_paragraphs(content: str) -> dict[str, list[str]]:
    """The texts of a page by identifier; an identifier may come several times."""
    reader = _PageReader()
    reader.feed(content)
    reader.close()
    return dict(reader.texts)


def _page(name: str) -> str:
    parts = PurePosixPath(name).parts
    return "/".join(parts[parts.index("text") + 1 :])


def _content(page: bytes, name: str) -> str:
    """The part of a page between its navigation and its footer."""
    try:
        text = page.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ResourceError(f"{name} is not UTF-8", hint="update headscope: the package has changed") from error
    return text[max(0, text.find('<div id="DisplayArea"')) :].partition("<footer")[0]


@dataclass
class _Element:
    """An open element; a switch gathers the texts of its variants."""

    tag: str
    role: str = ""  # "paragraph", "switch", or "variant"
    name: str = ""  # the identifier of a paragraph, the platform of a variant
    pieces: list[str] = field(default_factory=list)
    variants: dict[str, str] = field(default_factory=dict)
    is_dropped: bool = False


class _PageReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: dict[str, list[str]] = defaultdict(list)
        self._open: list[_Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            self.handle_data(" ")
            return
        attributes = {name: value or "" for name, value in attrs}
        element = _element(tag, attributes, self._parent_role())
        if tag in _UNREADABLE and (paragraph := self._paragraph()) is not None:
            paragraph.is_dropped = True
        self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if not any(element.tag == tag for element in self._open):
            return
        # Elements that were never closed end with the one around them.
        while True:
            element = self._open.pop()
            self._close(element)
            if element.tag == tag:
                return

    def handle_data(self, data: str) -> None:
        element = next((element for element in reversed(self._open) if element.role), None)
        if element is None or element.role == "switch":  # white space between variants
            return
        paragraph = self._paragraph()
        if paragraph is not None and _is_doubtful(element.pieces, data):
            paragraph.is_dropped = True
        element.pieces.append(data)

    def _close(self, element: _Element) -> None:
        text = _joined(element.pieces)
        if element.role == "paragraph":
            # A dropped paragraph stays as an empty one: those after it keep their numbers.
            self.texts[element.name].append("" if element.is_dropped else re.sub(r"\s+", " ", text).strip())
        elif element.role == "switch":
            self.handle_data(_chosen(element.variants))
        elif element.role == "variant":
            switch = next(outer for outer in reversed(self._open) if outer.role == "switch")
            switch.variants[element.name] = switch.variants.get(element.name, "") + text

    def _parent_role(self) -> str:
        return self._open[-1].role if self._open else ""

    def _paragraph(self) -> _Element | None:
        return next((element for element in reversed(self._open) if element.role == "paragraph"), None)


def _element(tag: str, attributes: Mapping[str, str], parent_role: str) -> _Element:
    classes = set(attributes.get("class", "").split())
    if tag == "span" and classes & _SWITCHES:
        return _Element(tag, "switch")
    if parent_role == "switch":
        return _Element(tag, "variant", attributes.get("class") or "default")
    if tag in _PARAGRAPHS and attributes.get("id"):
        return _Element(tag, "paragraph", attributes["id"], is_dropped=bool(classes & _CODE))
    return _Element(tag)


def _chosen(variants: Mapping[str, str]) -> str:
    if "default" in variants:
        return variants["default"]
    return next((text for name, text in variants.items() if name != "MAC"), "")


def _is_doubtful(pieces: Sequence[str], piece: str) -> bool:
    """Whether two small letters of two elements touch: a compound in German, two words elsewhere."""
    return bool(pieces) and pieces[-1][-1:].islower() and piece[:1].islower()


def _joined(pieces: Sequence[str]) -> str:
    """The texts of neighbouring elements; a small letter before a capital one is the end of a word."""
    text = ""
    for piece in pieces:
        is_glued = text[-1:].islower() and piece[:1].isupper()
        text += f" {piece}" if is_glued else piece
    return text
