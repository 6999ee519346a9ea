"""About: what a lens or an experiment asks, and how to read its answer, as prose in an `about.md`.

The file has a title, the question as the first paragraph, and five sections in this order; `Formulas` and `Columns` may
be missing:

    # Focus of the attention heads

    Where does each head look, and how sharply?

    ## Definition
    ## Formulas          one `$$ … $$` block per formula
    ## How to read it
    ## Reference
    ## Columns           one bullet per column: - `stack`: enc or dec

Lines of a paragraph are joined by blanks, so that the file can be wrapped at any width.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headscope.errors import LensError

_SECTIONS = ("Definition", "Formulas", "How to read it", "Reference", "Columns")
_OPTIONAL = ("Formulas", "Columns")
_FORMULA = re.compile(r"\$\$\n(.*?)\n\$\$", re.DOTALL)
_COLUMN = re.compile(r"^- `([^`]+)`: (.*?)(?=^- `|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class About:
    """What a member asks and how to read its answer.

    Formulas are TeX (the subset of matplotlib's mathtext).
    """

    title: str
    question: str
    definition: str
    formulas: tuple[str, ...]
    reading: str
    reference: str
    columns: Mapping[str, str] = field(default_factory=dict)


def read_about(path: Path) -> About:
    """The `about.md` of a member.

    Raises:
        LensError: The file is missing, or a section of it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise LensError(f"{path} cannot be read: {error.strerror}", hint="every lens and experiment has one") from error
    return parse_about(text, str(path))


def parse_about(text: str, place: str) -> About:
    """The prose of a member; `place` says in errors where it comes from."""
    head, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    titles, bodies = [], dict[str, str]()
    for section in sections:
        title, _, body = section.partition("\n")
        titles.append(title.strip())
        bodies[title.strip()] = body.strip()
    expected = [title for title in _SECTIONS if title in titles or title not in _OPTIONAL]
    if titles != expected:
        raise LensError(
            f"{place} has the sections {', '.join(titles) or 'none'}",
            hint=f"write them in this order: {', '.join(_SECTIONS)} ({' and '.join(_OPTIONAL)} may be missing)",
        )
    title, _, question = head.strip().partition("\n")
    if not title.startswith("# ") or not question.strip():
        raise LensError(f"{place} begins with {title[:60]!r}", hint="write `# Title`, a blank line, and the question")
    return About(
        title.removeprefix("# ").strip(),
        _unwrapped(question),
        _unwrapped(bodies["Definition"]),
        tuple(_unwrapped(formula) for formula in _FORMULA.findall(bodies.get("Formulas", ""))),
        _unwrapped(bodies["How to read it"]),
        _unwrapped(bodies["Reference"]),
        {name: _unwrapped(meaning) for name, meaning in _COLUMN.findall(bodies.get("Columns", ""))},
    )


def _unwrapped(text: str) -> str:
    """Each paragraph on one line; a blank line stays between two of them."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
