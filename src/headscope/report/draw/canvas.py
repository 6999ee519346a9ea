"""The matplotlib canvas of every figure: local settings, sizes in points, axes."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from headscope.core.numbers import SYMBOL, power_of_ten, visible
from headscope.report.colours import Theme

POINT = 1 / 72
_FONT = 8.0
_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # shipped with matplotlib, so that the bytes do not depend on the machine
    "font.size": _FONT,
    "axes.labelsize": _FONT,
    "axes.linewidth": 0.7,
    "xtick.labelsize": _FONT - 0.5,
    "ytick.labelsize": _FONT - 0.5,
    "lines.linewidth": 1.2,
    "path.simplify_threshold": 0.2,
    "pdf.fonttype": 42,
    "svg.hashsalt": "headscope",
}
_LOCK = threading.RLock()


@contextmanager
def settings(fonts: Literal["none", "path"] = "path") -> Iterator[None]:
    """Use headscope's matplotlib settings in this context, whatever the user's are."""
    with _LOCK, matplotlib.rc_context():
        matplotlib.rcdefaults()
        params: Any = matplotlib.rcParams  # its type allows only literal keys
        params.update(_SETTINGS | {"svg.fonttype": fonts})
        with warnings.catch_warnings():
            # A character that DejaVu lacks becomes a box in files; the page uses the reader's fonts.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            yield


def panel(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one axes of the given size in points.

    Labels extend beyond it; cropping includes them.
    """
    figure = Figure(figsize=(width * POINT, height * POINT), dpi=72)
    return figure, figure.add_axes((0, 0, 1, 1))


def add_axes(figure: Figure, box: tuple[float, float, float, float]) -> Axes:
    """Add an axes to `figure`.

    `box` is left, bottom, width, height in points from the panel's corner.
    """
    width, height = figure.get_size_inches() / POINT
    left, bottom, across, up = box
    return figure.add_axes((left / width, bottom / height, across / width, up / height))


def dress(axes: Axes, theme: Theme) -> None:
    """Colour the axes by the theme, with a light grid and without a box."""
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_edgecolor(theme.muted)
    axes.tick_params(colors=theme.muted, labelcolor=theme.ink, width=0.7, length=3, which="major")
    axes.tick_params(color=theme.muted, width=0.5, length=1.8, which="minor")
    axes.xaxis.label.set_color(theme.ink)
    axes.yaxis.label.set_color(theme.ink)
    axes.grid(visible=True, color=theme.grid, linewidth=0.6)
    axes.set_axisbelow(True)


def name_axes(axes: Axes, x: str, y: str) -> None:
    """Label both axes."""
    axes.set_xlabel(**lettering(x, "xlabel"))
    axes.set_ylabel(**lettering(y, "ylabel"))


def log_axis(axes: Axes, direction: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with ticks like 10⁻³ in plain characters."""
    (axes.set_xscale if direction == "x" else axes.set_yscale)("log", nonpositive="mask")
    axis = axes.xaxis if direction == "x" else axes.yaxis
    low, high = axes.get_xlim() if direction == "x" else axes.get_ylim()
    if low > 0 and high / low < 1000:  # powers of ten alone would leave the axis almost bare
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 60 else (1.0, 3.0)))
    axis.set_major_formatter(FuncFormatter(_log_tick))
    axis.set_minor_formatter(NullFormatter())


def lettering(text: str, argument: str) -> dict[str, Any]:
    """The keyword arguments that set `text` with subscripts for its symbols.

    In files they are mathtext; on the page `svg` sets them, in the reader's fonts.
    """
    text = visible(text)
    if matplotlib.rcParams["svg.fonttype"] == "path" and "$" not in text:
        text = SYMBOL.sub(r"$\g<symbol>_{\\mathrm{\g<index>}}$", text)
    return {argument: text, "parse_math": _is_math(text)}


def _is_math(text: str) -> bool:
    """Whether `text` holds valid mathtext.

    Anything else, such as the token `$`, is literal.
    """
    if text.replace(r"\$", "").count("$") not in range(2, 20, 2):
        return False
    try:
        MathTextParser("path").parse(text)
    except ValueError:
        return False
    return True


def _log_tick(value: float, _: int | None = None) -> str:
    mantissa, exponent = f"{value:.0e}".split("e")
    if -3 <= int(exponent) <= 3:
        return f"{value:g}"
    power = power_of_ten(int(exponent))
    return power if mantissa == "1" else f"{mantissa}×{power}"
