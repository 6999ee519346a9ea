"""The lens `spectra` by its formulas, in float64; the fast path shares none of it."""

import polars as pl
import torch

from headscope.core import WeightSource
from headscope.lenses.shared.defined_spectrum import defined_numbers
from headscope.lenses.spectra.settings import Params
from headscope.lenses.spectra.tables import FEED_FORWARD_SCHEMA, SCHEMA


def definition(params: Params, weights: WeightSource) -> dict[str, pl.DataFrame]:
    """The formulas as written: dense float64 matrices, `torch.linalg.svdvals`, sums."""
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
