"""About: the prose of a lens or an experiment, from its `about.md`.

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
    """The question of a member, its definition, and how to read its answer.

    Formulas are TeX (the subset that matplotlib's mathtext knows).
    """

    title: str
    question: str
    definition: str
    formulas: tuple[str, ...]
    reading: str
    reference: str
    columns: Mapping[str, str] = field(default_factory=dict)


def read_about(path: Path) -> About:
    """Read the `about.md` of a member.

    Raises:
        LensError: The file or one of its sections is missing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise LensError(f"{path} cannot be read: {error.strerror}", hint="every lens and experiment has one") from error
    return parse_about(text, str(path))


def parse_about(text: str, place: str) -> About:
    """Parse the prose of a member; `place` names its file in errors."""
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
    """The text with each paragraph on one line and blank lines between paragraphs."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
