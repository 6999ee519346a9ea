r"""Alignment: do queries and keys look for the same things?

Weights only, one tensor at a time. A head scores a pair of tokens by the form W_QK = w_q w_kᵀ. Its trace, its symmetric
share and the overlap of what its two sides read say how the two sides of the weights lie to each other; each stands
beside what is left when the queries' side is turned at random against the keys' side. What the head does on a text is
another question: the lens `likeness` measures it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import asin, exp, log, sin, sqrt, tan

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from headscope.core import About, Finding, HeadWeights, ModelSpec, Site, WeightSource
from headscope.errors import LensError
from headscope.lenses.alignment.figures import figures
from headscope.lenses.lens import Batch, Lens, Needs
from headscope.lenses.shared.plots import label_of, place
from headscope.lenses.shared.weight_notes import gain_warning, has_gain, method_of, origin, status_warnings
from headscope.lenses.shared.window_tests import FALSE_DISCOVERIES
from headscope.maths.linear_algebra.alignment import (
    FormMoments,
    alignment,
    form_moments,
    independent_trace_variance,
    turned_overlap,
    turned_symmetric_share,
    turned_trace_variance,
)
from headscope.maths.random_matrices.haar import largest_cosine_square, subspace_overlap
from headscope.maths.random_matrices.marchenko_pastur import TRACY_WIDOM_MEAN, TRACY_WIDOM_SD
from headscope.maths.resampling.jackknife import LEVEL, POWER

ORDER = 3

ABOUT = About(
    title="Alignment of queries and keys",
    question="Do the queries and keys of a head look for the same things?",
    definition=(
        "A head scores a query token x against a key token y by the form x W_QK y, where W_QK is w_q times the "
        "transpose of w_k. Its trace is the mean score, before scale and bias, that a token of independent "
        "coordinates gives to itself: the base alignment. Its symmetric part scores a pair the same whichever of "
        "the two is the query; its antisymmetric part is what tells them apart. The columns of w_q and of w_k span "
        "what the two sides read of a token; principal angles say how far these subspaces coincide. The null turns "
        "one side by a random rotation and leaves both sides as they are, so it does not depend on the basis in "
        "which the head keeps its queries and keys. All nulls are exact means and standard deviations, nothing is "
        "sampled. A second null, independent Gaussian entries for w_q and w_k, does depend on that basis and stands "
        "in the table of factors; keeping the factors' own spectra with random singular bases gives the same "
        "variance as it. For a layer the forms of its heads are added, each query head with the key head that it "
        "reads."
    ),
    formulas=(
        r"\mathrm{Tr}\,W = \sum_i \sigma_i\,\langle u_i, v_i\rangle, \qquad "
        r"\mathrm{Var}\,\mathrm{Tr}(O\,W) = \|W\|_F^2\,/\,n \qquad (W = W_{QK},\ n = d_{\mathrm{model}})",
        r"\mathrm{Var}\,\mathrm{Tr}(w_q w_k^{\top}) = n\,d\,v_q v_k = "
        r"\|w_q\|_F^2\,\|w_k\|_F^2\,/\,(n\,d) \qquad (\mathrm{independent\ entries},\ d = d_{\mathrm{head}})",
        r"\mathrm{symmetric\ share} = \frac{\|(W + W^{\top})/2\|_F^2}{\|W\|_F^2} = \frac{1}{2} + "
        r"\frac{\mathrm{Tr}\,W^2}{2\,\|W\|_F^2}, \qquad \mathrm{random:}\ \frac{1}{2} + \frac{1}{2n}",
        r"\mathrm{subspace\ overlap} = \frac{1}{d}\sum_i \cos^2\theta_i, \qquad \mathrm{random:}\ d\,/\,n",
        r"\mathrm{weighted\ overlap} = \|W^2\|_F^2\,/\,\|W\|_F^4, \qquad \mathrm{random:}\ 1\,/\,n",
    ),
    reading=(
        "A trace above 0: tokens of independent coordinates would score themselves higher than other tokens. Below 0: "
        "lower. Real tokens have no independent coordinates, and norms multiply each coordinate by a gain that is not "
        "in W_QK, so the sign on a text can be another one: the lens `likeness` measures Tr Cov(q, k) there. The trace "
        "share is the effect: 1 where both sides are the same, −1 where they are opposite. z compares it with a random "
        "rotation, which nothing trained resembles: it says whether chance could do it, not how much it is, and large "
        "values are not to be compared with each other. A symmetric share of 1 is a head "
        "that does not tell query from key, near 0 one for which every match is one-way. A subspace overlap above "
        "the random one means that both sides read the same features, whatever the sign of the match. A trace near "
        "0 does not say that the two sides are unrelated: opposite matches cancel in it, the overlaps see them. "
        "Positions enter none of these numbers but by the rotary rule: there W_QK is the form at distance 0."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 6.2.3 to 6.2.5 and 7.2.2, figure A.22 (layer traces of Mistral 7B between "
        "−3.43 and 1.78, variance 0.90; read off the plot, and with query head h beside key head h, which is wrong "
        "under grouped queries). Eq. 6.34 there holds for flat spectra only. Principal angles: Björck and Golub "
        "(1973), Math. Comp. 27, 579; the largest cosine of random subspaces: Johnstone (2008), Annals of "
        "Statistics 36, 2638; moments of rotations: Collins and Śniady (2006), Commun. Math. Phys. 264, 773."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self- or cross-attention",
        "layer": "counted from 0",
        "head": "counted from 0; empty for the sum over the heads of a layer",
        "quantity": (
            "trace: Tr W_QK; trace_share: over the sum of singular values, −1 to 1; symmetric_share: 0 to 1; "
            "subspace_overlap: mean squared cosine of the principal angles between what w_q and what w_k read; "
            "largest_cosine: of the smallest of these angles; weighted_overlap: the same two sides weighted with the "
            "squared singular values of W_QK; leading_cosine: between the two sides of its largest singular value. "
            "In the table of factors, which belongs to the way the weights were written down: trace with Gaussian "
            "entries as null; input_overlap and inner_overlap: of w_q and w_k, weighted with their own squared "
            "singular values, towards the token and inside the head"
        ),
        "value": "measured on the raw weights: gains and biases are not folded in. Empty where the form is 0",
        "null": "mean of the null: one side turned at random; in the table of factors see quantity",
        "sd": "standard deviation of the null; of largest_cosine an approximation (Tracy–Widom)",
        "z": (
            "(value − null) / sd: whether a random rotation gives as much, not the size of an effect; of "
            "largest_cosine on the scale ln(c²/(1 − c²)), c² at most 1 − 10⁻⁹. Empty where chance has no play"
        ),
        "status": "exact; clipped: q, k or v are cut off beyond some size; or normed: q and k are normalised "
        "afterwards, and W_QK is the form before that",
        "weights": "as stored, or the quantised format they were expanded from (rounding noise included)",
    },
)

SCHEMA = pl.Schema(
    {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "quantity": pl.String}
    | dict.fromkeys(("value", "null", "sd", "z"), pl.Float64)
    | {"status": pl.String, "weights": pl.String}
)
_ALMOST_ONE = 1 - 1e-9
_HOW = (
    "Exact, in float64, from the factors: W_QK is never formed. The nulls are exact means and variances over random "
    "rotations, except that of largest_cosine, which is a law for large subspaces."
)

Row = tuple[float | None, float | None, float | None, float | None]  # value, null, sd, z


@dataclass(frozen=True)
class Params:
    """Nothing can be chosen."""


@dataclass(frozen=True)
class State:
    """Nothing is folded: the lens reads weights only."""

    sites: tuple[Site, ...]


@dataclass(frozen=True)
class Measured:
    """The numbers of one site."""

    heads: list[dict[str, Row]]
    factors: list[dict[str, Row]]
    layer: dict[str, Row]
    layer_factors: dict[str, Row]
    cosines: list[NDArray[np.float64]] = field(default_factory=list)


def needs(params: Params, spec: ModelSpec) -> Needs:
    """Only weights."""
    return Needs(weights=True)


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Remember what to measure."""
    return State(sites)


def update(state: State, batch: Batch) -> State:
    """The text plays no part."""
    return state


def merge(a: State, b: State) -> State:
    """Both are the same."""
    return a


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Read one site at a time and keep only its numbers."""
    if weights is None:
        raise LensError("the lens alignment reads the model's weights, and was given none")
    statuses = {site: weights.status(site) for site in state.sites}
    known = [site for site in state.sites if statuses[site].status != "refused"]
    warnings = status_warnings(weights.spec, statuses, "W_QK is the form before it")
    found: dict[Site, Measured] = {}
    gained: list[Site] = []
    unlike: list[Site] = []
    for site in known:
        w = weights.weights(site)
        if w.w_q.shape[1] != w.w_k.shape[1]:
            unlike.append(site)
            continue
        found[site] = _measured(w)
        gained += [site] if has_gain(w, "qk") else []
        del w
    warnings = (*warnings, *_unlike_warning(unlike), *_cross_warning(found), *gain_warning(gained, known, "q or k"))
    if not found:
        reason = "no attention site of this model has queries and keys in canonical form that read vectors of one size"
        return Finding("alignment", ABOUT, status="not applicable", reason=reason, warnings=warnings)
    tables = _tables(found, {site: statuses[site].status for site in found}, origin(weights.spec))
    finding = Finding(
        "alignment",
        ABOUT,
        tables=tables,
        arrays={f"{site.label}.cosines": _padded(one.cosines) for site, one in found.items()},
        figures=figures({site: one.heads for site, one in found.items()}, {s: one.layer for s, one in found.items()}),
        method=method_of(weights, _HOW),
        warnings=warnings,
    )
    return replace(finding, headlines=headline(finding))


def _unlike_warning(unlike: Sequence[Site]) -> tuple[str, ...]:
    if not unlike:
        return ()
    labels = ", ".join(site.label for site in unlike)
    return (f"Left out: {labels}. Reason: queries and keys read vectors of different sizes, so W_QK has no trace.",)


def _cross_warning(found: Mapping[Site, Measured]) -> tuple[str, ...]:
    cross = [site for site in found if site.kind == "cross"]
    if not cross:
        return ()
    return (
        f"{len(cross)} of {len(found)} sites (first {cross[0].label}) are cross-attention: queries and keys read "
        "different stacks, and their alignment means something only as far as these share their coordinates.",
    )


def _padded(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Cosines of the principal angles, heads down; a head of lower rank ends in NaN."""
    cells = np.full((len(rows), max(len(row) for row in rows)), np.nan)
    for index, row in enumerate(rows):
        cells[index, : len(row)] = row
    return cells


def _measured(w: HeadWeights) -> Measured:
    """All heads one by one, then their sum."""
    heads, factors, cosines = [], [], []
    read, key = 0, _Factor.of(w.w_k[0])
    for head in range(w.site.n_heads):
        if w.kv_of_head(head) != read:  # the heads of a group follow one another
            read = w.kv_of_head(head)
            key = _Factor.of(w.w_k[read])
        query = _Factor.of(w.w_q[head])
        numbers, angles = _head(query, key)
        heads.append(numbers)
        cosines.append(angles)
        factors.append(_factor_numbers(query, key))
    layer, of_factors = _layer(w)
    return Measured(heads, factors, layer, of_factors, cosines)


@dataclass(frozen=True)
class _Factor:
    """w_q or w_k of one head, and its thin SVD: u towards the token, v inside the head."""

    w: Float[Tensor, "n d"]
    u: Float[Tensor, "n rank"]
    sigma: Float[Tensor, " rank"]
    v: Float[Tensor, "d rank"]

    @classmethod
    def of(cls, w: Float[Tensor, "n d"]) -> "_Factor":
        w = w.to(torch.float64)
        u, sigma, vh = torch.linalg.svd(w, full_matrices=False)
        rank = int((sigma > float(sigma[0]) * max(w.shape) * torch.finfo(torch.float64).eps).sum())
        return cls(w, u[:, :rank], sigma[:rank], vh[:rank].mT)

    @property
    def shares(self) -> Float[Tensor, " rank"]:
        """Squared singular values as shares of their sum."""
        return self.sigma.square() / self.sigma.square().sum()


def _head(query: _Factor, key: _Factor) -> tuple[dict[str, Row], NDArray[np.float64]]:
    """The numbers that the inner basis of a head does not change, and its principal cosines."""
    n = len(query.w)
    across = query.u.mT @ key.u
    cosines = torch.linalg.svdvals(across).clamp(0.0, 1.0) if across.numel() else across.new_zeros(0)
    core = (query.sigma[:, None] * query.v.mT) @ (key.v * key.sigma)
    left, sigma, right = torch.linalg.svd(core, full_matrices=False)
    energy = sigma.square().sum()
    if not float(energy) > 0:
        nothing = ("trace_share", "symmetric_share", "weighted_overlap", "leading_cosine")
        angles = _angle_numbers(cosines, n, query.u.shape[1], key.u.shape[1])
        return {"trace": (0.0, 0.0, 0.0, None)} | dict.fromkeys(nothing, (None,) * 4) | angles, cosines.numpy()
    # ⟨u_i, v_j⟩ of the form's own singular vectors: left.T · (queries' basis · keys' basis) · right.
    overlaps = left.mT @ across @ right.mT
    shares = sigma.square() / energy
    trace = float(alignment(query.w, key.w))
    trace_sd = sqrt(float(turned_trace_variance(energy, n)))
    nuclear = float(sigma.sum())
    weighted = float(shares @ overlaps.square() @ shares)
    mean, variance = turned_overlap(shares, shares, n)
    return {
        "trace": _row(trace, 0.0, trace_sd),
        "trace_share": _row(trace / nuclear, 0.0, trace_sd / nuclear),
        "symmetric_share": _symmetric(form_moments(query.w, key.w), n),
        "weighted_overlap": _row(weighted, float(mean), sqrt(float(variance))),
        "leading_cosine": _row(float(overlaps[0, 0]), 0.0, n**-0.5),
        **_angle_numbers(cosines, n, query.u.shape[1], key.u.shape[1]),
    }, cosines.numpy()


def _row(value: float, null: float, sd: float) -> Row:
    # Rounding can leave a trace of a spread where chance has none.
    return value, null, sd, (value - null) / sd if sd > 1e-9 * max(abs(value), abs(null)) else None


def _symmetric(moments: FormMoments, n: int) -> Row:
    if not float(moments.energy) > 0:
        return (None,) * 4
    mean, variance = turned_symmetric_share(moments.purity, n)
    return _row(float(moments.symmetric_share), mean, sqrt(float(variance)))


def _angle_numbers(cosines: Float[Tensor, " rank"], n: int, first: int, second: int) -> dict[str, Row]:
    """Of the principal angles between two subspaces of n dimensions."""
    if not len(cosines):
        return {"subspace_overlap": (None,) * 4, "largest_cosine": (None,) * 4}
    smaller = min(first, second)
    mean, variance = subspace_overlap(n, first, second)
    overlap = _row(float(cosines.square().sum()) / smaller, mean / smaller, sqrt(variance) / smaller)
    return {"subspace_overlap": overlap, "largest_cosine": _largest_cosine(float(cosines[0]), n, first, second)}


def _largest_cosine(value: float, n: int, first: int, second: int) -> Row:
    if first + second > n - 1:
        return value, 1.0 if first + second > n else None, None, None
    centre, scale = largest_cosine_square(n, first, second)
    middle, spread = centre + scale * TRACY_WIDOM_MEAN, scale * TRACY_WIDOM_SD
    null = (1 + exp(-middle)) ** -0.5
    square = min(value**2, _ALMOST_ONE)
    place_of = log(max(square, 1e-300) / (1 - square))
    return value, null, null * (1 - null**2) / 2 * spread, (place_of - middle) / spread


def _factor_numbers(query: _Factor, key: _Factor) -> dict[str, Row]:
    """The numbers that depend on the inner basis, unless it is changed by a rotation."""
    n, d = query.w.shape
    trace = float(alignment(query.w, key.w))
    found: dict[str, Row] = {"trace": _row(trace, 0.0, sqrt(_gaussian_variance(query.w, key.w)))}
    if not (len(query.sigma) and len(key.sigma)):
        return found | dict.fromkeys(("input_overlap", "inner_overlap"), (None,) * 4)
    for name, a, b, size in (
        ("input_overlap", query.u, key.u, n),
        ("inner_overlap", query.v, key.v, d),
    ):
        value = float(query.shares @ (a.mT @ b).square() @ key.shares)
        mean, variance = turned_overlap(query.shares, key.shares, size)
        found[name] = _row(value, float(mean), sqrt(float(variance)))
    return found


def _gaussian_variance(a: Float[Tensor, "n d"], b: Float[Tensor, "n d"]) -> float:
    n, d = a.shape
    return independent_trace_variance(n, d, *(float(x.to(torch.float64).square().mean()) for x in (a, b)))


def _layer(w: HeadWeights) -> tuple[dict[str, Row], dict[str, Row]]:
    """The sum of the heads' forms. The queries of a group share their keys, so they are added first."""
    grouped = w.w_q.to(torch.float64).reshape(w.site.n_kv_heads, -1, *w.w_q.shape[1:]).sum(1)
    queries, keys = (x.transpose(0, 1).flatten(1) for x in (grouped, w.w_k.to(torch.float64)))
    moments = form_moments(queries, keys)
    trace = float(alignment(queries, keys))
    layer = {
        "trace": _row(trace, 0.0, sqrt(float(turned_trace_variance(moments.energy, len(queries))))),
        "symmetric_share": _symmetric(moments, len(queries)),
    }
    # Traces of different heads are uncorrelated under the null, also where they share their keys.
    variance = sum(_gaussian_variance(one, w.w_k[w.kv_of_head(head)]) for head, one in enumerate(w.w_q))
    return layer, {"trace": _row(trace, 0.0, sqrt(variance))}


def _tables(found: Mapping[Site, Measured], statuses: Mapping[Site, str], read_from: str) -> dict[str, pl.DataFrame]:
    """One row per head (or layer) and quantity."""

    def rows(site: Site, head: int | None, numbers: Mapping[str, Row]) -> Iterator[dict[str, object]]:
        for quantity, (value, null, sd, z) in numbers.items():
            measured = {"quantity": quantity, "value": value, "null": null, "sd": sd, "z": z}
            yield {**place(site, head), **measured, "status": statuses[site], "weights": read_from}

    heads: list[dict[str, object]] = []
    layers: list[dict[str, object]] = []
    factors: list[dict[str, object]] = []
    for site, one in found.items():
        heads += [row for head, numbers in enumerate(one.heads) for row in rows(site, head, numbers)]
        layers += rows(site, None, one.layer)
        factors += [row for head, numbers in enumerate(one.factors) for row in rows(site, head, numbers)]
        factors += rows(site, None, one.layer_factors)
    parts = {"heads": heads, "layers": layers, "factors": factors}
    return {name: pl.DataFrame(part, schema=SCHEMA) for name, part in parts.items()}


def headline(finding: Finding) -> tuple[str, ...]:
    """What stands out, in numbers."""
    if finding.status != "ok":
        return ()
    heads, layers = finding.tables["heads"], finding.tables["layers"]
    noise = "" if heads["weights"].str.starts_with("as stored").all() else ", rounding noise included"
    sentences = (_trace_sentence(heads, noise), _share_sentence(heads), _layer_sentence(layers, heads))
    return tuple(sentence for sentence in sentences if sentence)


def _of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())


def _trace_sentence(heads: pl.DataFrame, noise: str) -> str:
    """The traces as effects; how many are beyond chance, after adjusting for the number of heads."""
    rows = _of(heads, "trace_share").filter(pl.col("z").is_not_null()).sort("value", maintain_order=True)
    if rows.is_empty():
        return f"All {_of(heads, 'trace').height} heads have a W_QK of 0."
    p = stats.false_discovery_control(2 * stats.norm.sf(np.abs(rows["z"].to_numpy())))
    sure = rows.filter(pl.Series(p < FALSE_DISCOVERIES))
    above, below = (sure.filter(side).height for side in (pl.col("value") > 0, pl.col("value") < 0))
    low, high = rows.row(0, named=True), rows.row(-1, named=True)
    middle, random = float(np.median(rows["value"].to_numpy())), float(np.median(rows["sd"].to_numpy()))
    return (
        f"In the weights, the trace of W_QK is {middle:+.3f} of its largest possible value in the median of "
        f"{rows.height} heads (one side turned at random: 0 ± {random:.2g}{noise}), from {low['value']:+.2f} in "
        f"{label_of(low)} to {high['value']:+.2f} in {label_of(high)}. {above} heads are above and {below} below what "
        f"chance gives (false discovery rate {100 * FALSE_DISCOVERIES:.0f} %; one test detects {_detectable(rows):.2g} "
        "four times in five). What the heads do on a text is measured by the lens likeness."
    )


def _detectable(rows: pl.DataFrame) -> float:
    """The trace share that a test at the 5 % level detects in four of five cases, in the median head."""
    return float(stats.norm.ppf((1 + LEVEL) / 2) + stats.norm.ppf(POWER)) * float(np.median(rows["sd"].to_numpy()))


def _share_sentence(heads: pl.DataFrame) -> str:
    rows = _of(heads, "symmetric_share").sort("value", maintain_order=True)
    if rows.is_empty():
        return ""
    low, high = rows.row(0, named=True), rows.row(-1, named=True)
    middle, null, sd = (_middle(rows, column) for column in ("value", "null", "sd"))
    return (
        f"The form of the median head is {100 * middle:.1f} % symmetric (random: {100 * null:.1f} ± {100 * sd:.1g} %"
        f"{_beyond_chance(rows)}); the most "
        f"symmetric is {label_of(high)} with {100 * high['value']:.0f} %, the least {label_of(low)} with "
        f"{100 * low['value']:.0f} %."
    )


def _layer_sentence(layers: pl.DataFrame, heads: pl.DataFrame) -> str:
    traces, overlaps = _of(layers, "trace"), _of(heads, "subspace_overlap")
    values, sds = (traces[column].to_numpy() for column in ("value", "sd"))
    size, random = (float(np.sqrt(np.mean(np.square(x)))) for x in (values, sds))
    sentence = (
        f"Summed over the heads of a layer the traces run from {values.min():.3g} to {values.max():.3g}, root mean "
        f"square {size:.3g} (random: {random:.3g})"
    )
    if overlaps.is_empty():
        return sentence + "."
    overlap, null, sd = (_middle(overlaps, column) for column in ("value", "null", "sd"))
    return (
        f"{sentence}; in the median head {100 * overlap:.1f} % of what the keys read lies within what the queries "
        f"read (random: {100 * null:.1f} ± {100 * sd:.1g} %{_beyond_chance(overlaps)})."
    )


def _middle(rows: pl.DataFrame, column: str) -> float:
    """The median of the numbers there are; 0 where there are none."""
    numbers = rows[column].drop_nulls().to_numpy()
    return float(np.median(numbers)) if len(numbers) else 0.0


def _beyond_chance(rows: pl.DataFrame) -> str:
    """How many heads lie above and below their null, after adjusting for the number of heads."""
    tested = rows.filter(pl.col("z").is_not_null())
    if tested.is_empty():
        return ""
    p = stats.false_discovery_control(2 * stats.norm.sf(np.abs(tested["z"].to_numpy())))
    sure = tested.filter(pl.Series(p < FALSE_DISCOVERIES))
    above, below = (sure.filter(side).height for side in (pl.col("z") > 0, pl.col("z") < 0))
    return f"; {above} heads above and {below} below, false discovery rate {100 * FALSE_DISCOVERIES:.0f} %"


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, on dense n × n forms in float64."""
    if weights is None:
        raise LensError("the lens alignment reads the model's weights, and was given none")
    tables: dict[str, list[dict[str, object]]] = {"heads": [], "layers": [], "factors": []}
    for site in weights.sites:
        if weights.status(site).status == "refused":
            continue
        w = weights.weights(site)
        if w.w_q.shape[1] != w.w_k.shape[1]:
            continue
        expanded = weights.spec.dequantised
        last = {
            "status": weights.status(site).status,
            "weights": f"expanded from {expanded}" if expanded else "as stored",
        }
        share = site.n_heads // site.n_kv_heads
        whole, variance = torch.zeros(w.w_q.shape[1], w.w_q.shape[1], dtype=torch.float64), 0.0

        def add(
            table: str,
            head: int | None,
            rows: Mapping[str, Row],
            site: Site = site,
            last: Mapping[str, str] = last,
        ) -> None:
            first = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head}
            for name, numbers in rows.items():
                named = dict(zip(("value", "null", "sd", "z"), numbers, strict=True))
                tables[table].append({**first, "quantity": name, **named, **last})

        for h in range(site.n_heads):
            q, k = w.w_q[h].double(), w.w_k[h // share].double()
            form = q @ k.T
            chance = float((q**2).sum() * (k**2).sum()) / q.numel()
            whole, variance = whole + form, variance + chance
            add("heads", h, _defined_form(form) | _defined_angles(q, k))
            add("factors", h, {"trace": _defined_row(float(form.trace()), 0.0, chance)} | _defined_factors(q, k))
        kept = {name: row for name, row in _defined_form(whole).items() if name in ("trace", "symmetric_share")}
        add("layers", None, kept)
        add("factors", None, {"trace": _defined_row(float(whole.trace()), 0.0, variance)})
    return {name: pl.DataFrame(rows, schema=SCHEMA) for name, rows in tables.items()}


def _defined_row(value: float, null: float, variance: float) -> Row:
    sd = sqrt(max(variance, 0.0))
    return value, null, sd, (value - null) / sd if sd > 1e-9 * max(abs(value), abs(null)) else None


def _defined_form(w: Tensor) -> dict[str, Row]:
    n = len(w)
    u, sigma, vh = torch.linalg.svd(w)
    energy, fourth = float((w**2).sum()), float((sigma**4).sum())
    trace = _defined_row(float(w.trace()), 0.0, energy / n)
    if energy == 0:
        names = ("trace_share", "symmetric_share", "weighted_overlap", "leading_cosine")
        return {"trace": trace} | dict.fromkeys(names, (None,) * 4)
    nuclear = float(sigma.sum())
    pi = fourth / energy**2
    symmetric = ((w + w.T) / 2).square().sum() / energy
    spread = 3 * pi / (n * (n + 2)) + 3 * (n + 1) * (1 - pi) / ((n - 1) * n * (n + 2)) - 1 / n**2
    weighted = float(((w @ w) ** 2).sum()) / energy**2
    return {
        "trace": trace,
        "trace_share": _defined_row(float(w.trace()) / nuclear, 0.0, energy / n / nuclear**2),
        "symmetric_share": _defined_row(float(symmetric), 0.5 + 0.5 / n, spread / 4),
        "weighted_overlap": _defined_row(weighted, 1 / n, 2 * (pi - 1 / n) ** 2 / ((n - 1) * (n + 2))),
        "leading_cosine": _defined_row(float(u[:, 0] @ vh[0]), 0.0, 1 / n),
    }


def _defined_projection(w: Tensor) -> tuple[Tensor, int]:
    """The orthogonal projection on the columns of w, and their rank."""
    rank = int(torch.linalg.matrix_rank(w))
    u = torch.linalg.svd(w).U[:, :rank]
    return u @ u.T, rank


def _defined_angles(q: Tensor, k: Tensor) -> dict[str, Row]:
    n = len(q)
    (p, a), (r, b) = _defined_projection(q), _defined_projection(k)
    if not a or not b:
        return {"subspace_overlap": (None,) * 4, "largest_cosine": (None,) * 4}
    small = min(a, b)
    variance = 2 * a * b * (n - a) * (n - b) / (n**2 * (n - 1) * (n + 2))
    overlap = _defined_row(float((p @ r).trace()) / small, a * b / n / small, variance / small**2)
    cosine = sqrt(min(float(torch.linalg.eigvalsh(p @ r @ p)[-1]), 1.0))
    if a + b >= n:
        return {"subspace_overlap": overlap, "largest_cosine": (cosine, None if a + b == n else 1.0, None, None)}
    gamma, phi = (2 * asin(sqrt((size - 0.5) / (n - 1))) for size in (small, max(a, b)))
    width = (16 / (n - 1) ** 2 / (sin(phi + gamma) ** 2 * sin(phi) * sin(gamma))) ** (1 / 3)
    middle = 2 * log(tan((phi + gamma) / 2)) - 1.2065336 * width
    null = sqrt(exp(middle) / (1 + exp(middle)))
    square = min(cosine**2, 1 - 1e-9)
    z = (log(square / (1 - square)) - middle) / (1.2679831 * width)
    return {
        "subspace_overlap": overlap,
        "largest_cosine": (cosine, null, null * (1 - null**2) / 2 * 1.2679831 * width, z),
    }


def _defined_factors(q: Tensor, k: Tensor) -> dict[str, Row]:
    sizes = float((q**2).sum()) * float((k**2).sum())
    if sizes == 0:
        return dict.fromkeys(("input_overlap", "inner_overlap"), (None,) * 4)
    found = {}
    for name, a, b in (("input_overlap", q @ q.T, k @ k.T), ("inner_overlap", q.T @ q, k.T @ k)):
        n = len(a)
        a, b = a / a.trace(), b / b.trace()
        spread = float((a**2).sum() - 1 / n) * float((b**2).sum() - 1 / n)
        variance = 2 * spread / ((n - 1) * (n + 2)) if n > 1 else 0.0
        found[name] = _defined_row(float((a @ b).trace()), 1 / n, variance)
    return found


LENS = Lens(
    "alignment", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"heads", "qk:heads", "qk:layers", "rotated qk", "vo"}),
)  # fmt: skip
