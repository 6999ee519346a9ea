"""The colours of figures on paper and in the dark, and their names in the page's style sheet.

On the page every colour of a figure is a CSS variable, so that one drawing serves light, dark and print. Nothing here
needs matplotlib: a report is written without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

LEVELS = 64  # of a heat map
STEPS = 32  # of many curves

# Okabe and Ito's colours, which people with any colour vision can distinguish; lighter on a dark page.
_SERIES = ("#0072b2", "#d55e00", "#009e73", "#b4568c", "#b07d00", "#3a9bd0")
_SERIES_DARK = ("#5aa9e6", "#ff8a4c", "#3fc49c", "#e79ac4", "#e6b845", "#9ad4f5")
# Blue below, red above; the middle differs from an empty cell and never glares in the dark.
_DIVERGING = ("#0b3c6f", "#2a74b5", "#86b6da", "#e9e8e6", "#f0a985", "#cc4b37", "#7a0f22")
_DIVERGING_DARK = ("#a9d6ff", "#4f97d6", "#2b5a8a", "#33363b", "#8f4231", "#e0694a", "#ffc7a8")
# The colour map viridis of matplotlib at 64 equal steps.
_VIRIDIS_HEX = (
    "44015446075a470d6047136548186a481d6f482374482878472d7b46327e453781443b844240864045883e49893d4e8a"
    "3a538b38588c365c8d34608d32648e31688e2f6c8e2d708e2c738e2a778e297b8e277f8e26828e24868e238a8d218e8d"
    "20928c1f968b1f9a8a1f9e891fa18721a58523a98326ad812ab07f2fb47c35b7793bbb7542be714ac16d52c5695ac864"
    "65cb5e6ece5877d15381d34d8bd64695d840a0da39aadc32b5de2bc0df25cae11fd5e21adfe318eae51af4e61efde725"
)
_VIRIDIS = tuple(f"#{_VIRIDIS_HEX[start : start + 6]}" for start in range(0, 6 * LEVELS, 6))


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


@cache
def paper() -> Theme:
    """The colours on white: saved files, print and the light page."""
    return Theme(
        ink="#1b1d21", muted="#696e77", grid="#dfe1e5",
        series=_SERIES, steps=blend(_VIRIDIS, STEPS, high=0.85),
        heat=_VIRIDIS, diverging=blend(_DIVERGING, LEVELS),
    )  # fmt: skip


@cache
def night() -> Theme:
    """The colours on a dark page."""
    return Theme(
        ink="#e4e6ea", muted="#969ca6", grid="#3a3e45",
        series=_SERIES_DARK, steps=blend(_VIRIDIS, STEPS, low=0.3),
        heat=_VIRIDIS, diverging=blend(_DIVERGING_DARK, LEVELS),
    )  # fmt: skip


def declarations(theme: Theme, beyond: Theme | None = None) -> str:
    """The CSS variables of `theme` that differ from those of `beyond`."""
    same = beyond.named() if beyond else {}
    return "".join(f"--hs-{name}:{hex_};" for name, hex_ in theme.named().items() if same.get(name) != hex_)


def variables() -> str:
    """The rules that define the colours of figures, light and dark."""
    dark = declarations(night(), beyond=paper())
    return (
        f".headscope{{{declarations(paper())}}}"
        f"@media screen and (prefers-color-scheme:dark){{.headscope:not(.light){{{dark}}}}}\n"
    )


def blend(anchors: Sequence[str], n: int, low: float = 0.0, high: float = 1.0) -> tuple[str, ...]:
    """`n` colours at equal steps from `low` to `high` along the anchors, which span 0 to 1."""
    places = (low + (high - low) * i / (n - 1) for i in range(n))
    return tuple(_mixture(anchors, place * (len(anchors) - 1)) for place in places)


def _mixture(anchors: Sequence[str], place: float) -> str:
    """The colour at `place` among the anchors, which are at 0, 1, 2, …"""
    index = min(int(place), len(anchors) - 2)
    share = place - index
    channels = zip(_channels(anchors[index]), _channels(anchors[index + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in channels)


def _channels(hex_: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(hex_.removeprefix("#")))
