"""What plain data can do through parts that it does not know: show itself in a notebook, save itself.

`headscope.api` plugs the report's renderer and the store in; data never imports them.
"""

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

_render: Callable[[Any], str] | None = None
_save: Callable[[Any, Path], Path] | None = None


def plug(*, render: Callable[[Any], str], save: Callable[[Any, Path], Path]) -> None:
    """Let `render` turn findings and runs into HTML, and `save` write a run to a folder, from now on."""
    global _render, _save
    _render, _save = render, save


def rendered(run_or_finding: object) -> str:
    """The HTML of a finding or a run.

    Its escaped `repr` while no renderer is plugged in.
    """
    return f"<pre>{html.escape(repr(run_or_finding))}</pre>" if _render is None else _render(run_or_finding)


def saved(run: object, folder: Path) -> Path:
    """Write a run to `folder` and return it."""
    if _save is None:
        raise RuntimeError("no store is plugged in: import headscope first")
    return _save(run, folder)
