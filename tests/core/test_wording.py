"""What a statement claims, by its own words."""

import pytest

from headscope.core.claim_wording import wording


@pytest.mark.parametrize(
    ("statement", "formula", "claims"),
    [
        ("The mean is n.", "E = n", "plain"),
        ("The mean is about n.", "E = n", "approximate"),
        ("The mean is n.", r"E \approx n", "approximate"),
        ("Tokens converge to one distribution.", "", "approximate"),
        ("To first order the exponential is 1 + x.", r"e^x \approx 1 + x", "plain"),
        ("The variance is of order 1/n.", r"V \in O(1/n)", "plain"),
        ("Corollary: the curve is a sinusoid, nearly.", r"\approx", "exact"),
        ("It is exactly a cosine.", "", "exact"),
        ("By the central limit theorem it is nearly normal.", "", "approximate"),
    ],
)
def test_the_words_of_a_statement(statement: str, formula: str, claims: str) -> None:
    assert wording(statement, formula) == claims
