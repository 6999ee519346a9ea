"""The index itself: the documents with all their items, and what each item still lacks."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache

from headscope.errors import UsageError
from headscope.theory import Claim, claims
from headscope.theory.index import bukatin, conti, wertich, wertich_formulas
from headscope.theory.index.item import KINDS, MODEL, Document, Item, Step, Way, steps
from headscope.theory.ledger import meant_ids
from headscope.theory.works import bukatin as bukatin_talk
from headscope.theory.works import conti as conti_notes
from headscope.theory.works import wertich as wertich_thesis

Sections = Mapping[str, tuple[str, tuple[str, ...]]]
# What a number without a kind means, first what people look for first: `wertich:A.1` is the figure.
_PREFIXES = ("fig", "eq", "tab", "statement", "q", "slide", "sec", "readme")
_SHOWN = 4


@cache
def documents() -> tuple[Document, ...]:
    """The works, each with its items."""
    return (
        _document(
            "wertich", wertich_thesis(), "W",
            (*wertich.FIGURES, *wertich.TABLES, *wertich_formulas.FORMULAS, *wertich.THEOREMS, *wertich.QUESTIONS),
            wertich.SECTIONS,
        ),
        _document(
            "conti", conti_notes(), "CR",
            (*conti.FIGURES, *conti.TABLES, *conti.FORMULAS, *conti.THEOREMS, *conti.QUESTIONS), conti.SECTIONS,
        ),
        _document("bukatin", bukatin_talk(), "B", bukatin.SLIDES, {}),
    )  # fmt: skip


def _document(name: str, work: object, letters: str, items: tuple[Item, ...], sections: Sections) -> Document:
    told = tuple(map(_with_model, items))
    rest = _sections(name, letters, told, sections)
    author, title = (str(getattr(work, part)) for part in ("author", "work"))
    return Document(name, author, title, (*told, *map(_with_model, rest)))


def _with_model(item: Item) -> Item:
    """Claims that a lens judges are asked about the reader's model."""

    def asked(step: Step) -> Step:
        judged = any(claim.judge is not None for claim in _judging(step))
        return replace(step, words=(*step.words, "--model", MODEL)) if judged else step

    return replace(item, steps=tuple(map(asked, item.steps)))


def _sections(name: str, letters: str, items: Iterable[Item], sections: Sections) -> list[Item]:
    """Statements without a number, section by section: what the ledger judges and no other item names."""
    named = {claim for item in items for claim in item.claims}
    found = []
    for section, (title, others) in sections.items():
        ids = [
            one
            for claim in claims()
            for one in claim.ids
            if one[0] in letters and claim.source.section.split(",")[0] == section and one not in named
        ]
        found.append(Item(name, f"sec.{section}", "statement", section, title, steps(f"claims {_short(ids)}", *others)))
    return found


def _short(ids: list[str]) -> str:
    """The ids, or the section that names exactly these."""
    stem = ids[0].rstrip("abcdefghijklmnopqrstuvwxyz") if ids else ""
    if len(ids) > 1 and all(one.startswith(stem) for one in ids) and meant_ids([stem]) == frozenset(ids):
        return stem
    return " ".join(ids)


@cache
def _judging(step: Step) -> tuple[Claim, ...]:
    """The claims that a step names, one by one or by their section."""
    return claims(step.claims) if step.claims else ()


def items(document: str = "", kind: str = "", section: str = "") -> tuple[Item, ...]:
    """All items in the order of the works, or those of a document, a kind, a section with its parts."""
    known = [one.name for one in documents()]
    if document and document not in known:
        raise UsageError(f"there is no document {document!r}", hint=f"the documents are {', '.join(known)}")
    if kind and kind not in KINDS:
        raise UsageError(f"there is no kind {kind!r}", hint=f"the kinds are {', '.join(KINDS)}")
    return tuple(
        item
        for one in documents()
        for item in one.items
        if document in ("", one.name) and kind in ("", item.kind) and _within(item.section, section)
    )


def _within(place: str, section: str) -> bool:
    return not section or place == section or place.startswith((f"{section}.", f"{section},"))


def document_of(item: Item) -> Document:
    """The work that an item belongs to."""
    return next(one for one in documents() if one.name == item.document)


def item_named(name: str) -> Item:
    """The item of that id; `wertich:A.20` without a kind is the figure, else the formula, else the table.

    Raises:
        UsageError: There is none; the hint tells the nearest ones.
    """
    known = {item.id: item for item in items()}
    document, _, label = name.strip().partition(":")
    for spelling in (name.strip(), *(f"{document}:{prefix}.{label}" for prefix in _PREFIXES)):
        if spelling in known:
            return known[spelling]
    folded = {one.lower(): one for one in known}
    wanted = [name.strip().lower(), *(f"{document}:{prefix}.{label}".lower() for prefix in _PREFIXES[:3])]
    near = [folded[one] for word in wanted for one in difflib.get_close_matches(word, folded, n=_SHOWN, cutoff=0.75)]
    near = list(dict.fromkeys(near))[:_SHOWN] or [next(iter(one.items)).id for one in documents()]
    raise UsageError(
        f"the index has no {name!r}", hint=f"near it: {', '.join(near)}; `headscope index` lists everything"
    )


def ways(item: Item, lacking: Callable[[Step], str]) -> tuple[Way, ...]:
    """The steps of an item, each with what it lacks; `lacking` answers for lenses and commands."""
    return tuple(_unjudged(step) or Way(step, lacking(step)) for step in item.steps)


def reproducing(item: Item, found: Iterable[Way]) -> tuple[Way, ...]:
    """The ways that show what the item shows. A claim about a figure or a table is no picture of it, unless it stands
    first: then it draws it."""
    known = tuple(found)
    if item.kind not in ("figure", "table") or not item.steps or item.steps[0].claims:
        return known
    return tuple(way for way in known if not way.step.claims)


def why_not(item: Item, found: Iterable[Way]) -> str:
    """Why nothing reproduces the item; empty where a command does."""
    known = reproducing(item, found)
    if item.reason or not all(way.lacks for way in known):
        return item.reason
    waiting = "; ".join(dict.fromkeys(way.lacks for way in known if not way.is_final))
    final = dict.fromkeys(way.lacks for way in known if way.is_final)
    return "; ".join((*([f"not yet: {waiting}"] if waiting else []), *final))


def _unjudged(step: Step) -> Way | None:
    """What a step of claims waits for, where none of them can be judged."""
    found = _judging(step)
    if not found or any(claim.check is not None or claim.judge is not None for claim in found):
        return None
    waiting = [f"a judgement of {claim.ids[0]} by {claim.lens}" for claim in found if claim.lens]
    return Way(step, "; ".join(waiting)) if waiting else Way(step, "; ".join(one.reason for one in found), True)
