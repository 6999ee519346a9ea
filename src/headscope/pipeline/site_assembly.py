"""Whole sites out of the pieces of a forward.

A forward shows what it computes bit by bit: what enters a layer, then what its attention does, at last what leaves the
stack. A lens that takes pieces is handed a site once all that it needs of this site is there, so that no lens waits
itself, and nothing but incomplete sites is held.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from headscope.core import Site
from headscope.lenses.lens import Batch

STATISTICS = "statistics"  # as a part of a site, beside the names of its captures


def expected_parts(
    sites: Sequence[Site], names: Collection[str], places: Mapping[str, Collection[Site]]
) -> dict[Site, frozenset[str]]:
    """The named parts that a forward shows of each site, of sites with any.

    Args:
        sites: The sites of the model, in the order of its forward.
        names: The captures that are recorded, and STATISTICS where these are.
        places: The sites of captures that not every site shows, by name (`Capture.sites_by_quantity`).
    """
    parts = {site: frozenset(name for name in names if name not in places or site in places[name]) for site in sites}
    return {site: part_names for site, part_names in parts.items() if part_names}


class SiteAssembly:
    """The pieces of one forward, put together site by site for one lens.

    The first site of a stack is handed over before the others of the stack: a lens may compare these with what enters
    the stack. Sites that are incomplete when the forward ends are handed over then, as far as they go.
    """

    def __init__(self, expected: Mapping[Site, frozenset[str]], *, piecewise: bool) -> None:
        """Wait for the expected parts of a site, or for the end where `piecewise` is False."""
        self._expected = expected
        self._piecewise = piecewise
        self._first_sites = {site.stack: site for site in reversed(tuple(expected))}
        self._incomplete: dict[Site, Batch] = {}
        self._handed_over: set[Site] = set()

    def add(self, piece: Batch, *, over: bool) -> Batch | None:
        """The sites that can be handed over now; None where there are none.

        A forward that shows nothing ends with an empty batch: the lens learns its tokens.

        Args:
            piece: What the forward has shown since the last piece, restricted to what the lens needs.
            over: Whether the forward has ended.
        """
        for site, part in _by_site(piece).items():
            self._incomplete[site] = joined([self._incomplete[site], part]) if site in self._incomplete else part
        ready = self._ready(over=over)
        if not ready and not (over and not self._handed_over):
            return None
        self._handed_over.update(ready)
        nothing = replace(piece, statistics={}, uniform={}, captures={})
        return joined([nothing, *(self._incomplete.pop(site) for site in ready)])

    def _ready(self, *, over: bool) -> list[Site]:
        """The sites to be handed over, in the order of the forward."""
        if over:
            order = {site: place for place, site in enumerate(self._expected)}
            return sorted(self._incomplete, key=lambda site: order.get(site, len(order)))
        if not self._piecewise:
            return []
        complete = [site for site in self._expected if self._is_complete(site)]
        opened = {*self._handed_over, *complete}
        return [site for site in complete if self._first_sites[site.stack] in opened]

    def _is_complete(self, site: Site) -> bool:
        return site in self._incomplete and _part_names(self._incomplete[site]) >= self._expected[site]


def joined(pieces: Sequence[Batch]) -> Batch:
    """The pieces of one forward as a single batch."""
    captures: dict[str, dict[Site, Tensor]] = {}
    for piece in pieces:
        for name, by_site in piece.captures.items():
            captures.setdefault(name, {}).update(by_site)
    statistics = {site: rows for piece in pieces for site, rows in piece.statistics.items()}
    uniform = {site: rows for piece in pieces for site, rows in piece.uniform.items()}
    return replace(pieces[0], statistics=statistics, uniform=uniform, captures=captures)


def _by_site(piece: Batch) -> dict[Site, Batch]:
    """A piece for each site that it shows something of."""
    captured = [site for by_site in piece.captures.values() for site in by_site]
    return {site: _at(piece, site) for site in dict.fromkeys((*captured, *piece.statistics, *piece.uniform))}


def _at(piece: Batch, site: Site) -> Batch:
    return replace(
        piece,
        statistics={site: piece.statistics[site]} if site in piece.statistics else {},
        uniform={site: piece.uniform[site]} if site in piece.uniform else {},
        captures={name: {site: by_site[site]} for name, by_site in piece.captures.items() if site in by_site},
    )


def _part_names(part: Batch) -> frozenset[str]:
    return frozenset((*part.captures, *([STATISTICS] if part.statistics else [])))
