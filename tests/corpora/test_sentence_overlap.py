"""The overlap of sentences, near-duplicates and nearest sentences, held to comparing everything with everything."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.corpora.parallel.nearest_sentences import (
    BANDS,
    band_of,
    nearest_copies,
    nearest_sentences,
)
from headscope.corpora.parallel.pairs import Pair, PairPart
from headscope.corpora.parallel.sentence_overlap import NEAR, near_duplicates, overlap, words_of
from headscope.errors import UsageError

sentences = st.lists(st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=12).map(" ".join), max_size=25)


def plain_overlap(a, b):
    """The definition, for the words of two sentences."""
    return 2 * len(a & b) / (len(a) + len(b))


def drawn(count, words=26, seed=0):
    """Sentences of common and rare words; every third is a variant of the one before it."""
    generator = random.Random(seed)
    texts = []
    for index in range(count):
        numbers = [int(generator.paretovariate(0.6)) % words for _ in range(generator.randint(1, 18))]
        chosen = [f"w{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in numbers]
        if index % 3 == 2:
            chosen = [*texts[-1].split(), *chosen[:1]]
        texts.append(" ".join(chosen))
    return texts


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("Click the OK button, the button.", {"click", "the", "ok", "button"}),
        ("12 of 3.5", {"0", "of"}),
        ("Größe GRÖSSE", {"grösse"}),
        ("…!", {"...!"}),
        ("中国a", {"中", "国", "a"}),
    ],
)
def test_words(sentence, words):
    assert words_of(sentence) == words


@given(st.text(max_size=30), st.text(max_size=30))
def test_overlap_laws(a, b):
    assert 0 <= overlap(a, b) == overlap(b, a) <= 1
    assert overlap(a, a) == 1


def test_overlap_of_sentences():
    assert overlap("one two", "Two, one, two.") == 1
    assert overlap("one two three", "two three four five") == 2 * 2 / 7
    assert overlap("page 12", "page 345") == 1
    assert overlap("…", "?") == 0


def connected(count, links):
    """The sets of connected positions, by joining sets again and again."""
    sets = [{index} for index in range(count)]
    for a, b in links:
        joined = next(members for members in sets if a in members) | next(members for members in sets if b in members)
        sets = [members for members in sets if not members & joined] + [joined]
    return {frozenset(members) for members in sets}


def all_near(texts):
    words = [words_of(text) for text in texts]
    return [(a, b) for b in range(len(words)) for a in range(b) if plain_overlap(words[a], words[b]) >= NEAR]


@given(sentences)
def test_near_duplicates_are_all_found(texts):
    links = list(near_duplicates(texts))
    assert set(links) <= set(all_near(texts))
    assert connected(len(texts), links) == connected(len(texts), all_near(texts))


def test_near_duplicates_of_many_sentences():
    texts = drawn(250)
    expected = connected(len(texts), all_near(texts))
    assert connected(len(texts), near_duplicates(texts)) == expected
    assert 50 < len(expected) < 200


def test_the_threshold_belongs_to_the_near():
    """Seventeen of twenty words are just enough, sixteen are not."""
    base = [f"word{letter}" for letter in "abcdefghijklmnopqrst"]
    for shared, expected in ((17, [(0, 1)]), (16, [])):
        other = [*base[:shared], *(f"other{letter}" for letter in "abcd"[: 20 - shared])]
        assert list(near_duplicates([" ".join(base), " ".join(other)])) == expected


@given(sentences, sentences.filter(bool))
def test_the_nearest_equals_the_definition(texts, candidates):
    nearest = nearest_sentences(texts, candidates)
    for text, position, share in zip(texts, nearest.positions, nearest.overlaps, strict=True):
        overlaps = [plain_overlap(words_of(text), words_of(candidate)) for candidate in candidates]
        assert position == overlaps.index(max(overlaps))
        assert share == overlaps[position]


def test_the_nearest_of_more_sentences_than_one_block():
    texts = drawn(300, words=200, seed=1)
    nearest = nearest_sentences(texts, texts)
    assert set(nearest.overlaps) == {1.0}
    unknown = nearest_sentences(["nothing like it"], texts)
    assert (unknown.positions, unknown.overlaps) == ((0,), (0.0,))


def test_copies_are_translations_of_the_nearest_source():
    pairs = (Pair("open the file", "apri il file"), Pair("close the window", "chiudi la finestra"))
    part = PairPart("demo", ("en", "it"), pairs, (0, 1))
    nearest = nearest_sentences(["close a window", "open the big file"], part.sources)
    assert nearest_copies(nearest, part) == ("chiudi la finestra", "apri il file")
    assert nearest.bands == ("0.65–0.8", "≥ 0.8")


def test_bands_have_their_lower_edge():
    assert [band_of(share) for share in (0.0, 0.49, 0.5, 0.65, 0.79, 0.8, 1.0)] == [
        *(BANDS[0], BANDS[0], BANDS[1], BANDS[2], BANDS[2], BANDS[3], BANDS[3])
    ]
    assert BANDS == ("< 0.5", "0.5–0.65", "0.65–0.8", "≥ 0.8")


def test_nothing_to_compare_with():
    with pytest.raises(UsageError, match="no training sentence"):
        nearest_sentences(["a"], [])
