r"""Angles: do the angles between tokens tell where attention goes, and what do softmaxes do along an arc?

A fold that keeps sums: for each of a bounded sample of windows, products within rows of cosines, scores and weights,
also with tokens shuffled; and divergences along arcs between the vectors of the window. Of the first window the maps
themselves are kept, to be drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl
from torch import Tensor

from headscope.core import Headline, ModelSpec, Site, WeightSource
from headscope.lenses.angles.definition import defined
from headscope.lenses.angles.figures import figures
from headscope.lenses.angles.map_pair import Picture, picture_of
from headscope.lenses.angles.sentences import method, sentences, warnings
from headscope.lenses.angles.settings import Params
from headscope.lenses.angles.tables import arc_curves, arc_rows, frames, head_quantities, head_rows, picture_rows
from headscope.lenses.angles.window import KEYS, Window, window_of
from headscope.lenses.lens import (
    AS_IS,
    Batch,
    Measurement,
    Needs,
    NotApplicable,
    Tables,
    TextLens,
    TextSize,
)
from headscope.lenses.shared.table import Row
from headscope.lenses.shared.token_pairs import part_of
from headscope.lenses.shared.window_sample import drawn, priority_of
from headscope.lenses.shared.window_tests import adjusted

CAPTURES = ("resid", "q", "k", "pairs", "scale", "corner")
# Windows kept at most.
WINDOWS = 64


@dataclass(frozen=True)
class State:
    """Windows and pictures of each site; what enters each stack in the current batch."""

    params: Params
    sites: tuple[Site, ...]
    crossed: tuple[Site, ...]
    windows: Mapping[Site, tuple[Window, ...]] = field(default_factory=dict)
    windows_read: Mapping[Site, int] = field(default_factory=dict)
    pictures: Mapping[Site, Picture] = field(default_factory=dict)
    embeddings: Mapping[str, Tensor] = field(default_factory=dict)


class Angles(TextLens[Params, State]):
    """Do the angles between tokens tell where attention goes, and what do softmaxes do along an arc?"""

    name = "angles"
    params = Params
    invariant = frozenset({"qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """The stream into each layer, queries, keys, and the pattern among sampled and pictured tokens."""
        params.check()
        return Needs(captures=frozenset(CAPTURES), pieces=True, spelling=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """The state before any text."""
        self_sites = tuple(site for site in sites if site.kind == "self")
        return State(params, self_sites, tuple(site for site in sites if site.kind != "self"))

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch, at the sites that show all captures."""
        first = {site.stack: site for site in reversed(state.sites)}
        entering = batch.captures.get("resid", {})
        embeddings = dict(state.embeddings)
        embeddings |= {stack: entering[site] for stack, site in first.items() if site in entering}
        updated = replace(state, embeddings=embeddings)
        for site in state.sites:
            captured = batch.captures_at(site, CAPTURES)
            if captured is not None and site.stack in embeddings:
                updated = _added(updated, site, batch, captured, embeddings[site.stack])
        return updated

    def merge(self, a: State, b: State) -> State:
        """The state after both texts, a's windows first."""
        windows = {
            site: drawn((*a.windows.get(site, ()), *later_windows), WINDOWS)
            for site, later_windows in b.windows.items()
        }
        windows_read = {site: a.windows_read.get(site, 0) + count for site, count in b.windows_read.items()}
        return replace(
            a,
            windows={**a.windows, **windows},
            windows_read={**a.windows_read, **windows_read},
            pictures={**b.pictures, **a.pictures},
        )

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Correlations, arcs and pictures, from the windows."""
        windows_by_site = {
            site: [window for window in state.windows.get(site, ()) if window.pairs] for site in state.sites
        }
        measured_sites = [site for site in state.sites if windows_by_site[site]]
        if not measured_sites:
            reason = (
                f"no row of self-attention with {KEYS} visible keys, the token itself and the first "
                f"{state.params.skip} "
                "left out, was shown to the lens"
            )
            raise NotApplicable(reason)
        rows: dict[str, list[Row]] = {"heads": [], "arcs": [], "drawn": []}
        for site in measured_sites:
            rows["heads"] += head_rows(site, windows_by_site[site])
            rows["arcs"] += arc_rows(site, windows_by_site[site])
            rows["drawn"] += picture_rows(site, state.pictures[site]) if site in state.pictures else []
        tables = frames(rows)
        tables["heads"] = adjusted(tables["heads"], ["quantity"])
        curves = {site: [arc_curves(windows_by_site[site], index) for index in (0, 1)] for site in measured_sites}
        return Measurement(
            tables=tables,
            figures=figures(tables, measured_sites, state.pictures, curves),
            method=method(
                {site: windows_by_site[site] for site in measured_sites},
                max(state.windows_read.values()),
                state.params.skip,
            ),
            quantities=head_quantities(tables),
            warnings=warnings(windows_by_site, state.crossed),
        )

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formulas as written, pair by pair and arc by arc."""
        return frames(defined([batch for batch in batches if batch.variant == AS_IS], params.skip))

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)


def _added(state: State, site: Site, batch: Batch, captured: Mapping[str, Tensor], embedding: Tensor) -> State:
    """The state with the windows of a batch at one site."""
    windows, skip = state.windows.get(site, ()), state.params.skip
    pictures = dict(state.pictures)
    for index, (tokens, real) in enumerate(zip(batch.tokens, batch.real, strict=True)):
        window_captures = {name: captured[name] if name == "scale" else captured[name][index] for name in CAPTURES}
        priority = priority_of(tokens[real])
        if len(windows) < WINDOWS or priority < max(window.priority for window in windows):
            part = part_of(priority, real, window_captures)
            early = part_of(priority, real, {**window_captures, "resid": embedding[index]}).x
            windows = drawn((*windows, window_of(site, part, early, float(captured["scale"]), skip)), WINDOWS)
        if site not in pictures:
            spelling = batch.spelling[index] if batch.spelling else ()
            picture = picture_of(window_captures, embedding[index], real, spelling, skip)
            pictures |= {} if picture is None else {site: picture}
    windows_read = {**state.windows_read, site: state.windows_read.get(site, 0) + len(batch.real)}
    return replace(state, windows={**state.windows, site: windows}, windows_read=windows_read, pictures=pictures)


LENS = Angles()
