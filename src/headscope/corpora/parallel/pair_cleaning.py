"""Cleans aligned sentences and drops those that are no translations.

Every pair that is dropped is counted under the first reason that applies; `REASONS` has them in their order.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable

from headscope.corpora.parallel.pairs import Pair, PairCounts
from headscope.corpora.parallel.sentence_overlap import overlap

FEWEST_WORDS, MOST_WORDS = 2, 60  # of each side, between blanks
FEWEST_LETTERS = 0.6  # share of the signs; formulas, codes and tables have fewer
LARGEST_RATIO = 2.3  # of the numbers of characters, each with ten more, so that headings may differ
UNTRANSLATED = 0.7  # overlap of a sentence and its translation

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_MENU_PATH = re.compile(r" - |\w [–▸►→>] [^\W\d_a-z]")
_TAG = re.compile(r"</?[A-Za-z][^<>]*[=/\"][^<>]*>|</[A-Za-z]+>")
# Several words, or one of four letters: German has "an der der", and "können Sie sie".
_DOUBLED = re.compile(r"\b(\w+(?: \w+)+|[^\W\d_]{4,}) \1\b")


def tidy(text: str) -> str:
    """The text with composed letters, without invisible signs, and with single blanks."""
    return " ".join(_INVISIBLE.sub("", unicodedata.normalize("NFC", text)).split())


def unique_pairs(pairs: Iterable[Pair]) -> list[Pair]:
    """The different pairs after `tidy`, each where it comes first."""
    return list(dict.fromkeys(Pair(tidy(pair.source), tidy(pair.target)) for pair in pairs))


def clean_pairs(pairs: Iterable[Pair]) -> tuple[tuple[Pair, ...], PairCounts]:
    """The different pairs without a fault, and what became of the others."""
    aligned = list(pairs)
    unique = unique_pairs(aligned)
    faults = [fault_of(pair) for pair in unique]
    dropped = Counter(fault for fault in faults if fault is not None)
    clean = tuple(pair for pair, fault in zip(unique, faults, strict=True) if fault is None)
    return clean, PairCounts(len(aligned), len(unique), {reason: dropped[reason] for reason in REASONS})


def fault_of(pair: Pair) -> str | None:
    """The first reason to drop a pair; None for a good one."""
    return next((reason for reason, applies in REASONS.items() if applies(pair)), None)


def _has_wrong_length(pair: Pair) -> bool:
    return not all(FEWEST_WORDS <= len(text.split()) <= MOST_WORDS for text in (pair.source, pair.target))


def _is_uneven(pair: Pair) -> bool:
    shorter, longer = sorted((len(pair.source) + 10, len(pair.target) + 10))
    return longer > LARGEST_RATIO * shorter


def _has_few_letters(pair: Pair) -> bool:
    return min(_letter_share(pair.source), _letter_share(pair.target)) < FEWEST_LETTERS


def _letter_share(text: str) -> float:
    signs = text.replace(" ", "")
    return sum(sign.isalpha() for sign in signs) / max(1, len(signs))


def _is_doubled(pair: Pair) -> bool:
    """Whether words come twice in a row on one side alone; on both sides it is meant."""
    return bool(_DOUBLED.search(pair.source)) != bool(_DOUBLED.search(pair.target))


REASONS: dict[str, Callable[[Pair], bool]] = {
    "the same on both sides": lambda pair: pair.source == pair.target,
    "a menu path": lambda pair: bool(_MENU_PATH.search(pair.source) or _MENU_PATH.search(pair.target)),
    f"fewer than {FEWEST_WORDS} or more than {MOST_WORDS} words": _has_wrong_length,
    "markup": lambda pair: bool(_TAG.search(pair.source) or _TAG.search(pair.target)),
    "few letters": _has_few_letters,
    "not translated": lambda pair: overlap(pair.source, pair.target) >= UNTRANSLATED,
    "very different lengths": _is_uneven,
    "doubled words on one side": _is_doubled,
}
