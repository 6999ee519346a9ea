"""The spelling of tokens: the text of each, with a blank in front where a word begins."""

from collections.abc import Sequence
from typing import Any

from headscope.model.transformers.library_messages import quiet

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def spelled_tokens(tokenizer: Any, tokens: Sequence[int]) -> tuple[str, ...]:
    """What each token adds to the text, found by decoding one token more each time, whatever the tokenizer.

    A special token is a word of its own, and so is what follows it. Of a character that is spread over several tokens
    the last one has it, and the others have nothing.
    """
    special = set(tokenizer.all_special_ids)
    spellings: list[str] = []
    text = ""
    with quiet():
        for count in range(1, len(tokens) + 1):
            longer = str(tokenizer.decode(list(tokens[:count]), clean_up_tokenization_spaces=False)).rstrip(_UNFINISHED)
            piece = longer[_shared(text, longer) :]
            alone = tokens[count - 1] in special or (count > 1 and tokens[count - 2] in special)
            spellings.append(f" {piece}" if alone and not piece[:1].isspace() else piece)
            text = longer
    return tuple(spellings)


class TokenizerVocabulary:
    """The `Vocabulary` of a tokenizer."""

    # A word inside a text is what stands behind another one and a blank.
    _BEFORE = "the"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def token(self, word: str) -> int | None:
        """The one token that spells this word inside a text.

        Capitals do not matter where it has none.
        """
        before, with_word = (self._ids(text) for text in (self._BEFORE, f"{self._BEFORE} {word}"))
        if len(with_word) != len(before) + 1 or with_word[:-1] != before:
            return None
        text = str(self._tokenizer.decode(with_word[-1:], clean_up_tokenization_spaces=False)).strip()
        # Anything else is the token of unknown words, or a blank.
        return with_word[-1] if text and text.lower() == word.lower() else None

    def spelled(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """What each token spells behind another word, with a blank in front where a word begins."""
        before = self._ids(self._BEFORE)
        return tuple(spelled_tokens(self._tokenizer, [*before, token])[-1] for token in tokens)

    def _ids(self, text: str) -> list[int]:
        with quiet():
            return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]]


def _shared(a: str, b: str) -> int:
    """How many characters two texts begin with in common."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
