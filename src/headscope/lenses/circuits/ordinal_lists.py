"""Lists of words in a known order, and their tokens in a vocabulary."""

from dataclasses import dataclass

from headscope.core import Vocabulary


@dataclass(frozen=True)
class OrdinalList:
    """Words in order; in a cycle the first one follows the last."""

    name: str
    words: tuple[str, ...]
    is_cycle: bool = False


@dataclass(frozen=True)
class OrdinalTokens:
    """A list whose words are single tokens of a vocabulary."""

    name: str
    tokens: tuple[int, ...]
    is_cycle: bool = False

    @property
    def successors(self) -> tuple[int, ...]:
        """For each word that has a successor, the place of it in the list."""
        count = len(self.tokens)
        return tuple((place + 1) % count for place in range(count if self.is_cycle else count - 1))


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SPRING = ("January", "February", "March", "April", "May", "June")
_AUTUMN = ("July", "August", "September", "October", "November", "December")
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_RANKS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")

LISTS = (
    OrdinalList("days", _DAYS, is_cycle=True),
    OrdinalList("months", (*_SPRING, *_AUTUMN), is_cycle=True),
    OrdinalList("digits", tuple("0123456789")),
    OrdinalList("letters", tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
    OrdinalList("number words", _NUMBERS),
    OrdinalList("ordinal words", _RANKS),
)


def lists_in(vocabulary: Vocabulary) -> tuple[tuple[OrdinalTokens, ...], tuple[str, ...]]:
    """The lists whose words are single tokens inside a text, and the names of the others with their first such word."""
    measured: list[OrdinalTokens] = []
    left_out: list[str] = []
    for ordinal in LISTS:
        tokens = [vocabulary.token(word) for word in ordinal.words]
        single = tuple(token for token in tokens if token is not None)
        if len(set(single)) == len(ordinal.words):
            measured.append(OrdinalTokens(ordinal.name, single, ordinal.is_cycle))
        else:
            word = ordinal.words[tokens.index(None)] if None in tokens else ordinal.words[0]
            left_out.append(f"{ordinal.name} (“{word}”)")
    return tuple(measured), tuple(left_out)
