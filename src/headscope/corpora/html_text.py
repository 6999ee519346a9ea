"""Turns HTML into plain paragraphs, without menus, listings and code.

A block element ends a paragraph, an inline one never separates or joins words, white space is collapsed.
"""

import re
from collections.abc import Callable
from html.parser import HTMLParser

_BLOCKS = set(
    """address article aside blockquote body br caption dd details div dl dt figcaption figure footer h1 h2 h3 h4 h5 h6
    header hr li main nav ol p pre section summary table tbody td tfoot th thead tr ul""".split()  # noqa: SIM905
)
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_SKIPPED = {"head", "script", "style", "pre", "nav", "svg", "math", "template"}

Skip = Callable[[str, dict[str, str]], bool]


def paragraphs(page: str, skip: Skip = lambda tag, attributes: False) -> list[str]:
    """The paragraphs of a page.

    Elements for which `skip(tag, attributes)` is true are left out with their content.
    """
    reader = _Reader(skip)
    reader.feed(page)
    reader.close()
    reader.end_paragraph()
    return reader.found


class _Reader(HTMLParser):
    def __init__(self, skip: Skip) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._skip = skip
        self._words: list[str] = []
        self._open: list[str] = []
        self._skipped_at: int | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS:
            self.end_paragraph()
        if tag in _VOID:
            return
        attributes = {name: value or "" for name, value in attrs}
        if self._skipped_at is None and (tag in _SKIPPED or self._skip(tag, attributes)):
            self._skipped_at = len(self._open)
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS:
            self.end_paragraph()

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.end_paragraph()
        if tag not in self._open:
            return
        # Elements that were never closed end with the one around them.
        while self._open.pop() != tag:
            pass
        if self._skipped_at is not None and len(self._open) <= self._skipped_at:
            self._skipped_at = None

    def handle_data(self, data: str) -> None:
        if self._skipped_at is None:
            self._words.append(data)

    def end_paragraph(self) -> None:
        text = re.sub(r"\s+", " ", "".join(self._words)).strip()
        self._words.clear()
        if text:
            self.found.append(text)
