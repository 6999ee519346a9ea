r"""Scores: what law do the raw scores of a head follow, and does that law explain how sharply it attends?

A fold over text. Every window shows some rows of scores (equally spaced queries, all their keys) and the queries and
keys of every token. From the means and covariances of queries and keys follows what the scores of independent tokens
would be; from the variance of a row follows the entropy that Gaussian scores would have. Both stand beside what was
measured. What is computed from these stands in `score_law/`, one idea per file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import polars as pl
import torch
from torch import Tensor

from headscope.core import ModelSpec, Site, WeightSource
from headscope.errors import LensError, UsageError
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
from headscope.lenses.scores.site_sums import Seen
from headscope.lenses.scores.tables import SCHEMAS
from headscope.lenses.scores.terms import NOT_ADDED, grouped, term_rows
from headscope.lenses.scores.window import windows_of
from headscope.lenses.shared.table import Row
from headscope.maths.gaussians.moments import Moments


@dataclass(frozen=True)
class State:
    """What has been seen so far, per site; `added` are the sites whose positions are split off.

    `read` is what the projections of this batch read, of sites whose rows have not come yet.
    """

    params: Params
    sites: tuple[Site, ...]
    added: frozenset[Site]
    positions: str
    seen: Mapping[Site, Seen] = field(default_factory=dict)
    read: Mapping[Site, Tensor] = field(default_factory=dict)


class Scores(TextLens[Params, State]):
    """What law do the raw scores of a head follow, and does that law explain how sharply it attends?"""

    name = "scores"
    params = Params
    invariant = frozenset({"qk:heads", "rotated qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """Some rows of scores, all queries and keys, what the projections read, and the weights for their norms."""
        if params.skip < 0:
            raise UsageError(f"skip={params.skip}: no fewer than 0 tokens can be left out")
        return Needs(weights=True, captures=frozenset({"rows", "scale", "q", "k", "x"}), pieces=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """Nothing seen yet. Positions are added before the first layer of a stack, if they are added at all."""
        own = [site for site in sites if site.kind == "self"] if model.positions not in NOT_ADDED else []
        first = {
            stack: min(site.layer for site in own if site.stack == stack) for stack in {site.stack for site in own}
        }
        added = frozenset(site for site in own if site.layer == first[site.stack])
        return State(params, sites, added, model.positions)

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch, as far as this piece of it goes."""
        if batch.variant != AS_IS:
            return state
        seen, read = dict(state.seen), {**state.read, **batch.captures.get("x", {})}
        for site in state.sites:
            if site in batch.captures.get("rows", {}):
                new = _seen(state, site, replace(batch, captures={**batch.captures, "x": read}))
                seen[site] = seen[site].merge(new) if site in seen else new
                read.pop(site, None)
        return replace(state, seen=seen, read=read)

    def merge(self, a: State, b: State) -> State:
        """What both have seen, a's windows first."""
        seen = dict(a.seen)
        for site, one in b.seen.items():
            seen[site] = seen[site].merge(one) if site in seen else one
        return replace(a, seen=seen)

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Estimates, predictions and intervals of every site."""
        if weights is None:
            raise LensError("the lens scores reads the model's weights, and was given none")
        asdict(state.params)
        seen = {site: state.seen[site] for site in state.sites if site in state.seen and state.seen[site].has_rows}
        if not seen:
            reason = f"no row that sees two keys beside the first {state.params.skip} was shown to the lens"
            raise NotApplicable(reason)
        rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
        for site, one in seen.items():
            rows["heads"] += head_rows(site, one)
            rows["bounds"] += bound_rows(site, one, weight_norms(weights, site))
            rows["terms"] += term_rows(site, one)
        tables = {name: pl.DataFrame(found, schema=SCHEMAS[name]) for name, found in rows.items()}
        histogram = torch.stack([one.histogram for one in seen.values()]).sum(0).numpy().astype(np.float64)
        return Measurement(
            tables=tables,
            figures=figures(tables, list(seen), histogram),
            method=method(state.positions),
            warnings=warnings(state.positions, state.sites, seen, weights),
        )

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formulas as written, row by row and key by key, in float64."""
        return defined(weights, [batch for batch in batches if batch.variant == AS_IS], params.skip)

    def sentences(self, tables: Tables) -> tuple[str, ...]:
        """What stands out, in numbers."""
        return sentences(tables)


def _seen(state: State, site: Site, batch: Batch) -> Seen:
    skip = state.params.skip
    windows = windows_of(site, batch, skip)
    found = [summed(window) for window in windows]
    kept_q = [window.q[:, skip:][:, window.real[skip:]] for window in windows]
    kept_k = [window.k[:, skip:][:, window.seen_keys[skip:]] for window in windows]
    return Seen(
        windows[0].scale,
        (torch.stack([one.sums for one in found]),),
        (torch.stack([one.counts for one in found]),),
        (torch.stack([largest(window) for window in windows]),),
        Moments.of(torch.cat(kept_q, 1)),
        Moments.of(torch.cat(kept_k, 1)),
        torch.stack([one.histogram for one in found]).sum(0),
        grouped(kept_q, kept_k) if site in state.added else None,
    )


LENS = Scores()
