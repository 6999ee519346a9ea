"""Figures of the lens `composition`: between layers, per head, and a graph of the strongest pairs."""

from collections.abc import Mapping
from math import nan

import numpy as np
import polars as pl
from numpy.typing import NDArray

from headscope.core import Figure, HeatMap, Network, Site
from headscope.lenses.composition.tables import KINDS
from headscope.lenses.lens import Tables
from headscope.lenses.shared.plots import head_map, label_of

Array = NDArray[np.float64]
_EDGES = 12  # of each kind in the graph


def figures(tables: Tables, layers: Mapping[str, Array], sites: list[Site]) -> tuple[Figure, ...]:
    """The graph first, then maps of layers and heads at distance 0."""
    heads = tables["heads"]
    graph = _graph(tables["pairs"])
    pictures: list[Figure] = [] if graph is None else [graph]
    for letter, name in KINDS.items():
        quantity = "v" if letter == "v" else f"{letter} at 0"
        rows = heads.filter(pl.col("quantity") == quantity)
        if quantity in layers and np.isfinite(layers[quantity]).any():
            pictures.append(_layer_map(layers[quantity], letter, name, rows, sites))
        if rows["value"].is_finite().any():
            pictures.append(_head_map(rows, letter, name, sites))
    return (*pictures, _size_map(heads.filter(pl.col("quantity") == "v"), sites))


def _graph(pairs: pl.DataFrame) -> Figure | None:
    """The strongest pairs of each kind, from writer to reader."""
    nodes: dict[str, None] = {}
    edges: list[tuple[str, str, int]] = []
    for kind, letter in enumerate(KINDS, 1):
        rows = pairs.filter(pl.col("quantity") == ("v" if letter == "v" else f"{letter} at 0")).head(_EDGES)
        for row in rows.to_dicts():
            edges.append((row["writer"], label_of(row), kind))
            nodes |= {row["writer"]: None, label_of(row): None}
    if not edges:
        return None
    order = sorted(nodes, key=_order)
    numbers = {label: number for number, label in enumerate(order)}
    return Network(
        name="graph",
        title="The strongest compositions",
        caption=f"Edges lead from the head that writes to the head that reads: at most {_EDGES} of each kind, those "
        "that exceed the impossible writers of the same reader most. Distance 0.",
        nodes=tuple(order),
        edges=np.array([[numbers[a], numbers[b], kind] for a, b, kind in edges], dtype=np.float64),
        kinds=tuple(f"feeds {name}" for name in KINDS.values()),
    )


def _order(label: str) -> tuple[str, int, int]:
    """Heads by stack, layer and number."""
    *stack, layer, head = label.split(".")
    return ".".join(stack), int(layer[1:]), int(head[1:])


def _layer_map(values: Array, letter: str, name: str, rows: pl.DataFrame, sites: list[Site]) -> Figure:
    random = float(rows["random"][0])
    labels = tuple(site.label for site in sites)
    return HeatMap(
        name=f"layers_{letter}",
        title=f"Strongest composition with {name} between layers",
        caption="Writing layers to the left of the diagonal come before the reading layer; the diagonal and what is to "
        f"its right is impossible and shows what chance gives. Random directions: {random:.3f}.",
        values=values,
        row_labels=labels,
        column_labels=labels,
        row_axis="reading layer",
        column_axis="writing layer",
        unit="share",
        reference=random,
    )


def _cells(rows: pl.DataFrame, column: str, sites: list[Site]) -> dict[Site, list[float]]:
    numbers = {(row["stack"], row["layer"], row["head"]): row[column] for row in rows.to_dicts()}
    return {
        site: [_number(numbers.get((site.stack, site.layer, head))) for head in range(site.n_heads)] for site in sites
    }


def _number(cell: float | None) -> float:
    return nan if cell is None else cell


def _head_map(rows: pl.DataFrame, letter: str, name: str, sites: list[Site]) -> Figure:
    return head_map(
        _cells(rows, "value", sites),
        name=f"composition_{letter}",
        title=f"Strongest earlier head that feeds the {name} of each head",
        caption="Size of the product of both maps over the product of their sizes. Heads of the first layer have no "
        f"earlier head. Random directions: {float(rows['random'][0]):.3f}.",
        unit="share",
        reference=float(rows["random"][0]),
    )


def _size_map(rows: pl.DataFrame, sites: list[Site]) -> Figure:
    return head_map(
        _cells(rows, "size", sites),
        name="size",
        title="Size of what each head moves",
        caption="Frobenius norm of W_OV with the gain of the norm before it. Composition scores do not depend on it.",
        unit="norm",
    )
