r"""Uniformity: do tokens grow alike with depth, and what keeps them apart?

A fold over the beginning of the text, on the model as it is and in five changed forms. Per window and layer a few
numbers are kept: how alike the tokens of the residual stream are, and what attention keeps of the differences between
its values. What is computed from these stands in `uniform/`, one idea per file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import About, Finding, ModelSpec, Site, WeightSource
from headscope.errors import UsageError
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.uniformity.definition import defined
from headscope.lenses.uniformity.figures import figures
from headscope.lenses.uniformity.rates import VARIANTS, ValueMap, layer_rows, rate_rows, steps, value_maps
from headscope.lenses.uniformity.records import Key, Rows, averaged_row, merged, read_row, stream_row
from headscope.lenses.uniformity.sentences import method, sentences, warnings
from headscope.lenses.uniformity.streams import stream_rows
from headscope.lenses.uniformity.tables import SCHEMAS, Row

ORDER = 9

ABOUT = About(
    title="Tokens growing alike",
    question="Do tokens grow alike with depth, what keeps them apart, and is it as fast as averaging predicts?",
    definition=(
        "Attention replaces tokens by averages of tokens, so their differences fade. X holds the tokens of a window"
        " in the stream that enters a layer (or leaves the last), x̄ their mean. Measured are the mean cosine of "
        "two of them, the share of their length that distinguishes them, and how many directions they use; the "
        "first token of each window is left out, since many models mark it by a huge vector. The same text is run "
        "through changed forms of the model. Without skips: no skip connection carries anything, a layer gives what"
        " it would have added. Without mlp, without attention: what these parts would add is not added. Attention "
        "alone: without skips, and feed-forward parts are passed by. Initialised: fresh weights. From layer to "
        "layer the differences in units of the common part, τ, change by a factor. Averaging predicts it from three"
        " numbers: the shares a of the differences and c of the common part that attention keeps of its values "
        "(measured, all heads together), and the gain g of the value map, by which a vector of the stream is "
        "enlarged if it has no preferred direction: the sum of the heads' W_OV times the length of what attention "
        "reads over that of the stream. Skip connections of strength s are 1, or 0 in the forms without them. Feed-"
        "forward parts are not in the prediction."
    ),
    formulas=(
        r"\frac{|X - 1 \bar{x}^\top|_F}{|X|_F}, \qquad \tau = \frac{|X - 1 \bar{x}^\top|_F}{\sqrt{n}\,|\bar{x}|}",
        r"\frac{\tau'}{\tau} = \sqrt{\frac{s^2 + g^2 a^2}{s^2 + g^2 c^2}}, \qquad "
        r"a = \frac{|Z - 1 \bar{z}^\top|_F}{|V - 1 \bar{v}^\top|_F}, \qquad c = \frac{|\bar{z}|}{|\bar{v}|}",
        r"g = \frac{|\sum_h W_{OV}^h|_F}{\sqrt{d}} \cdot \frac{|\mathrm{norm}(X)|_F}{|X|_F}, \qquad "
        r"\mathrm{stretch} = \frac{\sqrt{d}\,|\sum_h W_{OV}^h|}{|\sum_h W_{OV}^h|_F}",
        r"\mathrm{flat}:\ \frac{1}{\sqrt{1 + g^2}} = \frac{1 - \beta}{\sqrt{(1 - \beta)^2 + \beta^2}}, \qquad "
        r"1 - \beta = \frac{1}{1 + g}",
    ),
    reading=(
        "A cosine of 1, a share of 0 or a rank of 1 mean that all tokens of a window are the same. A factor below 1 "
        "brings tokens together, above 1 apart. The theory holds for the value maps if attention alone and the model "
        "without feed-forward parts change at the predicted factor; it holds for skip connections if tokens become one "
        "much faster without them. What the model as it is does beyond the prediction is the work of its feed-forward "
        "parts, and of value maps that treat common part and differences apart. A changed form is not a model that was "
        "trained like that: it shows what the trained parts do by themselves."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, section 7.2.3 (the uniform embedding mixture problem) and 3.3. Dong, Cordonnier and "
        "Loukas (2021), Attention is not all you need: pure attention loses rank doubly exponentially with depth. "
        "Noci et al. (2022), Signal propagation in transformers (rank collapse and skip connections)."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self: the stream is that which enters the layer, one per layer",
        "layer": (
            "counted from 0; layer 0 is given the embeddings; one behind the last layer: what that one gives; empty: "
            "the mean over the stack"
        ),
        "head": "empty: the stream belongs to the layer",
        "variant": "the form of the model: as is, initialised, without skips, without mlp, without attention, "
        "attention alone",
        "quantity": (
            "mean_cosine of two different tokens; residual_share: |X − 1x̄ᵀ|/|X|; composite_share: the same in the norm "
            "of Dong et al., √(largest row sum · largest column sum) of absolute values; participation_ratio, "
            "effective_rank: of the singular values of the tokens scaled to length 1; differences: τ; length: of a "
            "token, root mean square; factor: τ of the next stream over τ of this one, geometric mean over windows; "
            "factor_over_depth: geometric mean over layers; kept_differences, kept_common: a and c; gain: g; "
            "operator_norm: |Σ W_OV|; stretch: that over the typical gain; skip_share: 1/(1 + g); flat_factor: "
            "predicted where attention is flat; fastest_factor: the same where the common part lies along the "
            "strongest direction of the value map"
        ),
        "value": "mean over windows; empty or left out where differences can be rounding",
        "rounding": (
            "sizes of differences below this can be rounding: the machine's relative error times the root of the "
            "stream's width"
        ),
        "low": "lower end of the 95 % interval over windows; empty with one window",
        "high": "upper end",
        "change": (
            "mean over windows of the value less that of the model as it is in the same window and place; of the model "
            "as it is, less that of the first layer"
        ),
        "change_low": "lower end of its 95 % interval over windows; narrower than two intervals beside each other",
        "change_high": "upper end",
        "null": (
            "independent isotropic tokens of the same number and dimension; for operator_norm and stretch random "
            "matrices of the same shapes"
        ),
        "z": "distance of the mean cosine from 0 in standard deviations of independent tokens: no size of an effect",
        "predicted": "the factor that averaging makes, by the second formula; without attention 1",
        "ratio": "measured over predicted factor, geometric mean over windows; 1 where averaging explains the layer",
        "ratio_low": "lower end of its 95 % interval over windows",
        "ratio_high": "upper end",
        "dimensions": "width of the stream",
        "samples": "tokens of a window that were used, at most",
        "windows": "windows of text",
    },
)


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    tokens: int = field(default=4096, metadata={"help": "how much of the text is read, in tokens, whole windows"})
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})


@dataclass(frozen=True)
class State:
    """A few numbers per window of each stream and attention, by variant; no more windows than `tokens` lie in."""

    params: Params
    sites: tuple[Site, ...]
    behind: Mapping[Site, Site]
    cross: bool
    seen: Mapping[str, Mapping[Key, Rows]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    windows: int = 0  # of the text, shown of the first stream of the model as it is


def needs(params: Params, spec: ModelSpec) -> Needs:
    """The streams between the layers, what attention reads and averages, and all forms of the model."""
    if params.tokens < 1 or params.skip < 0:
        raise UsageError(
            f"tokens={params.tokens} and skip={params.skip}: at least one token is read, and no fewer than 0 left out"
        )
    return Needs(
        weights=True,
        captures=frozenset({"resid", "final"}),
        welcome=frozenset({"x", "v", "z"}),  # for the predictions
        variants=VARIANTS,
        pieces=True,
        tokens=params.tokens,
    )


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet. Cross-attention is left out: it reads the stream of the same layer."""
    own = tuple(site for site in sites if site.kind == "self")
    behind = {site: replace(site, layer=site.layer + 1) for site in {one.stack: one for one in own}.values()}
    return State(params, own, behind, any(site.kind == "cross" for site in sites))


def update(state: State, batch: Batch) -> State:
    """Add the windows of one batch, as far as this piece of it goes."""
    if batch.refused:
        return replace(state, refused={**state.refused, batch.variant: batch.refused})
    before = state.seen.get(batch.variant, {})
    found: dict[Key, Rows] = {}
    windows = state.windows
    for what, captured in batch.captures.items():
        for site, x in captured.items():
            if site not in state.sites or what not in ("resid", "final", "x", "v", "z"):
                continue
            key = (what, state.behind.get(site, site) if what == "final" else site)
            if batch.variant == AS_IS and key == ("resid", state.sites[0]):
                windows += len(batch.tokens)
            if key not in before or not before[key].full:
                found[key] = _rows(state, what, site, x, batch)
    return replace(state, seen={**state.seen, batch.variant: merged(before, found)}, windows=windows)


def _rows(state: State, what: str, site: Site, x: Float[Tensor, "..."], batch: Batch) -> Rows:
    """The numbers of each window of a batch."""
    values = []
    for index, real in enumerate(batch.real):
        window = x[index]
        if window.shape[-2] == len(real) and not bool(real.all()):
            window = window[..., real, :]
        window = window[..., state.params.skip :, :]
        if what in ("v", "z"):
            values.append(averaged_row(window, site.n_heads // site.n_kv_heads if what == "v" else 1))
        else:
            values.append(read_row(window) if what == "x" else stream_row(window))
    lengths = batch.real.sum(1)
    rows = Rows(state.params.tokens, lengths, torch.tensor(values, dtype=torch.float64), torch.finfo(x.dtype).eps)
    return rows.merge(replace(rows, lengths=lengths[:0], values=rows.values[:0]))


def merge(a: State, b: State) -> State:
    """What both have seen, a's windows first."""
    seen = {**a.seen, **{variant: merged(a.seen.get(variant, {}), found) for variant, found in b.seen.items()}}
    return replace(a, seen=seen, refused={**a.refused, **b.refused}, windows=a.windows + b.windows)


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Means over windows, factors between layers, and the place of each layer in the plane."""
    params = asdict(state.params)
    variants = [one for one in VARIANTS if one in state.seen and one not in state.refused]
    maps = value_maps(weights, state.sites)
    tables = _tables(state, variants, maps)
    if tables["streams"].filter(pl.col("variant") == AS_IS).is_empty():
        reason = (
            f"no window has two tokens to compare behind the first {state.params.skip} that are left out, or none "
            "whose streams were shown to the lens"
        )
        return Finding("uniformity", ABOUT, status="not applicable", reason=reason, params=params)
    unknown = [site.label for site in state.sites if site not in maps]
    read = max(len(rows.values) for rows in state.seen[AS_IS].values())
    finding = Finding(
        "uniformity",
        ABOUT,
        tables=tables,
        figures=figures(tables),
        method=method(state.params.tokens, read, state.windows, state.params.skip, variants),
        warnings=warnings(tables, state.refused, unknown, state.cross),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def _tables(state: State, variants: Sequence[str], maps: Mapping[Site, ValueMap]) -> dict[str, pl.DataFrame]:
    rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    for variant in variants:
        seen = state.seen[variant]
        for site in state.sites:
            for key in (("resid", site), ("final", state.behind.get(site, site))):
                if key in seen:
                    rows["streams"] += stream_rows(key[1], variant, seen[key], _baseline(state, variant, key))
        found = list(steps(seen, state.sites, state.behind, maps))
        rows["rates"] += rate_rows(variant, found)
        if variant == AS_IS:
            rows["layers"] += layer_rows(found, maps)
    return {name: pl.DataFrame(found, schema=SCHEMAS[name]) for name, found in rows.items()}


def _baseline(state: State, variant: str, key: Key) -> Rows | None:
    """What a stream is compared with: the model as it is in the same place, and that with its first layer."""
    usual = state.seen.get(AS_IS, {})
    if variant != AS_IS:
        return usual.get(key)
    first = next(site for site in state.sites if site.stack == key[1].stack)
    return None if key == ("resid", first) else usual.get(("resid", first))


def headline(finding: Finding) -> tuple[str, ...]:
    """Whether tokens grow alike, what keeps them apart, and measured against predicted."""
    return sentences(finding.tables) if finding.status == "ok" else ()


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, window by window."""
    return defined(batches, weights, params.skip, params.tokens)


LENS = Lens(
    "uniformity", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"qk", "rotated vo", "vo:streams", "vo:layers", "heads"}),
)  # fmt: skip
