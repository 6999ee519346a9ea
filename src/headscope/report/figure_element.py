"""A figure in a page: its data for the script, or its drawing where there is none.

The script draws the figure when it comes near the view. Until then, and without a script, the page says in a line what
the figure holds.
"""

import re
from collections.abc import Sequence

from headscope.core import Figure, Flow
from headscope.core.html_text import escape
from headscope.report.draw.figure_check import check_figure
from headscope.report.figure_data import figure_json
from headscope.report.figure_size import HALF, figure_size
from headscope.report.markup import sentence

_BUTTONS = (
    '<p class="tools"><button class="svg" aria-label="Save this figure as SVG">Save SVG</button>'
    '<button class="png" aria-label="Save this figure as PNG">Save PNG</button></p>'
)


def slug(text: str) -> str:
    """`text` in a form that is valid in an id or a file name."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", text).strip("-") or "x"


def figures(figures: Sequence[Figure], name: str, file: str, script: bool = True) -> str:
    """Figures side by side, for a script to draw or drawn by matplotlib.

    Their ids begin with `name`, the names of their files with `file`.
    """
    elements = (
        figure_element(figure, f"{name}-{i}", f"{file}-{slug(figure.name)}", script) for i, figure in enumerate(figures)
    )
    return f'<div class="figures">{"".join(elements)}</div>' if figures else ""


def figure_element(figure: Figure, id_: str, file: str, script: bool = True) -> str:
    """The `<figure>` with the id `id_`, whose saved files begin with `file`."""
    try:
        return _with_data(figure, id_, file) if script else _with_drawing(figure, id_)
    except Exception as error:  # noqa: BLE001 - one broken figure must not cost the reader the rest of the page
        note = f"<b>This figure could not be drawn.</b> {escape(f'{type(error).__name__}: {error}')}"
        return _element(f'id="{id_}" class="half"', f'<div class="status" role="note">{note}</div>', figure)


def _with_data(figure: Figure, id_: str, file: str) -> str:
    check_figure(figure)
    data = f'<script type="application/json" id="data-{id_}">{figure_json(figure)}</script>'
    width, height = figure_size(figure)
    drawing = f'<div class="drawing" style="--hs-w:{width};--hs-h:{height}"><p>{escape(figure.content())}</p></div>'
    names = f'id="{id_}" class="{_classes(figure, width)}" data-figure="{id_}" data-file="{escape(file)}"'
    return _element(names, drawing, figure, _BUTTONS + data)


def _with_drawing(figure: Figure, id_: str) -> str:
    from headscope.report.draw.figure import page_svg

    svg = page_svg(figure, f"{id_}-")
    width = re.match(r'<svg[^>]* width="(\d+)"', svg)
    classes = _classes(figure, int(width[1]) if width else HALF)
    return _element(f'id="{id_}" class="{classes}"', f'<div class="drawing">{svg}</div>', figure)


def _element(attributes: str, drawing: str, figure: Figure, after: str = "") -> str:
    caption = f"<figcaption><b>{sentence(figure.title)}.</b> {sentence(figure.caption)}</figcaption>"
    return f"<figure {attributes}>{drawing}{caption}{after}</figure>"


def _classes(figure: Figure, width: int) -> str:
    """Whether a figure has its own row or shares it; a flow is also marked, since it stands above the sentences."""
    share = "wide" if width > HALF * 1.2 else "half"
    return f"{share} flow" if isinstance(figure, Flow) else share
