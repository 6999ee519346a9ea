r"""Gaussian: how far does a Gaussian describe the residual stream, and what do tokens know of each other in it?

A fold over text. Per layer the mean and covariance of the residual stream, merged from batches; from them its entropy
and its effective dimension. A bounded sample of rows answers what needs single rows: tests of normality, divergence
between layers and between positions, mutual information against distance, and the joint Gaussian of neighbours.
Each of these has its own file in this folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Headline, ModelSpec, Site, WeightSource
from headscope.lenses.gaussian.component_curve import information_curve_rows, kurtosis_rows
from headscope.lenses.gaussian.definition import defined
from headscope.lenses.gaussian.divergence import late_row, next_row, position_rows
from headscope.lenses.gaussian.figures import figures
from headscope.lenses.gaussian.information import Pairings, information_rows, joint_rows, paired
from headscope.lenses.gaussian.normality import normality_rows
from headscope.lenses.gaussian.sentences import method, sentences, warnings
from headscope.lenses.gaussian.settings import Params
from headscope.lenses.gaussian.spread import spread_rows
from headscope.lenses.gaussian.stream import PER_DIMENSION, First, Kept, Layer
from headscope.lenses.gaussian.tables import SCHEMAS
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
from headscope.lenses.shared.row_sample import Plan, Sample
from headscope.lenses.shared.table import Row
from headscope.lenses.shared.window_sample import sample_warning
from headscope.maths.gaussians.moments import Moments

# Windows that the sample keeps at most, rows per layer, and rows of one window.
WINDOWS, ROWS, PER_WINDOW = 64, 16384, 1024
# What the sample of all layers and their covariances may take; beyond it fewer rows, and not every layer.
SAMPLE_BYTES, COVARIANCE_BYTES = 5 * 2**28, 5 * 2**29


@dataclass(frozen=True)
class State:
    """What is kept of each stream; its size does not depend on the length of the text.

    `behind` names the stream that leaves the last layer of a stack by the site of that layer.
    """

    params: Params
    sites: tuple[Site, ...]
    behind: Mapping[Site, Site]
    step: int
    plan: Plan
    kept: Mapping[Site, Kept] = field(default_factory=dict)


class Gaussian(TextLens[Params, State]):
    """How far does a Gaussian describe the residual stream, and what do tokens know of each other in it?"""

    name = "gaussian"
    params = Params
    invariant = frozenset({"qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """The residual stream that enters each layer, and the one that leaves the last."""
        params.check()
        return Needs(captures=frozenset({"resid", "final"}), pieces=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """Nothing seen yet. Cross-attention is left out: it reads the stream of the same layer."""
        entering = [site for site in sites if site.kind == "self"]
        last_of_stack = {site.stack: site for site in entering}
        behind = {site: replace(site, layer=site.layer + 1) for site in last_of_stack.values()}
        streams = [stream for site in entering for stream in (site, behind.get(site)) if stream is not None]
        width = max(1, model.d_model)
        step = max(1, -(-len(streams) * width * width * 8 // COVARIANCE_BYTES))
        sampled_streams = tuple(streams[::step])
        rows = min(ROWS, SAMPLE_BYTES // (4 * width * max(1, len(sampled_streams))))
        distances = tuple(sorted({*params.checked_distances(), *range(1, params.tokens)}))
        return State(params, sampled_streams, behind, step, Plan(rows, WINDOWS, distances, params.skip, PER_WINDOW))

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch."""
        streams_by_site = dict(batch.captures.get("resid", {}))
        streams_by_site |= {
            state.behind[site]: x for site, x in batch.captures.get("final", {}).items() if site in state.behind
        }
        new_rows = {site: streams_by_site[site] for site in state.sites if site in streams_by_site}
        if not new_rows:
            return state
        return replace(
            state, kept={**state.kept, **{site: _with(state, site, x, batch) for site, x in new_rows.items()}}
        )

    def merge(self, a: State, b: State) -> State:
        """The summaries of both states, a's windows first."""
        merged = {site: a.kept[site].merge(later) if site in a.kept else later for site, later in b.kept.items()}
        return replace(a, kept={**a.kept, **merged})

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Everything from the moments and the sample."""
        measured_sites = [
            site for site in state.sites if site in state.kept and state.kept[site].moments.count >= PER_DIMENSION
        ]
        if not measured_sites:
            reason = (
                f"fewer than {PER_DIMENSION} rows of a residual stream were shown to the lens: nothing can be estimated"
            )
            raise NotApplicable(reason)
        layers = [Layer.of(state.kept[site], site, state.params.components) for site in measured_sites]
        tables = _tables(layers, state.params)
        unseen = [site.label for site in state.sites if site not in measured_sites]
        return Measurement(
            tables=tables,
            figures=figures(tables, measured_sites),
            arrays={
                f"{name} {stream.site.label}": values.numpy()
                for stream in layers
                for name, values in (("mean", stream.moments.mean), ("variances", stream.spectrum[0]))
            },
            method=method(layers, state.params.skip, state.step),
            warnings=(
                *warnings(tables, unseen, state.params.checked_distances(), state.params.components),
                *sample_warning(
                    max(len(layer.position) for layer in layers),
                    max(layer.moments.count for layer in layers),
                    "rows of each layer for divergence, positions, normality and information",
                ),
            ),
        )

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formulas as written, on all rows of all windows, in float64; the fold samples where rows are many."""
        batches_as_is = [batch for batch in batches if batch.variant == AS_IS]
        return defined(batches_as_is, params.components, params.checked_distances(), params.skip, params.tokens)

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)


def _with(state: State, site: Site, x: Float[Tensor, "batch n d"], batch: Batch) -> Kept:
    """The summary of a stream with the windows of one batch added; only sampled rows are copied."""
    skip, windows = state.params.skip, _windows(x, batch)
    before = state.kept.get(site)
    sample = Sample(state.plan) if before is None else before.sample
    left = Sample(Plan(WINDOWS * max(1, skip), WINDOWS, (), 0)) if before is None else before.left
    for tokens, real, window in zip(batch.tokens, batch.real, windows, strict=True):
        if len(window) > skip:
            sample = sample.add(tokens[real], {site: window})
            left = left.add(tokens[real], {site: window[:skip]})
    moments = Moments.of(_joined([window[skip:] for window in windows]))
    first = First.of(_joined([window[:skip] for window in windows]))
    if before is not None:
        moments, first = before.moments.merge(moments), before.first.merge(first)
    return Kept(moments, first, sample, left)


def _joined(parts: Sequence[Float[Tensor, "_ d"]]) -> Float[Tensor, "rows d"]:
    """All rows; one long window is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _windows(x: Float[Tensor, "batch n d"], batch: Batch) -> list[Float[Tensor, "_ d"]]:
    """The rows of each window without padding; a stream of other length (a picture's) has none."""
    if x.shape[:2] == batch.real.shape and not bool(batch.real.all()):
        return [rows[real] for rows, real in zip(x, batch.real, strict=True)]
    return list(x)


def _tables(layers: Sequence[Layer], params: Params) -> dict[str, pl.DataFrame]:
    followers = {
        a.site: b
        for a, b in pairwise(layers)
        if a.site.stack == b.site.stack
        and len(a.position) == len(b.position)
        and a.parts[0].shape[1] == b.parts[0].shape[1]
    }
    sites_by_stack: dict[str, list[Site]] = {}
    for layer in layers:
        sites_by_stack.setdefault(layer.site.stack, []).append(layer.site)
    curved = {sites[index] for sites in sites_by_stack.values() for index in (0, len(sites) // 2, len(sites) - 1)}

    def layer_rows(pair: tuple[Layer, Pairings]) -> dict[str, list[Row]]:
        layer, pairs = pair
        following = [next_row(layer, followers[layer.site])] if layer.site in followers else []
        curves = information_curve_rows(layer, pairs) if layer.site in curved else []
        return {
            "layers": [*spread_rows(layer), *following, late_row(layer)],
            "positions": [*position_rows(layer)],
            "normality": [*normality_rows(layer)],
            "components": [*kurtosis_rows(layer), *curves],
            "information": [*information_rows(layer, pairs)],
            "joint": [*joint_rows(layer, pairs)],
        }

    rows_by_layer = mapped(layer_rows, paired(layers, params.checked_distances(), params.tokens))
    return {
        name: pl.DataFrame([row for rows in rows_by_layer for row in rows[name]], schema=schema)
        for name, schema in SCHEMAS.items()
    }


LENS = Gaussian()
