"""What a model says about an item, as one finding: our figures, the published numbers beside ours, the claims."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from headscope.core import About, Entry, Figure, Finding
from headscope.errors import UsageError
from headscope.theory.index.catalogue import document_of
from headscope.theory.index.item import Item

NAME = "index"
_PAIRS = (("ours", "ours_predicted"), ("published", "predicted"))
_COLUMNS = {
    "quantity": "what the document gives a number for",
    "published": "the number of the document",
    "error": "how far reading it may be off, ±",
    "predicted": "what theory says for the model of the document: as initialised, or as the document expects",
    "ours": "the same quantity of this model",
    "ours_predicted": "what the same theory says for this model; empty where nothing does",
    "claim": "id in the ledger of claims",
    "verdict": "computed from numbers; `headscope claims ID` shows them",
    "statement": "what the document says",
    "correction": "what holds instead",
}


def page(item: Item, findings: Mapping[str, Finding], entries: Sequence[Entry] = (), model: str = "") -> Finding:
    """The finding of an item from those of its lenses and from its judged claims.

    Raises:
        UsageError: No finding of its lenses is there.
    """
    asked = [findings[lens] for lens in item.lenses if lens in findings]
    if not asked:
        raise UsageError(f"{item.id} is not shown by any of {', '.join(findings) or 'no findings'}")
    good = [finding for finding in asked if finding.status == "ok"]
    if not good:
        return replace(asked[0], lens=NAME, about=_about(item, asked), tables={}, arrays={}, figures=())
    published = published_table(item, good)
    judged = claims_table(entries)
    said = tuple(line for finding in good for line in finding.headlines)
    missing = tuple(f"{one.lens}: {one.status}: {one.reason}" for one in asked if one.status != "ok")
    return Finding(
        NAME,
        _about(item, good),
        tables={name: table for name, table in (("published", published), ("claims", judged)) if table.height},
        figures=(*_drawn(item, good), *_figures(item, good), *(one for entry in entries for one in entry.figures)),
        headlines=(*_comparison(item, published, model), *said),
        method=" ".join(f"{finding.lens}: {finding.method}" for finding in good),
        warnings=(*missing, *(line for finding in good for line in finding.warnings)),
        params={"item": item.id},
    )


def published_table(item: Item, findings: Sequence[Finding] = ()) -> pl.DataFrame:
    """The published numbers, beside ours where a finding holds them."""
    rows = []
    for one in item.published:
        ours: tuple[float | None, float | None] = (None, None)
        for finding in findings:
            if one.ours is not None and finding.lens == item.lenses[0]:
                ours = one.ours(finding)
        error = abs(one.value) * one.error if one.error else None
        rows.append((one.what, one.value, error, one.predicted, *ours))
    names = ("quantity", "published", "error", "predicted", "ours", "ours_predicted")
    kinds = (pl.String, *[pl.Float64] * 5)
    return pl.DataFrame(rows, schema=dict(zip(names, kinds, strict=True)), orient="row")


def claims_table(entries: Sequence[Entry]) -> pl.DataFrame:
    """The claims with their verdicts."""
    rows = [(" ".join(one.ids), one.reading, one.statement, one.correction or one.reason) for one in entries]
    names = ("claim", "verdict", "statement", "correction")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")


def _about(item: Item, findings: Sequence[Finding]) -> About:
    work = document_of(item)
    asked = " and ".join(f"the lens {finding.lens}" for finding in findings)
    first = findings[0].about
    return About(
        title=f"{item.id}: {item.title}",
        question=first.question,
        definition=(
            f"What the document shows, measured on this model by {asked}; `headscope report MODEL --lens NAME` defines "
            "every quantity and shows the rest of what it finds."
        ),
        formulas=(),
        reading=(
            (f"Published numbers: {item.read}. They are of that model; on another one ours need not agree, and what "
             "theory says for each model stands beside it. " if item.published else "") + first.reading
        ),
        reference=f"{work.author}, {work.title}, section {item.section}. {first.reference}",
        columns=_COLUMNS,
    )  # fmt: skip


def _drawn(item: Item, findings: Sequence[Finding]) -> tuple[Figure, ...]:
    first = next((one for one in findings if one.lens == item.lenses[0]), None)
    return (item.beside(first),) if item.beside is not None and first is not None else ()


def _figures(item: Item, findings: Sequence[Finding]) -> tuple[Figure, ...]:
    """Those that the item names, in its order; all of them where it names none."""
    known = {figure.name: figure for finding in findings for figure in finding.figures}
    return tuple(known[name] for name in item.figures if name in known) if item.figures else tuple(known.values())


def _comparison(item: Item, published: pl.DataFrame, model: str) -> tuple[str, ...]:
    """One sentence: how many published numbers have ours beside them, and the first pair."""
    both = published.drop_nulls("ours")
    if not both.height:
        return ()
    row = both.row(0, named=True)
    rest = f"; {both.height - 1} more in the table" if both.height > 1 else ""
    where = f" ({model})" if model else ""
    ours, there = (_over(row[value], row[null]) for value, null in _PAIRS)
    return (
        f"The {row['quantity']} is {row['ours']:.3g} here{where}{ours}, and {row['published']:.3g} in the document"
        f"{there} ({item.read}){rest}.",
    )


def _over(value: float, predicted: float | None) -> str:
    return f", {value / predicted:.2g} times what theory says for it" if predicted else ""
