"""Text written by a model: greedy, sampled, or by beam search.

Names are fetched when they are used, so that settings can be checked without torch.
"""

from typing import TYPE_CHECKING

from headscope.lazy_names import lazy_names

if TYPE_CHECKING:
    from headscope.decoding.answers import decode
    from headscope.decoding.hypothesis import Hypothesis
    from headscope.decoding.searches import Beam, Greedy, Sampling, Search
    from headscope.decoding.special_ids import SpecialTokens, special_tokens
    from headscope.decoding.translation import SentenceTranslator, TranslatedSentence, Translation

__all__ = [
    "Beam",
    "Greedy",
    "Hypothesis",
    "Sampling",
    "Search",
    "SentenceTranslator",
    "SpecialTokens",
    "TranslatedSentence",
    "Translation",
    "decode",
    "special_tokens",
]

__getattr__ = lazy_names(
    __name__,
    {
        "answers": "decode",
        "hypothesis": "Hypothesis",
        "searches": "Beam Greedy Sampling Search",
        "special_ids": "SpecialTokens special_tokens",
        "translation": "SentenceTranslator TranslatedSentence Translation",
    },
)
