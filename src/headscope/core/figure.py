"""Figures as plain data: arrays, labels, units.

`headscope.report` alone draws them. Arrays are numpy, so that a figure can be stored, compared and drawn without torch.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headscope.core.card import Card, Shown, listed
from headscope.core.numbers import counted, value_range
from headscope.core.ports import render_html

Array = NDArray[np.float64]


Role = Literal["measured", "theory", "null"]


@dataclass(frozen=True)
class Series:
    """One curve: y against x, with an optional interval.

    `role` decides how the curve looks (measured: solid, theory: dashed, null: dotted grey), not what it means. With
    `points` it has points and no line.
    """

    label: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None
    role: Role = "measured"
    points: bool = False


class Picture(Shown):
    """What all figures have in common: in a notebook they show their drawing and caption."""

    name: str
    title: str
    caption: str

    def content(self) -> str:
        """What is drawn, in a few words."""
        raise NotImplementedError

    def _card(self) -> Card:
        lines = tuple(line for line in (self.content(), self.caption) if line)
        return Card(f"{type(self).__name__} {self.name}: {self.title}", lead=lines)

    def _repr_html_(self) -> str:
        return render_html(self)


@dataclass(frozen=True, repr=False)
class HeatMap(Picture):
    """A table of numbers as colours, e.g. layer × head.

    `reference` is the value under the null (uniform attention, zero, …); colours diverge from it. NaN cells stay empty.
    Where `values` holds a grid of square maps of equal size, with one empty row or column between them, `panels` names
    the rows and the columns of that grid.
    """

    name: str
    title: str
    caption: str
    values: Array
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    row_axis: str = "layer"
    column_axis: str = "head"
    unit: str = ""
    reference: float | None = None
    limits: tuple[float, float] | None = None
    panels: tuple[tuple[str, ...], tuple[str, ...]] | None = None

    def content(self) -> str:
        """Its axes, its size and the range of its values."""
        size = f"{self.row_axis} × {self.column_axis}: {_size(self.values)}"
        unit = f" {self.unit}" if self.unit else ""
        return ", ".join(filter(None, (size, value_range(self.values)))) + unit


@dataclass(frozen=True, repr=False)
class Curves(Picture):
    """Curves over one axis: measurements, theory and nulls."""

    name: str
    title: str
    caption: str
    x_axis: str
    y_axis: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False

    def content(self) -> str:
        """Its axes and the names of its curves."""
        return f"{self.y_axis} against {self.x_axis}: {listed([series.label for series in self.series])}"


@dataclass(frozen=True, repr=False)
class Histogram(Picture):
    """A density of measured values, the laws that predict it, and marked positions."""

    name: str
    title: str
    caption: str
    x_axis: str
    edges: Array
    density: Array
    laws: tuple[Series, ...] = ()
    marks: tuple[tuple[str, float], ...] = field(default=())
    log_y: bool = False

    def content(self) -> str:
        """Its axis, its bins and its laws."""
        laws = f", with {listed([law.label for law in self.laws])}" if self.laws else ""
        return f"{self.x_axis} in {self.density.size} bins{laws}"


@dataclass(frozen=True, repr=False)
class Mosaic(Picture):
    """A map whose cells belong to kinds, e.g. the parts of an attention pattern.

    A cell holds 0 (nothing, drawn empty) or k, the number of its kind from 1 on. `ordered` kinds (1, 2, 3 layers)
    get colours of one scale, other kinds get distinct colours.
    """

    name: str
    title: str
    caption: str
    values: Array
    kinds: tuple[str, ...]
    row_axis: str = "query"
    column_axis: str = "key"
    ordered: bool = False

    def content(self) -> str:
        """Its axes, its size and its kinds."""
        return f"{self.row_axis} × {self.column_axis}: {_size(self.values)}, {listed(self.kinds)}"


@dataclass(frozen=True, repr=False)
class Network(Picture):
    """Nodes on a circle with edges between them.

    Each edge is (from, to, kind), kinds numbered from 1 on.
    """

    name: str
    title: str
    caption: str
    nodes: tuple[str, ...]
    edges: Array
    kinds: tuple[str, ...]

    def content(self) -> str:
        """Its numbers of nodes and edges, and its kinds."""
        return f"{counted(len(self.nodes), 'node')}, {counted(len(self.edges), 'edge')}: {listed(self.kinds)}"


@dataclass(frozen=True, repr=False)
class Flow(Picture):
    """Boxes in columns from left to right, and bands between them whose width is a number.

    `columns` holds the column of each box, from 0. Each band is (from, to, kind, number), kinds numbered from 1 on, and
    leads to a later column. `units` has the unit of each kind: bands of one unit share a scale. A negative number is
    drawn as an outline. `notes` are lines below the names of the boxes, `headings` are above the columns.
    """

    name: str
    title: str
    caption: str
    boxes: tuple[str, ...]
    notes: tuple[tuple[str, ...], ...]
    columns: Array
    headings: tuple[str, ...]
    bands: Array
    kinds: tuple[str, ...]
    units: tuple[str, ...]

    def content(self) -> str:
        """Its boxes, and how many bands lead between them."""
        return f"{listed(list(self.boxes))}: {counted(len(self.bands), 'band')}"


Figure = HeatMap | Curves | Histogram | Mosaic | Network | Flow


def _size(values: Array) -> str:
    return " × ".join(map(str, values.shape))
