"""The lens `spectra` by its formulas, in float64; the fast path shares none of it."""

from collections.abc import Iterator

import polars as pl
import torch

from headscope.core import FeedForward, Site, WeightSource
from headscope.lenses.shared.defined_spectrum import defined_numbers
from headscope.lenses.shared.table import Row
from headscope.lenses.spectra.settings import Params
from headscope.lenses.spectra.tables import FEED_FORWARD_SCHEMA, SCHEMA


def definition(params: Params, weights: WeightSource) -> dict[str, pl.DataFrame]:
    """The formulas as written: dense float64 matrices, `torch.linalg.svdvals`, sums."""
    sites = [site for site in weights.sites if weights.status(site).status != "refused"]
    heads = [row for site in sites for row in _head_rows(weights, site)]
    layers = [row for site in sites for row in _layer_rows(weights, site)]
    feed_forward = [row for matrix in weights.feed_forward for row in _feed_forward_rows(weights, matrix)]
    tables = {"heads": pl.DataFrame(heads, schema=SCHEMA), "layers": pl.DataFrame(layers, schema=SCHEMA)}
    if feed_forward:
        tables["feed_forward"] = pl.DataFrame(feed_forward, schema=FEED_FORWARD_SCHEMA)
    return tables


def _layer_rows(weights: WeightSource, site: Site) -> Iterator[Row]:
    """W_Q, W_K, W_V with heads side by side, and W_O with heads below each other."""
    w = weights.weights(site)
    matrices = {name: torch.cat([*of_heads], 1) for name, of_heads in (("Q", w.w_q), ("K", w.w_k), ("V", w.w_v))}
    for name, matrix in {**matrices, "O": torch.cat([*w.w_o], 0)}.items():
        sigma = torch.linalg.svdvals(matrix.double()).tolist()
        for row in defined_numbers(sigma, tuple(matrix.shape), weights.spec.initial_sd):
            yield _place(site) | {"head": None, "matrix": name} | row | _origin(weights, site)


def _head_rows(weights: WeightSource, site: Site) -> Iterator[Row]:
    """W_QK = W_Q W_Kᵀ and W_OV = W_V W_O of each head."""
    w, share = weights.weights(site), site.n_heads // site.n_kv_heads
    for h in range(site.n_heads):
        w_k, w_v = w.w_k[h // share].double(), w.w_v[h // share].double()
        for name, (a, b) in {"QK": (w.w_q[h].double(), w_k.T), "OV": (w_v, w.w_o[h].double())}.items():
            sizes = (a.shape[0], a.shape[1], b.shape[1])
            sigma = torch.linalg.svdvals(a @ b)[: min(sizes)].tolist()
            for row in defined_numbers(sigma, sizes, weights.spec.initial_sd):
                yield _place(site) | {"head": h, "matrix": name} | row | _origin(weights, site)


def _feed_forward_rows(weights: WeightSource, feed_forward: FeedForward) -> Iterator[Row]:
    matrix = weights.feed_forward_matrix(feed_forward).double()
    rows, columns = matrix.shape
    place: Row = {"stack": feed_forward.stack, "kind": None, "layer": feed_forward.layer, "head": None}
    shape: Row = {"matrix": feed_forward.name, "shape": f"{rows} × {columns}"}
    for row in defined_numbers(torch.linalg.svdvals(matrix).tolist(), (rows, columns), weights.spec.initial_sd):
        yield place | shape | row | {"status": "exact", "weights": _stored(weights)}


def _place(site: Site) -> Row:
    return {"stack": site.stack, "kind": site.kind, "layer": site.layer}


def _origin(weights: WeightSource, site: Site) -> Row:
    return {"status": weights.status(site).status, "weights": _stored(weights)}


def _stored(weights: WeightSource) -> str:
    expanded = weights.spec.dequantised
    return f"expanded from {expanded}" if expanded else "as stored"
