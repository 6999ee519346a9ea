"""The heads that a network was built with mechanisms in: its configuration names them, and its layers compute them."""

from collections.abc import Iterable
from typing import Any

from headscope.attention.head_mechanisms import mechanisms_of
from headscope.attention.mechanism import Mechanism
from headscope.core.site import Site

Heads = dict[Site, tuple[int, ...]]


def heads_by_built_in_mechanism(hf: Any, sites: Iterable[Site]) -> dict[Mechanism | None, Heads]:
    """The heads of each mechanism; None is dense attention, as in every network of another kind."""
    heads: dict[Mechanism | None, Heads] = {}
    for site in sites:
        mechanisms = mechanisms_of(hf.get_submodule(site.module))
        groups = {None: tuple(range(site.n_heads))} if mechanisms is None else mechanisms.heads
        for mechanism, group in groups.items():
            heads.setdefault(mechanism, {})[site] = group
    return heads
