"""Where the boxes and bands of a flow are, in pixels from its top (`frontend/src/figures/flow_layout.ts` agrees).

The widest bundle of bands of each unit has the same width. A box is as high as its bands and its lines of text ask for.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headscope.core import Flow
from headscope.core.figure import Array

Places = NDArray[np.intp]

WIDEST_BUNDLE, THINNEST = 150.0, 1.2
LINE, PADDING, GAP = 15.0, 8.0, 9.0


@dataclass(frozen=True)
class FlowLayout:
    """Heights of the whole and of each box, the upper ends of boxes, and the widths and upper ends of bands."""

    height: float
    tops: Array
    heights: Array
    widths: Array
    starts: Array
    ends: Array


def flow_layout(figure: Flow) -> FlowLayout:
    """Columns are centred; the bands at a side of a box follow each other in their order, centred too."""
    bands, columns = figure.bands, figure.columns.astype(int)
    sources, targets, kinds = bands[:, :3].astype(int).T
    widths = _widths(figure, sources, targets, kinds)
    count = len(figure.boxes)
    outgoing, incoming = (np.bincount(side, widths, count) for side in (sources, targets))
    lines = np.array([1 + len(notes) for notes in figure.notes])
    heights = np.maximum(np.maximum(outgoing, incoming), PADDING + LINE * lines)
    tops, total = np.zeros(count), 0.0
    for members, height in _columns(columns, heights):
        tops[members] = np.concatenate([[0.0], np.cumsum(heights[members] + GAP)[:-1]]) - height / 2
        total = max(total, height)
    tops += total / 2
    starts = _stacked(sources, widths, tops + (heights - outgoing) / 2)
    ends = _stacked(targets, widths, tops + (heights - incoming) / 2)
    return FlowLayout(total, tops, heights, widths, starts, ends)


def _widths(figure: Flow, sources: Places, targets: Places, kinds: Places) -> Array:
    """The width of each band on the scale of its unit."""
    sizes, count = np.abs(figure.bands[:, 3]), len(figure.boxes)
    units = np.array([figure.units[kind - 1] for kind in kinds])
    widths = np.zeros(len(sizes))
    for unit in set(units.tolist()):
        same = units == unit
        bundles = [np.bincount(side[same], sizes[same], count).max() for side in (sources, targets)]
        widths[same] = sizes[same] * (WIDEST_BUNDLE / max(*bundles, 1e-300))
    return np.maximum(widths, THINNEST)


def _columns(columns: Places, heights: Array) -> Iterator[tuple[Places, float]]:
    for column in np.unique(columns):
        members = np.flatnonzero(columns == column)
        yield members, float(heights[members].sum() + GAP * (len(members) - 1))


def _stacked(boxes: Places, widths: Array, first: Array) -> Array:
    """The upper end of each band at its boxes, one below the other."""
    free, places = first.copy(), np.zeros(len(widths))
    for band, (box, width) in enumerate(zip(boxes, widths, strict=True)):
        places[band] = free[box]
        free[box] += width
    return places
