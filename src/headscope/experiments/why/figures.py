"""The figures of the experiment `why`: where the contrast is written, in which pairs, and what removal does."""

import re

import numpy as np

from headscope.core import Figure, HeatMap
from headscope.experiments.why.causal_checks import Sums
from headscope.experiments.why.tables import Explanation

_WRITER = re.compile(r"(?P<layer>.*L\d+(\.cross)?)\.(?P<part>H\d+|mlp|attn)")


def figures(explanation: Explanation) -> tuple[Figure, ...]:
    """The checks first, then the writers of both sides and their pairs."""
    return (
        _checks(explanation),
        _writers(explanation.keys, explanation.terms.label),
        _writers(explanation.queries, explanation.terms.label),
        _pairs(explanation),
    )


def _checks(explanation: Explanation) -> HeatMap:
    label = explanation.terms.label
    rows, labels = [], []
    for run in explanation.runs:
        sums = explanation.keys if run.side == "key" else explanation.queries
        index = sums.names.index(run.writer)
        rows.append([explanation.mass, run.mass, float(sums.without[index]), float(sums.alone[index])])
        labels.append(f"{run.writer} → {'keys' if run.side == 'key' else 'queries'}")
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
    plural = "keys" if sums.side == "key" else "queries"
    return HeatMap(
        name=f"{sums.side}_writers",
        title=f"Who wrote what the {plural} of {label} read",
        caption=f"Contrast of the score by writer of the {plural}: at the key minus the mean of the other keys, mean "
        f"over the queries. All cells add up to {float(sums.contrast.sum()):.1f}. First row: {', '.join(outside)}.",
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
