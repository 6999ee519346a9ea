"""A fold over text: the mass on the diagonal, and that of uniform attention."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from colour_members.colour.definition import definition
from colour_members.colour.figures import figures
from colour_members.colour.sentences import sentences
from colour_members.colour.settings import Params
from colour_members.colour.tables import SCHEMA, head_quantities
from headscope.attention.statistics import Request
from headscope.core import Headline, ModelSpec, Site, WeightSource
from headscope.lenses.lens import Batch, Measurement, Needs, NotApplicable, Tables, TextLens, TextSize
from headscope.lenses.shared.plots import place
from headscope.maths.resampling.clustered_mean import clustered_mean


@dataclass(frozen=True)
class Sums:
    """Sums over the rows of each window that count."""

    measured: Float[Tensor, "windows heads"]
    uniform: Float[Tensor, "windows heads"]
    rows: Float[Tensor, "windows heads"]


@dataclass(frozen=True)
class State:
    """The sums of the windows so far; `update` and `merge` return new ones."""

    keys: int
    sums: Mapping[Site, tuple[Sums, ...]] = field(default_factory=dict)


class Colour(TextLens[Params, State]):
    """Which share of its attention does each head give to the token itself?"""

    name = "colour"
    params = Params
    invariant = frozenset({"qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """Streaming statistics, site by site."""
        return Needs(statistics=Request(), pieces=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """No rows yet."""
        return State(params.keys)

    def update(self, state: State, batch: Batch) -> State:
        """Add the rows of one batch; rows of padding see no key."""
        sums = dict(state.sums)
        for site, rows in batch.statistics.items():
            if site.kind == "self":
                counts = rows.n_visible >= state.keys
                masses = (rows.diagonal, batch.uniform[site].diagonal)
                measured, uniform = (torch.where(counts, mass, 0.0).sum(-1) for mass in masses)
                sums[site] = (*sums.get(site, ()), Sums(measured, uniform, counts.sum(-1).double()))
        return replace(state, sums=sums)

    def merge(self, a: State, b: State) -> State:
        """The rows of both, a's first."""
        sites = dict.fromkeys((*a.sums, *b.sums))
        return replace(a, sums={site: (*a.sums.get(site, ()), *b.sums.get(site, ())) for site in sites})

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Means over rows, with intervals over windows."""
        table = pl.DataFrame([row for site in state.sums for row in _rows(site, state.sums[site])], schema=SCHEMA)
        if table.is_empty():
            raise NotApplicable(f"no row of self-attention that sees at least {state.keys} keys was shown to the lens")
        maps = figures(table, tuple(state.sums))
        return Measurement({"heads": table}, maps, method="exact, over all rows", quantities=head_quantities())

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """The median head, and the head with the most colour."""
        return sentences(tables)

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formula on the stored maps."""
        return definition(params, batches)


def _rows(site: Site, parts: Sequence[Sums]) -> Iterator[dict[str, object]]:
    measured, uniform, rows = (torch.cat([getattr(part, name) for part in parts]) for name in Sums.__annotations__)
    for head in range(site.n_heads if bool(rows.any()) else 0):
        estimate = clustered_mean(measured[:, head], rows[:, head])
        ends = {"low": max(estimate.low, 0.0), "high": min(estimate.high, 1.0)}  # of a share
        yield {
            **place(site, head),
            "value": estimate.mean,
            **(ends if estimate.low == estimate.low else {}),  # one window has no interval
            "uniform": float(uniform[:, head].sum() / rows[:, head].sum()),
            "windows": int((rows[:, head] > 0).sum()),
        }


LENS = Colour()
