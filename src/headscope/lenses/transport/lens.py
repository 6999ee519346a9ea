r"""Transport: what becomes of means, covariances, entropy and information when attention mixes tokens.

A fold over text. With constant weights attention is a linear map, and the Gaussian of the tokens is carried on by a
formula. Here the constants are the mean weights over windows, the prediction is made for windows that it has not seen,
and its error is told apart: weights that depend on the data, windows that differ, and, behind norm and feed-forward
part, tokens that are not Gaussian. What is computed from the kept windows stands in `mixed/`, one idea per file.

Held are the first 64 tokens of at most 64 windows (their stream, their heads' outputs, the values they can see: 256 MB,
or 16 windows), and two sums of attention weights per site. Their size does not depend on the length of the text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import polars as pl
from torch import Tensor

from headscope.core import ModelSpec, Site, WeightSource
from headscope.errors import UsageError
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
from headscope.lenses.transport.sums import CAPTURES, KEYS, Kept, Shape, windows_of
from headscope.lenses.transport.tables import SCHEMAS
from headscope.shapes import CORNER

# Windows kept at most, and at least, and what they may take; beyond it not every layer.
WINDOWS, FEWEST_WINDOWS = 64, 16


@dataclass(frozen=True)
class State:
    """What is kept of each site by the shape of its windows, and what has come of sites that are not complete yet."""

    params: Params
    sites: tuple[Site, ...]
    crossed: tuple[Site, ...]
    step: int
    room: int
    kept: Mapping[Site, Mapping[Shape, Kept]] = field(default_factory=dict)
    waiting: Mapping[Site, Mapping[str, Tensor]] = field(default_factory=dict)
    long: frozenset[str] = frozenset()


class Transport(TextLens[Params, State]):
    """What becomes of means, covariances, entropy and information when attention mixes tokens."""

    name = "transport"
    params = Params
    invariant = frozenset({"qk", "rotated vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """The stream that enters each layer, values, the weights of the first queries, and what those queries get."""
        if params.components < 1 or params.skip < 0 or not 1 <= params.distance < CORNER:
            raise UsageError(
                f"components={params.components}, distance={params.distance} and skip={params.skip}: at least one "
                f"component is needed, a distance from 1 to {CORNER - 1}, and no fewer than 0 tokens can be left out"
            )
        return Needs(weights=True, captures=frozenset(CAPTURES), pieces=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """Nothing seen yet; so many windows, and where those are too few so many layers, as fit."""
        own = [site for site in sites if site.kind == "self"]
        sizes = [
            4 * (CORNER * (model.d_model + site.n_heads * site.d_value) + _keys(site) * site.n_kv_heads * site.d_value)
            for site in own
        ]
        step = max(1, -(-sum(sizes) * FEWEST_WINDOWS // SAMPLE_BYTES))
        room = min(WINDOWS, max(FEWEST_WINDOWS, SAMPLE_BYTES // max(1, sum(sizes[::step]))))
        return State(params, tuple(own[::step]), tuple(site for site in sites if site.kind != "self"), step, room)

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch, as far as this piece of it goes."""
        if batch.variant != AS_IS:
            return state
        kept, waiting, long = dict(state.kept), dict(state.waiting), state.long
        for site in state.sites:
            shown = {name: batch.captures[name][site] for name in CAPTURES if site in batch.captures.get(name, {})}
            known = {**waiting.pop(site, {}), **shown}
            if len(known) == len(CAPTURES):
                if known["early"].shape[-1] > KEYS:
                    long |= {site.label}
                else:
                    kept[site] = _with(state, kept.get(site, {}), batch, known)
            elif known:
                waiting[site] = known
        return replace(state, kept=kept, waiting=waiting, long=long)

    def merge(self, a: State, b: State) -> State:
        """What both have seen, a's windows first."""
        kept: dict[Site, Mapping[Shape, Kept]] = dict(a.kept)
        for site, shapes in b.kept.items():
            own = dict(kept.get(site, {}))
            for shape, one in shapes.items():
                own[shape] = own[shape].merge(one) if shape in own else one
            kept[site] = own
        return replace(a, kept=kept, long=a.long | b.long)

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Everything from the kept windows, one site at a time."""
        params = asdict(state.params)
        rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
        seen: dict[Site, Counts] = {}
        lost: list[str] = []
        for site in state.sites:
            stacked = Stacked.of(state.kept.get(site, {}), site, state.params.skip)
            if stacked is None:
                continue
            seen[site] = stacked.counts
            heads, layer, without = _site_rows(stacked, state.params, weights)
            rows["heads"] += heads
            rows["layers"] += layer
            lost += without
        if not seen:
            reason = (
                f"no two windows of equal length with two tokens behind the first {state.params.skip} were "
                "shown to the "
                f"lens{_too_long(state.long)}"
            )
            raise NotApplicable(reason)
        tables = {name: pl.DataFrame(rows[name], schema=schema) for name, schema in SCHEMAS.items()}
        missing = [site.label for site in state.sites if site not in seen and site.label not in state.long]
        unseen = tuple(not_seen(state.crossed, missing, sorted(state.long)))
        return Measurement(
            tables=tables,
            figures=figures(tables, list(seen)),
            method=method(next(iter(seen.values())), state.step, state.params.distance),
            warnings=(*warnings(tables, seen, lost, unseen, params), *_held(state)),
        )

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formulas as written, block by block, on the windows of one shape."""
        shown = [batch for batch in batches if batch.variant == AS_IS]
        return defined(shown, weights, params.components, params.distance, params.skip)

    def sentences(self, tables: Tables) -> tuple[str, ...]:
        """What stands out, in numbers."""
        return sentences(tables)


def _keys(site: Site) -> int:
    """The most keys that the first queries of a site can see."""
    return CORNER if site.causal else KEYS


def _with(
    state: State, before: Mapping[Shape, Kept], batch: Batch, captured: Mapping[str, Tensor]
) -> Mapping[Shape, Kept]:
    found, shapes = dict(before), dict[Shape, list[tuple[int, dict[str, Tensor]]]]()
    for priority, shown in windows_of(batch.tokens, batch.real, captured):
        queries, keys = shown["early"].shape[1:]
        shapes.setdefault((queries, keys), []).append((priority, shown))
    for shape, windows in shapes.items():
        one = found[shape] if shape in found else Kept.empty(state.room, windows[0][1]["early"])
        found[shape] = one.add(windows)
    return found


def _held(state: State) -> tuple[str, ...]:
    """The warning that not every window is held."""
    windows = max((one for shapes in state.kept.values() for one in shapes.values()), key=lambda one: one.seen)
    return sample_warning(len(windows.parts), windows.seen, "windows for means, covariances and vectors")


def _too_long(long: frozenset[str]) -> str:
    return f"; {len(long)} sites see more than {KEYS} keys" if long else ""


def _site_rows(
    stacked: Stacked, params: Params, weights: WeightSource | None
) -> tuple[list[Row], list[Row], list[str]]:
    """The rows of each head and of each stage of the layer, and what is missing."""
    site = stacked.site
    stages = Stages(stacked, weights, params.distance, seed=2 * site.layer)
    by_head = [estimates(shown, stacked.odd, params.components, params.distance) for shown in stages.heads()]
    heads = [{**place(site, head), **row} for head, found in enumerate(by_head) for row in rows_of(found)]
    layer = [{**place(site, None), "stage": "heads", **row} for row in rows_of(joined(by_head))]
    for stage, shown in stages.layer():
        found = estimates(shown, stacked.odd, params.components, params.distance)
        layer += [{**place(site, None), "stage": stage, **row} for row in rows_of(found)]
    return heads, layer, stages.lost


LENS = Transport()
