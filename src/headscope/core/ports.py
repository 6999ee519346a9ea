"""Lets plain data show itself in a notebook and save itself.

`headscope.api` plugs in the renderer of the report and the store; data never imports them.
"""

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

_render: Callable[[Any], str] | None = None
_save: Callable[[Any, Path], Path] | None = None


def plug(*, render: Callable[[Any], str], save: Callable[[Any, Path], Path]) -> None:
    """Use `render` to turn findings and runs into HTML, and `save` to write runs."""
    global _render, _save
    _render, _save = render, save


def render_html(run_or_finding: object) -> str:
    """The HTML of a finding or a run.

    Its escaped `repr` where no renderer is plugged in.
    """
    return f"<pre>{html.escape(repr(run_or_finding))}</pre>" if _render is None else _render(run_or_finding)


def save_run(run: object, folder: Path) -> Path:
    """Write a run to `folder` and return it."""
    if _save is None:
        raise RuntimeError("no store is plugged in: import headscope first")
    return _save(run, folder)
