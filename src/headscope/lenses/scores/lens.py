r"""Scores: what law do the raw scores of a head follow, and does that law explain how sharply it attends?

A fold over text. Every window shows some rows of scores (equally spaced queries, all their keys) and the queries and
keys of every token. From the means and covariances of queries and keys follows what the scores of independent tokens
would be; from the variance of a row follows the entropy that Gaussian scores would have. Both are compared
with the measurement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
import torch

from headscope.core import Headline, ModelSpec, Site, WeightSource
from headscope.errors import LensError
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
from headscope.lenses.scores.bounds import bound_rows, largest, weight_norms
from headscope.lenses.scores.definition import defined
from headscope.lenses.scores.figures import figures
from headscope.lenses.scores.heads import head_rows
from headscope.lenses.scores.row_sums import summed
from headscope.lenses.scores.sentences import method, sentences, warnings
from headscope.lenses.scores.settings import Params
from headscope.lenses.scores.site_sums import SiteSums
from headscope.lenses.scores.tables import SCHEMAS, head_quantities
from headscope.lenses.scores.terms import NOT_ADDED, grouped, term_rows
from headscope.lenses.scores.window import windows_of
from headscope.lenses.shared.table import Row
from headscope.maths.gaussians.moments import Moments


@dataclass(frozen=True)
class State:
    """The sums so far, by site; `added` are the sites whose positions are split off."""

    params: Params
    sites: tuple[Site, ...]
    added: frozenset[Site]
    positions: str
    sums_by_site: Mapping[Site, SiteSums] = field(default_factory=dict)


class Scores(TextLens[Params, State]):
    """What law do the raw scores of a head follow, and does that law explain how sharply it attends?"""

    name = "scores"
    params = Params
    invariant = frozenset({"qk:heads", "rotated qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """Some rows of scores, all queries and keys, what the projections read, and the weights for their norms."""
        params.check()
        return Needs(weights=True, captures=frozenset({"rows", "scale", "q", "k", "x"}), pieces=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """The empty state. Positions are added before the first layer of a stack, if at all."""
        self_sites = [site for site in sites if site.kind == "self"] if model.positions not in NOT_ADDED else []
        first = {
            stack: min(site.layer for site in self_sites if site.stack == stack)
            for stack in {site.stack for site in self_sites}
        }
        added = frozenset(site for site in self_sites if site.layer == first[site.stack])
        return State(params, sites, added, model.positions)

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch."""
        sums_by_site = dict(state.sums_by_site)
        for site in state.sites:
            if site in batch.captures.get("rows", {}):
                new = _site_sums(state, site, batch)
                sums_by_site[site] = sums_by_site[site].merge(new) if site in sums_by_site else new
        return replace(state, sums_by_site=sums_by_site)

    def merge(self, a: State, b: State) -> State:
        """The state after both texts, a's windows first."""
        sums_by_site = dict(a.sums_by_site)
        for site, site_sums in b.sums_by_site.items():
            sums_by_site[site] = sums_by_site[site].merge(site_sums) if site in sums_by_site else site_sums
        return replace(a, sums_by_site=sums_by_site)

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Estimates, predictions and intervals of every site."""
        if weights is None:
            raise LensError("the lens scores reads the model's weights, and was given none")
        sums_by_site = {
            site: state.sums_by_site[site]
            for site in state.sites
            if site in state.sums_by_site and state.sums_by_site[site].has_rows
        }
        if not sums_by_site:
            reason = f"no row that sees two keys beside the first {state.params.skip} was shown to the lens"
            raise NotApplicable(reason)
        rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
        for site, site_sums in sums_by_site.items():
            rows["heads"] += head_rows(site, site_sums)
            rows["bounds"] += bound_rows(site, site_sums, weight_norms(weights, site))
            rows["terms"] += term_rows(site, site_sums)
        tables = {name: pl.DataFrame(table_rows, schema=SCHEMAS[name]) for name, table_rows in rows.items()}
        histogram = (
            torch.stack([site_sums.histogram for site_sums in sums_by_site.values()]).sum(0).numpy().astype(np.float64)
        )
        return Measurement(
            tables=tables,
            figures=figures(tables, list(sums_by_site), histogram),
            method=method(state.positions),
            quantities=head_quantities(tables),
            warnings=warnings(state.positions, state.sites, sums_by_site, weights),
        )

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formulas as written, row by row and key by key, in float64."""
        return defined(weights, [batch for batch in batches if batch.variant == AS_IS], params.skip)

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)


def _site_sums(state: State, site: Site, batch: Batch) -> SiteSums:
    skip = state.params.skip
    windows = windows_of(site, batch, skip)
    sums_by_window = [summed(window) for window in windows]
    queries = [window.q[:, skip:][:, window.real[skip:]] for window in windows]
    keys = [window.k[:, skip:][:, window.real_keys[skip:]] for window in windows]
    return SiteSums(
        windows[0].scale,
        (torch.stack([window_sums.sums for window_sums in sums_by_window]),),
        (torch.stack([window_sums.counts for window_sums in sums_by_window]),),
        (torch.stack([largest(window) for window in windows]),),
        Moments.of(torch.cat(queries, 1)),
        Moments.of(torch.cat(keys, 1)),
        torch.stack([window_sums.histogram for window_sums in sums_by_window]).sum(0),
        grouped(queries, keys) if site in state.added else None,
    )


LENS = Scores()
