"""The numbers that a sentence states, for comparison with numbers that were computed apart from it."""

import re
from statistics import median

from scipy import stats

from headscope.core import Headline

LABEL = re.compile(r"\b(?:(?:enc|dec)\.)?L\d+(?:\.cross)?(?:\.H\d+)?\b|⌈ln n⌉")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
# A value, its unit or noun, and its interval.
WITH_INTERVAL = re.compile(
    rf"({NUMBER.pattern})(?: %| nats| times(?: the prediction)?| effective dimensions| of the continuations that were "
    rf"seen carry 90 %)? \(95 % interval ({NUMBER.pattern})(?: %)? to ({NUMBER.pattern})"
)
COUNTED = "heads|windows|layers|terms|tokens|components|projections|matrices"
WORDS_OF_A_SHORT_HEADLINE = 20


def numbers_of(sentence: str) -> list[str]:
    """All numbers in the order of the sentence, as they are written; labels of heads and layers are none."""
    return NUMBER.findall(LABEL.sub("", sentence))


def assert_states(sentence: str, *expected: float) -> None:
    """The sentence states these numbers in this order and no others, each rounded to the digits that it shows."""
    written = numbers_of(sentence)
    assert len(written) == len(expected), (sentence, written, expected)
    for text, number in zip(written, expected, strict=True):
        step = 10.0 ** -len(text.partition(".")[2])
        assert abs(float(text) - number) <= 0.5 * step + 1e-9, (sentence, text, number)
        # One digit of what is no whole number would hide a twentieth of it.
        assert float(number).is_integer() or abs(float(text) - number) <= 0.05 * abs(number), (sentence, text, number)


def assert_sound(headline: Headline) -> None:
    """What holds for every sentence: a value inside its interval, no plural of one, no number that is none."""
    for sentence in (headline.full, headline.short):
        assert re.search(r"\d", sentence), sentence
        assert re.fullmatch(r"[A-Z0-9].*\.", sentence), sentence
        assert not re.search(r"\b(?:nan|None|inf)\b|\de[-+]\d|-0(?:\.0+)?(?![.\d])|  | [.,;:)]|\( |\(\)", sentence), (
            sentence
        )
        assert not re.search(rf"(?<![.\d])1 (?:[a-z-]+ )?(?:{COUNTED})\b", sentence), sentence
        for value, low, high in WITH_INTERVAL.findall(sentence):
            assert float(low) <= float(value) <= float(high), sentence
    assert len(headline.short.split()) <= WORDS_OF_A_SHORT_HEADLINE, headline.short


def detected_by_one_test(halves: list[float], windows: int) -> float:
    """The effect of 80 % power of the median row: Student quantiles of 0.975 and 0.8 from half of a 95 % interval."""
    error = median(halves) / stats.t.ppf(0.975, windows - 1)
    return float(error * (stats.t.ppf(0.975, windows - 1) + stats.t.ppf(0.8, windows - 1)))
