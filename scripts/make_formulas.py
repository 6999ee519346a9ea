"""Typeset the formulas of lenses, experiments and claims once, into `src/headscope/report/formulas.json`.

    python scripts/make_formulas.py

A test names the formulas that the file lacks: whoever writes a new one must call this script.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from headscope.experiments import experiment_members
from headscope.lenses import lens_members
from headscope.report.formula import PREPARED, bare
from headscope.report.formula_setting import packed
from headscope.report.formula_typesetting import typeset
from headscope.report.markup import inline_formulas
from headscope.theory import claims


def formulas() -> dict[str, list[str]]:
    """All formulas of the package as bare TeX, in the order of their alphabet: displayed ones and those in prose."""
    members = [*lens_members().values(), *experiment_members().values()]
    displayed = [tex for member in members for tex in member.about.formulas]
    displayed += [tex for claim in claims() for tex in (claim.formula, claim.corrected) if tex]
    inline = [tex for text in _prose() for tex in inline_formulas(text)]
    return {"inline": sorted(set(map(bare, inline))), "display": sorted(set(map(bare, displayed)))}


def _prose() -> Iterator[str]:
    """The texts that a page may show, in which formulas are between dollars."""
    for member in (*lens_members().values(), *experiment_members().values()):
        about = member.about
        yield from (about.title, about.question, about.definition, about.reading, about.reference)
        yield from about.columns.values()
    for claim in claims():
        yield from (claim.statement, claim.lesson, claim.correction, claim.reason)


def content(formulas_by_form: dict[str, Iterable[str]]) -> dict[str, Any]:
    """What the file holds for these formulas."""
    numbers: dict[str, int] = {}
    settings = {
        form: {tex: packed(typeset(tex, form == "display"), numbers) for tex in sources}
        for form, sources in formulas_by_form.items()
    }
    return settings | {"glyphs": list(numbers)}


def text(file_content: dict[str, Any]) -> str:
    """The file: one line for each formula and each outline."""
    written = json.dumps(file_content, ensure_ascii=False, separators=(",", ":"))
    return re.sub(r'(?<=[\[\]{,])(?="(?:[^"\\]|\\.)*":\[\[|"M)|(?<=\})(?=,"(?:display|glyphs)")', "\n", written) + "\n"


def main() -> None:
    """Write the file."""
    sources = formulas()
    PREPARED.write_text(text(content(sources)), encoding="utf-8")
    print(f"{PREPARED}: {sum(map(len, sources.values()))} formulas, {PREPARED.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
