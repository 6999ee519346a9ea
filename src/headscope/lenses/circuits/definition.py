"""The lens `circuits` by its formulas, in float64; the fast path shares none of it.

Maps of tokens to logits are whole matrices here, tokens × tokens: for small vocabularies.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
import polars as pl
import torch
from torch import Tensor

from headscope.core import HeadWeights, Selection, Site, StreamNorm, WeightSource
from headscope.lenses.circuits.ordinal_lists import lists_in
from headscope.lenses.circuits.settings import Params
from headscope.lenses.circuits.tables import SCHEMA, SUCCESSORS, TOKENS


def definition(params: Params, weights: WeightSource) -> dict[str, pl.DataFrame]:
    """The eigenvalues of whole maps, and sorted lists of all pairs."""
    rows: list[dict[str, object]] = []
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
    heads = pl.DataFrame(rows, schema=SCHEMA)
    successors = pl.DataFrame(_successors(weights), schema=SUCCESSORS)
    return {"heads": heads, "tokens": _lists(params, weights, heads), "successors": successors}


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
    return _random_frames(count, w.w_v.shape[1], w.w_v.shape[2])


def _random_frames(count: int, d: int, width: int) -> list[Tensor]:
    gaussian = torch.randn(count, d, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
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


def _scores(params: Params, weights: WeightSource, site: Site, head: int, turned: Tensor | None = None) -> Tensor:
    """What each query token scores each key token, at the distance asked for: keys × queries."""
    w, norm = weights.weights(site), weights.stream_reading().before[site]
    x = _rows(params, norm, _tables(weights)[0])
    x = x if norm is None else x @ _matrix(norm, x.shape[1]) + norm.bias.double()
    kv = site.kv_head(head)
    w_k = w.w_k[kv].double() if turned is None else turned
    q = (x @ w.w_q[head].double() + w.b_q[head].double()) * w.gain_q[head].double()
    k = (x @ w_k + w.b_k[kv].double()) * w.gain_k[kv].double()
    rotary = weights.rotary(site)
    return k @ (q if rotary is None else q @ rotary.turn(params.distance)).T


def _lists(params: Params, weights: WeightSource, heads: pl.DataFrame) -> pl.DataFrame:
    rows: list[dict[str, object]] = []
    centred = heads.filter(pl.col("quantity") == "centred")
    best = max(centred["value"], default=0.0)
    selection = Selection.parse(params.at) if params.at else None
    for row in centred.to_dicts():
        site = next(s for s in weights.sites if (s.stack, s.kind, s.layer) == (row["stack"], row["kind"], row["layer"]))
        head = row["head"]
        if head not in selection.heads_of(site) if selection else row["value"] != best:
            continue
        (ov, qk), *turns = _pair_tables(params, weights, site, head)
        lists = _sorted_pairs(ov, qk)
        null_lists = [
            _sorted_pairs(turned_ov, qk) | {"QK": _sorted_pairs(ov, turned_qk)["QK"]} for turned_ov, turned_qk in turns
        ]
        for circuit, entries in lists.items():
            for rank, (score, *tokens) in enumerate(entries[: params.top], 1):
                texts = [None if token is None else _text(weights, token) for token in tokens]
                null = float(np.mean([null_list[circuit][rank - 1][0] for null_list in null_lists]))
                first = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head}
                named = dict(zip(("source", "query", "target"), texts, strict=True))
                last = {"score": score, "null": null, "tokens": len(ov)}
                rows.append({**first, "circuit": circuit, "rank": rank, **named, **last})
    return pl.DataFrame(rows, schema=TOKENS)


def _pair_tables(params: Params, weights: WeightSource, site: Site, head: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Entries of the map to logits and of the scores, standardised; then those of turned heads."""
    w, kv = weights.weights(site), site.kv_head(head)
    left, right = _maps(params, weights, site)["vocabulary"]
    n = min(params.tokens or len(left), len(left))
    w_ov = w.w_v[kv].double() @ torch.diag(w.gain_v[kv].double()) @ w.w_o[head].double()
    gain = torch.diag((w.gain_q[head] * w.gain_k[kv]).double())
    w_qk = w.w_q[head].double() @ gain @ w.w_k[kv].double().T
    yield _standard((left @ w_ov @ right)[:n, :n]), _standard(_scores(params, weights, site, head)[:n, :n])
    frames = [_random_frames(3, w_ov.shape[0], width) for width in (w.w_o.shape[1], w.w_k.shape[2])]
    for written, read in zip(*frames, strict=True):
        moved = left @ w_ov @ _directions(w_ov, w.w_o.shape[1]) @ written.T @ right
        w_k = read @ _directions(w_qk, w.w_k.shape[2]).T @ w.w_k[kv].double()
        yield _standard(moved[:n, :n]), _standard(_scores(params, weights, site, head, w_k)[:n, :n])


def _directions(matrix: Tensor, width: int) -> Tensor:
    """The right singular vectors of a map, each with a positive sum."""
    columns = torch.linalg.svd(matrix).Vh.T[:, :width]
    signed: Tensor = columns * torch.sign(columns.sum(0))
    return signed


def _sorted_pairs(ov: Tensor, qk: Tensor) -> dict[str, list[tuple[float, int, int | None, int | None]]]:
    n = len(ov)
    lists: dict[str, list[tuple[float, int, int | None, int | None]]] = {
        "OV": [(float(ov[s, t]), s, None, t) for s, t in product(range(n), repeat=2)],
        "QK": [(float(qk[s, q]), s, q, None) for s, q in product(range(n), repeat=2)],
        "trigram": [(float(qk[s, q] + ov[s, t]), s, q, t) for s, q, t in product(range(n), repeat=3)],
    }
    return {circuit: sorted(entries, key=lambda entry: -entry[0]) for circuit, entries in lists.items()}


def _successors(weights: WeightSource) -> list[dict[str, object]]:
    """For each head and list the share of words whose successor gets the largest logit of the list."""
    if weights.vocabulary is None:
        return []
    lists = lists_in(weights.vocabulary)[0]
    names = ["all lists", *(ordinal.name for ordinal in lists)]
    counts: dict[tuple[Site, int], dict[str, list[int]]] = {}
    for site in weights.sites:
        if site.kind != "self" or not lists or "vocabulary" not in _maps(Params(), weights, site):
            continue
        for head in range(site.n_heads):
            hits = counts[site, head] = {name: [0] * 1001 for name in names}
            for ordinal in lists:
                choices = _choices(weights, site, head, ordinal.tokens)
                for order, successors in enumerate(_orders(list(ordinal.successors))):
                    count = sum(a == b for a, b in zip(choices, successors, strict=False))
                    hits[ordinal.name][order] += count
                    hits["all lists"][order] += count
    rows: list[dict[str, object]] = []
    for (site, head), hits in counts.items():
        for name in names:
            pairs = sum(len(ordinal.successors) for ordinal in lists if name in ("all lists", ordinal.name))
            shares = [count / pairs for count in hits[name][1:]]
            low, high = np.quantile(shares, (0.025, 0.975))
            largest = [max(other[name][order] for other in counts.values()) / pairs for order in range(1, 1001)]
            first = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head, "list": name}
            nulls = {"null": float(np.mean(shares)), "null_low": low, "null_high": high}
            limit = float(np.quantile(largest, 0.95))
            last = {"null_largest": limit, "has_role": hits[name][0] / pairs > limit, "pairs": pairs}
            rows.append({**first, "value": hits[name][0] / pairs, **nulls, **last})
    return rows


def _orders(successors: list[int]) -> Iterator[list[int]]:
    """The successors themselves, then 1000 random orders of them."""
    yield successors
    generator = torch.Generator().manual_seed(0)
    for _ in range(1000):
        yield [successors[place] for place in torch.randperm(len(successors), generator=generator).tolist()]


def _choices(weights: WeightSource, site: Site, head: int, tokens: tuple[int, ...]) -> list[int]:
    """For each word of a list the place of the word that the head raises most."""
    vectors, outputs = _tables(weights)
    w, reading = weights.weights(site), weights.stream_reading()
    d = vectors.shape[1]
    x = vectors[list(tokens)]
    x = x if site.layer == 0 else _after_first_layer(weights, x)
    w_ov = w.w_v[site.kv_head(head)].double() @ w.w_o[head].double()
    right = _matrix(reading.after.get(site), d) @ _matrix(reading.final, d) @ outputs[list(tokens)].T
    logits = x @ _matrix(reading.before[site], d) @ w_ov @ right
    return [row.index(max(row)) for row in logits.tolist()]


def _after_first_layer(weights: WeightSource, x: Tensor) -> Tensor:
    """The stream after the first layer of a text of one token, which attends to itself."""
    site = weights.sites[0]
    w, norm = weights.weights(site), weights.stream_reading().before[site]
    outs = []
    for row in x:
        read = row[None] if norm is None else _rows(Params(), norm, row[None]) * norm.gain.double() + norm.bias.double()
        heads = [read @ w.w_v[site.kv_head(head)].double() + w.b_v[site.kv_head(head)] for head in range(site.n_heads)]
        outs.append(weights.after_heads(site, row[None, None], torch.stack(heads)[None]).out[0, 0].double())
    return torch.stack(outs)


def _standard(matrix: Tensor) -> Tensor:
    return (matrix - matrix.mean()) / matrix.std(correction=0)


def _text(weights: WeightSource, token: int) -> str:
    return f"#{token}" if weights.vocabulary is None else weights.vocabulary.spelled([token])[0]
