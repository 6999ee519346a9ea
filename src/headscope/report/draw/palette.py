"""The colours of figures for matplotlib: as colour maps, and as variables of a notebook's style sheet.

matplotlib cannot write variables; figures for a notebook are therefore drawn in stand-in colours, which `on_page` turns
into variables afterwards.
"""

import re
from functools import cache

from matplotlib.colors import Colormap, ListedColormap

from headscope.report.colours import LEVELS, STEPS, Theme, paper


def sequential_map(theme: Theme) -> Colormap:
    """The colour map from low to high."""
    return ListedColormap(theme.heat)


def diverging_map(theme: Theme) -> Colormap:
    """The colour map away from a reference in the middle."""
    return ListedColormap(theme.diverging)


@cache
def stand_ins() -> Theme:
    """Placeholder colours for the page's variables while matplotlib draws."""
    counter = iter(range(0xA50000, 0xA5FFFF))

    def some(n: int) -> tuple[str, ...]:
        return tuple(f"#{next(counter):06x}" for _ in range(n))

    (ink,), (muted,), (grid,) = some(1), some(1), some(1)
    return Theme(ink, muted, grid, some(len(paper().series)), some(STEPS), some(LEVELS), some(LEVELS))


@cache
def _variables() -> dict[str, str]:
    """The CSS value for each stand-in colour."""
    return {colour: f"var(--hs-{name})" for name, colour in stand_ins().named().items()}


def on_page(svg: str) -> str:
    """Replace the stand-in colours of `svg` by variables of the style sheet."""
    variables = _variables()
    return re.sub(r"#a5[0-9a-f]{4}", lambda match: variables.get(match[0], match[0]), svg)
