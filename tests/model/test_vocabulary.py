"""What tokens spell, one by one."""

from headscope.core.token_words import display_text
from headscope.model.token_spelling import TokenizerVocabulary


def test_the_one_token_of_a_word(tiny) -> None:
    """A word inside a text, not at its start; a word of several tokens has none, and neither has one unknown."""
    vocabulary = TokenizerVocabulary(tiny.tokenizer)
    token = vocabulary.token("king")
    assert token is not None
    assert vocabulary.spelled([token]) == (" king",)
    assert tiny.tokenizer.decode([token]) == " king"
    assert vocabulary.token("Paris") is None
    assert vocabulary.token("") is None
    assert vocabulary.size == tiny.spec.vocabulary
    assert vocabulary.spelled([tiny.tokenizer.convert_tokens_to_ids("less")]) == ("less",)


def test_a_token_in_a_table() -> None:
    assert [display_text(text) for text in (" king", "less", ".", " ")] == ["king", "…less", ".", "' '"]
