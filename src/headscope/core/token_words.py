"""Words: which tokens of a text belong together.

A token's spelling is its text as it stands there, with a blank in front where a word begins. So words are what stands
between blanks, whatever the tokenizer; in a script without blanks they are long.
"""

from collections.abc import Sequence


def word_numbers(spelling: Sequence[str]) -> list[int]:
    """The number of the word that each token belongs to, from 0 on.

    Lone blanks belong to the word that follows.
    """
    numbers: list[int] = []
    word = ""
    for text in spelling:
        begins = not numbers or (bool(word.strip()) and (text[:1].isspace() or word[-1].isspace()))
        word = text if begins else word + text
        numbers.append((numbers[-1] if numbers else -1) + begins)
    return numbers


def words(spelling: Sequence[str]) -> list[str]:
    """The words themselves, blanks taken away."""
    joined: dict[int, str] = {}
    for text, number in zip(spelling, word_numbers(spelling), strict=True):
        joined[number] = joined.get(number, "") + text
    return [text.strip() or "·" for text in joined.values()]


def shown(spelling: str) -> str:
    """One token's text for a table: blanks taken away, … in front where it goes on with a word."""
    text = spelling.strip()
    if not text:
        return repr(spelling)
    return f"…{text}" if spelling[0].isalnum() else text
