"""Words: which tokens of a text form a word.

The spelling of a token starts with a blank where a word begins. So words are what blanks separate, whatever the
tokenizer; in a script without blanks they are long.
"""

from collections.abc import Sequence


def word_numbers(spelling: Sequence[str]) -> list[int]:
    """The number of each token's word, counted from 0.

    A lone blank belongs to the word after it.
    """
    numbers: list[int] = []
    word = ""
    for text in spelling:
        begins = not numbers or (bool(word.strip()) and (text[:1].isspace() or word[-1].isspace()))
        word = text if begins else word + text
        numbers.append((numbers[-1] if numbers else -1) + begins)
    return numbers


def words(spelling: Sequence[str]) -> list[str]:
    """The words themselves, without blanks."""
    joined: dict[int, str] = {}
    for text, number in zip(spelling, word_numbers(spelling), strict=True):
        joined[number] = joined.get(number, "") + text
    return [text.strip() or "·" for text in joined.values()]


def display_text(spelling: str) -> str:
    """The text of one token for a table: no blanks, … in front inside a word."""
    text = spelling.strip()
    if not text:
        return repr(spelling)
    return f"…{text}" if spelling[0].isalnum() else text
