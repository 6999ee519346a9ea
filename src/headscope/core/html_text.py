"""Plain text as HTML: escaped, invisible characters made visible, backticks as code."""

import html
import re

from headscope.core.numbers import visible

_CODE = re.compile(r"`([^`\n]+)`")


def escape(text: object) -> str:
    """Escape `text` for an element or a quoted attribute."""
    return html.escape("\n".join(map(visible, str(text).split("\n"))), quote=True)


def marked_up(text: str) -> str:
    """The HTML of one line of prose: escaped, with `code` between backticks."""
    return _CODE.sub(r"<code>\1</code>", escape(text))
