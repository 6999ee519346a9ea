"""What is dropped of aligned pairs, for which reason, and what is mended."""

import pytest

from headscope.corpora.parallel.pair_cleaning import REASONS, clean_pairs, fault_of, tidy
from headscope.corpora.parallel.pairs import Pair


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("Click the button.", "Fate clic sul pulsante.", None),
        ("Long dash dash", "Tratto lungo lungo", None),
        ("A line where the minutes go", "Eine Linie, an der der Schreiber steht", None),
        ("Writer (text)", "Writer (testo)", None),
        ("mean – a measure of it", "media – una misura di ciò", None),
        ("Type <?> in the window.", "Digitate <?> nella finestra.", None),
        ("LibreOffice Writer", "LibreOffice Writer", "the same on both sides"),
        ("Choose Tools - Options.", "Scegliete Strumenti - Opzioni.", "a menu path"),
        ("Choose Tools – Options.", "Scegliete Strumenti – Opzioni.", "a menu path"),
        ("Button", "Il pulsante", "fewer than 2 or more than 60 words"),
        ("a word " * 31, "una parola " * 20, "fewer than 2 or more than 60 words"),
        ('Note <A HREF="x">here</A> please', "Nota qui per favore", "markup"),
        ("=ROUND(987.65;-2) is 1000", "=ARROTONDA(987,65;-2) dà 1000", "few letters"),
        ("The Open Document Format", "the Open Document format", "not translated"),
        ("Click it.", "Fate clic su questo pulsante e poi ancora.", "very different lengths"),
        ("See the article now.", "E consultate consultate l'articolo.", "doubled words on one side"),
        ("Open the page of it", "Apri la pagina la pagina sua", "doubled words on one side"),
    ],
)
def test_the_fault_of_a_pair(source, target, reason):
    assert fault_of(Pair(source, target)) == reason
    assert reason is None or reason in REASONS


def test_what_is_dropped_is_counted():
    good, menu = Pair("Click the button.", "Fate clic sul pulsante."), Pair("Tools - Options", "Strumenti - Opzioni")
    pairs, counts = clean_pairs([good, menu, Pair("Click  the\u00a0button.", "Fate clic sul pul\u00adsante."), menu])
    assert pairs == (good,)
    assert (counts.aligned, counts.unique, sum(counts.dropped.values())) == (4, 2, 1)
    assert counts.dropped["a menu path"] == 1


def test_invisible_signs_and_blanks():
    assert tidy("\ufeffe\u0301 l\u202fa\u200b \t b\u00ad ") == "é l a b"
