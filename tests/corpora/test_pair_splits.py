"""Splits of pairs: no near-duplicate on either side in two splits, and nothing else decides."""

import random
from collections import Counter

import pytest

from headscope.corpora.parallel.pair_splits import PAIR_SHARES, groups_of, pair_splits
from headscope.corpora.parallel.pairs import Pair
from headscope.corpora.parallel.sentence_overlap import NEAR, words_of
from headscope.errors import UsageError

PLANTED = 30


def sentence(generator, prefix):
    return " ".join(f"{prefix}{generator.randint(0, 400)}{generator.choice('abcde')}" for _ in range(10))


def letters(text):
    """Digits as letters, so that they are not masked."""
    return text.translate(str.maketrans("0123456789", "klmnopqrst"))


def text_with_duplicates(seed=0):
    """Four hundred strangers, and thirty pairs of each kind of near-duplicate, at random places."""
    generator = random.Random(seed)
    pairs = [Pair(letters(sentence(generator, "s")), letters(sentence(generator, "t"))) for _ in range(400)]
    for first, source_changes, target_changes in ((0, 1, 9), (PLANTED, 9, 1), (2 * PLANTED, 0, 10)):
        for pair in pairs[first : first + PLANTED]:
            pairs.append(Pair(changed(pair.source, source_changes), changed(pair.target, target_changes)))
    generator.shuffle(pairs)
    return pairs


def changed(text, count):
    return " ".join([*text.split()[count:], *(f"new{word}" for word in text.split()[:count])])


def is_near(a, b):
    return 2 * len(a & b) >= NEAR * (len(a) + len(b))


@pytest.mark.parametrize("seed", [0, 1])
def test_no_near_duplicate_is_in_two_splits(seed):
    pairs = text_with_duplicates(seed)
    splits = pair_splits(pairs, groups_of(pairs), "demo")
    sides = ([words_of(pair.source) for pair in pairs], [words_of(pair.target) for pair in pairs])
    near = [(a, b) for b in range(len(pairs)) for a in range(b) if any(is_near(side[a], side[b]) for side in sides)]
    assert len(near) == 3 * PLANTED
    assert all(splits[a] == splits[b] for a, b in near)
    alone = pair_splits(pairs, range(len(pairs)), "demo")
    assert any(alone[a] != alone[b] for a, b in near), "without groups, near-duplicates are in two splits"


def test_chains_stay_together():
    """The first and the last have nothing in common; each neighbour is a near-duplicate on one side."""
    words = [f"a{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    chain = [
        Pair(" ".join(words[:10]), "uno due tre"),
        Pair(" ".join(words[1:11]), "quattro cinque sei"),
        Pair("something else again", "sei cinque quattro"),
        Pair("a stranger", "uno sconosciuto"),
    ]
    assert groups_of(chain) == (0, 0, 0, 1)


def test_the_order_of_the_pairs_changes_nothing():
    pairs = text_with_duplicates()
    splits = dict(zip(pairs, pair_splits(pairs, groups_of(pairs), "demo"), strict=True))
    backwards = pairs[::-1]
    assert splits == dict(zip(backwards, pair_splits(backwards, groups_of(backwards), "demo"), strict=True))


def test_both_directions_have_the_same_splits():
    pairs = text_with_duplicates()
    swapped = [pair.swapped for pair in pairs]
    assert pair_splits(pairs, groups_of(pairs), "demo") == pair_splits(swapped, groups_of(swapped), "demo")


def test_shares():
    generator = random.Random(5)
    pairs = [Pair(letters(sentence(generator, "s")), letters(sentence(generator, "t"))) for _ in range(4000)]
    counts = Counter(pair_splits(pairs, range(len(pairs)), "demo"))
    for split, share in PAIR_SHARES.items():
        deviation = (share * (1 - share) / len(pairs)) ** 0.5
        assert abs(counts[split] / len(pairs) - share) < 4 * deviation


def test_a_text_that_is_too_short():
    pairs = [Pair(f"a {letter}", f"un {letter}") for letter in "bcd"]
    with pytest.raises(UsageError, match=r"demo is too short to be split: its 3 pairs in 3 groups .* give .* in train"):
        pair_splits(pairs, (0, 1, 2), "demo")
