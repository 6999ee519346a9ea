"""The lens `circuits` by its formulas, in float64; the fast path shares none of it.

Maps of tokens to logits are whole matrices here, tokens × tokens: for small vocabularies.
"""

from itertools import product
from math import sqrt
from statistics import NormalDist

import numpy as np
import polars as pl
import torch
from torch import Tensor

from headscope.core import HeadWeights, Selection, Site, StreamNorm, WeightSource
from headscope.lenses.circuits.settings import Params
from headscope.lenses.circuits.tables import SCHEMA, TOKENS


def definition(params: Params, weights: WeightSource) -> dict[str, pl.DataFrame]:
    """The eigenvalues of whole maps, and sorted lists of all pairs."""
    rows: list[dict[str, object]] = []
    full: dict[tuple[Site, int], tuple[Tensor, Tensor]] = {}
    for site in weights.sites:
        if site.kind != "self" or weights.status(site).status == "refused":
            continue
        w = weights.weights(site)
        frames = _frames(site, w, params)
        maps = _maps(params, weights, site)
        expanded = weights.spec.dequantised
        last = {
            "rotations": len(frames) * site.n_heads,
            "status": weights.status(site).status,
            "weights": f"expanded from {expanded}" if expanded else "as stored",
        }
        w_ov = [w.w_v[site.kv_head(head)].double() @ w.w_o[head].double() for head in range(site.n_heads)]
        for name, (left, right) in maps.items():
            turned = [_score(left @ (frame @ _part(m, w)) @ right, w)[0] for frame in frames for m in w_ov]
            mean, sd = float(np.mean(turned)), float(np.std(turned, ddof=1))
            for head, matrix in enumerate(w_ov):
                value, size = _score(left @ matrix @ right, w)
                first = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head, "quantity": name}
                ends = {
                    "null_low": max(mean - 1.959963984540054 * sd, -1),
                    "null_high": min(mean + 1.959963984540054 * sd, 1),
                }
                numbers = {"value": value, "null": mean, **ends, "null_sd": sd, "z": (value - mean) / sd, "size": size}
                rows.append({**first, **numbers, **last})
                if name == "vocabulary":
                    full[site, head] = (left @ matrix @ right, _scores(params, weights, site, head))
    heads = pl.DataFrame(rows, schema=SCHEMA)
    return {"heads": heads, "tokens": _lists(params, weights, heads, full)}


def _matrix(norm: StreamNorm | None, d: int) -> Tensor:
    """A norm as a matrix that rows are multiplied by, without its scale."""
    if norm is None:
        return torch.eye(d, dtype=torch.float64)
    mean = torch.full((d, d), 1 / d, dtype=torch.float64)
    return (torch.eye(d, dtype=torch.float64) - (mean if norm.centred else 0 * mean)) @ torch.diag(norm.gain.double())


def _rows(params: Params, norm: StreamNorm | None, table: Tensor) -> Tensor:
    if params.rows == "stored" or norm is None:
        return table
    centred = table - table.mean(1, keepdim=True) if norm.centred else table
    return centred / (centred**2).mean(1, keepdim=True).sqrt()


def _tables(weights: WeightSource) -> tuple[Tensor, Tensor]:
    by_role: dict[str, Tensor] = {table.role: weights.embedding_table(table).double() for table in weights.embeddings}
    return by_role["token"], by_role[weights.stream_reading().output]


def _maps(params: Params, weights: WeightSource, site: Site) -> dict[str, tuple[Tensor, Tensor]]:
    """What stands before and after W_OV in each basis."""
    d = weights.weights(site).w_o.shape[2]
    identity = torch.eye(d, dtype=torch.float64)
    maps = {"stream": (identity, identity)}
    reading = weights.stream_reading()
    if reading.output and site in reading.before and site.stack == weights.sites[-1].stack:
        norm = reading.before[site]
        tokens, outputs = _tables(weights)
        left = _rows(params, norm, tokens) @ _matrix(norm, d)
        right = _matrix(reading.after.get(site), d) @ _matrix(reading.final, d) @ outputs.T
        maps["vocabulary"] = (left, right)
        maps["centred"] = (left - left.mean(0), right - right.mean(1, keepdim=True))
    return maps


def _score(matrix: Tensor, w: HeadWeights) -> tuple[float, float]:
    """The trace over the sum of the moduli of all eigenvalues that are not 0 by rank."""
    moduli = torch.linalg.eigvals(matrix).abs().sort(descending=True).values[: w.w_o.shape[1]]
    return float(matrix.trace() / moduli.sum()), float(moduli.sum())


def _frames(site: Site, w: HeadWeights, params: Params) -> list[Tensor]:
    count = max(-(-params.rotations // site.n_heads), 2)
    shape = (count, w.w_v.shape[1], w.w_v.shape[2])
    gaussian = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    frames = []
    for matrix in gaussian:
        q, r = torch.linalg.qr(matrix)
        frames.append(q * torch.sign(torch.diagonal(r)))
    return frames


def _part(w_ov: Tensor, w: HeadWeights) -> Tensor:
    """S Vᵀ of W_OV = U S Vᵀ, each row with a positive sum."""
    _, s, vh = torch.linalg.svd(w_ov)
    rows = torch.diag(s) @ vh
    part: Tensor = (rows * torch.sign(rows.sum(1, keepdim=True)))[: w.w_o.shape[1]]
    return part


def _scores(params: Params, weights: WeightSource, site: Site, head: int) -> Tensor:
    """What each query token scores each key token, at the distance asked for: keys × queries."""
    w, norm = weights.weights(site), weights.stream_reading().before[site]
    x = _rows(params, norm, _tables(weights)[0])
    x = x if norm is None else x @ _matrix(norm, x.shape[1]) + norm.bias.double()
    kv = site.kv_head(head)
    q = (x @ w.w_q[head].double() + w.b_q[head].double()) * w.gain_q[head].double()
    k = (x @ w.w_k[kv].double() + w.b_k[kv].double()) * w.gain_k[kv].double()
    rotary = weights.rotary(site)
    return k @ (q if rotary is None else q @ rotary.turn(params.distance)).T


def _lists(
    params: Params, weights: WeightSource, heads: pl.DataFrame, full: dict[tuple[Site, int], tuple[Tensor, Tensor]]
) -> pl.DataFrame:
    rows: list[dict[str, object]] = []
    centred = heads.filter(pl.col("quantity") == "centred")
    best = max(centred["value"], default=0.0)
    scores = {(row["stack"], row["layer"], row["head"]): row["value"] for row in centred.to_dicts()}
    for (site, head), (moved, attended) in full.items():
        is_best = scores[site.stack, site.layer, head] == best
        if head not in Selection.parse(params.at).heads_of(site) if params.at else not is_best:
            continue
        n = min(params.tokens or len(moved), len(moved))
        ov, qk = (_standard(matrix[:n, :n]) for matrix in (moved, attended))
        lists: dict[str, list[tuple[float, int, int | None, int | None]]] = {
            "OV": [(float(ov[s, t]), s, None, t) for s, t in product(range(n), repeat=2)],
            "QK": [(float(qk[s, q]), s, q, None) for s, q in product(range(n), repeat=2)],
            "trigram": [(float(qk[s, q] + ov[s, t]), s, q, t) for s, q, t in product(range(n), repeat=3)],
        }
        for circuit, entries in lists.items():
            spread, order = (sqrt(2), 3) if circuit == "trigram" else (1.0, 2)
            for rank, (score, *tokens) in enumerate(sorted(entries, key=lambda entry: -entry[0])[: params.top], 1):
                texts = [None if token is None else _text(weights, token) for token in tokens]
                null = -spread * NormalDist().inv_cdf((rank - 0.5) / n**order)
                first = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head}
                named = dict(zip(("source", "query", "target"), texts, strict=True))
                last = {"score": score, "null": null, "tokens": n}
                rows.append({**first, "circuit": circuit, "rank": rank, **named, **last})
    return pl.DataFrame(rows, schema=TOKENS)


def _standard(matrix: Tensor) -> Tensor:
    return (matrix - matrix.mean()) / matrix.std(correction=0)


def _text(weights: WeightSource, token: int) -> str:
    return f"#{token}" if weights.vocabulary is None else weights.vocabulary.spelled([token])[0]
