"""The figures of the experiment `why`: the circuit, where the contrast is written, and what removal does."""

import re

import numpy as np

from headscope.core import Figure, Flow, HeatMap
from headscope.core.numbers import counted
from headscope.experiments.why.causal_checks import Sums
from headscope.experiments.why.tables import Explanation
from headscope.experiments.why.words import percent, plural, signed

_DRAWN_WRITERS = 3  # of each side in the picture of the circuit
_WRITER = re.compile(r"(?P<layer>.*L\d+(\.cross)?)\.(?P<part>H\d+|mlp|attn)")


def figures(explanation: Explanation) -> tuple[Figure, ...]:
    """The circuit first, then the checks, the writers of both sides and their pairs."""
    return (
        circuit(explanation),
        _checks(explanation),
        _writers(explanation.keys, explanation.terms.label),
        _writers(explanation.queries, explanation.terms.label),
        _pairs(explanation),
    )


def circuit(explanation: Explanation) -> Flow:
    """From the strongest writers through keys and queries to the head, and on to the logits."""
    label = explanation.terms.label
    boxes = _Boxes()
    head = boxes.add(2, label, *_head_notes(explanation))
    for kind, sums in enumerate((explanation.keys, explanation.queries), 1):
        reader = boxes.add(1, f"{plural(sums.side)} of {label}")
        for name, contrast in _writer_parts(sums):
            boxes.link(boxes.add(0, f"{name}  {signed(contrast)}"), reader, kind, contrast)
        boxes.link(reader, head, kind, float(sums.contrast.sum()))
    if explanation.effect is not None:
        direct, on_others = explanation.effect.direct, explanation.effect.on_other_tokens
        for name, logits in (("the token at this key", direct), ("tokens at other keys", on_others)):
            boxes.link(head, boxes.add(3, name, f"{signed(logits, 2)} logits"), 3, logits)
    headings = ("written by", "read as", "by the head", "which adds to the logit of")
    return Flow(
        name="circuit",
        title=f"What makes {label} attend to {explanation.pairs.target}",
        caption="A band from a writer is as wide as its contrast: its part of the score at the key minus the mean of "
        "its parts at the other keys. Keys and queries are two ways to divide the same sum, "
        f"{signed(explanation.keys.contrast.sum())}. The bands on the right are direct effects on logits, on another "
        "scale. A dashed outline is a negative number.",
        boxes=tuple(boxes.names),
        notes=tuple(boxes.notes),
        columns=np.array(boxes.columns, dtype=np.float64),
        headings=headings[: max(boxes.columns) + 1],
        bands=np.array(boxes.bands, dtype=np.float64),
        kinds=("contrast of the keys", "contrast of the queries", "direct effect"),
        units=("score", "score", "logits"),
    )


class _Boxes:
    """The boxes and bands of a flow while they are collected."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.notes: list[tuple[str, ...]] = []
        self.columns: list[int] = []
        self.bands: list[tuple[int, int, int, float]] = []

    def add(self, column: int, name: str, *notes: str) -> int:
        """A box; its number."""
        self.names.append(name)
        self.notes.append(notes)
        self.columns.append(column)
        return len(self.names) - 1

    def link(self, source: int, target: int, kind: int, size: float) -> None:
        """A band from one box to another."""
        self.bands.append((source, target, kind, size))


def _head_notes(explanation: Explanation) -> tuple[str, ...]:
    """The mass on the key in the model, and without the strongest writer of the keys."""
    check = next((run for run in explanation.runs if run.side == "key"), None)
    model_words = f"{percent(explanation.mass)} on {explanation.pairs.short_target}"
    return (model_words,) if check is None else (model_words, f"{percent(check.mass)} without {check.writer}")


def _writer_parts(sums: Sums) -> list[tuple[str, float]]:
    """The strongest writers of one side, and the sum of all others."""
    strongest = sums.strongest(_DRAWN_WRITERS)
    parts = [(sums.names[index], float(sums.contrast[index])) for index in strongest]
    remaining = len(sums.names) - len(strongest)
    remainder = float(sums.contrast.sum()) - sum(contrast for _, contrast in parts)
    return [*parts, (counted(remaining, "other"), remainder)] if remaining else parts


def _checks(explanation: Explanation) -> HeatMap:
    label = explanation.terms.label
    rows, labels = [], []
    for run in explanation.runs:
        sums = explanation.keys if run.side == "key" else explanation.queries
        index = sums.names.index(run.writer)
        rows.append([explanation.mass, run.mass, float(sums.without[index]), float(sums.alone[index])])
        labels.append(f"{run.writer} → {plural(run.side)}")
    return HeatMap(
        name="checks",
        title=f"Mass of {label} on {explanation.pairs.target}, with and without a path",
        caption="Each row is one path from a writer to the head. The model runs without it; the pattern is rebuilt "
        "without it, at the scale of the text; and the pattern is rebuilt with this writer alone on its side.",
        values=np.array(rows),
        row_labels=tuple(labels),
        column_labels=("whole model", "model without", "rebuilt without", "rebuilt from it alone"),
        row_axis="path",
        column_axis="state",
        unit="mass",
        reference=explanation.random_mass,
        limits=(0.0, 1.0),
    )


def _writers(sums: Sums, label: str) -> HeatMap:
    """Layers down, the parts of a layer across; what is no part of a layer has a row of its own."""
    cells: dict[tuple[str, str], float] = {}
    for name, contrast in zip(sums.names, sums.contrast.tolist(), strict=True):
        match = _WRITER.fullmatch(name)
        cells[(match["layer"], match["part"]) if match else ("other", name)] = contrast
    rows = list(dict.fromkeys(row for row, _ in cells if row != "other"))
    columns = list(dict.fromkeys(column for row, column in cells if row != "other"))
    outside = [column for row, column in cells if row == "other"]
    values = np.full((len(rows) + 1, max(len(columns), len(outside))), np.nan)
    for (row, column), contrast in cells.items():
        if row == "other":
            values[0, outside.index(column)] = contrast
        else:
            values[rows.index(row) + 1, columns.index(column)] = contrast
    across = columns + [""] * (values.shape[1] - len(columns))
    return HeatMap(
        name=f"{sums.side}_writers",
        title=f"Who wrote what the {plural(sums.side)} of {label} read",
        caption=f"Contrast of the score by writer of the {plural(sums.side)}: at the key minus the mean of the other "
        f"keys, mean over the queries. All cells add up to {signed(sums.contrast.sum())}. "
        f"First row: {', '.join(outside)}.",
        values=values,
        row_labels=(", ".join(outside), *rows),
        column_labels=tuple(across),
        row_axis="layer",
        column_axis="part",
        unit="score",
        reference=0.0,
    )


def _pairs(explanation: Explanation) -> HeatMap:
    query_writers, key_writers, contrasts = explanation.paired
    names = explanation.terms.writers
    return HeatMap(
        name="pairs",
        title=f"Which writers of queries and keys meet in {explanation.terms.label}",
        caption="Contrast of the score that each pair of a writer of the queries (down) and a writer of the keys "
        "(across) gives, the strongest of each side.",
        values=contrasts.numpy(),
        row_labels=tuple(names[index] for index in query_writers),
        column_labels=tuple(names[index] for index in key_writers),
        row_axis="writer of the queries",
        column_axis="writer of the keys",
        unit="score",
        reference=0.0,
    )
