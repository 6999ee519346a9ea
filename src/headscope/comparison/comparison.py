"""Comparison: two or more runs, every one against the first."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from headscope.comparison.circumstances import common_lenses, is_paired, labels, notes, shape_obstacle
from headscope.comparison.head_differences import FALSE_DISCOVERIES, HeadDifferences, head_differences
from headscope.comparison.sentences import Difference, largest_differences, movement_sentences
from headscope.core import Run
from headscope.core.card import Card, Point, Shown
from headscope.errors import UsageError
from headscope.report.head_grid import head_grid
from headscope.report.overview import verdict

PAGE, DIFFERENCES, VERDICTS = "compare.html", "differences.parquet", "verdicts.parquet"
INDEPENDENT = (
    "Intervals of differences treat the two runs as independent. The runs {text}. A head is said to have moved where "
    "its interval leaves 0 out, with false discoveries held at {share:.0f} % over all heads and quantities."
)


@dataclass(frozen=True, eq=False)
class Pair:
    """One run against the first: their heads where shapes agree, otherwise why not; and what else differs."""

    base: Run
    other: Run
    base_label: str
    other_label: str
    heads: HeadDifferences | None
    obstacle: str
    notes: tuple[str, ...]

    @property
    def rule(self) -> str:
        """How intervals of differences are made, and what that means for these two runs."""
        text = (
            "read the same windows and vary together, so these intervals are wider than paired ones where that "
            "correlation is positive"
            if is_paired(self.base, self.other)
            else "read different windows"
        )
        return INDEPENDENT.format(text=text, share=100 * FALSE_DISCOVERIES)

    def largest(self, most: int) -> list[Difference]:
        """The largest differences of single heads."""
        return [] if self.heads is None else largest_differences(self.heads, most)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Shown):
    """Runs with their labels, and every run against the first."""

    runs: tuple[Run, ...]
    labels: tuple[str, ...]
    lenses: tuple[str, ...]
    pairs: tuple[Pair, ...]

    @classmethod
    def of(cls, runs: Sequence[Run], places: Sequence[Path | None] | None = None) -> "Comparison":
        """Compare runs.

        Raises:
            UsageError: There are fewer than two, or they share no lens.
        """
        if len(runs) < 2:
            raise UsageError(f"{len(runs)} of at least 2 runs", hint="name two models or run folders")
        lenses = common_lenses(runs)
        names = labels(runs, [run.folder for run in runs] if places is None else places)
        base = runs[0]
        pairs = tuple(
            _pair(base, other, names[0], name, lenses) for other, name in zip(runs[1:], names[1:], strict=True)
        )
        return cls(tuple(runs), names, lenses, pairs)

    @cached_property
    def differences(self) -> pl.DataFrame:
        """A row for each head and quantity of each pair: both values, difference, interval, effect, moved."""
        rows = [row for pair in self.pairs if pair.heads is not None for row in _rows(pair, pair.heads)]
        return pl.DataFrame(rows, schema=_DIFFERENCES, orient="row")

    @cached_property
    def heads(self) -> pl.DataFrame:
        """A row for each head of each pair: how far it moved, in how many quantities; the farthest first."""
        rows = [row for pair in self.pairs if pair.heads is not None for row in _head_rows(pair, pair.heads)]
        return pl.DataFrame(rows, schema=_HEADS, orient="row")

    @cached_property
    def verdicts(self) -> pl.DataFrame:
        """A row for each lens and run: question, answer, number, null, and the sentence with its interval."""
        return pl.DataFrame(
            [_verdict_row(run, label, lens) for lens in self.lenses for run, label in self._named()],
            schema=_VERDICTS,
            orient="row",
        )

    def save(self, folder: str | Path) -> Path:
        """Write `compare.html`, `differences.parquet` and `verdicts.parquet`; returns the page's path."""
        from headscope.comparison.files import save

        return save(self, Path(folder))

    def sentences(self, most: int = 5) -> tuple[str, ...]:
        """What moved, how many heads, and the largest differences, for each pair."""
        return tuple(text for pair in self.pairs for text in _pair_sentences(pair, most, named=len(self.pairs) > 1))

    def _named(self) -> list[tuple[Run, str]]:
        return list(zip(self.runs, self.labels, strict=True))

    def _card(self) -> Card:
        points = [
            Point(pair.other_label if len(self.pairs) > 1 else "", difference.text, difference.effect)
            for pair in self.pairs
            for difference in pair.largest(5)
        ]
        lead = [
            text
            for pair in self.pairs
            for text in ([pair.obstacle] if pair.heads is None else movement_sentences(pair.heads))
        ]
        return Card(
            f"comparison of {' and '.join(self.labels)}",
            lead=tuple(lead),
            points=tuple(points),
            facts=(("tables", "differences, heads, verdicts"),),
            end=("`comparison.save(folder)` writes the page.",),
        )


def _pair(base: Run, other: Run, base_label: str, other_label: str, lenses: Sequence[str]) -> Pair:
    obstacle = shape_obstacle(base, other)
    answered = [lens for lens in lenses if base.findings[lens].status == other.findings[lens].status == "ok"]
    heads = None if obstacle else head_differences(base, other, answered)
    if heads is not None and not heads.quantities:
        heads, obstacle = None, "the lenses that both runs have offer no number of single heads"
    return Pair(base, other, base_label, other_label, heads, obstacle, notes(base, other, lenses))


def _pair_sentences(pair: Pair, most: int, *, named: bool) -> list[str]:
    start = f"{pair.other_label} against {pair.base_label}: " if named else ""
    if pair.heads is None:
        return [f"{start}No heads are compared: {pair.obstacle}."]
    first, *further = movement_sentences(pair.heads)
    return [f"{start}{first}", *further, *(difference.text for difference in pair.largest(most))]


_PLACE = {"base": pl.String, "model": pl.String, "stack": pl.String, "kind": pl.String} | dict.fromkeys(
    ("layer", "head"), pl.Int64
)
_DIFFERENCES = pl.Schema(
    _PLACE
    | dict.fromkeys(("lens", "quantity", "label", "unit"), pl.String)
    | dict.fromkeys(("base_value", "value", "difference", "low", "high", "p", "adjusted", "effect"), pl.Float64)
    | {"certainty": pl.String, "moved": pl.Boolean}
)
_HEADS = pl.Schema(_PLACE | {"movement": pl.Float64, "moved_in": pl.Int64, "quantities": pl.Int64})
_VERDICTS = pl.Schema(
    dict.fromkeys(("lens", "question", "model", "status", "answer", "number", "null", "sentence"), pl.String)
)


def _rows(pair: Pair, heads: HeadDifferences) -> list[tuple[Any, ...]]:
    return [
        (
            *_place(pair, heads, index), part.lens, part.quantity.key, part.quantity.label, part.quantity.unit,
            *(_cell(column[index]) for column in (part.base, part.other, part.difference, part.low, part.high, part.p,
                                                  part.adjusted, part.effect)),
            part.certainty, None if part.certainty == "unknown" else bool(part.moved[index]),
        )
        for part in heads.quantities
        for index in range(len(heads.grid.heads))
    ]  # fmt: skip


def _head_rows(pair: Pair, heads: HeadDifferences) -> list[tuple[Any, ...]]:
    movement = heads.movement
    order = sorted(range(len(heads.grid.heads)), key=lambda index: -movement[index])
    return [
        (
            *_place(pair, heads, index), float(movement[index]),
            sum(int(part.moved[index]) for part in heads.quantities), len(heads.quantities),
        )
        for index in order
    ]  # fmt: skip


def _place(pair: Pair, heads: HeadDifferences, index: int) -> tuple[str, str, str, str, int, int]:
    head = heads.grid.heads[index]
    return pair.base_label, pair.other_label, head.site.stack, head.site.kind, head.site.layer, head.head


def _cell(value: float) -> float | None:
    return None if value != value else float(value)


def _verdict_row(run: Run, label: str, lens: str) -> tuple[str, ...]:
    finding = run.findings[lens]
    question = finding.about.question
    if finding.status != "ok":
        return lens, question, label, finding.status, finding.reason, "", "", ""
    answer, value, null = verdict(finding, head_grid(run))
    sentence = finding.headlines[0].full if finding.headlines else ""
    return lens, question, label, finding.status, answer, value, null, sentence
