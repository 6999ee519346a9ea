"""Heads by their labels: what a user names, among the sites of a model."""

from collections.abc import Iterable, Sequence

from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.errors import UsageError


def chosen_heads(model: str, sites: Sequence[Site], spellings: Iterable[str | Selection]) -> list[tuple[Site, int]]:
    """The heads that were named, each once, in the order of their names.

    A label as it is printed means that head alone: `dec.L0.H1` is a head of the self-attention, although the selection
    `dec.L0.H1` also matches the cross-attention of that layer.

    Raises:
        UsageError: A name matches no head; the message says which heads there are.
    """
    heads: dict[tuple[Site, int], None] = {}
    for spelling in spellings:
        for part in spelling.split(",") if isinstance(spelling, str) else [spelling]:
            matches = _matches(sites, part.strip() if isinstance(part, str) else part)
            if not matches:
                text = part.strip() if isinstance(part, str) else part.text
                raise UsageError(
                    f"{model} has no head {text}: it has {grid_words(sites)}",
                    hint="layers and heads count from zero; `headscope look MODEL` tells more",
                )
            heads |= dict.fromkeys(matches)
    return list(heads)


def _matches(sites: Sequence[Site], part: str | Selection) -> list[tuple[Site, int]]:
    for site in sites:
        if part == site.label:
            return [(site, head) for head in range(site.n_heads)]
        for head in range(site.n_heads):
            if part == site.head_label(head):
                return [(site, head)]
    selection = Selection.of(part)
    return [(site, head) for site in sites for head in selection.heads_of(site)]


def grid_words(sites: Sequence[Site]) -> str:
    """`4 layers with 8 heads each, L0.H0 to L3.H7`; with several stacks each of them."""
    places = dict.fromkeys((site.stack, site.kind) for site in sites)
    groups = [[site for site in sites if (site.stack, site.kind) == place] for place in places]
    return "; ".join(_group_words(group) for group in groups) or "no attention"


def _group_words(sites: Sequence[Site]) -> str:
    first, last = sites[0], sites[-1]
    counts = {site.n_heads for site in sites}
    heads = f"{first.n_heads} heads each" if len(counts) == 1 else f"{min(counts)} to {max(counts)} heads"
    layers = f"{len(sites)} layer{'' if len(sites) == 1 else 's'}"
    return f"{layers} with {heads}, {first.head_label(0)} to {last.head_label(last.n_heads - 1)}"
