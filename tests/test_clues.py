"""The words and clues that ship with the package."""

import re

import pytest

from headscope.corpora.crossword_clues import categories, category_named
from headscope.errors import UsageError

CATEGORIES = categories()
EVERY = [clue for category in CATEGORIES for clue in category.clues]


def test_ten_categories_of_at_least_forty_words():
    assert len(CATEGORIES) == 10
    assert min(len(category.clues) for category in CATEGORIES) >= 40
    assert category_named("animals").clue_of("ant").word == "Ant"


def test_no_word_and_no_clue_comes_twice():
    assert len({one.word.casefold() for one in EVERY}) == len(EVERY)
    assert len({one.clue.casefold() for one in EVERY}) == len(EVERY)


@pytest.mark.parametrize("category", CATEGORIES, ids=lambda category: category.name)
def test_clues_are_clues(category):
    assert [one.word for one in category.clues] == sorted(one.word for one in category.clues)
    for one in category.clues:
        stem = one.word.casefold()[: max(4, len(one.word) - 2)]
        assert not re.search(rf"\b{stem}", one.clue.casefold()), one
        assert re.fullmatch(r"[A-Z][a-z]+", one.word), one
        assert one.clue[-1] in ".?!", one
        assert 2 <= len(one.clue.split()) <= 14, one
        assert "#" not in one.clue


def test_unknown_names_say_what_there_is():
    with pytest.raises(UsageError, match="no category 'beasts'"):
        category_named("beasts")
    with pytest.raises(UsageError, match="has no word 'Unicorn'"):
        category_named("Animals").clue_of("Unicorn")
