"""Text to run a model on: the shipped text, fetched texts, and the user's own."""

from headscope.corpora.listing import LocatedText, TextEntry, find, texts
from headscope.corpora.text import Text, joined, read_text, shipped_text
from headscope.corpora.text_argument import spelled_text, text_of
from headscope.corpora.window_choice import SPREAD, Amount, Reading, read_windows
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
