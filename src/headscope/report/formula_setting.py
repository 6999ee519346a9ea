"""A typeset formula: glyphs in their places, as plain data and as SVG in the colour of the text.

Lengths are thousandths of an em; y grows downwards, as in SVG.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

EM = 1000


@dataclass(frozen=True)
class Glyph:
    """An outline (the `d` of a path), where it is, and its size as a share of that of the formula."""

    outline: str
    x: int
    y: int
    scale: float


@dataclass(frozen=True)
class Setting:
    """The glyphs of a formula, its rules (x, y, width, height), and the box around them.

    The line of the text is at y = 0. `box` is left, top, width, height.
    """

    box: tuple[int, int, int, int]
    glyphs: tuple[Glyph, ...]
    rules: tuple[tuple[int, int, int, int], ...] = ()


def setting_svg(setting: Setting, label: str) -> str:
    """The formula as inline SVG; `label` is its text for readers who hear it, escaped."""
    left, top, width, height = setting.box
    body = "".join(
        f'<g transform="scale({scale:g})">{"".join(_placed(glyph) for glyph in glyphs)}</g>'
        if scale != 1
        else "".join(_placed(glyph) for glyph in glyphs)
        for scale, glyphs in groupby(setting.glyphs, key=lambda glyph: glyph.scale)
    )
    if setting.rules:
        body += f'<path d="{"".join(f"M{x} {y}h{w}v{h}h-{w}z" for x, y, w, h in setting.rules)}"/>'
    return (
        f'<svg class="tex" role="img" aria-label="{label}" viewBox="{left} {top} {width} {height}" '
        f'fill="currentColor" style="width:{width / EM:.3f}em;height:{height / EM:.3f}em;'
        f'vertical-align:{-(top + height) / EM:.3f}em">{body}</svg>'
    )


def _placed(glyph: Glyph) -> str:
    x, y = round(glyph.x / glyph.scale), round(glyph.y / glyph.scale)
    place = f' transform="translate({x}{f" {y}" if y else ""})"' if x or y else ""
    return f'<path d="{glyph.outline}"{place}/>'


def packed(setting: Setting, numbers: dict[str, int]) -> list[Any]:
    """The setting as JSON; outlines become numbers, new ones are added to `numbers`."""
    glyphs = [
        value
        for glyph in setting.glyphs
        for value in (numbers.setdefault(glyph.outline, len(numbers)), glyph.x, glyph.y, _short(glyph.scale))
    ]
    return [list(setting.box), glyphs, [value for rule in setting.rules for value in rule]]


def unpacked(content: Sequence[Any], outlines: Sequence[str]) -> Setting:
    """The setting that `packed` gave."""
    box, glyphs, rules = content
    return Setting(
        tuple(box),
        tuple(Glyph(outlines[number], x, y, float(scale)) for number, x, y, scale in _fours(glyphs)),
        tuple((x, y, width, height) for x, y, width, height in _fours(rules)),
    )


def _fours(values: Sequence[Any]) -> list[Sequence[Any]]:
    return [values[start : start + 4] for start in range(0, len(values), 4)]


def _short(scale: float) -> float | int:
    return int(scale) if scale == int(scale) else scale
