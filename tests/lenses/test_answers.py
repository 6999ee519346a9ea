"""Answers in a few words: what is not detected or not tested says so."""

from headscope.core import Headline
from headscope.lenses.shared.answers import answered, pictured, side


def test_an_answer_follows_the_effect() -> None:
    for effect, words in ((0.4, "more"), (0.0, "not detected"), (None, "more (untested)")):
        headline = answered(Headline("full", "short", effect), "more", "1.4", "1")
        assert (headline.answer, headline.value, headline.null) == (words, "1.4", "1")
        assert (headline.full, headline.effect) == ("full", effect)


def test_the_side_of_the_null() -> None:
    assert side(0.9, 1.0, "below", "above") == "below"
    assert side(1.1, 1.0, "below", "above") == "above"


def test_missing_headlines_take_their_figures_with_them() -> None:
    first, last = Headline("a", "a"), Headline("b", "b", figure="own")
    assert [headline.figure for headline in pictured((first, None, last), ("x", "y", "z"))] == ["x", "own"]
