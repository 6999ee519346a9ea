r"""Dependence: does attention follow statistical dependence?

A fold over text that keeps a bounded sample of pairs of tokens. Per head: do the keys that rank high in a row of the
attention pattern also rank high by their dependence on the query, beyond what their distance tells, and more than they
would with another text's query in its place? And what does dependence add to the scores of a head: the shift
Tr(C Σ_ji) of their mean, and their variance, beside the Gaussian formula.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import nan, sqrt

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor

from headscope.core import About, Finding, ModelSpec, Site, WeightSource
from headscope.errors import NumericsError, UsageError
from headscope.lenses.figures.dependence import figures
from headscope.lenses.figures.layout import label_of, place
from headscope.lenses.lens import AS_IS, Batch, Lens, Needs
from headscope.lenses.pairs import SHORT, PairSample, Part
from headscope.maths.crossed import crossed_means, crossed_moments
from headscope.maths.gaussian import Gaussian
from headscope.maths.information import mutual_information, pointwise_information
from headscope.maths.ranks import RankSums, beyond_positions, row_ranks

ORDER = 7

ABOUT = About(
    title="Attention and statistical dependence",
    question="Does attention follow statistical dependence?",
    definition=(
        "Within each row of a head's attention pattern the visible keys are ranked by the attention they get, and by "
        "how strongly they depend on the query; the number is the correlation of the two ranks, over all rows. "
        "Dependence is measured in the residual stream that enters the layer. Pointwise: how much more likely the two "
        "vectors are together than apart under a joint Gaussian of two tokens at that distance, in a few principal "
        "components; its mean is the mutual information. The Gaussian that judges a window is fitted to the other "
        "windows. The mutual information I(X_i; X_j) and the trace Tr(C Σ_ji) are properties of positions and in "
        "a stationary text of their distance: given the distance nothing is left of them. Pointwise information "
        "and cosine differ from text to text at the same positions, so that one can ask what is left beyond distance: "
        "from each rank the mean over windows at the same two positions is taken away, and the mean that the key has "
        "with all queries of its window. What remains belongs to the pair. The null puts the query of another "
        "window, at the same position, in the place of the query: keys, positions and distances stay, the dependence "
        "goes. The token itself and the first token of each window are no keys here. Scores are ⟨q, k⟩ before any "
        "scale, with the positions that the model turns into them. Means and variances of the scores of a token with "
        "itself, with its neighbours (1 to 8 tokens away), and of those neighbours with the query of another window "
        "stand beside the formulas."
    ),
    formulas=(
        r"i(x_i; x_j) = \ln \frac{p(x_i, x_j)}{p(x_i)\,p(x_j)}, \qquad I(X_i; X_j) = E\,[i(x_i; x_j)] = "
        r"\frac{1}{2} \ln \frac{|\Sigma_{ii}|\,|\Sigma_{jj}|}{|\Sigma|}",
        r"\rho = \mathrm{corr}(z^A, z^i), \qquad z_{wij} = \mathrm{rank\ of\ key\ } j \mathrm{\ for\ query\ } i "
        r"\mathrm{\ in\ window\ } w",
        r"\rho_{\mathrm{beyond}} = \mathrm{corr}(r^A, r^i), \qquad r_{wij} = z_{wij} - \bar{z}_{ij} - \bar{z}_{wj} + "
        r"\bar{z}_{j}",
        r"E\langle q_i, k_j \rangle = \mu_i^\top C \mu_j + \mathrm{Tr}(C\,\Sigma_{ji}), \qquad C = W_Q W_K^\top",
        r"\mathrm{Var}\langle q_i, k_j \rangle = \mathrm{Tr}(\Sigma_i C \Sigma_j C^\top) + a^\top \Sigma_i a + "
        r"b^\top \Sigma_j b + \mathrm{Tr}(C \Sigma_{ji} C \Sigma_{ji}) + 2 a^\top \Sigma_{ij} b",
        r"a = C \mu_j, \qquad b = C^\top \mu_i",
    ),
    reading=(
        "Look at beyond: above 0 a head looks at those keys that depend on this very query, below 0 it looks away from "
        "them, and the adjusted p says whether that could be chance among so many heads. Sizes below 0.02 are not "
        "counted: a head that looks at certain keys whatever the query can leave as much. A large value with nothing "
        "beyond is a head that looks at near tokens, which are also the dependent ones. Only linear dependence in the "
        "largest directions of the stream is seen. The mean of scores is an identity for any law: predicted and "
        "measured must agree, and what can be learnt from it is the sign and size of the shift; the variance of self "
        "and dependent pairs is predicted only if vectors are Gaussian. The thesis has Σ_XY where it must be Σ_YX, and "
        "says that dependence raises scores; it raises them only in heads whose form is aligned with it."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, summary and sections 6.2.1 and 6.2.4. Fano (1961), Transmission of Information "
        "(pointwise information). Kendall (1942), Biometrika 32, 277 (partial rank correlation). Benjamini and "
        "Hochberg (1995), Journal of the Royal Statistical Society B 57, 289."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self; cross-attention is left out: its keys come from vectors that are not shown",
        "layer": "counted from 0",
        "head": "counted from 0; empty where a row is about the stream that enters the layer",
        "distance": "|i − j| in tokens from which on pairs are pooled",
        "upto": "and the last distance that is pooled with it",
        "quantity": (
            "heads: the measure whose ranks are compared with those of the pattern. pointwise: i(x_i; x_j); cosine: of "
            "the inputs; nearness: −|i − j|; information: I at that distance; trace: Tr(C Σ_ji) of the head at that "
            "distance. pairs: self, a token with itself; dependent, with the tokens 1 to 8 away that it sees; "
            "independent, the same with the query of another window"
        ),
        "value": (
            "heads: rank correlation, −1 to 1. pairs: mean score ⟨q, k⟩. profile: mutual information in nats, less its "
            "bias, which the jackknife estimates. Empty where it cannot be estimated"
        ),
        "low": "lower end of the 95 % interval (jackknife over windows, Student t); empty with fewer than two windows",
        "high": "upper end",
        "null": (
            "heads: the same with queries of other windows (nearness: 0; information, trace: as estimated from "
            "queries and keys of different windows). profile: tokens of different windows, bias included"
        ),
        "raw": "mutual information with its bias; to be compared with the null",
        "given_distance": (
            "partial rank correlation given the distance, in Kendall's way: takes off what is linear in the rank of "
            "the distance, and no more; empty where the distance determines the measure"
        ),
        "beyond": "rank correlation at fixed positions, with the key's own mean taken off; needs two windows",
        "beyond_low": "lower end of its 95 % interval; empty with fewer than three windows",
        "beyond_high": "upper end",
        "beyond_null": "the same with queries of other windows",
        "p": "whether it is 0; two-sided, Student t over windows. heads: beyond (nearness: value); pairs: shift",
        "adjusted": "p for so many heads at once (Benjamini and Hochberg); below 0.05: counted in the sentences",
        "predicted": "mean by the formula, from means and covariances over windows",
        "shift": "what dependence adds to the mean: Tr(C Σ_ji)",
        "shift_low": "lower end of its 95 % interval",
        "shift_high": "upper end",
        "variance": "of scores over windows at fixed positions, mean over pairs",
        "predicted_variance": "by the formula for Gaussian vectors; empty with fewer than four windows",
        "attention": "mean share of a row that such a key gets",
        "uniform": "the same with attention uniform over the visible keys",
        "covariance": "Tr Cov(X_i, X_j) in the principal components: the trace for C = 1",
        "dimensions": "principal components of the stream, each token",
        "samples": "pairs of tokens, all windows together",
        "windows": "windows of text they came from",
    },
)

_PLACE = [("stack", pl.String), ("kind", pl.String), ("layer", pl.Int64), ("head", pl.Int64)]
_NAMED = [*_PLACE, ("quantity", pl.String)]
_COUNTS = [("samples", pl.Int64), ("windows", pl.Int64)]
_CORRELATIONS = "value low high null given_distance beyond beyond_low beyond_high beyond_null p adjusted"
_SCORES = "value low high predicted shift shift_low shift_high p adjusted variance predicted_variance attention uniform"
_INFORMATION = "value low high null raw covariance"
SCHEMAS = {
    "heads": pl.Schema(
        [*_NAMED, *((name, pl.Float64) for name in _CORRELATIONS.split()), ("dimensions", pl.Int64), *_COUNTS]
    ),
    "pairs": pl.Schema([*_NAMED, *((name, pl.Float64) for name in _SCORES.split()), *_COUNTS]),
    "profile": pl.Schema(
        [
            *_PLACE,
            ("distance", pl.Int64),
            ("upto", pl.Int64),
            *((name, pl.Float64) for name in _INFORMATION.split()),
            ("dimensions", pl.Int64),
            *_COUNTS,
        ]
    ),
}

# Samples for each dimension in which something is estimated; a pair has twice as many dimensions as a token.
PER_DIMENSION = 10
# Keys that a row must have to be ranked, and the largest distance of the pairs called dependent.
KEYS, NEAR = 4, 8
# How many other windows lend their queries, and windows kept at most; fewer where they would not fit.
SHIFTS, WINDOWS, FEWEST_WINDOWS = 4, 64, 16
SAMPLE_BYTES = 256 * 2**20
# Pooled distances begin here: half octaves.
EDGES = (1, *(step << octave for octave in range(24) for step in (2, 3)))
# Measures are ranked after rounding, so that vectors that are the same (a word twice) tie.
DECIMALS = 9
# Heads are counted below this adjusted p, from this size on: less can be left over from what a key does by itself.
LEVEL, SMALL = 0.05, 0.02
MEASURES = ("pointwise", "cosine", "nearness", "information", "trace")

Row = dict[str, object]


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    components: int = field(default=8, metadata={"help": "principal components of the stream, per token"})
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})


@dataclass(frozen=True)
class State:
    """The sample; its size does not depend on the length of the text."""

    params: Params
    sites: tuple[Site, ...]
    crossed: tuple[Site, ...]
    step: int
    sample: PairSample


def needs(params: Params, spec: ModelSpec) -> Needs:
    """What enters each layer, the queries and keys made of it, and the pattern."""
    if params.components < 1 or params.skip < 0:
        raise UsageError(
            f"components={params.components} and skip={params.skip}: at least one component is needed, and no fewer "
            "than 0 tokens can be left out"
        )
    return Needs(captures=frozenset({"resid", "q", "k", "pattern"}))


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Nothing seen yet; so many windows, and where those are too few so many layers, as fit."""
    own = [site for site in sites if site.kind == "self"]
    sizes = [
        4 * SHORT * (spec.d_model + (site.n_heads + site.n_kv_heads) * site.d_head + site.n_heads * SHORT)
        for site in own
    ]
    step = max(1, -(-sum(sizes) * FEWEST_WINDOWS // SAMPLE_BYTES))
    chosen = tuple(own[::step])
    room = min(WINDOWS, max(FEWEST_WINDOWS, SAMPLE_BYTES // max(1, sum(sizes[::step]))))
    return State(params, chosen, tuple(site for site in sites if site.kind != "self"), step, PairSample(room))


def update(state: State, batch: Batch) -> State:
    """Add the windows of one batch."""
    if batch.variant != AS_IS:
        return state
    return replace(state, sample=state.sample.add(batch, state.sites))


def merge(a: State, b: State) -> State:
    """What both have seen, a's windows first."""
    return replace(a, sample=a.sample.merge(b.sample))


@dataclass(frozen=True)
class Shown:
    """How much of a site was used: tokens per window, windows, and their length."""

    kept: int
    windows: int
    length: int


@dataclass(frozen=True)
class Sampled:
    """One site: the windows of the commonest length, stacked, and which keys count for which query."""

    site: Site
    length: int
    positions: Int[Tensor, "kept"]
    x: Float[Tensor, "windows kept d_model"]
    q: Float[Tensor, "windows heads kept d_head"]
    k: Float[Tensor, "windows heads kept d_head"]
    pattern: Float[Tensor, "windows heads kept kept"]
    inside: Bool[Tensor, "kept"]
    seen: Bool[Tensor, "kept kept"]
    counted: Bool[Tensor, "kept kept"]
    distance: Int[Tensor, "kept kept"]

    @classmethod
    def of(cls, state: State, site: Site) -> "Sampled | None":
        """From the sample; None where no row has enough keys."""
        parts = [window.parts[site] for window in state.sample.windows if site in window.parts]
        length = _commonest(parts)
        same = [part for part in parts if part.length == length]
        if not same:
            return None
        pattern = torch.stack([part.pattern for part in same])
        positions = same[0].positions
        inside = positions >= state.params.skip
        # A key that no head ever gave anything is masked: exactly 0, by causality or by the model's own window.
        seen = (pattern > 0).any(0).any(0) & inside & inside[:, None]
        counted = seen & ~torch.eye(len(positions), dtype=torch.bool)
        counted &= counted.sum(-1, keepdim=True) >= KEYS
        if not bool(counted.any()):
            return None
        shared = [site.kv_head(head) for head in range(site.n_heads)]
        return cls(
            site,
            length,
            positions,
            torch.stack([part.x for part in same]).to(torch.float64),
            torch.stack([part.q for part in same]).to(torch.float64),
            torch.stack([part.k for part in same]).to(torch.float64)[:, shared],
            pattern,
            inside,
            seen,
            counted,
            (positions[:, None] - positions).abs(),
        )

    @property
    def windows(self) -> int:
        """How many windows are stacked."""
        return len(self.x)

    @property
    def shifts(self) -> range:
        """By how many windows further on the query is taken for the null."""
        return range(1, min(SHIFTS, self.windows - 1) + 1)


def _commonest(parts: Sequence[Part]) -> int:
    lengths = [part.length for part in parts]
    return max(lengths, key=lambda length: (lengths.count(length), length), default=0)


@dataclass(frozen=True)
class Pooled:
    """Pairs of kept tokens (the later and the earlier one), pooled by distance, and their joint Gaussians.

    `fits` has for each pool one Gaussian per window, of all other windows, and then that of all; `shuffled` the same
    with the later tokens of windows further on: what there is without dependence.
    """

    components: int
    late: Int[Tensor, "pairs"]
    early: Int[Tensor, "pairs"]
    pool: Int[Tensor, "pairs"]
    spans: tuple[tuple[int, int], ...]
    y: Float[Tensor, "windows kept k"]
    fits: Gaussian
    information: Float[Tensor, "pools sets"]
    shuffled: Float[Tensor, "shifts pools sets"]

    def pointwise(self, tokens: Sequence[tuple[Tensor, Tensor]]) -> list[Float[Tensor, "windows pairs"]]:
        """The pointwise information of each pair, of several (later, earlier) tokens, by the fit to other windows."""
        w, k = len(self.y), self.components
        found = [torch.empty(w, len(self.pool), dtype=torch.float64) for _ in tokens]
        for pool in range(len(self.spans)):
            here = self.pool == pool
            parts = [torch.cat((a[:, self.late[here]], b[:, self.early[here]]), -1) for a, b in tokens]
            others = Gaussian(self.fits.mean[pool, :w], self.fits.covariance[pool, :w])
            values = pointwise_information(others, range(k), range(k, 2 * k), torch.cat(parts, 1))
            for one, value in zip(found, values.chunk(len(tokens), 1), strict=True):
                one[:, here] = value
        return found


def _fits(first: Tensor, second: Tensor, late: Tensor, early: Tensor, pool: Tensor) -> Gaussian:
    """The joint Gaussian of the pairs of each pool: of all windows but one, for each, and of all."""
    found = []
    for number in range(int(pool.max()) + 1):
        here = pool == number
        z = torch.cat((first[:, late[here]], second[:, early[here]]), -1)
        w, n = z.shape[:2]
        total, products = z.sum(1), z.mT @ z
        count = torch.tensor([[n * (w - 1.0)]] * w + [[1.0 * n * w]], dtype=torch.float64)
        total = torch.cat((total.sum(0) - total, total.sum(0, keepdim=True)))
        products = torch.cat((products.sum(0) - products, products.sum(0, keepdim=True)))
        mean = total / count
        scatter = products - count[..., None] * mean[:, :, None] * mean[:, None, :]
        found.append((mean, scatter / (count[..., None] - 1)))
    return Gaussian(torch.stack([mean for mean, _ in found]), torch.stack([cov for _, cov in found]))


def _pooled(sampled: Sampled, components: int) -> Pooled | None:
    """None with a single window, with too few pairs, or where one token determines another."""
    w, d = sampled.windows, sampled.x.shape[-1]
    either = sampled.counted | sampled.counted.T
    late, early = torch.tril(either, -1).nonzero().unbind(1)
    rows = sampled.x[:, sampled.inside].reshape(-1, d)
    axes = _axes(rows - rows.mean(0), components)
    k = min(axes.shape[1], len(late) * (w - 1) // (2 * PER_DIMENSION))
    if not k:
        return None
    y = (sampled.x - rows.mean(0)) @ axes[:, :k]
    distance = sampled.distance[late, early]
    pool, spans = _pools(distance, -(-2 * PER_DIMENSION * k // (w - 1)))
    sides = (range(k), range(k, 2 * k))
    try:
        fits = _fits(y, y, late, early, pool)
        information = mutual_information(fits, *sides)
        shuffled = [
            mutual_information(_fits(y.roll(-shift, 0), y, late, early, pool), *sides) for shift in sampled.shifts
        ]
    except (NumericsError, UsageError):
        return None
    return Pooled(k, late, early, pool, spans, y, fits, information, torch.stack(shuffled))


def _axes(centred: Float[Tensor, "rows d"], most: int) -> Float[Tensor, "d k"]:
    """Principal axes in columns, the largest first; only those along which there is any variance."""
    rows, d = centred.shape
    gram = centred.T @ centred if d <= rows else centred @ centred.T
    values, vectors = torch.linalg.eigh(gram)
    some = values > 1e-13 * max(rows, d) * values[-1].clamp_min(1e-300)
    values, vectors = values[some].flip(0)[:most], vectors[:, some].flip(1)[:, :most]
    axes: Tensor = vectors if d <= rows else centred.T @ vectors / values.sqrt()
    return axes


def _pools(distance: Int[Tensor, "pairs"], enough: int) -> tuple[Int[Tensor, "pairs"], tuple[tuple[int, int], ...]]:
    """Half octaves of distance, from the nearest on put together until there are enough pairs in each."""
    half = torch.searchsorted(torch.tensor(EDGES), distance, right=True) - 1
    counts = torch.bincount(half)
    of_half, number, held = [], 0, 0
    for index, count in enumerate(counts.tolist()):
        of_half.append(number)
        held += count
        if held >= enough and int(counts[index + 1 :].sum()) >= enough:
            number, held = number + 1, 0
    pool = torch.tensor(of_half)[half]
    pairs = [distance[pool == one] for one in range(number + 1)]
    return pool, tuple((int(one.min()), int(one.max())) for one in pairs)


def _square(sampled: Sampled, pooled: Pooled, lower: Tensor, upper: Tensor | None = None) -> Tensor:
    """Values of pairs as a map, queries down: `lower` where the query is the later token, else `upper`."""
    found = torch.zeros(*lower.shape[:-1], *sampled.counted.shape, dtype=torch.float64)
    found[..., pooled.late, pooled.early] = lower
    found[..., pooled.early, pooled.late] = lower if upper is None else upper
    return found


Measured = tuple[Tensor, list[Tensor]]


def _measures(sampled: Sampled, pooled: Pooled | None) -> Iterator[tuple[str, Measured]]:
    """Each measure as maps [windows, 1 or heads, queries, keys], and with the queries of other windows."""
    if pooled is not None:
        y = pooled.y
        others = [y.roll(-shift, 0) for shift in sampled.shifts]
        both = bool(torch.triu(sampled.counted).any())
        later = [(y, y), *((other, y) for other in others)]
        own, *queries = pooled.pointwise([*later, *((y, other) for other in others if both)])
        swapped = zip(queries, queries[len(others) :] if both else queries, strict=False)
        yield (
            "pointwise",
            (
                _square(sampled, pooled, own)[:, None],
                [_square(sampled, pooled, lower, upper)[:, None] for lower, upper in swapped],
            ),
        )
    unit = sampled.x / sampled.x.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    yield (
        "cosine",
        ((unit @ unit.mT)[:, None], [(unit.roll(-shift, 0) @ unit.mT)[:, None] for shift in sampled.shifts]),
    )
    yield "nearness", (-sampled.distance.to(torch.float64).expand(sampled.windows, 1, -1, -1), [])
    if pooled is not None:
        shuffled = list(pooled.shuffled)
        # Less its bias, which is not the same at every distance; a shuffled one is corrected by the others.
        corrected = [
            _excess(one, [other for other in shuffled if other is not one]) for one in (pooled.information, *shuffled)
        ]
        maps = [one[pooled.pool, : sampled.windows].T for one in corrected if one is not None]
        own, *nulls = [_square(sampled, pooled, one)[:, None] for one in maps]
        yield "information", (own, nulls)
    if pooled is not None and sampled.windows > 2:
        yield "trace", (_traces(sampled, pooled, shuffled=False), [_traces(sampled, pooled, shuffled=True)])


def _excess(information: Tensor, others: Sequence[Tensor]) -> Tensor | None:
    return information - torch.stack(list(others)).mean(0) if others else None


def _traces(sampled: Sampled, pooled: Pooled, shuffled: bool) -> Float[Tensor, "windows heads kept kept"]:
    """Tr Cov(q_i, k_j) over the other windows, at fixed positions, then pooled by distance and direction.

    Shuffled: with the query of the next window, less the mean with that of the one behind it, which is 0 but for noise.
    """
    q, k, w = sampled.q, sampled.k, sampled.windows

    def others(shift: int) -> Tensor:
        scores = q.roll(-shift, 0) @ k.mT
        return (scores.sum(0) - scores) / (w - 1)

    if shuffled:
        trace = others(1) - others(2)
    else:
        own = others(0)
        trace = own - ((q.sum(0) - q) @ (k.sum(0) - k).mT / (w - 1) - own) / (w - 2)
    label = torch.full(sampled.counted.shape, -1)
    label[pooled.late, pooled.early] = pooled.pool
    label[pooled.early, pooled.late] = pooled.pool + len(pooled.spans)
    label[~sampled.counted] = -1
    means = torch.zeros(*trace.shape[:2], 2 * len(pooled.spans) + 1, dtype=torch.float64)
    for one in sorted(set(label[label >= 0].tolist())):
        means[..., one] = trace[..., label == one].mean(-1)
    return means[..., label]


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Everything from the sample."""
    params = asdict(state.params)
    rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    seen: dict[Site, Shown] = {}
    for site in state.sites:
        # One site at a time: in float64 all of them would take several times the sample.
        sampled = Sampled.of(state, site)
        if sampled is None:
            continue
        seen[site] = Shown(len(sampled.positions), sampled.windows, sampled.length)
        pooled = _pooled(sampled, state.params.components)
        rows["heads"] += _head_rows(sampled, pooled)
        rows["pairs"] += _pair_rows(sampled)
        rows["profile"] += _profile_rows(sampled, pooled) if pooled else []
    if not seen:
        reason = (
            f"no row of attention with {KEYS} visible keys, the token itself and the first {state.params.skip} left "
            "out, was shown to the lens"
        )
        return Finding("dependence", ABOUT, status="not applicable", reason=reason, params=params)
    tables = {name: pl.DataFrame(rows[name], schema=schema) for name, schema in SCHEMAS.items()}
    tables["heads"], tables["pairs"] = _adjusted(tables["heads"]), _adjusted(tables["pairs"])
    finding = Finding(
        "dependence",
        ABOUT,
        tables=tables,
        figures=figures(tables, list(seen)),
        method=_method(state, next(iter(seen.values()))),
        warnings=_warnings(state, seen, tables),
        params=params,
    )
    return replace(finding, headlines=headline(finding))


def _head_rows(sampled: Sampled, pooled: Pooled | None) -> Iterator[Row]:
    attention = row_ranks(sampled.pattern, sampled.counted)
    near = row_ranks(-sampled.distance.to(torch.float64), sampled.counted)
    found: dict[str, dict[str, Tensor]] = {}
    for name, (own, swapped) in _measures(sampled, pooled):
        ranks = [row_ranks(one.round(decimals=DECIMALS), sampled.counted) for one in (own, *swapped)]
        found[name] = _plain(name, attention, ranks, near)
        if name in ("pointwise", "cosine"):
            found[name] |= _beyond([beyond_positions(attention, one, sampled.counted) for one in ranks])
    counts = {"samples": int(sampled.counted.sum()) * sampled.windows, "windows": sampled.windows}
    for head in range(sampled.site.n_heads):
        for name in MEASURES:
            numbers = {key: _number(value[head]) for key, value in found.get(name, {}).items()}
            dimensions = pooled.components if pooled and name in ("pointwise", "information") else None
            yield {**place(sampled.site, head), "quantity": name, **numbers, "dimensions": dimensions, **counts}


def _number(value: Tensor | float) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None


def _plain(name: str, attention: Tensor, ranks: Sequence[Tensor], near: Tensor) -> dict[str, Tensor]:
    """The correlation with all windows, its interval from leaving out each, its null, and given the distance."""
    own, *nulls = [_left_out(RankSums.of(attention, one, near)) for one in ranks]
    values = own.correlation
    value, half = _jackknife(values)
    found = {"value": value, "low": value - half, "high": value + half}
    if name == "nearness":
        return found | {"null": torch.zeros_like(value), "p": _p_value(values)}
    if nulls:
        found["null"] = torch.stack([one.correlation[0] for one in nulls]).mean(0)
    return found | ({"given_distance": own.partial[0]} if name in ("pointwise", "cosine") else {})


def _beyond(estimates: Sequence[Float[Tensor, "sets heads"]]) -> dict[str, Tensor]:
    """The correlation beyond positions, its interval, its null, and the test whether it is 0."""
    own, *nulls = estimates
    value, half = _jackknife(own)
    found = {"beyond": value, "beyond_low": value - half, "beyond_high": value + half, "p": _p_value(own)}
    return found | ({"beyond_null": torch.stack([one[0] for one in nulls]).mean(0)} if nulls else {})


def _left_out(sums: RankSums) -> RankSums:
    """Those of all windows, then of all but each."""
    total = sums.sums.sum(0)
    return RankSums(torch.cat((total[None], total - sums.sums)))


def _error(estimates: Float[Tensor, "sets *batch"]) -> Float[Tensor, "*batch"]:
    """Standard error of the first by the jackknife: the others leave out one window each."""
    w = len(estimates) - 1
    rest = estimates[1:]
    if w < 2:
        return torch.full_like(estimates[0], nan)
    return ((w - 1) / w * (rest - rest.mean(0)).square().sum(0)).sqrt()


def _jackknife(
    estimates: Float[Tensor, "sets *batch"],
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """The first, and half of its 95 % interval."""
    w = len(estimates) - 1
    return estimates[0], _error(estimates) * (float(stats.t.ppf(0.975, w - 1)) if w > 1 else nan)


def _p_value(estimates: Float[Tensor, "sets *batch"]) -> Float[Tensor, "*batch"]:
    """Two-sided: whether the first is 0."""
    w = len(estimates) - 1
    error = _error(estimates)
    t = torch.where(error > 0, estimates[0] / error, nan).abs()
    return torch.from_numpy(np.asarray(2 * stats.t.sf(t.numpy(), max(1, w - 1))))


def _adjusted(table: pl.DataFrame) -> pl.DataFrame:
    """With the p-values of each quantity adjusted for the number of heads."""
    column = np.full(table.height, nan)
    p = table["p"].cast(pl.Float64).fill_null(nan).to_numpy()
    for quantity in table["quantity"].unique(maintain_order=True).to_list():
        here = (table["quantity"] == quantity).to_numpy() & np.isfinite(p)
        if here.any():
            column[here] = stats.false_discovery_control(p[here])
    return table.with_columns(pl.Series("adjusted", column, dtype=pl.Float64).fill_nan(None))


def _pair_rows(sampled: Sampled) -> Iterator[Row]:
    w, site = sampled.windows, sampled.site
    if w < 2:
        return
    same = torch.eye(len(sampled.positions), dtype=torch.bool) & sampled.seen
    close = sampled.seen & ~same & (sampled.distance <= NEAR)
    uniform = 1 / _visible(sampled).to(torch.float64)
    for head in range(site.n_heads):
        for name, chosen in (("self", same), ("dependent", close), ("independent", close)):
            i, j = chosen.nonzero().unbind(1)
            if not len(i):
                continue
            scores = torch.einsum("aid,bid->iab", sampled.q[:, head, i], sampled.k[:, head, j])
            numbers = _moments(scores) if name != "independent" else _independent(scores, sampled.shifts)
            if name != "independent":
                numbers["attention"] = float(sampled.pattern[:, head, i, j].to(torch.float64).mean())
                numbers["uniform"] = float(uniform[i].mean())
            counts = {"samples": len(i) * w, "windows": w}
            named = {key: _number(value) for key, value in numbers.items()}
            yield {**place(site, head), "quantity": name, **named, **counts}


def _visible(sampled: Sampled) -> Int[Tensor, "kept"]:
    """How many keys a query sees in the whole window; a model's own limit to both sides is taken as all of it."""
    site = sampled.site
    keys = sampled.positions + 1 if site.causal else torch.full_like(sampled.positions, sampled.length)
    return keys if site.window is None else keys.clamp_max(site.window if site.causal else sampled.length)


def _moments(scores: Float[Tensor, "pairs windows windows"]) -> dict[str, float]:
    """Of pairs of one text: the mean and what dependence adds to it, the variance, and what the formulas say."""
    w = scores.shape[-1]
    mean = scores.mean(0)
    apart, together = crossed_means(mean)
    left = [[v for v in range(w) if v != out] for out in range(w)] if w > 2 else []
    rest = [crossed_means(mean[index][:, index]) for index in left]
    means = torch.stack([together, *(one[1] for one in rest)])
    shifts = torch.stack([together - apart, *(one[1] - one[0] for one in rest)])
    (value, half), (shift, wide) = _jackknife(means), _jackknife(shifts)
    found = {
        "value": value,
        "low": value - half,
        "high": value + half,
        "predicted": apart + _trace(mean),
        "shift": shift,
        "shift_low": shift - wide,
        "shift_high": shift + wide,
        "p": _p_value(shifts),
        "variance": scores.diagonal(dim1=-2, dim2=-1).var(-1).mean(),
    }
    if w >= 4:
        moments = crossed_moments(scores)
        found["predicted_variance"] = (moments.variance + moments.added).mean()
    return {key: float(x) for key, x in found.items()}


def _trace(mean: Float[Tensor, "windows windows"]) -> Tensor:
    """Tr Cov(q, k), from scores whose rows and columns are centred."""
    centred = mean - mean.mean(0) - mean.mean(1, keepdim=True) + mean.mean()
    return centred.diagonal().sum() / (len(mean) - 1)


def _independent(scores: Float[Tensor, "pairs windows windows"], shifts: range) -> dict[str, float]:
    """Of pairs of different texts: query of one, key of another."""
    w = scores.shape[-1]
    key = torch.arange(w)
    drawn = torch.stack([scores[:, (key + shift) % w, key] for shift in shifts])
    found = {
        "value": float(drawn.mean()),
        "predicted": float(crossed_means(scores.mean(0))[0]),
        "variance": float(drawn.var(-1).mean()),
    }
    if w >= 4:
        found["predicted_variance"] = float(crossed_moments(scores).variance.mean())
    return found


def _profile_rows(sampled: Sampled, pooled: Pooled) -> Iterator[Row]:
    w, k = sampled.windows, pooled.components
    every = pooled.information.T.roll(1, 0)
    shuffled = pooled.shuffled[:, :, -1].mean(0)
    raw, half = _jackknife(every)
    value = w * raw - (w - 1) * every[1:].mean(0)
    for pool, (low, high) in enumerate(pooled.spans):
        cross = pooled.fits.covariance[pool, -1, :k, k:].diagonal().sum()
        numbers = {
            "value": value[pool],
            "low": value[pool] - half[pool],
            "high": value[pool] + half[pool],
            "null": shuffled[pool],
            "raw": raw[pool],
            "covariance": cross,
        }
        counts = {"dimensions": k, "samples": int((pooled.pool == pool).sum()) * w, "windows": w}
        named = {key: _number(x) for key, x in numbers.items()}
        yield {**place(sampled.site, None), "distance": low, "upto": high, **named, **counts}


def _method(state: State, shown: Shown) -> str:
    drawn = len(state.sample.windows)
    layers = f" Every {state.step}th layer only: the pairs of all would not fit." if state.step > 1 else ""
    skipped = state.params.skip
    left = f" The first {f'{skipped} tokens' if skipped > 1 else 'token'} of each window left out." if skipped else ""
    return (
        f"Sampled: {shown.kept} tokens of each of {shown.windows} windows of {shown.length} tokens ({drawn} "
        f"of {state.sample.seen} windows drawn by a hash of their tokens), all pairs among them; the tokens stand in "
        "runs, the last ones of the window and others ever further before them. Rows with fewer than "
        f"{KEYS} keys are not ranked. Joint Gaussians with at least {PER_DIMENSION} pairs per dimension, distances "
        "pooled in half octaves or wider until there are. Intervals and tests: jackknife over windows, not over pairs. "
        f"Null: queries of up to {SHIFTS} other windows at the same positions, so that key, position and distance "
        "stay. Trace: of queries and keys as they meet (after any normalisation and rotation), so that C holds what "
        f"the model does with positions.{left}{layers}"
    )


def _warnings(state: State, seen: Mapping[Site, Shown], tables: Mapping[str, pl.DataFrame]) -> tuple[str, ...]:
    found = []
    if state.crossed:
        names = ", ".join(site.label for site in state.crossed)
        found.append(f"Left out: {names}. The vectors from which cross-attention makes its keys are not shown.")
    if missing := [site.label for site in state.sites if site not in seen]:
        found.append(f"No row with {KEYS} visible keys in {', '.join(missing)}.")
    windows = min(one.windows for one in seen.values())
    if windows < 2:
        found.append("One window only: no interval, no null, and no Gaussian of other windows to judge it by.")
    elif windows < FEWEST_WINDOWS // 2:
        found.append(f"Only {windows} windows of equal length: intervals are wide and tests weak.")
    others = len(state.sample.windows) - windows
    if others > 0:
        told = f"{others} windows of other length were" if others > 1 else "1 window of other length was"
        found.append(f"{told} not used: positions must be comparable.")
    profile = tables["profile"]
    without = [site.label for site in seen if _of_site(profile, site).is_empty()]
    if without and windows > 1:
        found.append(
            f"No joint Gaussian of two tokens in {', '.join(without)}: too few pairs, or one token determines another."
        )
    used = min(profile["dimensions"].to_list(), default=state.params.components)
    if used < state.params.components:
        found.append(f"Information in {used} principal components, not {state.params.components}: too few pairs.")
    return tuple(found)


def _of_site(table: pl.DataFrame, site: Site) -> pl.DataFrame:
    return table.filter(pl.col("stack") == site.stack, pl.col("kind") == site.kind, pl.col("layer") == site.layer)


def headline(finding: Finding) -> tuple[str, ...]:
    """Whether attention follows dependence, in numbers."""
    if finding.status != "ok":
        return ()
    heads = finding.tables["heads"]
    sentences = (_answer(heads), _compared(heads), _scores_sentence(finding.tables["pairs"]))
    return tuple(sentence for sentence in sentences if sentence)


def _followers(heads: pl.DataFrame, measure: str) -> tuple[pl.DataFrame, int, int]:
    """The heads that could be judged, and how many of them follow a measure beyond positions and look away from it."""
    judged = heads.filter(pl.col("quantity") == measure, pl.col("adjusted").is_not_null())
    clear = judged.filter(pl.col("adjusted") < LEVEL, pl.col("beyond").abs() >= SMALL)
    return judged, clear.filter(pl.col("beyond") > 0).height, clear.filter(pl.col("beyond") < 0).height


def _two(value: float) -> str:
    """Two decimals, and never −0.00."""
    return f"{round(value, 2) + 0.0:.2f}"


def _answer(heads: pl.DataFrame) -> str:
    judged, up, down = _followers(heads, "pointwise")
    if judged.is_empty():
        return ""
    ordered = judged.sort("beyond", maintain_order=True)
    least, most = ordered.row(0, named=True), ordered.row(-1, named=True)
    middle, chance = (float(np.median(judged[name].to_numpy())) for name in ("beyond", "beyond_null"))
    many, windows = judged.height, max(judged["windows"].to_list())
    verdict = (
        "Attention mostly follows dependence beyond distance"
        if up > many / 2
        else "Attention mostly looks away from dependence beyond distance"
        if down > many / 2
        else "Attention follows dependence beyond distance in some heads only"
        if up
        else "No head was found whose attention follows dependence beyond distance"
    )
    return (
        f"{verdict}: of {many} heads {up} follow it and {down} look away from it (false discoveries held at 5 %, "
        f"{windows} windows); the rank correlation with the pointwise mutual information at fixed "
        f"positions is {_two(middle)} in the median head (with another window's query {_two(chance)}) and goes from "
        f"{_two(least['beyond'])} in {label_of(least)} to {_two(most['beyond'])} in {label_of(most)}."
    )


def _compared(heads: pl.DataFrame) -> str:
    """The median correlation of each measure, without any control."""
    names = {
        "nearness": "nearness",
        "information": "mutual information at that distance",
        "trace": "Tr(CΣ_ji)",
        "cosine": "cosine",
        "pointwise": "pointwise information",
    }
    told = []
    for name, words in names.items():
        rows = heads.filter(pl.col("quantity") == name, pl.col("value").is_not_null())
        if rows.height:
            null = rows["null"].drop_nulls().to_numpy()
            beside = f" (null {_two(float(np.median(null)))})" if len(null) and name != "nearness" else ""
            told.append(f"{words} {_two(float(np.median(rows['value'].to_numpy())))}{beside}")
    if not told:
        return ""
    judged, up, down = _followers(heads, "cosine")
    beyond = f"; at fixed positions {up} heads follow the cosine and {down} go against it" if judged.height else ""
    return f"Rank correlation of the pattern in the median head, distance included: with {', '.join(told)}{beyond}."


def _scores_sentence(pairs: pl.DataFrame) -> str:
    told = []
    for name, words in (("dependent", "tokens 1 to 8 apart"), ("self", "a token with itself")):
        rows = pairs.filter(pl.col("quantity") == name, pl.col("adjusted").is_not_null())
        if rows.is_empty():
            continue
        clear = rows.filter(pl.col("adjusted") < LEVEL)
        up, down = (clear.filter(test).height for test in (pl.col("shift") > 0, pl.col("shift") < 0))
        told.append(f"of {words} in {up} of {rows.height} heads and lowers it in {down}")
    if not told:
        return ""
    judged = pairs.filter(pl.col("quantity") == "dependent", pl.col("predicted_variance") > 0, pl.col("variance") > 0)
    ratio = ""
    if judged.height:
        shares = judged["variance"].to_numpy() / judged["predicted_variance"].to_numpy()
        low, middle, high = np.quantile(shares, (0.05, 0.5, 0.95))
        ratio = (
            f"; their variance is {middle:.2f} times the Gaussian prediction in the median head ({low:.2f} to "
            f"{high:.2f} in nine of ten)"
        )
    return f"Dependence raises the mean score {', '.join(told)}{ratio}."


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, on every token of the windows of one length; the fold keeps some of a long window."""
    kept = [batch for batch in batches if batch.variant == AS_IS]
    tables: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    for site in kept[0].captures["resid"] if kept else ():
        if site.kind == "self":
            one = _Defined(params, site, kept)
            where = {"stack": site.stack, "kind": site.kind, "layer": site.layer}
            for name, rows in (("heads", one.heads()), ("pairs", one.pairs()), ("profile", one.profile())):
                tables[name] += [where | row for row in rows]
    for name in ("heads", "pairs"):
        for quantity in {row["quantity"] for row in tables[name]}:
            told = [row for row in tables[name] if row["quantity"] == quantity and row.get("p") is not None]
            told.sort(key=lambda row: float(str(row["p"])), reverse=True)
            least = 1.0
            for rank, row in zip(range(len(told), 0, -1), told, strict=True):
                least = min(least, float(str(row["p"])) * len(told) / rank)
                row["adjusted"] = least
    return {name: pl.DataFrame(rows, schema=SCHEMAS[name]) for name, rows in tables.items()}


Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class _Defined:
    """One site by the formulas: whole windows in, numbers out."""

    def __init__(self, params: Params, site: Site, batches: Sequence[Batch]) -> None:
        windows = [
            [batch.captures[name][site][index].double().numpy() for name in ("resid", "q", "k", "pattern")]
            + [batch.real[index].numpy()]
            for batch in batches
            for index in range(len(batch.real))
        ]
        lengths = [int(one[4].sum()) for one in windows]
        self.n = max(lengths, key=lambda n: (lengths.count(n), n))
        same = [one for one, n in zip(windows, lengths, strict=True) if n == self.n]
        self.x = [x[real] for x, _, _, _, real in same]
        self.q = [q[:, real] for _, q, _, _, real in same]
        self.k = [k[[site.kv_head(h) for h in range(site.n_heads)]][:, real] for _, _, k, _, real in same]
        self.a = [a[:, real][:, :, real] for _, _, _, a, real in same]
        self.w, self.site, self.params = len(same), site, params
        seen = [
            [j for j in range(params.skip, self.n) if any((a[:, i, j] > 0).any() for a in self.a)]
            for i in range(self.n)
        ]
        self.seen = [keys if i >= params.skip else [] for i, keys in enumerate(seen)]
        rows = [[j for j in keys if j != i] for i, keys in enumerate(self.seen)]
        self.keys = [keys if len(keys) >= KEYS else [] for keys in rows]
        # What is asked for again and again: fits, and ranks of a measure by window.
        self.known: dict[tuple[int, int | None, int], tuple[Array, Array]] = {}
        self.ranked: dict[tuple[str, int, int], list[Array] | None] = {}
        self.prepare()

    def prepare(self) -> None:
        either = {(max(i, j), min(i, j)) for i, keys in enumerate(self.keys) for j in keys}
        self.either = sorted(either)
        inside = np.concatenate([one[self.params.skip :] for one in self.x])
        mean = inside.mean(0)
        _, sigma, axes = np.linalg.svd(inside - mean, full_matrices=False)
        rank = int((sigma**2 > 1e-13 * max(inside.shape) * sigma[0] ** 2).sum())
        k = min(self.params.components, rank, len(either) * (self.w - 1) // (2 * PER_DIMENSION))
        self.dimensions = k
        self.pool: dict[tuple[int, int], int] = {}
        self.y = [(one - mean) @ axes[:k].T for one in self.x]
        if not k:
            return
        groups: dict[int, list[tuple[int, int]]] = {}
        for i, j in self.either:
            groups.setdefault(max(edge for edge in EDGES if edge <= i - j), []).append((i, j))
        left, number, held = len(self.either), 0, 0
        for edge in sorted(groups):
            self.pool |= dict.fromkeys(groups[edge], number)
            held, left = held + len(groups[edge]), left - len(groups[edge])
            if min(held, left) * (self.w - 1) >= 2 * PER_DIMENSION * k:
                number, held = number + 1, 0

    def members(self, pool: int) -> list[tuple[int, int]]:
        return [pair for pair in self.either if self.pool[pair] == pool]

    def fit(self, pool: int, out: int | None, shift: int = 0) -> tuple[Array, Array]:
        if (pool, out, shift) not in self.known:
            self.known[pool, out, shift] = self._fit(pool, out, shift)
        return self.known[pool, out, shift]

    def _fit(self, pool: int, out: int | None, shift: int) -> tuple[Array, Array]:
        z = [
            np.concatenate((self.y[(w + shift) % self.w][i], self.y[w][j]))
            for w in range(self.w)
            for i, j in self.members(pool)
            if w != out
        ]
        return np.mean(z, 0), np.cov(np.array(z).T, ddof=1)

    def information(self, pool: int, out: int | None, shift: int = 0) -> float:
        k, cov = self.dimensions, self.fit(pool, out, shift)[1]
        a, b, both = (float(np.linalg.slogdet(one)[1]) for one in (cov[:k, :k], cov[k:, k:], cov))
        return 0.5 * (a + b - both)

    def shuffled(self, pool: int, out: int | None, shifts: Sequence[int]) -> float:
        return float(np.mean([self.information(pool, out, shift) for shift in shifts]))

    def shifts(self) -> range:
        return range(1, min(SHIFTS, self.w - 1) + 1)

    def measure(self, name: str, head: int, shift: int) -> list[dict[tuple[int, int], float]] | None:
        """Per window the measure of each counted pair (query, key); with a shift, of its null."""
        pairs = [(i, j) for i, keys in enumerate(self.keys) for j in keys]
        pooled, others = bool(self.pool), [s for s in self.shifts() if s != shift]
        if name == "pointwise" and pooled:
            return [{pair: self.pointwise(w, *pair, shift) for pair in pairs} for w in range(self.w)]
        if name == "cosine":
            return [{(i, j): self.cosine(w, i, j, shift) for i, j in pairs} for w in range(self.w)]
        if name == "nearness":
            return [{(i, j): -float(abs(i - j)) for i, j in pairs} for _ in range(self.w)]
        if name == "information" and pooled and others:
            pools = range(max(self.pool.values()) + 1)
            by_pool = [
                [self.information(pool, w, shift) - self.shuffled(pool, w, others) for pool in pools]
                for w in range(self.w)
            ]
            return [{pair: by_pool[w][self.pool[_sorted(pair)]] for pair in pairs} for w in range(self.w)]
        if name == "trace" and pooled and self.w > 2:
            return [self.traces(head, w, shift, pairs) for w in range(self.w)]
        return None

    def pointwise(self, w: int, i: int, j: int, shift: int) -> float:
        k, (late, early) = self.dimensions, _sorted((i, j))
        mean, cov = self.fit(self.pool[late, early], w)
        query, key = self.y[(w + shift) % self.w][i], self.y[w][j]
        z = np.concatenate((query, key) if i > j else (key, query))
        laws = [(slice(0, 2 * k), 1.0), (slice(0, k), -1.0), (slice(k, 2 * k), -1.0)]
        return sum(
            sign * float(stats.multivariate_normal(mean[part], cov[part, part]).logpdf(z[part])) for part, sign in laws
        )

    def cosine(self, w: int, i: int, j: int, shift: int) -> float:
        a, b = self.x[(w + shift) % self.w][i], self.x[w][j]
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))

    def traces(self, head: int, out: int, shift: int, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
        kept = [w for w in range(self.w) if w != out]
        traces: dict[tuple[int, int], float] = {}
        for pair in pairs:
            swapped = [
                float(np.mean([self.score(head, (w + s) % self.w, w, pair) for w in kept])) for s in (shift, 2 * shift)
            ]
            traces[pair] = swapped[0] - swapped[1] if shift else self.trace(head, pair, kept)
        groups: dict[tuple[int, bool], list[float]] = {}
        for (i, j), trace in traces.items():
            groups.setdefault((self.pool[_sorted((i, j))], i > j), []).append(trace)
        return {(i, j): float(np.mean(groups[self.pool[_sorted((i, j))], i > j])) for i, j in pairs}

    def ranks(self, values: Mapping[tuple[int, int], float], rounded: bool = True) -> Array:
        found = []
        for i, keys in enumerate(self.keys):
            row = np.array([values[i, j] for j in keys])
            rank = stats.rankdata(row.round(DECIMALS) if rounded else row) if keys else np.zeros(0)
            spread = rank.std() if keys else 0.0
            found.append((rank - rank.mean()) / spread if spread > 0 else np.zeros(len(keys)))
        return np.concatenate(found)

    def columns(self, head: int, name: str, shift: int) -> list[Array] | None:
        """Per window the ranks of the pattern, of the measure and of nearness, one under the other."""
        measured = self._measured(head, name, shift)
        if measured is None:
            return None
        near = {(i, j): -float(abs(i - j)) for i, keys in enumerate(self.keys) for j in keys}
        pattern = [{pair: float(self.a[w][head][pair]) for pair in near} for w in range(self.w)]
        return [np.array([self.ranks(pattern[w], rounded=False), measured[w], self.ranks(near)]) for w in range(self.w)]

    def _measured(self, head: int, name: str, shift: int) -> list[Array] | None:
        key = (name, head if name == "trace" else 0, shift)
        if key not in self.ranked:
            measure = self.measure(name, head, shift)
            self.ranked[key] = None if measure is None else [self.ranks(one) for one in measure]
        return self.ranked[key]

    def correlations(self, columns: Sequence[Array] | None, only: Sequence[int]) -> tuple[float, float]:
        """Plain and partial, over the windows in `only`."""
        if columns is None:
            return nan, nan
        a, m, d = np.concatenate([columns[w] for w in only], 1)
        if not (m**2).sum():
            return nan, nan
        r = float(a @ m / sqrt((a @ a) * (m @ m)))
        left = [one - (one @ d) / (d @ d) * d for one in (a, m)]
        squares = [float(one @ one) for one in left]
        known = squares[0] > 1e-10 * (a @ a) and squares[1] > 1e-10 * (m @ m)
        return r, float(left[0] @ left[1]) / sqrt(squares[0] * squares[1]) if known else nan

    def residual_correlation(self, columns: Sequence[Array] | None, only: Sequence[int]) -> float:
        """Of ranks less their mean over windows at the same positions and less what is left of it for the key."""
        if columns is None or len(only) < 2:
            return nan
        places = [(i, j) for i, keys in enumerate(self.keys) for j in keys]
        z = np.array([columns[w][:2] for w in only])
        z = z - z.mean(0)
        for key in {j for _, j in places}:
            of_key = [index for index, (_, j) in enumerate(places) if j == key]
            z[:, :, of_key] -= z[:, :, of_key].mean(-1, keepdims=True)
        a, m = z[:, 0].ravel(), z[:, 1].ravel()
        return float(a @ m / sqrt((a @ a) * (m @ m))) if min(a @ a, m @ m) > 1e-10 else nan

    def heads(self) -> Iterator[Row]:
        sets = [list(range(self.w))]
        sets += [[w for w in range(self.w) if w != out] for out in range(self.w)] if self.w > 1 else []
        for head in range(self.site.n_heads if any(self.keys) else 0):
            for name in MEASURES:
                columns = self.columns(head, name, 0)
                own = [self.correlations(columns, only) for only in sets]
                shifts = {"nearness": [], "trace": [1]}.get(name, list(self.shifts()))
                swapped = [self.columns(head, name, s) for s in shifts]
                null = [[self.correlations(one, only) for only in sets] for one in swapped]
                nulls = np.mean(null, 0) if null else np.full((len(sets), 2), nan)
                value, low, high = self.interval([r for r, _ in own])
                row: dict[str, float] = {"value": value, "low": low, "high": high, "null": nulls[0, 0]}
                if name == "nearness":
                    row |= {"null": 0.0, "p": self.p_value([r for r, _ in own])}
                if name in ("pointwise", "cosine"):
                    further = [self.residual_correlation(columns, only) for only in sets]
                    ends = dict(zip(("beyond", "beyond_low", "beyond_high"), self.interval(further), strict=True))
                    chance = [self.residual_correlation(one, sets[0]) for one in swapped]
                    row |= ends | {"beyond_null": float(np.mean(chance)) if chance else nan}
                    row |= {"p": self.p_value(further), "given_distance": own[0][1]}
                cells = {key: float(number) if number == number else None for key, number in row.items()}
                k = self.dimensions if self.pool and name in ("pointwise", "information") else None
                samples = self.w * sum(len(keys) for keys in self.keys)
                counts = {"dimensions": k, "samples": samples, "windows": self.w}
                yield {"head": head, "quantity": name, **cells, **counts}

    def error(self, estimates: Sequence[float]) -> float:
        w, rest = len(estimates) - 1, np.array(estimates[1:])
        return sqrt((w - 1) / w * float(((rest - rest.mean()) ** 2).sum())) if w > 1 else nan

    def interval(self, estimates: Sequence[float]) -> tuple[float, float, float]:
        value, w = estimates[0], len(estimates) - 1
        half = float(stats.t.ppf(0.975, w - 1)) * self.error(estimates) if w > 1 else nan
        return value, value - half, value + half

    def p_value(self, estimates: Sequence[float]) -> float:
        error = self.error(estimates)
        if not error > 0:
            return nan
        return 2 * float(stats.t.sf(abs(estimates[0]) / error, len(estimates) - 2))

    def pairs(self) -> Iterator[Row]:
        if self.w < 2 or not any(self.keys):
            return
        near = [(i, j) for i, keys in enumerate(self.seen) for j in keys if 0 < abs(i - j) <= NEAR]
        same = [(i, i) for i, keys in enumerate(self.seen) if i in keys]
        for head in range(self.site.n_heads):
            for name, pairs in (("self", same), ("dependent", near), ("independent", near)):
                if pairs:
                    numbers = self.independent(head, pairs) if name == "independent" else self.dependent(head, pairs)
                    cells = {key: number if number == number else None for key, number in numbers.items()}
                    counts = {"samples": self.w * len(pairs), "windows": self.w}
                    yield {"head": head, "quantity": name, **cells, **counts}

    def score(self, head: int, a: int, b: int, pair: tuple[int, int]) -> float:
        return float(self.q[a][head, pair[0]] @ self.k[b][head, pair[1]])

    def dependent(self, head: int, pairs: Sequence[tuple[int, int]]) -> dict[str, float]:
        every = list(range(self.w))
        sets = [every, *([w for w in every if w != out] for out in every if self.w > 2)]
        means = [np.mean([self.score(head, w, w, pair) for pair in pairs for w in only]) for only in sets]
        shifts = [np.mean([self.trace(head, pair, only) for pair in pairs]) for only in sets]
        # Means of the queries and of the keys: their product holds a share of the trace, which is taken off.
        products = [
            float(
                np.mean([self.q[w][head, i] for w in every], 0) @ np.mean([self.k[w][head, j] for w in every], 0)
                - self.trace(head, (i, j), every) / self.w
            )
            for i, j in pairs
        ]
        value, low, high = self.interval([float(one) for one in means])
        shift, shift_low, shift_high = self.interval([float(one) for one in shifts])
        variances = [np.var([self.score(head, w, w, pair) for w in every], ddof=1) for pair in pairs]
        wide = [self._keys_seen(i) for i, _ in pairs]
        found = {
            "value": value,
            "low": low,
            "high": high,
            "predicted": float(np.mean(products)) + shift,
            "shift": shift,
            "shift_low": shift_low,
            "shift_high": shift_high,
            "p": self.p_value([float(one) for one in shifts]),
            "variance": float(np.mean(variances)),
            "attention": float(np.mean([self.a[w][head][pair] for w in every for pair in pairs])),
            "uniform": float(np.mean([1 / keys for keys in wide])),
        }
        if self.w >= 4:
            found["predicted_variance"] = float(np.mean([sum(self.variance(head, pair)) for pair in pairs]))
        return found

    def _keys_seen(self, i: int) -> int:
        keys = i + 1 if self.site.causal else self.n
        return min(keys, self.site.window) if self.site.window is not None and self.site.causal else keys

    def trace(self, head: int, pair: tuple[int, int], only: Sequence[int]) -> float:
        q = np.array([self.q[w][head, pair[0]] for w in only])
        k = np.array([self.k[w][head, pair[1]] for w in only])
        return float(((q - q.mean(0)) * (k - k.mean(0))).sum()) / (len(only) - 1)

    def variance(self, head: int, pair: tuple[int, int]) -> tuple[float, float]:
        """Of independent pairs, and what dependence adds: sums over pairs of different windows, one by one."""
        w, every = self.w, range(self.w)
        s = np.array([[self.score(head, a, b, pair) for b in every] for a in every])
        rest = np.array([[s[a, b] - s[a].mean() - s[:, b].mean() + s.mean() for b in every] for a in every]) * (
            w / (w - 1)
        )
        noise = np.mean([rest[a, b] ** 2 for a in every for b in every if a != b])
        crossing = np.mean([rest[a, b] * rest[b, a] for a in every for b in every if a != b])
        query = [np.mean([s[a, b] for b in every if b != a]) for a in every]
        key = [np.mean([s[b, a] for b in every if b != a]) for a in every]
        spread = np.cov(query, key, ddof=1)
        free = noise + spread[0, 0] + spread[1, 1] - 2 * noise / (w - 1)
        return float(free), float(crossing + 2 * spread[0, 1])

    def independent(self, head: int, pairs: Sequence[tuple[int, int]]) -> dict[str, float]:
        every = range(self.w)
        drawn = {
            (pair, s): [self.score(head, (w + s) % self.w, w, pair) for w in every]
            for pair in pairs
            for s in self.shifts()
        }
        apart = [self.score(head, a, b, pair) for pair in pairs for a in every for b in every if a != b]
        found = {
            "value": float(np.mean(list(drawn.values()))),
            "predicted": float(np.mean(apart)),
            "variance": float(np.mean([np.var(one, ddof=1) for one in drawn.values()])),
        }
        if self.w >= 4:
            found["predicted_variance"] = float(np.mean([self.variance(head, pair)[0] for pair in pairs]))
        return found

    def profile(self) -> Iterator[Row]:
        for pool in range(max(self.pool.values(), default=-1) + 1):
            k, members = self.dimensions, self.members(pool)
            raw = self.information(pool, None)
            rest = [self.information(pool, out) for out in range(self.w)]
            value = self.w * raw - (self.w - 1) * float(np.mean(rest))
            half = self.interval([raw, *rest])[2] - raw
            numbers = {
                "value": value,
                "low": value - half,
                "high": value + half,
                "null": self.shuffled(pool, None, self.shifts()),
                "raw": raw,
                "covariance": float(np.trace(self.fit(pool, None)[1][:k, k:])),
            }
            cells = {key: number if number == number else None for key, number in numbers.items()}
            distances = [i - j for i, j in members]
            counts = {"dimensions": k, "samples": self.w * len(members), "windows": self.w}
            yield {"head": None, "distance": min(distances), "upto": max(distances), **cells, **counts}


def _sorted(pair: tuple[int, int]) -> tuple[int, int]:
    return max(pair), min(pair)


LENS = Lens(
    name="dependence",
    about=ABOUT,
    params=Params,
    needs=needs,
    start=start,
    update=update,
    merge=merge,
    finish=finish,
    definition=definition,
    headline=headline,
    invariant=frozenset({"qk", "vo", "heads"}),
)
