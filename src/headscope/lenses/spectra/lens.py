r"""Spectra: on how many directions do the weights act, and how far are they from random?

Weights only. The singular values of W_Q, W_K, W_V, W_O and of the feed-forward matrices of each layer, and of W_QK,
W_OV of each head, beside those of Gaussian matrices of the same shape and the same Frobenius norm: Marchenko–Pastur for
the former, the law of a product of two Gaussian matrices for the latter.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from headscope.core import FeedForward, Headline, HeadWeights, ModelSpec, Site, WeightSource
from headscope.lenses.lens import Measurement, Needs, NotApplicable, Tables, WeightLens
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.weight_notes import gain_warning, has_gain, method_of, origin, status_warnings
from headscope.lenses.spectra.definition import definition
from headscope.lenses.spectra.figures import figures
from headscope.lenses.spectra.head_spectra import head_spectra
from headscope.lenses.spectra.sentences import sentences
from headscope.lenses.spectra.settings import Params
from headscope.lenses.spectra.tables import FEED_FORWARD_SCHEMA, SCHEMA, head_quantities
from headscope.maths.linear_algebra.spectrum import form_singular_values, singular_values
from headscope.maths.random_matrices.null_spectrum import Comparison

_HOW = (
    "Exact, in float64: eigenvalues of the Gram matrix of the smaller side; for W_QK and W_OV, QR of both factors "
    "and an SVD of the core. The nulls are laws for large matrices, not samples."
)


class Spectra(WeightLens[Params]):
    """On how many directions do the weights act, and how far are they from random?"""

    name = "spectra"
    params = Params
    invariant = frozenset({"heads", "qk:heads", "vo:heads", "rotated qk", "rotated vo"})

    def needs(self, params: Params) -> Needs:
        """Only weights."""
        return Needs(weights=True)

    def measure(self, params: Params, weights: WeightSource) -> Measurement:
        """Measure one site at a time, so that memory stays that of one site."""
        statuses = {site: weights.status(site) for site in weights.sites}
        readable_sites = [site for site in weights.sites if statuses[site].status != "refused"]
        warnings = status_warnings(weights.spec, statuses, "W_Q, W_K and W_QK are those before it")
        if not readable_sites:
            reason = "no attention site of this model has projections in canonical form"
            raise NotApplicable(reason, warnings=warnings)
        layers: dict[Site, dict[str, Comparison]] = {}
        heads: dict[Site, dict[str, list[Comparison]]] = {}
        feed_forward: dict[FeedForward, Comparison] = {}
        gained: list[Site] = []
        for site in readable_sites:
            of_site = weights.weights(site)
            layers[site], heads[site] = dict(_matrices(of_site)), dict(_forms(of_site))
            gained += [site] if has_gain(of_site) else []
            del of_site
        for matrix in weights.feed_forward:
            feed_forward[matrix] = Comparison(matrix.sizes, singular_values(weights.feed_forward_matrix(matrix)))
        tables = _tables(layers, heads, {site: statuses[site].status for site in readable_sites}, weights.spec)
        return Measurement(
            tables=tables | _feed_forward_table(feed_forward, weights.spec),
            arrays=_arrays(layers, heads)
            | {matrix.label: comparison.sigma.numpy() for matrix, comparison in feed_forward.items()},
            figures=figures(layers, heads, feed_forward, params.bins, weights.spec.initial_sd),
            method=method_of(weights, _HOW),
            quantities=head_quantities,
            curves=head_spectra(heads),
            warnings=(*warnings, *gain_warning(gained, readable_sites, "q, k or v"), *weights.feed_forward_notes),
        )

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)

    def definition(self, params: Params, weights: WeightSource) -> dict[str, pl.DataFrame]:
        """The tables by their formulas."""
        return definition(params, weights)


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

    def rows(site: Site, head: int | None, matrix: str, comparison: Comparison) -> Iterator[dict[str, object]]:
        for numbers in _numbers(comparison, spec):
            yield {**place(site, head), "matrix": matrix, **numbers, "status": statuses[site]}

    of_heads = [
        row
        for site, forms in heads.items()
        for head in range(site.n_heads)
        for matrix, comparisons in forms.items()
        for row in rows(site, head, matrix, comparisons[head])
    ]
    of_layers = [
        row
        for site, projections in layers.items()
        for matrix, comparison in projections.items()
        for row in rows(site, None, matrix, comparison)
    ]
    return {"heads": pl.DataFrame(of_heads, schema=SCHEMA), "layers": pl.DataFrame(of_layers, schema=SCHEMA)}


def _feed_forward_table(comparisons: Mapping[FeedForward, Comparison], spec: ModelSpec) -> dict[str, pl.DataFrame]:
    """The same for the feed-forward matrices, where there are any."""
    rows = [
        {"stack": matrix.stack, "kind": None, "layer": matrix.layer, "head": None, "matrix": matrix.name}
        | {"shape": f"{matrix.sizes[0]} × {matrix.sizes[1]}", **numbers, "status": "exact"}
        for matrix, comparison in comparisons.items()
        for numbers in _numbers(comparison, spec)
    ]
    return {"feed_forward": pl.DataFrame(rows, schema=FEED_FORWARD_SCHEMA)} if rows else {}


def _numbers(comparison: Comparison, spec: ModelSpec) -> Iterator[dict[str, object]]:
    initial = comparison.initial(spec.initial_sd) if spec.initial_sd else {}
    for quantity, (value, null) in comparison.quantities.items():
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
    sigma_by_name: dict[str, NDArray[np.float64]] = {}
    for site in layers:
        sigma_by_name |= {
            f"{site.label}.{matrix}": comparison.sigma.numpy() for matrix, comparison in layers[site].items()
        }
        sigma_by_name |= {
            f"{site.label}.{form}": np.stack([comparison.sigma.numpy() for comparison in comparisons])
            for form, comparisons in heads[site].items()
        }
    return sigma_by_name


LENS = Spectra()
