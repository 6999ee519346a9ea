r"""How much a statement claims by its own words: exact, approximate or plain.

A verdict must not depend on the choices of the author of a check. So the words of the statement decide what a failed
number means (`core.verdict.verdict_of` uses this):

- "exact": it says exactly, or is a theorem, lemma, corollary, conjecture or step of a proof.
- "approximate": it says about, nearly, almost, converges and the like, or writes ≈, and names no order for its error.
- "plain": everything else. A statement that names the order of its error ("to first order", "of order 1/n") is
  plain: the order itself is then measured.
"""

import re
from typing import Literal

Wording = Literal["exact", "approximate", "plain"]

# A statement that cites the central limit theorem is not itself a theorem.
_EXACT = re.compile(r"\b(exactly|(?<!limit )theorem|lemma|corollary|conjecture|proof|proves|proven)\b", re.IGNORECASE)
_ORDER = re.compile(r"\b(to (first|second|third) order|of order)\b|[oO]\(", re.IGNORECASE)
_HEDGE = re.compile(
    r"\b(about|nearly|almost|approximat\w*|roughly|close to|resembles?|sufficiently|approach(es)?|converges?|tends? to|"
    r"carr(y|ies) over well|for large|in high dimensions)\b",
    re.IGNORECASE,
)
_SIGN = re.compile(r"\\approx|\\rightarrow \\infty|\\to \\infty")


def wording(statement: str, formula: str = "") -> Wording:
    """How much the statement claims.

    Properties:
        - exactness and a named order outweigh a hedge  (tested: test_the_words_of_a_statement)
    """
    if _EXACT.search(statement):
        return "exact"
    if _ORDER.search(statement):
        return "plain"
    return "approximate" if _HEDGE.search(statement) or _SIGN.search(formula) else "plain"
