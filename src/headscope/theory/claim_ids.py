"""The ids of all claims, read off the chapters' source: executing a chapter takes torch and scipy."""

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from headscope.errors import UsageError

_CHAPTERS = Path(__file__).with_name("chapters")
_CLAIM = re.compile(r'\bCHAPTER\.(?:claim|of_a_model|untestable)\(\s*((?:"[^"]+",\s*)+)')


@cache
def claim_ids() -> tuple[str, ...]:
    """Every id that a chapter gives to a claim.

    Properties:
        - these are the ids of the ledger  (tested: test_ids_in_the_source_are_those_of_the_ledger)
    """
    texts = (path.read_text(encoding="utf-8") for path in sorted(_CHAPTERS.glob("*.py")))
    return tuple(name for text in texts for ids in _CLAIM.findall(text) for name in re.findall(r'"([^"]+)"', ids))


def ids_meant(selector: str, ids: Iterable[str]) -> list[str]:
    """The id itself, or all ids that continue it with a letter or a point.

    Raises:
        UsageError: There is none.
    """
    names = list(ids)
    if selector in names:
        return [selector]
    begun = [name for name in names if name.startswith(selector) and re.fullmatch(r"[a-z.].*", name[len(selector) :])]
    if not begun:
        near = difflib.get_close_matches(selector, names, n=4, cutoff=0.3)
        raise UsageError(f"there is no claim {selector!r}", hint=f"near it: {', '.join(near)}" if near else "")
    return begun


def check_ids(selectors: Sequence[str]) -> None:
    """Refuse ids and sections that no claim has."""
    for selector in selectors:
        ids_meant(selector, claim_ids())
