r"""Preconditioning: how much does the last token tell about the next, in the text and in the vectors?

Counts of neighbouring tokens in the text: how many continuations carry 90 %, and the entropy that is left, beside draws
of as many tokens from the whole text. The Gaussian of a token's vector given the token before it: entropy, effective
dimension and rank, beside groups of the same size drawn at random.
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
from headscope.lenses.preconditioning.conditional_gaussians import Stream, measured_streams
from headscope.lenses.preconditioning.definition import defined
from headscope.lenses.preconditioning.figures import figures
from headscope.lenses.preconditioning.followers import Followers, TextWindow, spelling
from headscope.lenses.preconditioning.pairs import Pairs
from headscope.lenses.preconditioning.sentences import method, sentences, warnings
from headscope.lenses.preconditioning.settings import Params
from headscope.lenses.shared.head_threads import mapped
from headscope.lenses.shared.row_sample import Plan, Sample
from headscope.lenses.shared.window_sample import SAMPLE_BYTES, drawn, priority_of, sample_warning

_Types = dict[str, type[pl.DataType]]
_PLACE: _Types = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64}
_ESTIMATE: _Types = {"value": pl.Float64, "low": pl.Float64, "high": pl.Float64, "null": pl.Float64}
_SIZES: _Types = {"samples": pl.Int64, "groups": pl.Int64, "windows": pl.Int64}
SCHEMAS = {
    "text": pl.Schema(_PLACE | {"quantity": pl.String} | _ESTIMATE | _SIZES),
    "layers": pl.Schema(
        _PLACE | {"quantity": pl.String} | _ESTIMATE | {"unconditional": pl.Float64, "dimensions": pl.Int64} | _SIZES
    ),
    "tokens": pl.Schema(
        _PLACE
        | {"previous": pl.String, "value": pl.Float64, "null": pl.Float64}
        | {"entropy_nats": pl.Float64, "entropy_null": pl.Float64, "likeliest": pl.String}
        | {"continuations": pl.Int64, "samples": pl.Int64}
    ),
    "gaussians": pl.Schema(
        _PLACE
        | {"previous": pl.String, "quantity": pl.String, "value": pl.Float64, "null": pl.Float64}
        | {"continuations": pl.Int64, "dimensions": pl.Int64, "samples": pl.Int64}
    ),
}
_NOWHERE: dict[str, object] = {"stack": None, "kind": None, "layer": None, "head": None}
# Streams of a stack that are looked at, the first and the last among them.
DEPTHS = 5
# Windows that the sample keeps at most, rows per stream, rows of one window.
WINDOWS, ROWS, PER_WINDOW = 64, 16384, 1024


@dataclass(frozen=True)
class State:
    """Counts of pairs, and a sample of rows of each stream; neither grows with the text beyond a bound.

    `behind` names the stream that leaves the last layer of a stack by the site of that layer; `words` holds for each
    sampled row its token and the one before it, `texts` the tokens of the windows that are left out in turn.
    """

    params: Params
    streams: tuple[Site, ...]
    behind: Mapping[Site, Site]
    plan: Plan
    pairs: Pairs
    words: Sample
    texts: tuple[TextWindow, ...] = ()
    samples: Mapping[Site, Sample] = field(default_factory=dict)


class Preconditioning(TextLens[Params, State]):
    """How much does the last token tell about the next, in the text and in the vectors?"""

    name = "preconditioning"
    params = Params
    invariant = frozenset({"qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """The stream that enters each layer and leaves the last; of the weights, what tokens spell."""
        params.check()
        return Needs(weights=True, captures=frozenset({"resid", "final"}), pieces=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """The empty state. Cross-attention is left out: it reads the stream of the same layer."""
        entering = [site for site in sites if site.kind == "self"]
        behind = {
            site: replace(site, layer=site.layer + 1)
            for site in {layer_site.stack: layer_site for layer_site in entering}.values()
        }
        streams: list[Site] = []
        for stack in dict.fromkeys(site.stack for site in entering):
            stack_streams = [site for site in entering if site.stack == stack]
            stack_streams.append(behind[stack_streams[-1]])
            steps = torch.linspace(0, len(stack_streams) - 1, min(DEPTHS, len(stack_streams)), dtype=torch.float64)
            streams += [stack_streams[at] for at in sorted({round(at) for at in steps.tolist()})]
        rows = min(ROWS, SAMPLE_BYTES // (4 * max(1, model.d_model) * max(1, len(streams))))
        plan = Plan(rows, WINDOWS, (), params.skip + 1, PER_WINDOW)
        return State(params, tuple(streams), behind, plan, Pairs.empty(), Sample(plan))

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch; pairs are counted with the first stream."""
        captured = dict(batch.captures.get("resid", {}))
        captured |= {
            state.behind[site]: x for site, x in batch.captures.get("final", {}).items() if site in state.behind
        }
        vectors_by_stream = {
            site: captured[site] for site in state.streams if site in captured and _in_step(captured[site], batch)
        }
        if state.streams and state.streams[0] in vectors_by_stream:
            state = _counted(state, batch)
        samples = {site: _sampled(state, site, x, batch) for site, x in vectors_by_stream.items()}
        return replace(state, samples={**state.samples, **samples})

    def merge(self, a: State, b: State) -> State:
        """The state after both texts, a's windows first."""
        merged = {
            site: a.samples[site].merge(sample) if site in a.samples else sample for site, sample in b.samples.items()
        }
        return replace(
            a,
            pairs=a.pairs.merge(b.pairs),
            words=a.words.merge(b.words),
            texts=drawn((*a.texts, *b.texts), WINDOWS),
            samples={**a.samples, **merged},
        )

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Everything from the counts and the sample."""
        followers = Followers.of(state.pairs, state.params.least, state.texts, state.params.skip, state.words.seen)
        if followers is None:
            reason = (
                f"no token of the text is followed by another one {state.params.least} times "
                f"({state.pairs.following.total} pairs of neighbours were seen): take a longer text"
            )
            raise NotApplicable(reason)
        streams = measured_streams(_streams(state))
        names = spelling(None if weights is None else weights.vocabulary)
        rows_by_stream = mapped(lambda stream: (list(stream.layer_rows()), list(stream.token_rows(names))), streams)
        rows = {
            "text": [_NOWHERE | row for row in followers.text_rows()],
            "layers": [row for layer_rows, _ in rows_by_stream for row in layer_rows],
            "tokens": [_NOWHERE | row for row in followers.token_rows(names)],
            "gaussians": [row for _, token_rows in rows_by_stream for row in token_rows],
        }
        tables = {name: pl.DataFrame(rows[name], schema=SCHEMAS[name]) for name in SCHEMAS if rows[name]}
        return Measurement(
            tables=tables,
            figures=figures(followers, tables),
            method=method(state.pairs, followers, streams, state.params.skip),
            warnings=(
                *warnings(state.pairs, followers, streams, state.params.components, tables),
                *sample_warning(*state.words.counts(), "rows of each stream for the Gaussians"),
            ),
        )

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formulas as written, on all windows, in float64; the fold samples where rows are many."""
        unchanged = [batch for batch in batches if batch.variant == AS_IS]
        vocabulary = None if weights is None else weights.vocabulary
        rows = defined(unchanged, vocabulary, params.least, params.components, params.skip)
        return {name: pl.DataFrame(rows[name], schema=SCHEMAS[name]) for name in SCHEMAS if rows[name]}

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)


def _in_step(x: Float[Tensor, "batch n d"], batch: Batch) -> bool:
    """Whether a stream has a row for each token; the stream of a picture has not."""
    return tuple(x.shape[:2]) == tuple(batch.tokens.shape)


def _counted(state: State, batch: Batch) -> State:
    skip, pairs, words, texts = state.params.skip, state.pairs, state.words, state.texts
    for tokens, real in zip(batch.tokens, batch.real, strict=True):
        window = tokens[real]
        if len(window) > skip + 1:
            pairs = pairs.add(window[skip:-1], window[skip + 1 :])
            before = torch.cat((window.new_full((1,), -1), window[:-1]))
            with_previous = torch.stack((window, before), 1).to(torch.float64)
            words = words.add(window, {state.streams[0]: with_previous})
            texts = drawn((*texts, TextWindow(priority_of(window), window.clone())), WINDOWS)
    return replace(state, pairs=pairs, words=words, texts=texts)


def _sampled(state: State, site: Site, x: Float[Tensor, "batch n d"], batch: Batch) -> Sample:
    sample = state.samples.get(site, Sample(state.plan))
    for tokens, real, rows in zip(batch.tokens, batch.real, x, strict=True):
        if int(real.sum()) > state.params.skip + 1:
            sample = sample.add(tokens[real], {site: rows[real]})
    return sample


def _streams(state: State) -> list[Stream]:
    words_by_window = [window.streams[state.streams[0]].rows for window in state.words.windows]
    if not words_by_window:
        return []
    words = torch.cat(words_by_window).to(torch.int64)
    streams = []
    for site in state.streams:
        if site in state.samples:
            rows = torch.cat([window.streams[site].rows for window in state.samples[site].windows])
            if len(rows) == len(words):
                windows = len(state.words.windows)
                streams.append(Stream(site, rows, words[:, 1], words[:, 0], state.params.components, windows))
    return streams


LENS = Preconditioning()
