"""Turns plain sentences into HTML: escaped, `$…$` typeset, backticks as code.

Blank lines separate paragraphs.
"""

import re

from headscope.core.html_text import escape
from headscope.core.numbers import SYMBOL
from headscope.report.formula import formula

# A formula neither begins nor ends with a space, so that two prices in a sentence stay prices.
_MARKUP = re.compile(
    r"\$(?P<tex>[^\s$](?:[^$\n]*[^\s$])?)\$(?!\d)"
    r"|`(?P<code>[^`\n]+)`"
    rf"|{SYMBOL.pattern}"
)


def sentence(text: str) -> str:
    """The HTML of one line of prose."""
    parts, end = [], 0
    for match in _MARKUP.finditer(text):
        parts.append(escape(text[end : match.start()]))
        parts.append(_mark_up(match))
        end = match.end()
    return "".join(parts) + escape(text[end:])


def paragraphs(text: str) -> str:
    """The HTML of several paragraphs, which blank lines separate in the source."""
    return "".join(f"<p>{sentence(' '.join(part.split()))}</p>" for part in re.split(r"\n\s*\n", text.strip()) if part)


def inline_formulas(text: str) -> list[str]:
    """The formulas in prose, without their dollars."""
    return [match["tex"] for match in _MARKUP.finditer(text) if match["tex"]]


def _mark_up(match: re.Match[str]) -> str:
    if match["tex"]:
        return formula(match["tex"])
    if match["code"]:
        return f"<code>{escape(match['code'])}</code>"
    return f"<i>{escape(match['symbol'])}</i><sub>{escape(match['index'])}</sub>"
