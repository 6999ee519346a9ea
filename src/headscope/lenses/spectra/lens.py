r"""Spectra: on how many directions do the weights act, and how far are they from random?

Weights only. The singular values of W_Q, W_K, W_V, W_O and of the feed-forward matrices of each layer, and of W_QK,
W_OV of each head, beside those of Gaussian matrices of the same shape and the same Frobenius norm: Marchenko–Pastur for
the former, the law of a product of two Gaussian matrices for the latter.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from headscope.core import About, FeedForward, Finding, HeadWeights, ModelSpec, Site, WeightSource
from headscope.errors import LensError
from headscope.lenses.lens import Batch, Lens, Needs
from headscope.lenses.shared.defined_spectrum import defined_numbers
from headscope.lenses.shared.plots import label_of, place
from headscope.lenses.shared.weight_notes import gain_warning, has_gain, method_of, origin, status_warnings
from headscope.lenses.spectra.figures import figures
from headscope.maths.linear_algebra.spectrum import form_singular_values, singular_values
from headscope.maths.random_matrices.null_spectrum import Comparison

ORDER = 1

ABOUT = About(
    title="Spectra of the weights",
    question="On how many directions do attention and feed-forward weights act, and how far are they from random?",
    definition=(
        "A matrix rotates, stretches along orthogonal directions, and rotates again; the factors of the stretching "
        "are its singular values σ₁ ≥ σ₂ ≥ … . They are computed for W_Q, W_K, W_V and W_O of each layer, with the "
        "heads side by side, for the feed-forward matrices of the layer as they are stored, and for the two products "
        "that matter in a head: W_QK, w_q times the transpose of w_k (what it compares), and W_OV, w_v times w_o "
        "(what it moves). Each is set beside a random matrix of the "
        "same shape and the same Frobenius norm. A matrix of independent entries follows the Marchenko–Pastur law, "
        "with sharp edges a and b. W_QK and W_OV are products, so their null is the product of two random factors; "
        "its law is another. How far the largest value may stray beyond the edge by chance is the Tracy–Widom law "
        "T. Because strong directions swell the Frobenius norm, the law is also fitted to the bulk alone, by its "
        "median: values above the edge of that fit are spikes, and the largest gap between the two distribution "
        "functions tells whether what is left looks random at all."
    ),
    formulas=(
        r"W = U\,\mathrm{diag}(\sigma_1, \sigma_2, \ldots)\,V^{\top}, \qquad "
        r"p_i = \sigma_i^2\,/\,\sum_j \sigma_j^2",
        r"\mathrm{stable\ rank} = \sum_i \sigma_i^2\,/\,\sigma_1^2, \qquad "
        r"\mathrm{effective\ rank} = \exp\left(-\sum_i p_i \ln p_i\right)",
        r"f(x) = \frac{\sqrt{(x-a)(b-x)}}{2\pi v p x}, \quad a, b = v\,(\sqrt{n} \mp \sqrt{p})^2, "
        r"\quad x = \sigma^2 \quad (p \times n,\ p \leq n,\ \mathrm{variance}\ v)",
        r"T = (\sigma_1^2 - m)\,/\,w, \quad m = v\,(r + c)^2, \quad w = v\,(r + c)\,(1/r + 1/c)^{1/3}",
        r"r = \sqrt{n - 1/2}, \qquad c = \sqrt{p - 1/2}",
        r"m = b, \quad w = (p A)^{-2/3}, \quad f \approx A\sqrt{b - x}\,/\,\pi\ \mathrm{below}\ b "
        r"\qquad (\mathrm{product})",
        r"v_{\mathrm{bulk}} = v\,\frac{\mathrm{median}_i\,\sigma_i^2}{\mathrm{median\ of\ the\ law}}, \qquad "
        r"\mathrm{distance} = \sup_x |F_{\mathrm{bulk}}(x) - F(x)|",
        r"f(x) = \frac{|\mathrm{Im}\,z|}{\pi x}, \quad x z = (1+z)(1+c_1 z)(1+c_2 z) \quad "
        r"(\mathrm{product;}\ x\ \mathrm{over\ its\ mean},\ c_i = p/n_i)",
    ),
    reading=(
        "A spectrum that follows the law shows no trace of training but its size. Singular values above the upper "
        "edge are directions that training singled out; an effective rank far below the random one means that few "
        "directions do most of the work. A bulk at the random distance from the law, below a few spikes, is noise "
        "that training left alone; a distance many times larger means that there is no such bulk, and then the "
        "count of spikes says no more than that. W_QK and W_OV do not depend on the basis in which a head keeps its "
        "queries, keys and values, so they belong to the function the model computes; W_Q, W_K, W_V and W_O do "
        "depend on it (unless the change is a rotation) and belong to the way its weights were written down. A "
        "feed-forward matrix has no such freedom: the nonlinearity fixes its basis, up to the order of the units and, "
        "with ReLU, their scale."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 2.5, 6.2.2, 7.2.2 and A.5 (square matrices; the edge in section 2.5 "
        "lacks a factor n); Marchenko and Pastur (1967); Burda et al. (2010), Eigenvalues and singular values "
        "of products of rectangular Gaussian random matrices; Roy and Vetterli (2007), The effective rank (with σ for "
        "σ²); "
        "Johnstone (2001) and Ma (2012) (the largest value); Gavish and Donoho (2014) (the median); Claeys et al. "
        "(2021), Duke Math. J. 170, 2085 (the distance); Elhage et al. (2021), A Mathematical Framework for "
        "Transformer Circuits (W_QK and W_OV)."
    ),
    columns={
        "stack": "enc, dec, or only where the model has one stack; text, image or sound for towers side by side",
        "kind": "self- or cross-attention; empty for feed-forward matrices",
        "layer": "counted from 0",
        "head": "counted from 0; empty for the matrices of a whole layer",
        "matrix": (
            "QK, OV: products of one head, unchanged by any change of its inner basis (w_q→w_q G, w_k→w_k "
            "G⁻ᵀ; w_v→w_v G, w_o→G⁻¹ w_o). Q, K, V, O: of one layer, heads side by side, unchanged only "
            "when every G is a rotation. Feed-forward matrices have the name of their module inside the layer"
        ),
        "shape": "what the matrix reads × what it writes, as stored (a gate may be stored with its partner)",
        "quantity": (
            "mean_square, sum_squares: of the singular values; largest, smallest: singular value; "
            "stable_rank; effective_rank; above_edge: how many singular values exceed the upper edge of "
            "the null; energy_above_edge: their share of the sum of squares; "
            "largest_tracy_widom: the largest square as a Tracy–Widom variable; largest_p_value: the chance that the "
            "null exceeds it; bulk_variance: of an entry (QK, OV: product of the two factors' variances), from the "
            "median; bulk_distance: of the values below the edge of that fit from its law; spikes: how many are above "
            "it; energy_in_spikes: their share of the sum of squares"
        ),
        "value": "measured on the raw weights: gains are not folded in",
        "null": (
            "the same for Gaussian entries (QK, OV: two Gaussian factors) of the same shape and Frobenius "
            "norm. Largest and smallest: the edges of the limit law. Stable rank: with the expected "
            "largest value (Tracy–Widom). A random matrix has a value above its edge in about one case of "
            "six. Distance: from theory and samples. Empty where the null is scaled to the value"
        ),
        "initial": (
            "a second null: Gaussian entries of the standard deviation with which the configuration initialises "
            "matrices (initializer_range; some families scale W_O or all of them further). Empty where it does not "
            "say, or where this equals the null"
        ),
        "status": "exact; clipped: q, k or v are cut off beyond some size; or normed: q and k are normalised "
        "afterwards, and W_QK is the form before that",
        "weights": "as stored, or the quantised format they were expanded from (rounding noise included)",
    },
)

_PLACE = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "matrix": pl.String}
_NUMBERS = {
    "quantity": pl.String,
    "value": pl.Float64,
    "null": pl.Float64,
    "initial": pl.Float64,
    "status": pl.String,
    "weights": pl.String,
}
SCHEMA = pl.Schema(_PLACE | _NUMBERS)
FEED_FORWARD_SCHEMA = pl.Schema(_PLACE | {"shape": pl.String} | _NUMBERS)

_FALSE_DISCOVERIES = 0.05
_HOW = (
    "Exact, in float64: eigenvalues of the Gram matrix of the smaller side; for W_QK and W_OV, QR of both factors "
    "and an SVD of the core. The nulls are laws for large matrices, not samples."
)


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    bins: int = field(default=48, metadata={"help": "bars of the histograms"})


@dataclass(frozen=True)
class State:
    """Nothing is folded: the lens reads weights only."""

    params: Params
    spec: ModelSpec
    sites: tuple[Site, ...]


def needs(params: Params, spec: ModelSpec) -> Needs:
    """Only weights."""
    return Needs(weights=True)


def start(params: Params, spec: ModelSpec, sites: tuple[Site, ...]) -> State:
    """Remember what to measure."""
    return State(params, spec, sites)


def update(state: State, batch: Batch) -> State:
    """The text plays no part."""
    return state


def merge(a: State, b: State) -> State:
    """Both are the same."""
    return a


def finish(state: State, weights: WeightSource | None) -> Finding:
    """Read one site at a time and keep only its singular values, so that memory stays that of one site."""
    if weights is None:
        raise LensError("the lens spectra reads the model's weights, and was given none")
    statuses = {site: weights.status(site) for site in state.sites}
    known = [site for site in state.sites if statuses[site].status != "refused"]
    warnings = status_warnings(weights.spec, statuses, "W_Q, W_K and W_QK are those before it")
    if not known:
        reason = "no attention site of this model has projections in canonical form"
        return Finding("spectra", ABOUT, status="not applicable", reason=reason, warnings=warnings)
    layers: dict[Site, dict[str, Comparison]] = {}
    heads: dict[Site, dict[str, list[Comparison]]] = {}
    feed_forward: dict[FeedForward, Comparison] = {}
    gained: list[Site] = []
    for site in known:
        of_site = weights.weights(site)
        layers[site], heads[site] = dict(_matrices(of_site)), dict(_forms(of_site))
        gained += [site] if has_gain(of_site) else []
        del of_site
    for one in weights.feed_forward:
        feed_forward[one] = Comparison(one.sizes, singular_values(weights.feed_forward_matrix(one)))
    tables = _tables(layers, heads, {site: statuses[site].status for site in known}, weights.spec)
    finding = Finding(
        "spectra",
        ABOUT,
        tables=tables | _feed_forward_table(feed_forward, weights.spec),
        arrays=_arrays(layers, heads) | {one.label: found.sigma.numpy() for one, found in feed_forward.items()},
        figures=figures(layers, heads, feed_forward, state.params.bins, weights.spec.initial_sd),
        method=method_of(weights, _HOW),
        warnings=(*warnings, *gain_warning(gained, known, "q, k or v"), *weights.feed_forward_notes),
        params={"bins": state.params.bins},
    )
    return replace(finding, headlines=headline(finding))


def _matrices(w: HeadWeights) -> Iterator[tuple[str, Comparison]]:
    """W_Q, W_K, W_V, W_O of one site, heads side by side."""
    for name, of_heads in (("Q", w.w_q), ("K", w.w_k), ("V", w.w_v)):
        side_by_side = of_heads.transpose(0, 1).flatten(1)
        yield name, Comparison(tuple(side_by_side.shape), singular_values(side_by_side))
    stacked = w.w_o.flatten(0, 1)
    yield "O", Comparison(tuple(stacked.shape), singular_values(stacked))


def _forms(w: HeadWeights) -> Iterator[tuple[str, list[Comparison]]]:
    """W_QK and W_OV of every head of one site, one head at a time."""
    kv = [w.kv_of_head(head) for head in range(w.site.n_heads)]
    yield "QK", [_form(w.w_q[head], w.w_k[kv[head]]) for head in range(w.site.n_heads)]
    yield "OV", [_form(w.w_v[kv[head]], w.w_o[head].mT) for head in range(w.site.n_heads)]


def _form(a: Tensor, b: Tensor) -> Comparison:
    return Comparison((a.shape[0], a.shape[1], b.shape[0]), form_singular_values(a, b))


def _tables(
    layers: Mapping[Site, Mapping[str, Comparison]],
    heads: Mapping[Site, Mapping[str, list[Comparison]]],
    statuses: Mapping[Site, str],
    spec: ModelSpec,
) -> dict[str, pl.DataFrame]:
    """One row per matrix and quantity."""

    def rows(site: Site, head: int | None, matrix: str, one: Comparison) -> Iterator[dict[str, object]]:
        for numbers in _numbers(one, spec):
            yield {**place(site, head), "matrix": matrix, **numbers, "status": statuses[site]}

    of_heads = [
        row
        for site, forms in heads.items()
        for head in range(site.n_heads)
        for matrix, ones in forms.items()
        for row in rows(site, head, matrix, ones[head])
    ]
    of_layers = [
        row for site, found in layers.items() for matrix, one in found.items() for row in rows(site, None, matrix, one)
    ]
    return {"heads": pl.DataFrame(of_heads, schema=SCHEMA), "layers": pl.DataFrame(of_layers, schema=SCHEMA)}


def _feed_forward_table(found: Mapping[FeedForward, Comparison], spec: ModelSpec) -> dict[str, pl.DataFrame]:
    """The same for the feed-forward matrices, where there are any."""
    rows = [
        {"stack": one.stack, "kind": None, "layer": one.layer, "head": None, "matrix": one.name}
        | {"shape": f"{one.sizes[0]} × {one.sizes[1]}", **numbers, "status": "exact"}
        for one, comparison in found.items()
        for numbers in _numbers(comparison, spec)
    ]
    return {"feed_forward": pl.DataFrame(rows, schema=FEED_FORWARD_SCHEMA)} if rows else {}


def _numbers(one: Comparison, spec: ModelSpec) -> Iterator[dict[str, object]]:
    initial = one.initial(spec.initial_sd) if spec.initial_sd else {}
    for quantity, (value, null) in one.quantities.items():
        yield {
            "quantity": quantity,
            "value": value,
            "null": null,
            "initial": initial.get(quantity),
            "weights": origin(spec),
        }


def _arrays(
    layers: Mapping[Site, Mapping[str, Comparison]], heads: Mapping[Site, Mapping[str, list[Comparison]]]
) -> dict[str, NDArray[np.float64]]:
    """All singular values of attention: `L3.Q` is [rank], `L3.QK` is [heads, rank]."""
    found: dict[str, NDArray[np.float64]] = {}
    for site in layers:
        found |= {f"{site.label}.{matrix}": one.sigma.numpy() for matrix, one in layers[site].items()}
        found |= {
            f"{site.label}.{form}": np.stack([one.sigma.numpy() for one in ones]) for form, ones in heads[site].items()
        }
    return found


def headline(finding: Finding) -> tuple[str, ...]:
    """What stands out, in numbers."""
    if finding.status != "ok":
        return ()
    heads, layers, fed = (finding.tables.get(name) for name in ("heads", "layers", "feed_forward"))
    if heads is None or layers is None:
        return ()
    noise = "" if heads["weights"].str.starts_with("as stored").all() else ", rounding noise included"
    sentences = (_rank_sentence(heads, noise), _edge_sentence(layers, noise))
    return sentences if fed is None else (*sentences, _feed_forward_sentence(fed, layers, noise))


def _rank_sentence(heads: pl.DataFrame, noise: str) -> str:
    (compared, lowest_qk), (moved, lowest_ov) = _ranks(heads, "QK"), _ranks(heads, "OV")
    return (
        f"The median head compares tokens along {compared[0]:.1f} effective directions of W_QK (random: "
        f"{compared[1]:.1f}{noise}) and moves information along {moved[0]:.1f} of W_OV (random: {moved[1]:.1f}); the "
        f"narrowest are {lowest_qk} and {lowest_ov}."
    )


def _ranks(heads: pl.DataFrame, matrix: str) -> tuple[tuple[float, float], str]:
    """Effective rank and its null, as medians over heads; and the head that has the lowest, with it."""
    rows = heads.filter(pl.col("matrix") == matrix, pl.col("quantity") == "effective_rank")
    lowest = rows.sort("value", maintain_order=True).row(0, named=True)
    value, null = (float(np.median(rows[column].to_numpy())) for column in ("value", "null"))
    return (value, null), f"{label_of(lowest)} with {lowest['value']:.1f}"


def _edge_sentence(layers: pl.DataFrame, noise: str) -> str:
    (of_q, q_energy), (of_v, v_energy) = _beyond(layers, "Q"), _beyond(layers, "V")
    return (
        f"In the median layer {of_q:.0f} singular values of W_Q lie beyond the edge of a random matrix and hold "
        f"{100 * q_energy:.0f} % of its energy; of W_V it is {of_v:.0f} with {100 * v_energy:.0f} %{noise}. The "
        f"largest value is {_largest(layers)} times that of a random matrix in the median projection, and beyond "
        f"chance (Tracy–Widom, false discovery rate 5 %) in {_rare(layers)} projections"
        f"{_bulks(layers, 'W_')}."
    )


def _feed_forward_sentence(fed: pl.DataFrame, layers: pl.DataFrame, noise: str) -> str:
    spikes, attention = (_median(table, "energy_in_spikes") for table in (fed, layers))
    return (
        f"The largest value is {_largest(fed)} times that of a random matrix in the median feed-forward matrix, and "
        f"beyond chance in {_rare(fed)} feed-forward matrices; in the median one the spikes above the bulk hold "
        f"{100 * spikes:.0f} % of the energy{noise} (in the projections of attention {100 * attention:.0f} %)"
        f"{_bulks(fed, '')}."
    )


def _largest(table: pl.DataFrame) -> str:
    """The effect: the largest singular value over that of the null, in the median matrix."""
    rows = table.filter(pl.col("quantity") == "largest", pl.col("null") > 0)
    return (
        f"{float(np.median((rows['value'] / rows['null']).to_numpy())):.2f}" if rows.height else "an unknown number of"
    )


def _rare(table: pl.DataFrame) -> str:
    """How many matrices have a largest value beyond chance, adjusted for their number."""
    tested = table.filter(pl.col("quantity") == "largest_p_value", pl.col("value").is_not_null())
    adjusted = stats.false_discovery_control(tested["value"].to_numpy()) if tested.height else np.zeros(0)
    return f"{int((adjusted < _FALSE_DISCOVERIES).sum())} of {tested.height}"


def _median(table: pl.DataFrame, quantity: str) -> float:
    return float(np.median(table.filter(pl.col("quantity") == quantity)["value"].to_numpy()))


def _bulks(table: pl.DataFrame, prefix: str) -> str:
    """Which of the matrices has the most, and which the least random bulk, in the median layer."""
    rows = table.filter(pl.col("quantity") == "bulk_distance", pl.col("value").is_not_null())
    if rows.is_empty():
        return ""
    ratio = (pl.col("value") / pl.col("null")).median().alias("ratio")
    by_matrix = rows.group_by("matrix", maintain_order=True).agg(ratio).sort("ratio", maintain_order=True)
    first, last = by_matrix.row(0, named=True), by_matrix.row(-1, named=True)
    least = f" and least in {prefix}{last['matrix']} ({last['ratio']:.1f} times)" if by_matrix.height > 1 else ""
    return (
        f"; what is left below the spikes is most random in {prefix}{first['matrix']} ({first['ratio']:.1f} times as "
        f"far from its law as a random matrix){least}"
    )


def _beyond(layers: pl.DataFrame, matrix: str) -> tuple[float, float]:
    """Of the layer with the median share of energy above the edge: how many singular values, which share."""
    rows = layers.filter(pl.col("matrix") == matrix)
    counts, shares = (
        rows.filter(pl.col("quantity") == name)["value"].to_list() for name in ("above_edge", "energy_above_edge")
    )
    # Both from one layer: the medians of each apart may belong to no layer at all.
    share, count = sorted(zip(shares, counts, strict=True))[len(shares) // 2]
    return count, share


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written: dense float64 matrices, `torch.linalg.svdvals`, sums."""
    if weights is None:
        raise LensError("the lens spectra reads the model's weights, and was given none")
    heads: list[dict[str, object]] = []
    layers: list[dict[str, object]] = []
    fed: list[dict[str, object]] = []
    expanded = weights.spec.dequantised
    stored = f"expanded from {expanded}" if expanded else "as stored"
    for site in weights.sites:
        if weights.status(site).status == "refused":
            continue
        w = weights.weights(site)
        first: dict[str, object] = {"stack": site.stack, "kind": site.kind, "layer": site.layer}
        last = {"status": weights.status(site).status, "weights": stored}
        whole = {"Q": torch.cat([*w.w_q], 1), "K": torch.cat([*w.w_k], 1), "V": torch.cat([*w.w_v], 1)}
        for name, matrix in {**whole, "O": torch.cat([*w.w_o], 0)}.items():
            sigma = torch.linalg.svdvals(matrix.double()).tolist()
            numbers = defined_numbers(sigma, tuple(matrix.shape), weights.spec.initial_sd)
            layers += [first | {"head": None, "matrix": name} | row | last for row in numbers]
        share = site.n_heads // site.n_kv_heads
        for h in range(site.n_heads):
            w_k, w_v = w.w_k[h // share].double(), w.w_v[h // share].double()
            forms = {"QK": (w.w_q[h].double(), w_k.T), "OV": (w_v, w.w_o[h].double())}
            for name, (a, b) in forms.items():
                sizes = (a.shape[0], a.shape[1], b.shape[1])
                sigma = torch.linalg.svdvals(a @ b)[: min(sizes)].tolist()
                numbers = defined_numbers(sigma, sizes, weights.spec.initial_sd)
                heads += [first | {"head": h, "matrix": name} | row | last for row in numbers]
    for one in weights.feed_forward:
        matrix = weights.feed_forward_matrix(one).double()
        rows, columns = matrix.shape
        whose = {"stack": one.stack, "kind": None, "layer": one.layer, "head": None, "matrix": one.name}
        sigma = torch.linalg.svdvals(matrix).tolist()
        numbers = defined_numbers(sigma, (rows, columns), weights.spec.initial_sd)
        last = {"shape": f"{rows} × {columns}", "status": "exact", "weights": stored}
        fed += [whose | row | last for row in numbers]
    tables = {"heads": pl.DataFrame(heads, schema=SCHEMA), "layers": pl.DataFrame(layers, schema=SCHEMA)}
    return tables | ({"feed_forward": pl.DataFrame(fed, schema=FEED_FORWARD_SCHEMA)} if fed else {})


LENS = Lens(
    "spectra", ABOUT, Params, needs, start, update, merge, finish, definition, headline,
    invariant=frozenset({"heads", "qk:heads", "vo:heads", "rotated qk", "rotated vo"}),
)  # fmt: skip
