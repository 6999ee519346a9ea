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

from headscope.attention.maps import CORNER
from headscope.core import About, Finding, ModelSpec, Site, WeightSource
from headscope.errors import UsageError
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.window_sample import SAMPLE_BYTES, sample_warning
from headscope.lenses.transport.constant_weights import Counts, Stacked
from headscope.lenses.transport.definition import defined
from headscope.lenses.transport.errors import estimates, joined, rows_of
from headscope.lenses.transport.figures import figures
from headscope.lenses.transport.sentences import method, not_seen, sentences, warnings
from headscope.lenses.transport.stages import Stages
from headscope.lenses.transport.sums import CAPTURES, KEYS, Kept, Shape, windows_of
from headscope.lenses.transport.tables import SCHEMAS, Row

ORDER = 8

ABOUT = About(
    title="Gaussians through a layer",
    question="Does attention carry means and covariances as a mixture with constant weights would?",
    definition=(
        "With constant weights P the output of a head is a linear map of the values, so that their Gaussian is carried "
        "on by the two formulas below, and with it entropy and mutual information. Here P is the mean of a head's "
        "attention pattern over windows, position by position. Windows are split in two halves, the even and the odd "
        "ones: from the weights, means and covariances of one half the other one is predicted, and set beside what was "
        "measured there. The error has three parts, which add up. Weights: in the half that is predicted, each "
        "window's own weights are replaced by the mean ones of the other half; what that changes is due to weights "
        "that depend on the data. Sampling: the two halves differ, and with constant weights the formula is exact up "
        "to this. Shape: norm and feed-forward part are not linear, and tokens are not Gaussian; draws from the "
        "predicted joint Gaussian of two tokens, their stream and their heads, are sent through the model's own "
        "modules. Stages: heads; W_O, which adds the heads; the sum with the skip; what the feed-forward part reads, "
        "which has been normalised; the output of the layer. Covariances are those of tokens around the mean of their "
        "position, averaged over positions, in as many principal components as there are ten samples for. Only the "
        f"first {CORNER} tokens of each window are looked at, with all keys that they see, and the first of them not. "
        "The null puts uniform attention over the visible keys in the place of the mean pattern."
    ),
    formulas=(
        r"\hat\mu_i = \sum_j P_{ij}\,\mu_j, \qquad \hat\Sigma_{ik} = \sum_{jl} P_{ij} P_{kl}\,\Sigma_{jl}, \qquad "
        r"P = E[A]",
        r"\hat{H}_i = \frac{1}{2} \ln\left((2 \pi e)^d\,|\hat\Sigma_{ii}|\right), \qquad "
        r"\hat{I}_{ik} = \frac{1}{2} \ln \frac{|\hat\Sigma_{ii}|\,|\hat\Sigma_{kk}|}{|\hat\Sigma|}",
        r"z_i = \sum_j A_{ij} v_j = \sum_j P_{ij} v_j + \sum_j (A_{ij} - P_{ij})\,v_j",
        r"\hat{S}_a - S_b = (S_b^P - S_b) + (S_a^P - S_b^P) + (\hat{S}_a - S_a^P) = D_w + D_s + D_g",
        r"\mathrm{share} = \langle D_w, D \rangle\,/\,\langle D, D \rangle, \qquad D = D_w + D_s + D_g",
    ),
    reading=(
        "Entropy predicted too low means that attention spreads its outputs more than constant weights would; 0.1 nats "
        "per component are a tenth in every standard deviation. An error of 0.1 in the covariance means that predicted "
        "and measured differ by a tenth of the measured one (Frobenius norm: the largest directions, and tokens with "
        "huge vectors, decide). Compare it with the floor, below which no prediction from the other half can be "
        "expected, and with the null: a formula that is no better than uniform attention has learnt nothing from the "
        "pattern. A share near 1 says that more text would not help: the weights depend on the data. It is a share "
        "along the error, so parts that work against each other can give values outside 0 to 1. The vector says the "
        "same of single tokens: 0.5 means that constant weights miss a quarter of the variance of the outputs. Behind "
        "the skip errors look small because the stream itself is carried on untouched."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, section 7.1. What is called a mixture there is a linear combination: the result is "
        "one Gaussian, and the means do not enter its covariance."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self; cross-attention is left out: which of its keys are padding is not shown",
        "layer": "counted from 0",
        "head": "counted from 0; empty where a row is about the whole layer",
        "stage": (
            "heads: all heads side by side (entropy, information: their mean); output: what they write together "
            "through W_O; skip: stream plus output; norm: what the feed-forward part reads; layer: what leaves it"
        ),
        "quantity": (
            "mean: of each position; covariance: of tokens around it; entropy: nats per principal component; "
            "information: mutual information of two tokens, nats; vector: single outputs, with the mean weights of all "
            "windows"
        ),
        "value": (
            "the error of the prediction. mean, covariance, vector: length of the difference over that of what is "
            "measured (vector: over its spread); entropy, information: predicted − measured"
        ),
        "low": "lower end of the 95 % interval (jackknife over windows, Student t); needs three windows in each half",
        "high": "upper end. The mean weights, the principal axes and what Gaussian draws add are held fixed",
        "null": "the same error with uniform attention over the visible keys; none where it was not carried on",
        "floor": (
            "mean, covariance: the error of a prediction that takes what was measured in the other half: windows differ"
        ),
        "measured": "mean: root mean square length; covariance, vector: variance, all components together; else nats",
        "predicted": "the same, predicted from the other half",
        "before": "entropy, information: of the values before attention; in a layer: of the stream that enters it",
        "weights": "the part of the error that is due to weights that depend on the data, alone",
        "sampling": "the part due to other windows, alone: what constant weights would leave",
        "shape": "the part due to tokens that are not Gaussian, alone; none where everything is linear",
        "share": (
            "of the error (mean, covariance: of its square), what is due to weights that depend on the data; entropy, "
            "information: only where the interval of the error leaves 0 out"
        ),
        "share_low": "lower end of its 95 % interval",
        "share_high": "upper end",
        "held": "share of the measured variance in the principal components",
        "dimensions": "principal components of each token; empty where all dimensions are used",
        "samples": "tokens",
        "windows": "windows they came from",
    },
)

# Windows kept at most, and at least, and what they may take; beyond it not every layer.
WINDOWS, FEWEST_WINDOWS = 64, 16


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    components: int = field(default=8, metadata={"help": "principal components for mutual information, per token"})
    distance: int = field(default=1, metadata={"help": "distance in tokens at which mutual information is taken"})
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})


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


def needs(params: Params, spec: ModelSpec) -> Needs:
    """The stream that enters each layer, values, the weights of the first queries, and what those queries get."""
    if params.components < 1 or params.skip < 0 or not 1 <= params.distance < CORNER:
        raise UsageError(
            f"components={params.components}, distance={params.distance} and skip={params.skip}: at least one "
            f"component is needed, a distance from 1 to {CORNER - 1}, and no fewer than 0 tokens can be left out"
        )
    return Needs(weights=True, captures=frozenset(CAPTURES), pieces=True)


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet; so many windows, and where those are too few so many layers, as fit."""
    own = [site for site in sites if site.kind == "self"]
    sizes = [
        4 * (CORNER * (spec.d_model + site.n_heads * site.d_value) + _keys(site) * site.n_kv_heads * site.d_value)
        for site in own
    ]
    step = max(1, -(-sum(sizes) * FEWEST_WINDOWS // SAMPLE_BYTES))
    room = min(WINDOWS, max(FEWEST_WINDOWS, SAMPLE_BYTES // max(1, sum(sizes[::step]))))
    return State(params, tuple(own[::step]), tuple(site for site in sites if site.kind != "self"), step, room)


def _keys(site: Site) -> int:
    """The most keys that the first queries of a site can see."""
    return CORNER if site.causal else KEYS


def update(state: State, batch: Batch) -> State:
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


def merge(a: State, b: State) -> State:
    """What both have seen, a's windows first."""
    kept: dict[Site, Mapping[Shape, Kept]] = dict(a.kept)
    for site, shapes in b.kept.items():
        own = dict(kept.get(site, {}))
        for shape, one in shapes.items():
            own[shape] = own[shape].merge(one) if shape in own else one
        kept[site] = own
    return replace(a, kept=kept, long=a.long | b.long)


def finish(state: State, weights: WeightSource | None) -> Finding:
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
            f"no two windows of equal length with two tokens behind the first {state.params.skip} were shown to the "
            f"lens{_too_long(state.long)}"
        )
        return Finding("transport", ABOUT, status="not applicable", reason=reason, params=params)
    tables = {name: pl.DataFrame(rows[name], schema=schema) for name, schema in SCHEMAS.items()}
    missing = [site.label for site in state.sites if site not in seen and site.label not in state.long]
    unseen = tuple(not_seen(state.crossed, missing, sorted(state.long)))
    finding = Finding(
        "transport",
        ABOUT,
        tables=tables,
        figures=figures(tables, list(seen)),
        method=method(next(iter(seen.values())), state.step, state.params.distance),
        warnings=(*warnings(tables, seen, lost, unseen, params), *_held(state)),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


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


def headline(finding: Finding) -> tuple[str, ...]:
    """How well the formula predicts, in numbers."""
    return sentences(finding.tables) if finding.status == "ok" else ()


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, block by block, on the windows of one shape."""
    shown = [batch for batch in batches if batch.variant == AS_IS]
    return defined(shown, weights, params.components, params.distance, params.skip)


LENS = Lens(
    "transport", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"qk", "rotated vo", "heads"}),
)  # fmt: skip
