"""The lens `alignment` by its formulas, in float64; the fast path shares none of it."""

from collections.abc import Mapping
from math import asin, exp, log, sin, sqrt, tan

import polars as pl
import torch
from torch import Tensor

from headscope.core import Site, WeightSource
from headscope.lenses.alignment.settings import Params
from headscope.lenses.alignment.tables import SCHEMA, Row


def definition(params: Params, weights: WeightSource) -> dict[str, pl.DataFrame]:
    """The formulas as written, on dense n × n forms in float64."""
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
        layer_form, variance = torch.zeros(w.w_q.shape[1], w.w_q.shape[1], dtype=torch.float64), 0.0

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
            layer_form, variance = layer_form + form, variance + chance
            add("heads", h, _defined_form(form) | _defined_angles(q, k))
            add("factors", h, {"trace": _defined_row(float(form.trace()), 0.0, chance)} | _defined_factors(q, k))
        layer_rows = {
            name: row for name, row in _defined_form(layer_form).items() if name in ("trace", "symmetric_share")
        }
        add("layers", None, layer_rows)
        add("factors", None, {"trace": _defined_row(float(layer_form.trace()), 0.0, variance)})
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
    log_odds_mean = 2 * log(tan((phi + gamma) / 2)) - 1.2065336 * width
    null = sqrt(exp(log_odds_mean) / (1 + exp(log_odds_mean)))
    square = min(cosine**2, 1 - 1e-9)
    z = (log(square / (1 - square)) - log_odds_mean) / (1.2679831 * width)
    return {
        "subspace_overlap": overlap,
        "largest_cosine": (cosine, null, null * (1 - null**2) / 2 * 1.2679831 * width, z),
    }


def _defined_factors(q: Tensor, k: Tensor) -> dict[str, Row]:
    sizes = float((q**2).sum()) * float((k**2).sum())
    if sizes == 0:
        return dict.fromkeys(("input_overlap", "inner_overlap"), (None,) * 4)
    overlaps = {}
    for name, a, b in (("input_overlap", q @ q.T, k @ k.T), ("inner_overlap", q.T @ q, k.T @ k)):
        n = len(a)
        a, b = a / a.trace(), b / b.trace()
        spread = float((a**2).sum() - 1 / n) * float((b**2).sum() - 1 / n)
        variance = 2 * spread / ((n - 1) * (n + 2)) if n > 1 else 0.0
        overlaps[name] = _defined_row(float((a @ b).trace()), 1 / n, variance)
    return overlaps
