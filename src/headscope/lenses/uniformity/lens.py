r"""Uniformity: do tokens grow alike with depth, and what keeps them apart?

A fold over the beginning of the text, on the model as it is and in five changed forms. Per window and layer a few
numbers are kept: how alike the tokens of the residual stream are, and what attention keeps of the differences between
its values. The other files of this folder compute from these, one idea each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl
import torch
from jaxtyping import Float
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
from headscope.lenses.shared.table import Row
from headscope.lenses.uniformity.definition import defined
from headscope.lenses.uniformity.figures import figures
from headscope.lenses.uniformity.rates import VARIANTS, ValueMap, layer_rows, rate_rows, steps, value_maps
from headscope.lenses.uniformity.records import Key, Rows, averaged_row, merged, read_row, stream_row
from headscope.lenses.uniformity.sentences import method, sentences, warnings
from headscope.lenses.uniformity.settings import Params
from headscope.lenses.uniformity.streams import stream_rows
from headscope.lenses.uniformity.tables import SCHEMAS


@dataclass(frozen=True)
class State:
    """A few numbers per window of each stream and attention, by variant; no more windows than `tokens` lie in."""

    params: Params
    sites: tuple[Site, ...]
    behind: Mapping[Site, Site]
    cross: bool
    rows_by_variant: Mapping[str, Mapping[Key, Rows]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    windows: int = 0  # of the text, shown of the first stream of the model as it is


class Uniformity(TextLens[Params, State]):
    """Do tokens grow alike with depth, and what keeps them apart?"""

    name = "uniformity"
    params = Params
    invariant = frozenset({"qk", "rotated vo", "vo:streams", "vo:layers", "heads"})

    def needs(self, params: Params) -> Needs:
        """The streams between the layers, what attention reads and averages, and all forms of the model."""
        params.check()
        return Needs(
            weights=True,
            captures=frozenset({"resid", "final"}),
            welcome=frozenset({"x", "v", "z"}),  # for the predictions
            variants=VARIANTS,
            pieces=True,
            tokens=params.tokens,
        )

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """Nothing seen yet. Cross-attention is left out: it reads the stream of the same layer."""
        self_sites = tuple(site for site in sites if site.kind == "self")
        behind = {
            site: replace(site, layer=site.layer + 1)
            for site in {self_site.stack: self_site for self_site in self_sites}.values()
        }
        return State(params, self_sites, behind, any(site.kind == "cross" for site in sites))

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch."""
        if batch.refused:
            return replace(state, refused={**state.refused, batch.variant: batch.refused})
        before = state.rows_by_variant.get(batch.variant, {})
        new_rows: dict[Key, Rows] = {}
        windows = state.windows
        for capture, captured in batch.captures.items():
            for site, x in captured.items():
                if site not in state.sites or capture not in ("resid", "final", "x", "v", "z"):
                    continue
                key = (capture, state.behind.get(site, site) if capture == "final" else site)
                if batch.variant == AS_IS and key == ("resid", state.sites[0]):
                    windows += len(batch.tokens)
                if key not in before or not before[key].full:
                    new_rows[key] = _rows(state, capture, site, x, batch)
        return replace(
            state, rows_by_variant={**state.rows_by_variant, batch.variant: merged(before, new_rows)}, windows=windows
        )

    def merge(self, a: State, b: State) -> State:
        """What both have seen, a's windows first."""
        rows_by_variant = {
            **a.rows_by_variant,
            **{
                variant: merged(a.rows_by_variant.get(variant, {}), new_rows)
                for variant, new_rows in b.rows_by_variant.items()
            },
        }
        return replace(
            a, rows_by_variant=rows_by_variant, refused={**a.refused, **b.refused}, windows=a.windows + b.windows
        )

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Means over windows, factors between layers, and the place of each layer in the plane."""
        variants = [
            variant for variant in VARIANTS if variant in state.rows_by_variant and variant not in state.refused
        ]
        maps = value_maps(weights, state.sites)
        tables = _tables(state, variants, maps)
        if tables["streams"].filter(pl.col("variant") == AS_IS).is_empty():
            reason = (
                f"no window has two tokens to compare behind the first {state.params.skip} that are left out, or none "
                "whose streams were shown to the lens"
            )
            raise NotApplicable(reason)
        unknown = [site.label for site in state.sites if site not in maps]
        read = max(len(rows.values) for rows in state.rows_by_variant[AS_IS].values())
        return Measurement(
            tables=tables,
            figures=figures(tables),
            method=method(state.params.tokens, read, state.windows, state.params.skip, variants),
            warnings=warnings(tables, state.refused, unknown, state.cross),
        )

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formulas as written, window by window."""
        return defined(batches, weights, params.skip, params.tokens)

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)


def _rows(state: State, capture: str, site: Site, x: Float[Tensor, "..."], batch: Batch) -> Rows:
    """The numbers of each window of a batch."""
    values = []
    for index, real in enumerate(batch.real):
        window = x[index]
        if window.shape[-2] == len(real) and not bool(real.all()):
            window = window[..., real, :]
        window = window[..., state.params.skip :, :]
        if capture in ("v", "z"):
            values.append(averaged_row(window, site.n_heads // site.n_kv_heads if capture == "v" else 1))
        else:
            values.append(read_row(window) if capture == "x" else stream_row(window))
    lengths = batch.real.sum(1)
    rows = Rows(state.params.tokens, lengths, torch.tensor(values, dtype=torch.float64), torch.finfo(x.dtype).eps)
    return rows.merge(replace(rows, lengths=lengths[:0], values=rows.values[:0]))


def _tables(state: State, variants: Sequence[str], maps: Mapping[Site, ValueMap]) -> dict[str, pl.DataFrame]:
    rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    for variant in variants:
        rows_by_key = state.rows_by_variant[variant]
        for site in state.sites:
            for key in (("resid", site), ("final", state.behind.get(site, site))):
                if key in rows_by_key:
                    rows["streams"] += stream_rows(key[1], variant, rows_by_key[key], _baseline(state, variant, key))
        layer_steps = list(steps(rows_by_key, state.sites, state.behind, maps))
        rows["rates"] += rate_rows(variant, layer_steps)
        if variant == AS_IS:
            rows["layers"] += layer_rows(layer_steps, maps)
    return {name: pl.DataFrame(table_rows, schema=SCHEMAS[name]) for name, table_rows in rows.items()}


def _baseline(state: State, variant: str, key: Key) -> Rows | None:
    """What a stream is compared with: the model as it is in the same place, and that with its first layer."""
    usual = state.rows_by_variant.get(AS_IS, {})
    if variant != AS_IS:
        return usual.get(key)
    first = next(site for site in state.sites if site.stack == key[1].stack)
    return None if key == ("resid", first) else usual.get(("resid", first))


LENS = Uniformity()
