"""Figures as files for a paper: SVG, PDF or PNG. matplotlib draws them, and is loaded with the first one."""

from pathlib import Path

from headscope.core import Figure
from headscope.errors import UsageError
from headscope.report.files import write_bytes

FORMATS = ("svg", "pdf", "png")


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the figure to a .svg, .pdf or .png file, by its name.

    The same figure gives the same bytes.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(
            f"cannot save the figure {figure.name!r} as {path.name!r}: unknown format {path.suffix!r}",
            hint="end the name in .svg, .pdf or .png",
        )
    write_bytes(path, encoded_figure(figure, kind))
    return path


def encoded_figure(figure: Figure, kind: str) -> bytes:
    """The file of the figure as svg, pdf or png, in the colours for paper."""
    from headscope.report.draw.figure import encode

    return encode(figure, kind)
