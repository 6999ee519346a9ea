"""Heads as files: a page, or a drawing that matplotlib makes."""

from pathlib import Path

from headscope.core import HeadViews
from headscope.errors import UsageError
from headscope.report.figure_file import FORMATS, encoded_figure
from headscope.report.files import write_bytes
from headscope.report.head_figure import head_figure

HEAD_FORMATS = ("html", *FORMATS)


def save_heads(views: HeadViews, path: str | Path) -> Path:
    """Write the heads to a .html, .svg, .pdf or .png file, by its name.

    The same heads give the same bytes.
    """
    path = Path(path)
    kind = checked_kind(path)
    if kind == "html":
        from headscope.report.head_document import render_heads

        write_bytes(path, render_heads(views).encode())
    else:
        write_bytes(path, encoded_figure(head_figure(views), kind))
    return path


def checked_kind(path: Path) -> str:
    """The format that the name of a file asks for.

    Raises:
        UsageError: There is no such format.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in HEAD_FORMATS:
        raise UsageError(
            f"cannot draw heads as {path.name!r}: unknown format {path.suffix!r}",
            hint="end the name in .html, .png, .svg or .pdf",
        )
    return kind
