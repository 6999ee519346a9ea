"""An item on a model as one finding: our figures, published numbers, claims."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from headscope.core import About, Entry, Figure, Finding, Headline
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
    lens_findings = [findings[lens] for lens in item.lenses if lens in findings]
    if not lens_findings:
        raise UsageError(f"{item.id} is not shown by any of {', '.join(findings) or 'no findings'}")
    good = [finding for finding in lens_findings if finding.status == "ok"]
    if not good:
        return replace(lens_findings[0], lens=NAME, about=_about(item, lens_findings), tables={}, arrays={}, figures=())
    published = published_table(item, good)
    judged = claims_table(entries)
    headlines = tuple(headline for finding in good for headline in finding.headlines)
    missing = tuple(
        f"{finding.lens}: {finding.status}: {finding.reason}" for finding in lens_findings if finding.status != "ok"
    )
    return Finding(
        NAME,
        _about(item, good),
        tables={name: table for name, table in (("published", published), ("claims", judged)) if table.height},
        figures=(
            *_comparison_figure(item, good),
            *_figures(item, good),
            *(figure for entry in entries for figure in entry.figures),
        ),
        headlines=(*_comparison(item, published, model), *headlines),
        method=" ".join(f"{finding.lens}: {finding.method}" for finding in good),
        warnings=tuple(dict.fromkeys((*missing, *(line for finding in good for line in finding.warnings)))),
        params={"item": item.id},
    )


def published_table(item: Item, findings: Sequence[Finding] = ()) -> pl.DataFrame:
    """The published numbers, with ours where a finding holds them."""
    rows = []
    for number in item.published:
        ours: tuple[float | None, float | None] = (None, None)
        for finding in findings:
            if number.ours is not None and finding.lens == item.lenses[0]:
                ours = number.ours(finding)
        error = abs(number.value) * number.error if number.error else None
        rows.append((number.quantity, number.value, error, number.predicted, *ours))
    names = ("quantity", "published", "error", "predicted", "ours", "ours_predicted")
    kinds = (pl.String, *[pl.Float64] * 5)
    return pl.DataFrame(rows, schema=dict(zip(names, kinds, strict=True)), orient="row")


def claims_table(entries: Sequence[Entry]) -> pl.DataFrame:
    """The claims with their verdicts."""
    rows = [
        (" ".join(entry.ids), entry.reading, entry.statement, entry.correction or entry.reason) for entry in entries
    ]
    names = ("claim", "verdict", "statement", "correction")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")


def _about(item: Item, findings: Sequence[Finding]) -> About:
    work = document_of(item)
    lens_names = " and ".join(f"the lens {finding.lens}" for finding in findings)
    first = findings[0].about
    return About(
        title=f"{item.id}: {item.title}",
        question=first.question,
        definition=(
            f"What the document shows, measured on this model by {lens_names}; `headscope report MODEL --lens NAME` "
            "defines every quantity and shows the rest of what it finds."
        ),
        formulas=(),
        reading=(
            (f"Published numbers: {item.read}. They are of that model; on another one ours need not agree, and what "
             "theory says for each model stands beside it. " if item.published else "") + first.reading
        ),
        reference=f"{work.author}, {work.title}, section {item.section}. {first.reference}",
        columns=_COLUMNS,
    )  # fmt: skip


def _comparison_figure(item: Item, findings: Sequence[Finding]) -> tuple[Figure, ...]:
    first = next((finding for finding in findings if finding.lens == item.lenses[0]), None)
    return (item.comparison(first),) if item.comparison is not None and first is not None else ()


def _figures(item: Item, findings: Sequence[Finding]) -> tuple[Figure, ...]:
    """The figures that the item names, in its order; all figures where it names none."""
    figure_by_name = {figure.name: figure for finding in findings for figure in finding.figures}
    return (
        tuple(figure_by_name[name] for name in item.figures if name in figure_by_name)
        if item.figures
        else tuple(figure_by_name.values())
    )


def _comparison(item: Item, published: pl.DataFrame, model: str) -> tuple[Headline, ...]:
    """The first published number with ours, and how many more there are."""
    compared_rows = published.drop_nulls("ours")
    if not compared_rows.height:
        return ()
    row = compared_rows.row(0, named=True)
    remainder = f"; {compared_rows.height - 1} more in the table" if compared_rows.height > 1 else ""
    where = f" ({model})" if model else ""
    our_ratio, published_ratio = (_over(row[value], row[null]) for value, null in _PAIRS)
    full = (
        f"The {row['quantity']} is {row['ours']:.3g} here{where}{our_ratio}, and {row['published']:.3g} in the document"
        f"{published_ratio} ({item.read}){remainder}."
    )
    return (Headline(full, f"{row['ours']:.3g} here, {row['published']:.3g} in the document."),)


def _over(value: float, predicted: float | None) -> str:
    return f", {value / predicted:.2g} times what theory says for it" if predicted else ""
