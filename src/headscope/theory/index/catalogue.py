"""The index itself: the documents with all their items, and what items lack."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

from headscope.theory import Claim, claims
from headscope.theory.index.contents import CONTENTS, Contents, check_filters, item_id_of, section_label
from headscope.theory.index.item import MODEL, Document, Item, Step, Way, steps
from headscope.theory.ledger import meant_ids
from headscope.theory.works import bukatin as bukatin_talk
from headscope.theory.works import conti as conti_notes
from headscope.theory.works import wertich as wertich_thesis


@cache
def documents() -> tuple[Document, ...]:
    """The works, each with its items."""
    works = {"wertich": wertich_thesis(), "conti": conti_notes(), "bukatin": bukatin_talk()}
    return tuple(_document(works[contents.name], contents) for contents in CONTENTS)


def _document(work: object, contents: Contents) -> Document:
    listed_items = tuple(map(_with_model, contents.items))
    section_items = _sections(contents, listed_items)
    author, title = (str(getattr(work, part)) for part in ("author", "work"))
    return Document(contents.name, author, title, (*listed_items, *map(_with_model, section_items)))


def _with_model(item: Item) -> Item:
    """The item; steps whose claims a lens judges get the reader's model."""

    def with_model(step: Step) -> Step:
        judged = any(claim.judge is not None for claim in _judging(step))
        return replace(step, words=(*step.words, "--model", MODEL)) if judged else step

    return replace(item, steps=tuple(map(with_model, item.steps)))


def _sections(contents: Contents, items: Iterable[Item]) -> list[Item]:
    """Statements without a number, by section.

    The ledger judges them, and no other item names them.
    """
    named = {claim for item in items for claim in item.claims}
    section_items = []
    for section, (title, other_steps) in contents.sections.items():
        ids = [
            claim_id
            for claim in claims()
            for claim_id in claim.ids
            if claim_id[0] in contents.letters
            and claim.source.section.split(",")[0] == section
            and claim_id not in named
        ]
        section_items.append(
            Item(
                contents.name,
                section_label(section),
                "statement",
                section,
                title,
                steps(f"claims {_short(ids)}", *other_steps),
            )
        )
    return section_items


def _short(ids: list[str]) -> str:
    """The ids, or the section that names exactly these."""
    stem = ids[0].rstrip("abcdefghijklmnopqrstuvwxyz") if ids else ""
    if len(ids) > 1 and all(claim_id.startswith(stem) for claim_id in ids) and meant_ids([stem]) == frozenset(ids):
        return stem
    return " ".join(ids)


@cache
def _judging(step: Step) -> tuple[Claim, ...]:
    """The claims that a step names, one by one or by their section."""
    return claims(step.claims) if step.claims else ()


def items(document: str = "", kind: str = "", section: str = "") -> tuple[Item, ...]:
    """All items in the order of the works, or those of a document, kind or section.

    A section includes its parts.
    """
    check_filters(document, kind)
    return tuple(
        item
        for work in documents()
        for item in work.items
        if document in ("", work.name) and kind in ("", item.kind) and _within(item.section, section)
    )


def _within(place: str, section: str) -> bool:
    return not section or place == section or place.startswith((f"{section}.", f"{section},"))


def document_of(item: Item) -> Document:
    """The work that an item belongs to."""
    return next(document for document in documents() if document.name == item.document)


def item_named(name: str) -> Item:
    """The item of that id.

    `wertich:A.20` without a kind is the figure, else the formula, else the table.

    Raises:
        UsageError: There is none; the hint tells the nearest ones.
    """
    item_id = item_id_of(name)
    return next(item for item in items() if item.id == item_id)


def ways(item: Item, lacking: Callable[[Step], str]) -> tuple[Way, ...]:
    """The steps of an item, each with what it lacks.

    `lacking` answers for lenses and commands.
    """
    return tuple(_unjudged(step) or Way(step, lacking(step)) for step in item.steps)


def reproducing(item: Item, item_ways: Iterable[Way]) -> tuple[Way, ...]:
    """The ways that reproduce the item.

    A claim about a figure or a table is no picture of it, unless the claim comes first: then it draws the picture.
    """
    all_ways = tuple(item_ways)
    if item.kind not in ("figure", "table") or not item.steps or item.steps[0].claims:
        return all_ways
    return tuple(way for way in all_ways if not way.step.claims)


def why_not(item: Item, item_ways: Iterable[Way]) -> str:
    """Why nothing reproduces the item; empty where a command does."""
    reproducing_ways = reproducing(item, item_ways)
    if item.reason or not all(way.lacks for way in reproducing_ways):
        return item.reason
    waiting = "; ".join(dict.fromkeys(way.lacks for way in reproducing_ways if not way.is_final))
    final = dict.fromkeys(way.lacks for way in reproducing_ways if way.is_final)
    return "; ".join((*([f"not yet: {waiting}"] if waiting else []), *final))


def _unjudged(step: Step) -> Way | None:
    """The way of a step of claims of which none can be judged; else None."""
    step_claims = _judging(step)
    if not step_claims or any(claim.check is not None or claim.judge is not None for claim in step_claims):
        return None
    waiting = [f"a judgement of {claim.ids[0]} by {claim.lens}" for claim in step_claims if claim.lens]
    return (
        Way(step, "; ".join(waiting)) if waiting else Way(step, "; ".join(claim.reason for claim in step_claims), True)
    )
