r"""Says how much two sentences have in common, and finds those that are nearly the same.

Definition:
    The words of a sentence are the set $W$ of its runs of letters and digits, without regard to case, every run of
    digits written as 0. A script that does not separate words has its signs as words. A sentence without words has
    itself as its only word. The overlap of two sentences is $2 |W_a \cap W_b| / (|W_a| + |W_b|)$. Two sentences are
    nearly the same when their overlap is at least 17/20.
Properties:
    - symmetric, from 0 to 1; 1 for the same words in any order  (tested: test_overlap_laws)
    - pairs of near-duplicates are those that comparing everything finds  (tested: test_near_duplicates_are_all_found)
Numerics:
    Exact: the threshold is a fraction and counts are integers.
Reference:
    Chaudhuri, Ganti and Kaushik (2006), A primitive operator for similarity joins in data cleaning (the prefixes).
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction

NEAR = Fraction(17, 20)

# Scripts that do not separate words: each sign counts as one.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]|\w+")
_DIGITS = re.compile(r"\d+")


def words_of(sentence: str) -> frozenset[str]:
    """The words of a sentence, in the sense of the overlap."""
    text = unicodedata.normalize("NFKC", sentence).casefold()
    return frozenset(_WORD.findall(_DIGITS.sub("0", text))) or frozenset({text.strip()})


def overlap(a: str, b: str) -> float:
    """The overlap of two sentences."""
    words_a, words_b = words_of(a), words_of(b)
    return 2 * len(words_a & words_b) / (len(words_a) + len(words_b))


def near_duplicates(sentences: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of positions that connect all sentences that are nearly the same.

    Sentences of the same words are connected in a chain; of two such chains that are nearly the same, one pair comes.
    """
    chains: dict[frozenset[str], int] = {}
    for index, sentence in enumerate(sentences):
        words = words_of(sentence)
        if words in chains:
            yield chains[words], index
        else:
            chains[words] = index
    word_sets, positions = list(chains), list(chains.values())
    for a, b in _near_sets(word_sets):
        yield positions[a], positions[b]


def _near_sets(word_sets: Sequence[frozenset[str]]) -> Iterator[tuple[int, int]]:
    """The pairs of sets with an overlap of at least `NEAR`.

    Two such sets share a word among the rarest of each, so that only sets with a rare word in common are compared.
    """
    frequency = Counter(word for words in word_sets for word in words)
    holders: dict[str, list[int]] = defaultdict(list)
    for index, words in enumerate(word_sets):
        prefix = _prefix(words, frequency)
        for candidate in {holder for word in prefix for holder in holders[word]}:
            if _is_near(words, word_sets[candidate]):
                yield candidate, index
        for word in prefix:
            holders[word].append(index)


def _prefix(words: frozenset[str], frequency: Counter[str]) -> list[str]:
    """The rarest words of a set, so many that no near-duplicate lacks them all.

    A near-duplicate shares at least s = ⌈|W| t / (2 − t)⌉ words at the threshold t, because it has at least that many.
    So the rarest |W| − s + 1 words of both have the rarest shared word among them.
    """
    shared = -(-len(words) * NEAR.numerator // (2 * NEAR.denominator - NEAR.numerator))
    return sorted(words, key=lambda word: (frequency[word], word))[: len(words) - shared + 1]


def _is_near(a: frozenset[str], b: frozenset[str]) -> bool:
    return 2 * len(a & b) * NEAR.denominator >= NEAR.numerator * (len(a) + len(b))
