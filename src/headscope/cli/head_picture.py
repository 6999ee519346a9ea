"""Attention patterns as text: coloured half blocks on a terminal that has colours, shades elsewhere.

Rows are queries and columns are keys. A wide terminal gives each weight two characters; a narrow one gives two rows of
weights one line; a map that does not fit is drawn in blocks, each with its largest weight. What a causal head cannot
see stays empty.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from headscope.core.numbers import number, visible

if TYPE_CHECKING:
    from headscope.core import HeadView

Array = NDArray[np.float64]

LABEL = 14  # columns of a label, at most
_LEAST_LABEL = 6  # a narrower label at the right is left out
_MOST_WIDE = 40  # tokens that are drawn two characters wide
_TICK = 10  # cells between two numbers above the map
_BRIGHT = 0.995  # this share of the cells is not in full colour
_LEAST_BRIGHT = 0.25  # roots of shares below this are never in full colour
_LEVELS = 32
_LEGENDS = ((0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.5, 1.0), (1.0,))  # brightnesses; the first that fits is written
_RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
_SHADES, _PLAIN_SHADES = "·░▒▓█", ".:+*#"
_UPPER, _LOWER = "▀", "▄"


@dataclass(frozen=True)
class Canvas:
    """Where a picture is drawn: columns, whether there are colours, and whether there are block characters."""

    width: int
    colours: bool
    blocks: bool

    @property
    def shades(self) -> str:
        """The characters of increasing weight."""
        return _SHADES if self.blocks else _PLAIN_SHADES


@dataclass(frozen=True)
class Tone:
    r"""How bright a weight is: $\sqrt{w / \mathrm{full}}$, at most 1; the few brightest cells share the full tone."""

    full: float

    def __call__(self, weights: Array) -> Array:
        """The brightness of weights; NaN stays NaN."""
        shares: Array = np.sqrt(np.clip(weights / self.full, 0.0, 1.0))
        return shares


def tone_of(weights: Array) -> Tone:
    """The tone of a map."""
    finite = weights[np.isfinite(weights)]
    largest = float(finite.max(initial=0.0)) or 1.0
    bright = max(math.sqrt(float(np.quantile(finite, _BRIGHT)) / largest), _LEAST_BRIGHT)
    return Tone(largest * bright**2)


def picture(view: "HeadView", canvas: Canvas) -> list[Text]:
    """The lines of a map: numbers of keys above, queries with their tokens at the side, and a legend."""
    weights = seen_weights(view)
    n_queries, n_keys = weights.shape
    longest = 2 + max(len(str(n_queries)) + cell_len(_token(token)) for token in view.tokens)
    label = min(LABEL, longest, canvas.width // 3)
    is_wide = n_keys <= _MOST_WIDE and label + 1 + 2 * n_keys <= canvas.width
    block = 1 if is_wide else math.ceil(max(n_keys, n_queries) / max(8, canvas.width - label - 1))
    cells = blocks_of(weights, block)
    tone = tone_of(cells)
    labels = [f"{place} {_token(view.tokens[place])}" for place in range(0, n_queries, block)]
    margin = Text(" " * (label + 1))
    lines = [margin + Text(_ticks(cells.shape[1], block, 2 if is_wide else 1), style="dim")]
    lines += _rows(tone(cells), labels, label, canvas, is_wide=is_wide)
    note = f"Each cell is the largest of {block} × {block} weights." if block > 1 else ""
    notes = [Text(part, style="dim") for part in textwrap.wrap(note, canvas.width)]
    return [*lines, _legend(tone, canvas), *notes]


def thumbnail(view: "HeadView", canvas: Canvas, size: int) -> list[Text]:
    """A small map without labels: `size` columns, half as many lines."""
    weights = seen_weights(view)
    cells = blocks_of(weights, math.ceil(max(weights.shape) / size))
    return _half_rows(tone_of(cells)(cells), canvas)


def seen_weights(view: "HeadView") -> Array:
    """The weights of a head; NaN where a causal head cannot see."""
    weights: Array = view.pattern.double().numpy().copy()
    if view.is_causal:
        weights[np.triu_indices(weights.shape[0], 1, weights.shape[1])] = np.nan
    return weights


def blocks_of(weights: Array, block: int) -> Array:
    """The largest weight of each block; NaN where a block holds no number."""
    if block == 1:
        return weights
    rows, columns = (-(-size // block) * block for size in weights.shape)
    padded = np.full((rows, columns), -np.inf)
    padded[: weights.shape[0], : weights.shape[1]] = np.where(np.isnan(weights), -np.inf, weights)
    largest = padded.reshape(rows // block, block, columns // block, block).max((1, 3))
    return np.where(np.isfinite(largest), largest, np.nan)


def _rows(tones: Array, labels: Sequence[str], width: int, canvas: Canvas, *, is_wide: bool) -> list[Text]:
    if is_wide or not (canvas.colours and canvas.blocks):
        return [
            Text(f"{_fitted(text, width)} ") + _line(row, canvas, 2 if is_wide else 1)
            for text, row in zip(labels, tones, strict=True)
        ]
    spare = min(width, canvas.width - width - tones.shape[1] - 2)
    return [
        Text(f"{_fitted(labels[2 * place], width)} ") + line + Text(_right(labels, 2 * place + 1, spare))
        for place, line in enumerate(_half_rows(tones, canvas))
    ]


def _right(labels: Sequence[str], place: int, width: int) -> str:
    """The label of the lower of two rows, which is at the right where there is room."""
    return f" {_fitted(labels[place], width)}" if width >= _LEAST_LABEL and place < len(labels) else ""


def _line(tones: Array, canvas: Canvas, width: int) -> Text:
    """One row of weights, each `width` characters wide."""
    line = Text()
    for tone in tones.tolist():
        if math.isnan(tone):
            line.append(" " * width)
        elif canvas.colours:
            line.append(" " * width, _style(None, _level(tone)))
        else:
            line.append(_shade(tone, canvas) * width)
    return line


def _half_rows(tones: Array, canvas: Canvas) -> list[Text]:
    """Two rows of weights on each line; without colours the larger of the two."""
    rows, columns = tones.shape
    even = np.full((rows + rows % 2, columns), np.nan)
    even[:rows] = tones
    if not (canvas.colours and canvas.blocks):
        pairs = np.fmax(even[0::2], even[1::2])
        return [_line(row, canvas, 1) for row in pairs]
    return [_half_line(upper, lower) for upper, lower in zip(even[0::2].tolist(), even[1::2].tolist(), strict=True)]


def _half_line(upper: Sequence[float], lower: Sequence[float]) -> Text:
    line = Text()
    for top, bottom in zip(upper, lower, strict=True):
        if math.isnan(top) and math.isnan(bottom):
            line.append(" ")
        elif math.isnan(top):
            line.append(_LOWER, _style(_level(bottom), None))
        else:
            line.append(_UPPER, _style(_level(top), None if math.isnan(bottom) else _level(bottom)))
    return line


def _level(tone: float) -> int:
    return min(_LEVELS - 1, int(tone * _LEVELS))


@cache
def _style(front: int | None, back: int | None) -> Style:
    return Style(
        color=None if front is None else f"rgb({_rgb(front)})", bgcolor=None if back is None else f"rgb({_rgb(back)})"
    )


def _rgb(level: int) -> str:
    """The colour of a level between dark violet and yellow."""
    place = level / (_LEVELS - 1) * (len(_RAMP) - 1)
    first = min(int(place), len(_RAMP) - 2)
    share = place - first
    return ",".join(str(round(a + (b - a) * share)) for a, b in zip(_RAMP[first], _RAMP[first + 1], strict=True))


def _shade(tone: float, canvas: Canvas) -> str:
    shades = canvas.shades
    return shades[min(len(shades) - 1, int(tone * len(shades)))]


def _ticks(n_cells: int, block: int, width: int) -> str:
    """The places of every tenth key above its column."""
    places = [str(cell * block) for cell in range(0, n_cells, _TICK)]
    return "".join(f"{place:<{_TICK * width}}" for place in places).rstrip()


def _legend(tone: Tone, canvas: Canvas) -> Text:
    """What the colours mean, as fully as the width allows."""
    legends = [_swatches(tone, canvas, shares) for shares in _LEGENDS]
    return next((line for line in legends if line.cell_len <= canvas.width), legends[-1])


def _swatches(tone: Tone, canvas: Canvas, shares: Sequence[float]) -> Text:
    line = Text("weight", style="dim")
    for share in shares:
        line.append(" ")
        line.append_text(_line(np.array([share]), canvas, 2))
        line.append(f" {number(tone.full * share**2, 2)}")
    return line.append("+")


def _token(token: str) -> str:
    return visible(token.strip() or token.replace(" ", "␣") or "∅")


def _fitted(text: str, width: int) -> str:
    """A label of exactly `width` columns, cut with an ellipsis where it is longer."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    return set_cell_size(text, width)
