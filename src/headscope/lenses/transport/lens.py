r"""Transport: how means, covariances, entropy and information change when attention mixes tokens.

A fold over text. With constant weights attention is a linear map, and the Gaussian of the tokens is carried on by a
formula. Here the constants are the mean weights over windows, the prediction is made for windows that it has not seen,
and its error is told apart: weights that depend on the data, windows that differ, and, behind norm and feed-forward
part, tokens that are not Gaussian. The other files of this folder compute from the kept windows, one idea each.

Held are the first 64 tokens of at most 64 windows (their stream, their heads' outputs, the values they can see: 256 MB,
or 16 windows), and two sums of attention weights per site. Their size does not depend on the length of the text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import polars as pl
from torch import Tensor

from headscope.core import Headline, ModelSpec, Site, WeightSource
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
from headscope.lenses.shared.head_threads import mapped
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row
from headscope.lenses.shared.window_sample import SAMPLE_BYTES, sample_warning
from headscope.lenses.transport.constant_weights import Counts, Stacked
from headscope.lenses.transport.definition import defined
from headscope.lenses.transport.errors import estimates, joined, rows_of
from headscope.lenses.transport.figures import figures
from headscope.lenses.transport.sentences import method, not_seen, sentences, warnings
from headscope.lenses.transport.settings import Params
from headscope.lenses.transport.stages import Stages
from headscope.lenses.transport.sums import CAPTURES, KEYS, Shape, WindowSums, windows_of
from headscope.lenses.transport.tables import SCHEMAS, head_quantities
from headscope.shapes import CORNER

# Windows kept at most, and at least, and what they may take; beyond it not every layer.
WINDOWS, FEWEST_WINDOWS = 64, 16


@dataclass(frozen=True)
class State:
    """The sums of each site by the shape of its windows; `long` are the sites whose windows see too many keys."""

    params: Params
    sites: tuple[Site, ...]
    crossed: tuple[Site, ...]
    step: int
    room: int
    sums_by_site: Mapping[Site, Mapping[Shape, WindowSums]] = field(default_factory=dict)
    long: frozenset[str] = frozenset()


class Transport(TextLens[Params, State]):
    """How means, covariances, entropy and information change when attention mixes tokens."""

    name = "transport"
    params = Params
    invariant = frozenset({"qk", "rotated vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """The stream that enters each layer, values, the weights of the first queries, and what those queries get."""
        params.check()
        return Needs(weights=True, captures=frozenset(CAPTURES), pieces=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """Plan the windows, and where those are too few the layers, that fit into the sample."""
        self_sites = [site for site in sites if site.kind == "self"]
        sizes = [
            4 * (CORNER * (model.d_model + site.n_heads * site.d_value) + _keys(site) * site.n_kv_heads * site.d_value)
            for site in self_sites
        ]
        step = max(1, -(-sum(sizes) * FEWEST_WINDOWS // SAMPLE_BYTES))
        room = min(WINDOWS, max(FEWEST_WINDOWS, SAMPLE_BYTES // max(1, sum(sizes[::step]))))
        return State(
            params, tuple(self_sites[::step]), tuple(site for site in sites if site.kind != "self"), step, room
        )

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch, at the sites that show all captures."""
        sums_by_site, long = dict(state.sums_by_site), state.long
        for site in state.sites:
            captured = batch.captures_at(site, CAPTURES)
            if captured is not None and captured["early"].shape[-1] > KEYS:
                long |= {site.label}
            elif captured is not None:
                sums_by_site[site] = _with_batch(state, sums_by_site.get(site, {}), batch, captured)
        return replace(state, sums_by_site=sums_by_site, long=long)

    def merge(self, a: State, b: State) -> State:
        """What both have seen, a's windows first."""
        sums_by_site: dict[Site, Mapping[Shape, WindowSums]] = dict(a.sums_by_site)
        for site, shapes in b.sums_by_site.items():
            merged_sums = dict(sums_by_site.get(site, {}))
            for shape, sums in shapes.items():
                merged_sums[shape] = merged_sums[shape].merge(sums) if shape in merged_sums else sums
            sums_by_site[site] = merged_sums
        return replace(a, sums_by_site=sums_by_site, long=a.long | b.long)

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Everything from the kept windows, one site at a time."""
        params = asdict(state.params)
        rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
        counts_by_site: dict[Site, Counts] = {}
        omissions: list[str] = []
        for answer in mapped(partial(_site_answer, state, weights), state.sites):
            if answer is None:
                continue
            counts_by_site[answer.site] = answer.counts
            rows["heads"] += answer.heads
            rows["layers"] += answer.layer
            omissions += answer.omissions
        if not counts_by_site:
            reason = (
                f"no two windows of equal length with two tokens behind the first {state.params.skip} were "
                "shown to the "
                f"lens{_too_long(state.long)}"
            )
            raise NotApplicable(reason)
        tables = {name: pl.DataFrame(rows[name], schema=schema) for name, schema in SCHEMAS.items()}
        missing = [site.label for site in state.sites if site not in counts_by_site and site.label not in state.long]
        unseen = tuple(not_seen(state.crossed, missing, sorted(state.long)))
        return Measurement(
            tables=tables,
            figures=figures(tables, list(counts_by_site)),
            method=method(next(iter(counts_by_site.values())), state.step, state.params.distance),
            quantities=head_quantities(tables),
            warnings=(*warnings(tables, counts_by_site, omissions, unseen, params), *_sample_warnings(state)),
        )

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formulas as written, block by block, on the windows of one shape."""
        unchanged_batches = [batch for batch in batches if batch.variant == AS_IS]
        return defined(unchanged_batches, weights, params.components, params.distance, params.skip)

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)


def _keys(site: Site) -> int:
    """The most keys that the first queries of a site can see."""
    return CORNER if site.causal else KEYS


def _with_batch(
    state: State, before: Mapping[Shape, WindowSums], batch: Batch, captured: Mapping[str, Tensor]
) -> Mapping[Shape, WindowSums]:
    sums_by_shape, shapes = dict(before), dict[Shape, list[tuple[int, dict[str, Tensor]]]]()
    for priority, window in windows_of(batch.tokens, batch.real, captured):
        queries, keys = window["early"].shape[1:]
        shapes.setdefault((queries, keys), []).append((priority, window))
    for shape, windows in shapes.items():
        sums = sums_by_shape[shape] if shape in sums_by_shape else WindowSums.empty(state.room, windows[0][1]["early"])
        sums_by_shape[shape] = sums.add(windows)
    return sums_by_shape


def _sample_warnings(state: State) -> tuple[str, ...]:
    """The warning that not every window is held."""
    largest = max(
        (sums for shapes in state.sums_by_site.values() for sums in shapes.values()), key=lambda sums: sums.count
    )
    return sample_warning(len(largest.parts), largest.count, "windows for means, covariances and vectors")


def _too_long(long: frozenset[str]) -> str:
    return f"; {len(long)} sites see more than {KEYS} keys" if long else ""


@dataclass(frozen=True)
class _SiteAnswer:
    """The rows of the heads of a site and of the stages of its layer, and what is missing."""

    site: Site
    counts: Counts
    heads: list[Row]
    layer: list[Row]
    omissions: list[str]


def _site_answer(state: State, weights: WeightSource | None, site: Site) -> _SiteAnswer | None:
    """The answer of one site; None where it kept no windows that can be compared."""
    params = state.params
    stacked = Stacked.of(state.sums_by_site.get(site, {}), site, params.skip)
    if stacked is None:
        return None
    stages = Stages(stacked, weights, params.distance)
    estimated = partial(estimates, odd=stacked.odd, components=params.components, distance=params.distance)
    by_head = [estimated(stage_vectors) for stage_vectors in stages.heads()]
    heads = [{**place(site, head), **row} for head, by_quantity in enumerate(by_head) for row in rows_of(by_quantity)]
    layer = [{**place(site, None), "stage": "heads", **row} for row in rows_of(joined(by_head))]
    for stage, stage_vectors in stages.layer():
        layer += [{**place(site, None), "stage": stage, **row} for row in rows_of(estimated(stage_vectors))]
    return _SiteAnswer(site, stacked.counts, heads, layer, stages.omissions)


LENS = Transport()
