"""Reads the sentences of lenses: every number in them, and the rules that hold for all of them."""

import re
from collections.abc import Sequence

from scipy import optimize, stats

from headscope.core import Headline

# What has digits and is no number of the measurement: labels of heads and layers, and levels that never change.
_NO_NUMBER = re.compile(
    r"\b(?:(?:enc|dec|text|image)\.)?L\d+(?:\.cross)?(?:\.H\d+)?\b|95 % interval|false discovery rate 5 %|B\(1 − cos\)"
)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?")
_INTERVAL = re.compile(
    r"([-+]?\d+(?:\.\d+)?)(?: %| nats| points)? \(95 % interval ([-+]?\d+(?:\.\d+)?)(?: %)? to ([-+]?\d+(?:\.\d+)?)"
)
_NOUNS = "heads|windows|layers|components|pairs|dimensions|analogies|tokens|streams|vectors"
WORDS_OF_A_SHORT_HEADLINE = 20


def numbers_of(sentence: str) -> list[str]:
    """The numbers of a sentence in their order, as written."""
    return _NUMBER.findall(_NO_NUMBER.sub("", sentence))


def assert_says(sentence: str, numbers: Sequence[float]) -> None:
    """The sentence has these numbers in this order and no others, each rounded to the digits it is written with."""
    written = numbers_of(sentence)
    assert len(written) == len(numbers), (sentence, written, numbers)
    for text, number in zip(written, numbers, strict=True):
        decimals = len(text.partition(".")[2])
        assert abs(float(text) - number) <= 0.5 * 10.0**-decimals + 1e-9, (sentence, text, number)
        assert float(text) or abs(number) <= 0.05, (sentence, text, number)


def assert_well_formed(headline: Headline) -> None:
    """What holds for every sentence of every lens."""
    for sentence in (headline.full, headline.short):
        assert sentence[0].isupper() or sentence[0].isdigit(), sentence
        assert sentence.endswith("."), sentence
        assert re.search(r"\d", sentence), sentence
        assert not re.search(r"\b(nan|None(?! of)|inf)\b|\d[eE][-+]?\d|(?<![\d.])-0(?:\.0+)?(?![\d.])", sentence), (
            sentence
        )
        assert not re.search(rf"(?<![\d.])1 (?:single )?(?:{_NOUNS})\b", sentence), sentence
        assert not re.search(r"  | [.,;)]|\(\)|[,;]\.", sentence), sentence
        for value, low, high in _INTERVAL.findall(sentence):
            assert float(low) <= float(value) <= float(high), sentence
    assert len(headline.short.split()) <= WORDS_OF_A_SHORT_HEADLINE, headline.short
    assert headline.effect is None or 0 <= headline.effect <= 1


def _t(units: int, probability: float) -> float:
    return float(stats.t.ppf(probability, units - 1))


def detectable(half: float, units: int) -> float:
    """What one test at the 5 % level finds in four of five samples, from half of a 95 % interval."""
    return half / _t(units, 0.975) * (_t(units, 0.975) + _t(units, 0.8))


def countable(half: float, units: int, tests: int, counted: int) -> float:
    """What one more test is counted with in four of five samples, false discoveries held at 5 %: a noncentral t."""
    threshold = _t(units, 1 - 0.025 * (counted + 1) / tests)
    shift = optimize.brentq(lambda x: stats.nct.sf(threshold, units - 1, x) - 0.8, 0, 100)
    return half / _t(units, 0.975) * float(shift)
