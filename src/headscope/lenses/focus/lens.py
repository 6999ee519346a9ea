r"""Focus: where does each head look, and how sharply?

A fold over text. Per row (query) of the attention pattern: its entropy, the number of keys that effectively
share it, how far away they are, and how much of it lies on the diagonal, on the first token and near the
diagonal; averaged over rows, next to the value for attention that is uniform over the visible keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float
from scipy import stats
from torch import Tensor

from headscope.attention.statistics import Request, RowStatistics
from headscope.core import Headline, ModelSpec, Site, WeightSource
from headscope.lenses.focus.definition import definition
from headscope.lenses.focus.figures import figures
from headscope.lenses.focus.sentences import sentences
from headscope.lenses.focus.settings import Params
from headscope.lenses.focus.tables import SCHEMA, head_quantities
from headscope.lenses.lens import (
    Batch,
    Measurement,
    Needs,
    NotApplicable,
    Tables,
    TextLens,
    TextSize,
)
from headscope.lenses.shared.plots import place

# Without meaning in cross-attention, where query and key count different texts; and those that end at 1.
_POSITIONAL = ("distance", "diagonal", "band_")
_SHARES = ("entropy_share", "diagonal", "first", "band_", "sink")


@dataclass(frozen=True)
class Sums:
    """Sums over the counted rows of each window; kept apart by window, so that merging is exact."""

    measured: Float[Tensor, "windows quantities heads"]
    uniform: Float[Tensor, "windows quantities heads"]
    rows: Float[Tensor, "windows heads"]


@dataclass(frozen=True)
class State:
    """Sums of the windows so far, per site, and how they were obtained."""

    params: Params
    sites: tuple[Site, ...]
    seen: Mapping[Site, tuple[Sums, ...]] = field(default_factory=dict)
    methods: frozenset[str] = frozenset()


class Focus(TextLens[Params, State]):
    """Where does each head look, and how sharply?"""

    name = "focus"
    params = Params
    invariant = frozenset({"qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """Streaming statistics with the chosen bands."""
        return Needs(statistics=Request(bands=params.widths()), pieces=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """Nothing seen yet."""
        return State(params, sites)

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch."""
        sums_by_site, methods = dict(state.seen), set(state.methods)
        for site in state.sites:
            if site in batch.statistics:
                rows = batch.statistics[site]
                sums_by_site[site] = (*sums_by_site.get(site, ()), _sums(state.params, site, rows, batch.uniform[site]))
                methods.add(rows.method)
        return replace(state, seen=sums_by_site, methods=frozenset(methods))

    def merge(self, a: State, b: State) -> State:
        """The windows of both, a's first."""
        sites = dict.fromkeys((*a.seen, *b.seen))
        sums_by_site = {site: (*a.seen.get(site, ()), *b.seen.get(site, ())) for site in sites}
        return replace(a, seen=sums_by_site, methods=a.methods | b.methods)

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Means over rows with their intervals."""
        measured_sites = [
            site for site in state.sites if any(bool((part.rows > 0).any()) for part in state.seen.get(site, ()))
        ]
        unseen = [site.label for site in state.sites if site not in measured_sites]
        if not measured_sites:
            reason = "no row of attention that sees at least two keys was shown to the lens"
            raise NotApplicable(reason)
        rows = [row for site in measured_sites for row in _rows(state.params, site, _joined(state.seen[site]))]
        table = pl.DataFrame(rows, schema=SCHEMA)
        return Measurement(
            tables={"heads": table},
            figures=figures(table, measured_sites, state.params.widths()),
            method=_method(state.methods),
            quantities=head_quantities(table),
            warnings=(f"No attention of {', '.join(unseen)} was seen.",) if unseen else (),
        )

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """Mass on the first token, sharpness, and mass near the token itself."""
        return sentences(tables)

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The tables by their formulas."""
        return definition(params, weights, batches)


def quantities(params: Params, site: Site) -> tuple[str, ...]:
    """The names of what is measured at a site, in the order of the table."""
    sharpness = ("entropy_nats", "entropy_share", "effective_keys")
    bands = tuple(f"band_{width}" for width in params.widths())
    sink = ("sink",) if "sinks" in site.extras else ()
    return (*sharpness, "distance", "distance_sd", "diagonal", "first", *bands, *sink)


def _sums(params: Params, site: Site, measured: RowStatistics, uniform: RowStatistics) -> Sums:
    counted = (measured.n_visible >= 2) & measured.entropy_nats.isfinite()
    return Sums(
        _window_sums(params, site, measured, counted),
        _window_sums(params, site, uniform, counted),
        counted.sum(-1).to(torch.float64),
    )


def _window_sums(
    params: Params, site: Site, rows: RowStatistics, counted: Bool[Tensor, "windows heads queries"]
) -> Float[Tensor, "windows quantities heads"]:
    columns = _columns(params, site, rows)
    # One column at a time: a stack of all of them would be the largest tensor of the run.
    return torch.stack([torch.where(counted, column, 0.0).sum(-1) for column in columns], dim=1)


def _columns(params: Params, site: Site, rows: RowStatistics) -> Iterator[Tensor]:
    """Each quantity per row, in float64. A row with a sink is divided by its sum for the first three."""
    mass = 1.0 if rows.sink is None else 1.0 - rows.sink.to(torch.float64)
    entropy = rows.entropy_nats.to(torch.float64)
    if isinstance(mass, Tensor):
        entropy = (entropy / mass + mass.log()).clamp_min(0.0)
    yield entropy
    yield entropy / rows.n_visible.to(torch.float64).log()
    yield mass**2 / rows.participation.to(torch.float64)
    for column in (rows.distance, rows.distance_sd, rows.diagonal, rows.first):
        yield column.to(torch.float64)
    for width in params.widths():
        yield rows.bands[width].to(torch.float64)
    if "sinks" in site.extras:
        yield torch.zeros_like(entropy) if rows.sink is None else rows.sink.to(torch.float64)


def _joined(parts: Sequence[Sums]) -> Sums:
    return Sums(
        torch.cat([part.measured for part in parts]),
        torch.cat([part.uniform for part in parts]),
        torch.cat([part.rows for part in parts]),
    )


def _method(methods: frozenset[str]) -> str:
    how = "; ".join(sorted(method for method in methods if method))
    rows = "Every row of every window counts, but those with fewer than two visible keys and padding."
    return f"Row statistics: {how}. {rows}" if how else rows


def _rows(params: Params, site: Site, sums: Sums) -> Iterator[dict[str, object]]:
    n_rows, windows = sums.rows.sum(0), (sums.rows > 0).sum(0)
    value, uniform = sums.measured.sum(0) / n_rows, sums.uniform.sum(0) / n_rows
    margin = _margin(sums, value)
    for head in range(site.n_heads):
        for index, quantity in enumerate(quantities(params, site)):
            meant = not (site.kind == "cross" and quantity.startswith(_POSITIONAL))
            mean, half = float(value[index, head]), float(margin[index, head])
            ceiling = 1.0 if quantity.startswith(_SHARES) else inf
            # A mean of numbers between 0 and the ceiling lies there too.
            low, high = max(mean - half, 0.0), min(mean + half, ceiling)
            if half != half:
                low = high = nan
            numbers = {"value": mean, "low": low, "high": high, "uniform": float(uniform[index, head])}
            yield {
                **place(site, head),
                "quantity": quantity,
                **{name: number if meant and number == number else None for name, number in numbers.items()},
                "rows": int(n_rows[head]),
                "windows": int(windows[head]),
            }


def _margin(sums: Sums, value: Float[Tensor, "quantities heads"]) -> Float[Tensor, "quantities heads"]:
    r"""Half-width of the 95 % interval of a mean over rows that come in windows of unequal length.

    The mean is the ratio $\bar{x} = \sum_w s_w / \sum_w n_w$ of two sums over windows, so its error is that
    of the residuals $e_w = s_w - \bar{x}\,n_w$.
    """
    windows = (sums.rows > 0).sum(0).to(torch.float64)
    residual = sums.measured - value * sums.rows[:, None, :]
    error = (windows / (windows - 1) * residual.square().sum(0)).sqrt() / sums.rows.sum(0)
    factor = torch.from_numpy(stats.t.ppf(0.975, np.maximum(windows.numpy() - 1, 1)))
    return torch.where(windows > 1, error * factor, nan)


LENS = Focus()
