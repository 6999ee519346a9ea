"""Paragraphs of help pages: one variant of each switch, words apart, code and sub-scripts left out."""

import pytest

from headscope.corpora.parallel.cached_pairs import aligned_pairs
from headscope.corpora.parallel.help_pages import help_paragraphs, page_paragraphs
from headscope.corpora.parallel.pairs import Pair
from headscope.errors import ResourceError

KEY = (
    '<span class="switchinline"><span hidden="true" class="MAC"><span class="keycode">Command</span></span>'
    '<span hidden="true"><span class="keycode">Ctrl</span></span></span>'
)
LINK = (
    '<span class="switchinline"><span class="DRAW"><a href="x">Draw - Grid</a></span>'
    '<span class="IMPRESS"><a href="y">Impress - Grid</a></span></span>'
)


def paragraph(inside, identifier="a", classes=""):
    return f'<p id="{identifier}" class="{classes}">{inside}</p>'


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ("Click <b>OK</b>.", "Click OK."),
        (f"Press {KEY}+C.", "Press Ctrl+C."),
        (f"Open {LINK} and go on.", "Open Draw - Grid and go on."),
        ('On <span class="switchinline"><span class="MAC">a Mac</span></span> too', "On too"),
        (f'In <span class="switch"><span class="WRITER">Writer press {KEY}</span></span>', "In Writer press Ctrl"),
        ("il pulsante<b>Indietro</b>", "il pulsante Indietro"),
        ("the <b>Basic</b>IDE", "the Basic IDE"),
        ("AutoCorrect and <b>JavaScript</b>", "AutoCorrect and JavaScript"),
        ("two\n  lines<br>and &amp; a break", "two lines and & a break"),
        ('<img src="x" alt="Icon">Paste', "Paste"),
        ("10<sup>2</sup> is 100", ""),
        ("<b>Sub</b>routine", ""),
    ],
)
def test_a_paragraph(inside, text):
    assert page_paragraphs(paragraph(inside))["a"][0] == text


def test_code_is_left_out_and_keeps_its_place():
    page = paragraph("x = 1", classes="code") + paragraph("A sentence.") + "<pre id='b'>y = 2</pre>"
    assert page_paragraphs(page) == {"a": ["", "A sentence."]}


def test_navigation_and_footer_are_no_text():
    page = f'<p id="a">Menu</p><div id="DisplayArea">{paragraph("Text.")}</div><footer>{paragraph("Debug")}</footer>'
    files = {"usr/help/it/text/shared/01.html": page.encode()}
    assert help_paragraphs(files) == {("shared/01.html", "a", 0): "Text."}


def test_other_encodings_are_refused():
    with pytest.raises(ResourceError, match=r"text/01.html is not UTF-8"):
        help_paragraphs({"text/01.html": "Käse".encode("latin1")})


def test_pairs_are_aligned_by_identifier():
    english = {("p", "a", 0): "one", ("p", "b", 0): "two", ("q", "a", 0): "three", ("p", "c", 0): ""}
    italian = {("p", "b", 0): "due", ("p", "a", 0): "uno", ("p", "c", 0): "tre", ("p", "d", 0): "quattro"}
    assert aligned_pairs(english, italian) == [Pair("one", "uno"), Pair("two", "due")]


def test_ambiguous_identifiers_are_left_out():
    """Nothing says which of the two English paragraphs the Italian one translates."""
    english = {("p", "a", 0): "one", ("p", "a", 1): "two"}
    assert aligned_pairs(english, {("p", "a", 0): "due"}) == []
    assert len(aligned_pairs(english, {("p", "a", 0): "uno", ("p", "a", 1): "due"})) == 2
