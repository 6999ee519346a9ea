r"""Gaussian: how far does a Gaussian describe the residual stream, and what do tokens know of each other in it?

A fold over text. Per layer the mean and covariance of the residual stream, merged from batches; from them its entropy
and its effective dimension. A bounded sample of rows answers what needs single rows: tests of normality, divergence
between layers and between positions, mutual information against distance, and the joint Gaussian of neighbours.
What is computed from these stands in `residual/`, one idea per file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import About, Finding, ModelSpec, Site, WeightSource
from headscope.errors import UsageError
from headscope.lenses.gaussian.component_curve import information_curve_rows, kurtosis_rows
from headscope.lenses.gaussian.definition import defined
from headscope.lenses.gaussian.divergence import late_row, next_row, position_rows
from headscope.lenses.gaussian.figures import figures
from headscope.lenses.gaussian.information import information_rows, joint_rows, paired
from headscope.lenses.gaussian.normality import normality_rows
from headscope.lenses.gaussian.sentences import method, sentences, warnings
from headscope.lenses.gaussian.spread import spread_rows
from headscope.lenses.gaussian.stream import PER_DIMENSION, First, Kept, Layer
from headscope.lenses.gaussian.tables import SCHEMAS, Row
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.shared.row_sample import Plan, Sample
from headscope.lenses.shared.window_sample import sample_warning
from headscope.maths.gaussians.moments import Moments

ORDER = 5

ABOUT = About(
    title="The Gaussian model of the residual stream",
    question="How far does a Gaussian describe the residual stream, and what do tokens tell of each other in it?",
    definition=(
        "The vectors that enter a layer, one per token, are taken as samples of one Gaussian per layer. Its covariance "
        "is shrunk (Ledoit and Wolf) and its entropy is computed in as many principal components as there are ten "
        "samples for. The stream that leaves the last layer counts as one layer more. Two Gaussians are compared by "
        "their divergence: a layer with the next one, the first half of the windows with the second, positions from "
        "one power of two to the next with those behind them. Whether the samples are Gaussian at all is tested by "
        "skewness and kurtosis, along each principal component and in all of them together; how far from it they are "
        "is the kurtosis over that of Gaussian samples, for several numbers of components, since a few of them say "
        "little about the others. The mutual information of two tokens at distance |i − j| is that of a joint Gaussian "
        "of their principal components, less that of tokens of different windows: it counts linear dependence only, "
        "and grows with the number of components. Neighbouring tokens have a joint Gaussian too: its entropy, what "
        "they share in all, and what the last one shares with those before it. The first token of each window is left "
        "out: many models mark it by a huge vector that would be all of the covariance."
    ),
    formulas=(
        r"H = \frac{1}{2} \sum_{i \leq p} \ln(2 \pi e\,\lambda_i), \qquad "
        r"\mathrm{effective\ dimension} = (\sum_i \lambda_i)^2\,/\,\sum_i \lambda_i^2",
        r"D(p\,\|\,q) = \frac{1}{2} \left( \mathrm{Tr}(\Sigma_q^{-1} \Sigma_p) - k - \ln |\Sigma_q^{-1} \Sigma_p| + "
        r"\Delta^\top \Sigma_q^{-1} \Delta \right)",
        r"I(X_i; X_j) = \frac{1}{2} \ln \frac{|\Sigma_{ii}|\,|\Sigma_{jj}|}{|\Sigma|}, \qquad "
        r"\Sigma = \mathrm{Cov}(X_i, X_j)",
        r"C = \sum_i H(X_i) - H(X_1, \ldots, X_T)",
        r"I(X_T; X_1 \ldots X_{T-1}) = H(X_T) + H(X_1, \ldots, X_{T-1}) - H(X_1, \ldots, X_T)",
        r"b_1 = \frac{1}{n^2} \sum_{ij} (c_i^\top S^{-1} c_j)^3, \qquad "
        r"b_2 = \frac{1}{n} \sum_i (c_i^\top S^{-1} c_i)^2, \qquad "
        r"\mathrm{relative\ kurtosis} = \frac{b_2}{k(k+2)} \cdot \frac{n+1}{n-1} - 1",
    ),
    reading=(
        "Entropy follows the size of the vectors: compare it with the isotropic Gaussian of the same variance, never "
        "with another number of dimensions. A small effective dimension means that a few directions hold the variance. "
        "Normality that is rejected does not make the other numbers wrong as statements about means and covariances, "
        "but the entropy is then only an upper bound, and the mutual information leaves out whatever is not linear. "
        "Look at relative_kurtosis in many components before calling a stream Gaussian; with few samples per component "
        "it is too small. Mutual information is what tokens of one text share beyond their positions. Values "
        "with different numbers of dimensions must not be compared."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 4.1 and 4.2 (joint Gaussians of token sequences). Ledoit and Wolf (2004), "
        "Journal of Multivariate Analysis 88, 365. Mardia (1974), Sankhyā B 36, 115. D'Agostino (1970), Biometrika 57, "
        "679. Anscombe and Glynn (1983), Biometrika 70, 227. Sun et al. (2024), Massive activations in large language "
        "models (the first token)."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self: the stream is that which enters the layer, one per layer",
        "layer": "counted from 0; layer 0 is given the embeddings; one behind the last layer: what that one gives",
        "head": "empty: the stream belongs to the layer",
        "component": "principal component, counted from 0; empty where a number is about all of them together",
        "distance": "|i − j| in tokens",
        "position": "first of a group of positions, counted from 0",
        "until": "last of the group: 1, 2 to 3, 4 to 7, and so on, as far as the windows go",
        "quantity": (
            "entropy_nats; effective_dimension; mean_share: |μ|² / (|μ|² + Tr Σ), the part of the mean squared length "
            "that all tokens have in common; shrinkage: the weight of the multiple of the identity, 0 to 1; "
            "first_share: the part of all variance that would be due to the first tokens that are left out; "
            "kl_next_nats: D(this layer ‖ next layer), in the table of positions D(this group ‖ next group); "
            "kl_late_nats: D(first half ‖ second half of the windows); skewness, excess_kurtosis: of one component; "
            "mardia_skewness, mardia_kurtosis: of all of them; joint_entropy_nats, total_correlation_nats: H and C of "
            "neighbouring tokens, H as the entropies of single tokens less C; last_token_nats: what the last of them "
            "shares with those before it; relative_kurtosis: Mardia's kurtosis over that of Gaussian samples, less 1; "
            "information_nats: mutual information in so many components, in three streams of each stack"
        ),
        "value": (
            "the estimate; empty where there were too few samples. Mutual information, C: raw less null (of a single "
            "window: less analytic). Entropy of positions: less its bias, which the jackknife over windows estimates"
        ),
        "raw": "as estimated, bias included",
        "held": "share of the variance in these components",
        "low": "lower end of the 95 % interval; empty with fewer than two windows",
        "high": (
            "upper end. Jackknife over windows (Student t), since rows of one window depend on each other. Not the "
            "bootstrap: windows drawn twice would look like information. Where the bias is only bounded, the interval "
            "allows for both bounds: 0 and the null for divergences, analytic and the null for information"
        ),
        "null": (
            "what chance gives. Entropy, effective dimension: isotropic Gaussian samples with the same variance and "
            "number, and in the table of positions all positions together; mean_share: rows around 0, as dependent; "
            "shrinkage: Gaussian rows with the same covariance; first_share: the share of rows; divergences: the two "
            "sides exchanged in half of the windows; normality: Gaussian samples of the same number; "
            "relative_kurtosis: 0; mutual information and joint Gaussian: each token from another window, at the same "
            "position, bias included; what positions alone tell is in it"
        ),
        "z": "normality: distance from the null in its standard deviations",
        "p": "p-value of the test, two-sided but for mardia_skewness",
        "analytic": "k² / 2n: the bias of independent pairs; in a joint Gaussian that for each pair of its tokens",
        "tokens": "neighbouring tokens in the joint Gaussian, T in the formulas",
        "dimensions": (
            "principal components used of each token, k or p in the formulas; ten samples at least for each dimension "
            "of the Gaussian"
        ),
        "samples": "rows, or pairs of rows",
        "windows": "windows of text they came from",
    },
)

# Windows that the sample keeps at most, rows per layer, and rows of one window.
WINDOWS, ROWS, PER_WINDOW = 64, 16384, 1024
# What the sample of all layers and their covariances may take; beyond it fewer rows, and not every layer.
SAMPLE_BYTES, COVARIANCE_BYTES = 5 * 2**28, 5 * 2**29


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    components: int = field(default=8, metadata={"help": "principal components for divergence, information and tests"})
    distances: str = field(default="1,2,4,8,16,32,64,128", metadata={"help": "distances |i − j| in tokens, by commas"})
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})
    tokens: int = field(default=4, metadata={"help": "neighbouring tokens in the joint Gaussian"})

    def checked_distances(self) -> tuple[int, ...]:
        """The distances as numbers, ascending."""
        parts = [part.strip() for part in self.distances.split(",") if part.strip()]
        if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise UsageError(
                f"distances={self.distances!r} cannot be read: expected whole numbers ≥ 1 separated by commas",
                hint="write for example 1,8,64",
            )
        return tuple(sorted({int(part) for part in parts}))


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


def needs(params: Params, spec: ModelSpec) -> Needs:
    """The residual stream that enters each layer, and the one that leaves the last."""
    params.checked_distances()
    if params.components < 1 or params.skip < 0:
        raise UsageError(
            f"components={params.components} and skip={params.skip}: at least one component is needed, and no fewer "
            "than 0 tokens can be left out"
        )
    if params.tokens < 2:
        raise UsageError(f"tokens={params.tokens}: a joint Gaussian of neighbours needs at least two of them")
    return Needs(captures=frozenset({"resid", "final"}), pieces=True)


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet. Cross-attention is left out: it reads the stream of the same layer."""
    entering = [site for site in sites if site.kind == "self"]
    behind = {site: replace(site, layer=site.layer + 1) for site in {one.stack: one for one in entering}.values()}
    streams = [stream for site in entering for stream in (site, behind.get(site)) if stream is not None]
    width = max(1, spec.d_model)
    step = max(1, -(-len(streams) * width * width * 8 // COVARIANCE_BYTES))
    chosen = tuple(streams[::step])
    rows = min(ROWS, SAMPLE_BYTES // (4 * width * max(1, len(chosen))))
    distances = tuple(sorted({*params.checked_distances(), *range(1, params.tokens)}))
    return State(params, chosen, behind, step, Plan(rows, WINDOWS, distances, params.skip, PER_WINDOW))


def update(state: State, batch: Batch) -> State:
    """Add the windows of one batch, as far as this piece of it goes."""
    if batch.variant != AS_IS:
        return state
    found = dict(batch.captures.get("resid", {}))
    found |= {state.behind[site]: x for site, x in batch.captures.get("final", {}).items() if site in state.behind}
    shown = {site: found[site] for site in state.sites if site in found}
    if not shown:
        return state
    return replace(state, kept={**state.kept, **{site: _with(state, site, x, batch) for site, x in shown.items()}})


def _with(state: State, site: Site, x: Float[Tensor, "batch n d"], batch: Batch) -> Kept:
    """What is kept of a stream with the windows of one batch added; single rows are copied only where drawn."""
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


def merge(a: State, b: State) -> State:
    """What both have seen, a's windows first."""
    both = {site: a.kept[site].merge(one) if site in a.kept else one for site, one in b.kept.items()}
    return replace(a, kept={**a.kept, **both})


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Everything from the moments and the sample."""
    params = asdict(state.params)
    seen = [site for site in state.sites if site in state.kept and state.kept[site].moments.count >= PER_DIMENSION]
    if not seen:
        reason = (
            f"fewer than {PER_DIMENSION} rows of a residual stream were shown to the lens: nothing can be estimated"
        )
        return Finding("gaussian", ABOUT, status="not applicable", reason=reason, params=params)
    layers = [Layer.of(state.kept[site], site, state.params.components) for site in seen]
    tables = _tables(layers, state.params)
    unseen = [site.label for site in state.sites if site not in seen]
    finding = Finding(
        "gaussian",
        ABOUT,
        tables=tables,
        figures=figures(tables, seen),
        arrays={
            f"{name} {one.site.label}": values.numpy()
            for one in layers
            for name, values in (("mean", one.moments.mean), ("variances", one.spectrum[0]))
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
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def _tables(layers: Sequence[Layer], params: Params) -> dict[str, pl.DataFrame]:
    followers = {
        a.site: b
        for a, b in pairwise(layers)
        if a.site.stack == b.site.stack
        and len(a.position) == len(b.position)
        and a.parts[0].shape[1] == b.parts[0].shape[1]
    }
    stacks = [
        [layer.site for layer in layers if layer.site.stack == name] for name in {one.site.stack for one in layers}
    ]
    curved = {sites[index] for sites in stacks for index in (0, len(sites) // 2, len(sites) - 1)}
    rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    for layer, pairs in paired(layers, params.checked_distances(), params.tokens):
        rows["layers"] += spread_rows(layer)
        if layer.site in followers:
            rows["layers"].append(next_row(layer, followers[layer.site]))
        rows["layers"].append(late_row(layer))
        rows["positions"] += position_rows(layer)
        rows["normality"] += normality_rows(layer)
        rows["components"] += kurtosis_rows(layer)
        if layer.site in curved:
            rows["components"] += information_curve_rows(layer, pairs)
        rows["information"] += information_rows(layer, pairs)
        rows["joint"] += joint_rows(layer, pairs)
    return {name: pl.DataFrame(found, schema=SCHEMAS[name]) for name, found in rows.items()}


def headline(finding: Finding) -> tuple[str, ...]:
    """What stands out, in numbers."""
    return sentences(finding.tables) if finding.status == "ok" else ()


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, on all rows of all windows, in float64; the fold samples where rows are many."""
    kept = [batch for batch in batches if batch.variant == AS_IS]
    return defined(kept, params.components, params.checked_distances(), params.skip, params.tokens)


LENS = Lens(
    "gaussian", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"qk", "vo", "heads"}),
)  # fmt: skip
