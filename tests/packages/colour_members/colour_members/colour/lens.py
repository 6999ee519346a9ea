"""A fold over text: the mass on the diagonal, beside uniform attention."""

from dataclasses import dataclass, replace

import polars as pl

from colour_members.colour.definition import definition
from colour_members.colour.figures import figures
from colour_members.colour.sentences import sentences
from colour_members.colour.settings import Params
from headscope.attention.statistics import Request
from headscope.lenses.lens import Measurement, Needs, NotApplicable, TextLens


@dataclass(frozen=True)
class State:
    """Sums over rows by site and head, and how many rows there were."""

    params: Params
    sums: dict
    rows: int = 0


class Colour(TextLens):
    """Which share of its attention does each head give to the token itself?"""

    name = "colour"
    params = Params
    invariant = frozenset({"qk", "vo", "heads"})

    def needs(self, params):
        """Streaming statistics."""
        return Needs(statistics=Request())

    def start(self, params, model, sites, text):
        """No rows yet."""
        return State(params, {})

    def update(self, state, batch):
        """Add the rows of one batch."""
        sums = dict(state.sums)
        for site, rows in batch.statistics.items():
            uniform = batch.uniform[site].diagonal.expand_as(rows.diagonal)  # the same for all heads
            pair = (rows.diagonal.double().sum((0, 2)), uniform.double().sum((0, 2)))
            old = sums.get(site)
            sums[site] = pair if old is None else (old[0] + pair[0], old[1] + pair[1])
        return replace(state, sums=sums, rows=state.rows + batch.tokens.numel())

    def merge(self, a, b):
        """The rows of both."""
        sums = dict(a.sums)
        for site, (measured, uniform) in b.sums.items():
            old = sums.get(site)
            sums[site] = (measured, uniform) if old is None else (old[0] + measured, old[1] + uniform)
        return replace(a, sums=sums, rows=a.rows + b.rows)

    def finish(self, state, weights):
        """Means over rows."""
        if not state.rows:
            raise NotApplicable("no row of attention was seen")
        rows = []
        for site, (measured, uniform) in state.sums.items():
            for head in range(site.n_heads):
                where = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head}
                value = state.params.shade * float(measured[head]) / state.rows
                rows.append({**where, "value": value, "uniform": float(uniform[head]) / state.rows})
        table = pl.DataFrame(rows)
        return Measurement({"heads": table}, figures=figures(table), method="exact")

    def definition(self, params, weights, batches):
        """The formula on the stored maps."""
        return definition(params, batches)

    def sentences(self, tables):
        """The head with the most colour."""
        return sentences(tables)


LENS = Colour()
