"""Which quantities of a lens are followed."""

from collections.abc import Sequence

from headscope.core import Finding, HeadQuantity
from headscope.errors import UsageError


def chosen_quantities(finding: Finding, keys: Sequence[str] | None) -> tuple[HeadQuantity, ...]:
    """The quantities of these keys, or all that the finding of a lens offers.

    Raises:
        UsageError: It offers none, or none of that key.
    """
    by_key = {quantity.key: quantity for quantity in finding.quantities}
    if not by_key:
        raise UsageError(
            f"the lens {finding.lens!r} offers no number of single heads to follow",
            hint="`headscope lenses` lists others",
        )
    for key in keys or ():
        if key not in by_key:
            raise UsageError(
                f"the lens {finding.lens!r} has no quantity {key!r}", hint=f"its quantities are {', '.join(by_key)}"
            )
    return tuple(by_key[key] for key in dict.fromkeys(keys or by_key))
