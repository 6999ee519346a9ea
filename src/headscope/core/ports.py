"""Lets findings and figures draw themselves in a notebook, and runs and heads save themselves.

`headscope.api` plugs in the renderer of the report and the store; data never imports them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headscope.core.html_text import escape

_render: Callable[[Any], str] | None = None
_save: Callable[[Any, Path], Path] | None = None
_save_heads: Callable[[Any, Path], Path] | None = None


def plug(
    *,
    render: Callable[[Any], str],
    save: Callable[[Any, Path], Path],
    save_heads: Callable[[Any, Path], Path],
) -> None:
    """Use `render` to turn findings and figures into HTML, `save` to write runs, and `save_heads` to draw heads."""
    global _render, _save, _save_heads
    _render, _save, _save_heads = render, save, save_heads


def render_html(finding_or_figure: object) -> str:
    """The HTML of a finding or a figure.

    Its escaped `repr` where no renderer is plugged in.
    """
    return f"<pre>{escape(repr(finding_or_figure))}</pre>" if _render is None else _render(finding_or_figure)


def save_run(run: object, folder: Path) -> Path:
    """Write a run to `folder` and return it."""
    if _save is None:
        raise RuntimeError("no store is plugged in: import headscope first")
    return _save(run, folder)


def save_heads(views: object, file: Path) -> Path:
    """Draw heads to `file` and return it."""
    if _save_heads is None:
        raise RuntimeError("nothing that draws is plugged in: import headscope first")
    return _save_heads(views, file)
