"""Text to run a model on: the shipped text, fetched texts, and the user's own.

Names are fetched when they are used, so that texts are listed without loading torch.
"""

from typing import TYPE_CHECKING

from headscope.lazy_names import lazy_names

if TYPE_CHECKING:
    from headscope.corpora.amount import SPREAD, Amount
    from headscope.corpora.listing import LocatedText, TextEntry, find, texts
    from headscope.corpora.text import Text, joined, read_text, shipped_text
    from headscope.corpora.text_argument import spelled_text, text_of
    from headscope.corpora.window_choice import Reading, read_windows
    from headscope.corpora.windows import Windows, cut

__all__ = [
    "SPREAD",
    "Amount",
    "LocatedText",
    "Reading",
    "Text",
    "TextEntry",
    "Windows",
    "cut",
    "find",
    "joined",
    "read_text",
    "read_windows",
    "shipped_text",
    "spelled_text",
    "text_of",
    "texts",
]

__getattr__ = lazy_names(
    __name__,
    {
        "amount": "SPREAD Amount",
        "listing": "LocatedText TextEntry find texts",
        "text": "Text joined read_text shipped_text",
        "text_argument": "spelled_text text_of",
        "window_choice": "Reading read_windows",
        "windows": "Windows cut",
    },
)
