"""Write docs/lenses.md from the lenses themselves: `python scripts/make_docs.py` (or `make docs`)."""

import dataclasses
from pathlib import Path
from typing import Any

import headscope

PAGE = Path(__file__).parents[1] / "docs" / "lenses.md"
HEAD = """# Lenses

One lens is one question about a model. This page is written by `make docs` from the lenses themselves; every
lens is also a command (`headscope lens NAME MODEL`) and a section of the report.
"""


def page() -> str:
    """The whole page."""
    lenses = headscope.lenses()
    index = "\n".join(f"- [`{name}`](#{name}): {lens.about.question}" for name, lens in lenses.items())
    return "\n".join([HEAD, index, "", *map(section, lenses.values())])


def section(lens: Any) -> str:
    """One lens: question, definition, formulas, reading, parameters, columns, reference."""
    about = lens.about
    formulas = "\n\n".join(f"$$ {formula} $$" for formula in about.formulas)
    parts = [
        f"## {lens.name}",
        f"**{about.title}.** {about.question}",
        about.definition,
        formulas,
        f"*How to read it.* {about.reading}",
        f"*Unchanged by:* {_symmetries(lens.invariant)}.",
        _table(
            "option",
            "default",
            [
                (f"`--{f.name.replace('_', '-')}`", f"`{f.default}`", f.metadata.get("help", ""))
                for f in dataclasses.fields(lens.params)
            ],
        ),
        _table("column", None, [(f"`{name}`", meaning) for name, meaning in about.columns.items()]),
        f"*Reference.* {about.reference}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _symmetries(invariant: frozenset[str]) -> str:
    names = {
        "qk": "a change of basis between queries and keys",
        "vo": "a change of basis between values and outputs",
        "rotated qk": "a rotation between queries and keys",
        "rotated vo": "a rotation between values and outputs",
        "heads": "a permutation of heads",
    }
    said = []
    for declared in sorted(invariant, key=lambda each: list(names).index(each.partition(":")[0])):
        symmetry, _, table = declared.partition(":")
        said.append(names[symmetry] + (f" (the table `{table}` alone)" if table else ""))
    return ", ".join(said) or "nothing: the number depends on the basis"


def _table(first: str, second: str | None, rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    titles = [first, *([second] if second else []), "meaning"]
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
