"""Mechanisms written as text."""

import pytest

import headscope.attention as attention
from headscope.attention.mechanism_spelling import spelled
from headscope.errors import UsageError


def test_names_and_parameters() -> None:
    assert spelled("dense") == attention.dense()
    assert spelled(" window( left=3 , right=None, dilation=2 ) ") == attention.window(left=3, dilation=2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "cannot read"),
        ("window(", "cannot read"),
        ("3", "cannot read"),
        ("a.b(left=1)", "cannot read"),
        ("wimdow(left=1)", "no mechanism 'wimdow'"),
        ("window(3)", "by name"),
        ("window(lef=3)", "unexpected keyword argument 'lef'"),
        ("window(left=-3)", "at least 0"),
        ("window(left=__import__('os').getpid())", "must be a number"),
        ("window(**{})", "by name"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        spelled(text)
