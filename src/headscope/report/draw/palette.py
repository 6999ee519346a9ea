"""The colours of figures on paper, and their names in the page's style sheet.

On the page every colour of a figure is a CSS variable, so that one SVG serves light, dark and print.
matplotlib cannot write variables; figures for the page are therefore drawn in stand-in colours, which
`on_page` turns into variables afterwards.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import matplotlib
import numpy as np
from matplotlib.colors import Colormap, LinearSegmentedColormap, ListedColormap, to_hex

LEVELS = 64
STEPS = 32

# Okabe and Ito's colours, which people with any colour vision can distinguish; lighter on a dark page.
_SERIES = ("#0072b2", "#d55e00", "#009e73", "#b4568c", "#b07d00", "#3a9bd0")
_SERIES_DARK = ("#5aa9e6", "#ff8a4c", "#3fc49c", "#e79ac4", "#e6b845", "#9ad4f5")
# Blue below, red above; the middle differs from an empty cell and never glares in the dark.
_DIVERGING = ("#0b3c6f", "#2a74b5", "#86b6da", "#e9e8e6", "#f0a985", "#cc4b37", "#7a0f22")
_DIVERGING_DARK = ("#a9d6ff", "#4f97d6", "#2b5a8a", "#33363b", "#8f4231", "#e0694a", "#ffc7a8")


@dataclass(frozen=True)
class Theme:
    """The colours of a figure, as hex."""

    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]
    steps: tuple[str, ...]
    heat: tuple[str, ...]
    diverging: tuple[str, ...]

    def named(self) -> dict[str, str]:
        """Each colour under the name of its CSS variable."""
        single_colours = {"ink": self.ink, "muted": self.muted, "grid": self.grid}
        colour_scales = {"c": self.series, "s": self.steps, "v": self.heat, "d": self.diverging}
        return single_colours | {
            f"{key}{i}": colour for key, group in colour_scales.items() for i, colour in enumerate(group)
        }

    def sequential_map(self) -> Colormap:
        """The colour map from low to high."""
        return ListedColormap(self.heat)

    def diverging_map(self) -> Colormap:
        """The colour map away from a reference in the middle."""
        return ListedColormap(self.diverging)


@cache
def paper() -> Theme:
    """The colours on white: saved files, print and the light page."""
    return Theme(
        ink="#1b1d21", muted="#696e77", grid="#dfe1e5",
        series=_SERIES, steps=_samples("viridis", 0.0, 0.85, STEPS),
        heat=_samples("viridis", 0.0, 1.0, LEVELS), diverging=_blend(_DIVERGING),
    )  # fmt: skip


@cache
def night() -> Theme:
    """The colours on a dark page."""
    return Theme(
        ink="#e4e6ea", muted="#969ca6", grid="#3a3e45",
        series=_SERIES_DARK, steps=_samples("viridis", 0.3, 1.0, STEPS),
        heat=_samples("viridis", 0.0, 1.0, LEVELS), diverging=_blend(_DIVERGING_DARK),
    )  # fmt: skip


@cache
def stand_ins() -> Theme:
    """Placeholder colours for the page's variables while matplotlib draws."""
    counter = iter(range(0xA50000, 0xA5FFFF))

    def some(n: int) -> tuple[str, ...]:
        return tuple(f"#{next(counter):06x}" for _ in range(n))

    (ink,), (muted,), (grid,) = some(1), some(1), some(1)
    return Theme(ink, muted, grid, some(len(_SERIES)), some(STEPS), some(LEVELS), some(LEVELS))


@cache
def _variables() -> dict[str, str]:
    """The CSS value for each stand-in colour."""
    return {colour: f"var(--hs-{name})" for name, colour in stand_ins().named().items()}


def on_page(svg: str) -> str:
    """Replace the stand-in colours of `svg` by variables of the style sheet."""
    variables = _variables()
    return re.sub(r"#a5[0-9a-f]{4}", lambda match: variables.get(match[0], match[0]), svg)


def declarations(theme: Theme, beyond: Theme | None = None) -> str:
    """The CSS variables of `theme` that differ from those of `beyond`."""
    same = beyond.named() if beyond else {}
    return "".join(f"--hs-{name}:{hex_};" for name, hex_ in theme.named().items() if same.get(name) != hex_)


def _samples(name: str, low: float, high: float, n: int) -> tuple[str, ...]:
    colours = matplotlib.colormaps[name](np.linspace(low, high, n))
    return tuple(to_hex(colour) for colour in colours)


def _blend(anchors: Sequence[str]) -> tuple[str, ...]:
    colours = LinearSegmentedColormap.from_list("", list(anchors))(np.linspace(0, 1, LEVELS))
    return tuple(to_hex(colour) for colour in colours)
