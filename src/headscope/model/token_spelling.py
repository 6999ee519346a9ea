"""The spelling of tokens: their text, with a blank in front where a word begins."""

from collections.abc import Sequence
from typing import Any

from headscope.model.transformers.library_messages import quiet

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def spelled_tokens(tokenizer: Any, tokens: Sequence[int]) -> tuple[str, ...]:
    """The text that each token adds, for any tokenizer.

    Found by decoding one more token each time. A special token is a separate word, and so is the text after it. Where
    several tokens form one character, the last one gets it and the others get nothing.
    """
    special = set(tokenizer.all_special_ids)
    spellings: list[str] = []
    text = ""
    with quiet():
        for count in range(1, len(tokens) + 1):
            longer = str(tokenizer.decode(list(tokens[:count]), clean_up_tokenization_spaces=False)).rstrip(_UNFINISHED)
            piece = longer[_common_length(text, longer) :]
            alone = tokens[count - 1] in special or (count > 1 and tokens[count - 2] in special)
            spellings.append(f" {piece}" if alone and not piece[:1].isspace() else piece)
            text = longer
    return tuple(spellings)


class TokenizerVocabulary:
    """The `Vocabulary` of a tokenizer."""

    # A word inside a text follows another word and a blank.
    _BEFORE = "the"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # The same words are asked for again and again, and to silence a tokenizer takes longer than to run it.
        self._ids_by_text: dict[str, list[int]] = {}

    @property
    def size(self) -> int:
        """The number of tokens: the largest id plus one."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def token(self, word: str) -> int | None:
        """The single token that spells this word inside a text.

        Case does not matter where the vocabulary has no capitals.
        """
        before, with_word = (self._ids(text) for text in (self._BEFORE, f"{self._BEFORE} {word}"))
        if len(with_word) != len(before) + 1 or with_word[:-1] != before:
            return None
        text = str(self._tokenizer.decode(with_word[-1:], clean_up_tokenization_spaces=False)).strip()
        # Anything else is the token of unknown words, or a blank.
        return with_word[-1] if text and text.lower() == word.lower() else None

    def spelled(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """The text of each token after another word, with a blank where a word begins."""
        before = self._ids(self._BEFORE)
        return tuple(spelled_tokens(self._tokenizer, [*before, token])[-1] for token in tokens)

    def _ids(self, text: str) -> list[int]:
        if text not in self._ids_by_text:
            with quiet():
                encoded = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            self._ids_by_text[text] = [int(token) for token in encoded]
        return self._ids_by_text[text]


def _common_length(a: str, b: str) -> int:
    """The length of the common beginning of two texts."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
