"""Draws a network: nodes on a circle, edges as chords coloured by kind."""

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from headscope.core import Network
from headscope.report.colours import Theme
from headscope.report.draw.canvas import lettering, panel
from headscope.report.draw.mosaic import kind_colours, kind_legend

_SIDE = 250.0
_NAMED_UP_TO = 48  # nodes; with more their names would overlap


def draw(figure: Network, theme: Theme) -> Figure:
    """Draw the network on a matplotlib figure: node 0 on top, then clockwise."""
    canvas, axes = panel(_SIDE, _SIDE)
    n = len(figure.nodes)
    angles = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    places = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    colours = kind_colours(len(figure.kinds), theme, ordered=False)
    width = float(np.clip(60 / max(len(figure.edges), 1) ** 0.5, 0.25, 1.2))
    for kind, colour in enumerate(colours, start=1):
        node_pairs = figure.edges[figure.edges[:, 2] == kind][:, :2].astype(int)
        axes.add_collection(LineCollection(places[node_pairs].tolist(), colors=colour, linewidths=width, alpha=0.7))
    axes.scatter(places[:, 0], places[:, 1], s=float(np.clip(900 / n, 3, 40)), color=theme.ink, zorder=3, linewidths=0)
    for label, (x, y) in zip(figure.nodes, places, strict=True) if n <= _NAMED_UP_TO else ():
        axes.text(1.09 * x, 1.09 * y, **lettering(label, "s"), ha="center", va="center", color=theme.ink, fontsize=6.5)
    axes.set_xlim(-1.18, 1.18)
    axes.set_ylim(-1.18, 1.18)
    axes.set_axis_off()
    kind_legend(canvas, figure.kinds, colours, theme)
    return canvas
