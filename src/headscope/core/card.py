"""Card: how an object shows itself, in a few lines on a terminal and as HTML in a notebook.

A class that shows itself makes one card; `repr` is its text and `_repr_html_` its HTML, so that both say the same.
The HTML takes font and colours from the notebook, light or dark, and needs no script.
"""

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from headscope.core.html_text import escape, marked_up
from headscope.core.numbers import visible

MOST_ROWS = 6  # points and facts that the text shows; HTML shows all of them
_WIDTH = 120  # characters of a line of text
_BLANKS = re.compile(r"[ \t\r\n\f\v]+")  # not the thin space inside a number

_STYLE = """
.hs-card{font-size:.93em;line-height:1.45;max-width:62em;margin:.2em 0}
.hs-card p{margin:.1em 0 .3em}
.hs-card code{font-size:1em;background:none;color:inherit;padding:0}
.hs-card ul.hs-rows{list-style:none;margin:.4em 0;padding:0}
.hs-card li{display:flex;gap:.8em;margin:0;padding:.16em 0;border-top:1px solid rgba(128,128,128,.25)}
.hs-card .hs-name{flex:0 0 8.5em;opacity:.65;overflow-wrap:anywhere}
.hs-card .hs-says{flex:1 1 auto}
.hs-card .hs-effect{flex:0 0 7.5em;white-space:nowrap;opacity:.8}
.hs-card .hs-bar{display:inline-block;width:3.6em;height:.5em;margin-right:.5em;background:rgba(128,128,128,.25)}
.hs-card .hs-bar span{display:block;height:100%;background:#2f7fc1}
.hs-card .hs-quiet{opacity:.65}
""".replace("\n", "")


@dataclass(frozen=True)
class Point:
    """One statement of a card, where it comes from, and its effect between 0 and 1 if it has one."""

    name: str
    text: str
    effect: float | None = None


@dataclass(frozen=True)
class Card:
    """A title, the conclusions, the facts, and what can be done next, in this order.

    Facts are names with their meanings. `lead` comes right after the title, `end` last.
    """

    title: str
    lead: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    end: tuple[str, ...] = ()

    def text(self) -> str:
        """The card for a terminal: a few short lines."""
        points = [(_named(point, self.points), point.text) for point in self.points]
        lead, end = ([("", text) for text in texts] for texts in (self.lead, self.end))
        blocks = (_lines(lead), _lines(points), _lines(list(self.facts), most_lines=1), _lines(end))
        return "\n".join([*_wrapped("", self.title), *(line for lines in blocks for line in lines)])

    def html(self) -> str:
        """The card for a notebook: self-contained, and complete."""
        points = "".join(_row(point.name, marked_up(point.text), _effect_html(point.effect)) for point in self.points)
        facts = "".join(_row(name, marked_up(text)) for name, text in self.facts)
        parts = [
            f"<p><b>{marked_up(self.title)}</b></p>",
            *(f"<p>{marked_up(text)}</p>" for text in self.lead),
            *(f'<ul class="hs-rows">{rows}</ul>' for rows in (points, facts) if rows),
            *(f'<p class="hs-quiet">{marked_up(text)}</p>' for text in self.end),
        ]
        return f'<div class="hs-card"><style>{_STYLE}</style>{"".join(parts)}</div>'


class Shown:
    """A class whose objects show themselves by the card that `_card` makes."""

    def _card(self) -> Card:
        """What the object says about itself."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def listed(names: Sequence[str], most: int = MOST_ROWS) -> str:
    """Names in one line, the first `most` of them: `a, b and 3 more`."""
    if len(names) <= most:
        return ", ".join(names) or "none"
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def _lines(rows: list[tuple[str, str]], most_lines: int = 2) -> list[str]:
    """The first rows as text, with their names in a column, each in at most so many lines."""
    first_rows = rows if len(rows) <= MOST_ROWS + 1 else rows[:MOST_ROWS]
    width = max((len(visible(name)) for name, _ in first_rows), default=0)
    lines = [
        line
        for name, text in first_rows
        for line in _wrapped(f"  {visible(name):<{width}}  " if width else "  ", text, most_lines)
    ]
    n_more = len(rows) - len(first_rows)
    return [*lines, f"  … and {n_more} more"] if n_more else lines


def _wrapped(start: str, text: str, most_lines: int = 2) -> list[str]:
    """One row of text; its second line is indented as far as the first."""
    words = visible(_BLANKS.sub(" ", text).strip())
    width = max(_WIDTH, 2 * len(start))
    return textwrap.wrap(
        words, width, initial_indent=start, subsequent_indent=" " * len(start), max_lines=most_lines, placeholder=" …"
    ) or [start.rstrip()]


def _named(point: Point, points: Sequence[Point]) -> str:
    """The name of a point with its effect, in columns."""
    if not any(_has_effect(other.effect) for other in points):
        return point.name
    width = max(len(other.name) for other in points)
    effect = f"effect {point.effect:.2f}" if _has_effect(point.effect) else ""
    return f"{point.name:<{width}}  {effect:<11}" if width else effect


def _has_effect(effect: float | None) -> bool:
    return effect is not None and math.isfinite(effect)


def _effect_html(effect: float | None) -> str:
    if effect is None or not math.isfinite(effect):
        return ""
    share = min(max(effect, 0.0), 1.0)
    return f'<span class="hs-bar"><span style="width:{100 * share:.0f}%"></span></span>effect {effect:.2f}'


def _row(name: str, *cells: str) -> str:
    text, *more = cells
    effect = "".join(f'<span class="hs-effect">{cell}</span>' for cell in more)
    return f'<li><span class="hs-name">{escape(name)}</span><span class="hs-says">{text}</span>{effect}</li>'
