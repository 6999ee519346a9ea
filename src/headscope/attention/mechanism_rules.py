"""Which heads of a model attend through which mechanism, as people write it: `{"window(left=4)": "L0.H0-1"}`.

Reading it loads no torch.
"""

from collections.abc import Mapping

from headscope.attention.mechanism_spelling import check_spelling
from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.errors import UsageError

Heads = dict[Site, tuple[int, ...]]


def heads_by_mechanism(rules: Mapping[str, str], sites: tuple[Site, ...]) -> dict[str, Heads]:
    """The heads of each mechanism among the sites of a model.

    Raises:
        UsageError: A mechanism or selection cannot be read, a selection matches no head, or two mechanisms claim one.
    """
    heads: dict[str, Heads] = {}
    owner: dict[tuple[Site, int], str] = {}
    for mechanism, selection in rules.items():
        check_spelling(mechanism)
        heads[mechanism] = Selection.parse(selection).resolve(sites)
        for site, head in ((site, head) for site, group in heads[mechanism].items() for head in group):
            other = owner.setdefault((site, head), mechanism)
            if other != mechanism:
                raise UsageError(
                    f"{site.head_label(head)} is replaced twice: by {other} and by {mechanism}",
                    hint="name each head in one rule",
                )
    return heads
