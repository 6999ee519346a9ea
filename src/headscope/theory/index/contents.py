"""What the documents contain, and the names of its items. Loads no torch: nothing asks the ledger."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from headscope.errors import UsageError
from headscope.theory.index import bukatin, conti, wertich, wertich_formulas
from headscope.theory.index.item import KINDS, Item

Sections = Mapping[str, tuple[str, tuple[str, ...]]]  # titles and further steps, by section

# What a number without a kind means, first what people look for first: `wertich:A.1` is the figure.
_PREFIXES = ("fig", "eq", "tab", "statement", "q", "slide", "sec", "readme")
_SHOWN = 4


@dataclass(frozen=True)
class Contents:
    """The items of a document that have a number, and its sections with statements that have none.

    `letters` begin the ids of its claims.
    """

    name: str
    letters: str
    items: tuple[Item, ...]
    sections: Sections

    def item_ids(self) -> list[str]:
        """The ids of all items, sections last."""
        return [*(item.id for item in self.items), *(f"{self.name}:{section_label(name)}" for name in self.sections)]


CONTENTS = (
    Contents(
        "wertich",
        "W",
        (*wertich.FIGURES, *wertich.TABLES, *wertich_formulas.FORMULAS, *wertich.THEOREMS, *wertich.QUESTIONS),
        wertich.SECTIONS,
    ),
    Contents(
        "conti",
        "CR",
        (*conti.FIGURES, *conti.TABLES, *conti.FORMULAS, *conti.THEOREMS, *conti.QUESTIONS),
        conti.SECTIONS,
    ),
    Contents("bukatin", "B", bukatin.SLIDES, {}),
)


def section_label(section: str) -> str:
    """The label of the item that holds the statements of a section."""
    return f"sec.{section}"


def check_filters(document: str = "", kind: str = "") -> None:
    """Refuse a document or a kind of items that does not exist; empty is no restriction."""
    names = [contents.name for contents in CONTENTS]
    if document and document not in names:
        raise UsageError(f"there is no document {document!r}", hint=f"the documents are {', '.join(names)}")
    if kind and kind not in KINDS:
        raise UsageError(f"there is no kind {kind!r}", hint=f"the kinds are {', '.join(KINDS)}")


def item_id_of(name: str) -> str:
    """The id of an item as a user may write it: `wertich:A.20` is `wertich:fig.A.20`.

    Raises:
        UsageError: There is none; the hint tells the nearest ones.
    """
    ids = [item_id for contents in CONTENTS for item_id in contents.item_ids()]
    document, _, label = name.strip().partition(":")
    for spelling in (name.strip(), *(f"{document}:{prefix}.{label}" for prefix in _PREFIXES)):
        if spelling in ids:
            return spelling
    folded = {item_id.lower(): item_id for item_id in ids}
    lowered_names = [name.strip().lower(), *(f"{document}:{prefix}.{label}".lower() for prefix in _PREFIXES[:3])]
    near = [
        folded[match]
        for word in lowered_names
        for match in difflib.get_close_matches(word, folded, n=_SHOWN, cutoff=0.75)
    ]
    near = list(dict.fromkeys(near))[:_SHOWN] or [contents.item_ids()[0] for contents in CONTENTS]
    raise UsageError(
        f"the index has no {name!r}", hint=f"near it: {', '.join(near)}; `headscope index` lists everything"
    )
