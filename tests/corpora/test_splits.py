"""Splits by document: laws, and the near-duplicates that must not be on both sides."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.corpora import Text
from headscope.corpora.splits import COMMONPLACE, SHARES, SPLITS, checked_split, part_of, split_of, splits_of
from headscope.errors import UsageError

DOCUMENTS = st.lists(st.text(alphabet="ab cdé\n", max_size=60), max_size=12)


def prose(seed: int, n_words: int = 120) -> list[str]:
    """Words that no other seed gives in this order."""
    draw = random.Random(seed)
    return [f"w{draw.randrange(5000)}" for _ in range(n_words)]


@given(DOCUMENTS)
def test_every_document_is_in_exactly_one_split(documents):
    splits = splits_of(documents)
    assert len(splits) == len(documents)
    assert set(splits) <= set(SPLITS)
    by_document = {}
    for document, split in zip(documents, splits, strict=True):
        assert by_document.setdefault(" ".join(document.casefold().split()), split) == split


@given(DOCUMENTS, st.randoms(use_true_random=False))
def test_the_order_of_the_documents_changes_nothing(documents, draw):
    order = list(range(len(documents)))
    draw.shuffle(order)
    splits = splits_of(documents)
    assert splits_of([documents[index] for index in order]) == tuple(splits[index] for index in order)


@settings(max_examples=25)
@given(st.sets(st.integers(0, 10_000), min_size=2, max_size=8))
def test_strangers_change_nothing(seeds):
    documents = [" ".join(prose(seed)) for seed in sorted(seeds)]
    assert splits_of(documents) == tuple(splits_of([document])[0] for document in documents)


@given(st.integers(0, 10_000), st.integers(0, 60))
def test_near_duplicates_stay_together(seed, where):
    words = prose(seed)
    edited = [*words[:where], "inserted", "words", *words[where + 1 :]]
    part = words[where : where + 40] + prose(seed + 20_000, 80)
    splits = splits_of([" ".join(words), " ".join(edited), " ".join(part), " ".join(prose(seed + 50_000))])
    assert splits[0] == splits[1] == splits[2]


def test_a_few_shared_words_are_no_copy():
    """A quarter is the border: 20 of 120 words in common leave documents where they were."""
    one = prose(1)
    others = [one[:20] + prose(seed, 100) for seed in range(2, 40)]
    documents = [" ".join(words) for words in [one, *others[:1]]]
    assert splits_of(documents) == tuple(splits_of([document])[0] for document in documents)
    assert len({splits_of([" ".join(words)])[0] for words in others}) == 3


def test_many_near_copies_are_still_seen():
    """More than are compared all with all."""
    words = prose(3)
    copies = [" ".join([*words[:60], f"copy{n}", *words[60:]]) for n in range(COMMONPLACE + 20)]
    assert len({splits_of([copy])[0] for copy in copies}) == 3
    assert len(set(splits_of(copies))) == 1


def test_near_duplicates_in_a_script_without_spaces():
    draw = random.Random(7)
    signs = [chr(0x4E00 + draw.randrange(3000)) for _ in range(200)]
    copies = ["".join([*signs[:n], "。", *signs[n + 1 :]]) for n in range(40)]
    assert len({splits_of([copy])[0] for copy in copies}) == 3
    assert len(set(splits_of(copies))) == 1


def test_documents_of_one_key_stay_together():
    """A page and its translations."""
    documents = [" ".join(prose(seed)) for seed in range(60)]
    splits = splits_of(documents, [f"page {index % 20}" for index in range(60)])
    assert splits[:20] == splits[20:40] == splits[40:]
    assert set(splits) == set(SPLITS)


def test_shares_are_those_that_are_stated():
    counts = [split_of(str(number)) for number in range(20_000)]
    for split, share in SHARES.items():
        assert abs(counts.count(split) / len(counts) - share) < 0.012, split
    assert sum(SHARES.values()) == pytest.approx(1)


PINNED = "search fit fit fit fit fit search fit test fit fit fit fit fit fit fit"


def test_splits_never_move():
    """Numbers in papers rest on them: whoever changes these changes every held-out result."""
    assert " ".join(split_of(key) for key in "abcdefghijklmnop") == PINNED
    assert splits_of(["Call me Ishmael.", "call  ME\nIshmael."])[0] == splits_of(["Call me Ishmael."])[0]


def test_parts_make_up_the_whole():
    text = Text("numbers", tuple(f"document {number}" for number in range(60)))
    splits = splits_of(text.documents)
    parts = [part_of(text, splits, split) for split in SPLITS]
    assert sorted(document for part in parts for document in part.documents) == sorted(text.documents)
    assert [part.name for part in parts] == ["numbers:fit", "numbers:search", "numbers:test"]


def test_an_empty_part_says_what_there_is():
    text = Text("one", ("a single document",))
    (split,) = splits_of(text.documents)
    other = next(each for each in SPLITS if each != split)
    with pytest.raises(UsageError, match=f"no document is in the split '{other}'.*1 in {split}") as caught:
        part_of(text, (split,), other)
    assert "***" in caught.value.hint


def test_unknown_split():
    with pytest.raises(UsageError, match="no split 'train'") as caught:
        checked_split("train")
    assert "fit, search, test" in caught.value.hint
