"""Text to run a model on: the one that ships with the package, fetched ones, and the user's own."""

from headscope.corpora.given import spelled_text, text_of
from headscope.corpora.text import Text, read_text, shipped_text
from headscope.corpora.windows import Windows, cut

__all__ = ["Text", "Windows", "cut", "read_text", "shipped_text", "spelled_text", "text_of"]
