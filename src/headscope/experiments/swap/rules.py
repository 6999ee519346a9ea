"""Replacements by hand: `L10-20=window(left=256)`. Reading them loads no torch."""

from collections.abc import Sequence

from headscope.attention.mechanism_spelling import check_spelling
from headscope.core.selection import Selection
from headscope.errors import UsageError


def rules_of(spelled: Sequence[str]) -> dict[str, str]:
    """The heads of each mechanism.

    Raises:
        UsageError: A rule cannot be read, or a mechanism or parameter does not exist.
    """
    heads_by_mechanism: dict[str, str] = {}
    for rule in spelled:
        heads, equals, mechanism = (part.strip() for part in rule.partition("="))
        if not equals or not mechanism:
            raise UsageError(f"cannot read the rule {rule!r}", hint="write heads=mechanism: L10-20=window(left=256)")
        Selection.parse(heads)
        check_spelling(mechanism)
        earlier = heads_by_mechanism.get(mechanism)
        heads_by_mechanism[mechanism] = heads if earlier is None else f"{earlier},{heads}"
    return heads_by_mechanism
