"""The lens `roles` by its formulas, in float64; the fast path shares none of it."""

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from headscope.core import Site, WeightSource
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.roles.settings import Params
from headscope.lenses.roles.tables import ROLES_SCHEMA, SCHEMA
from headscope.maths.resampling.clustered_mean import clustered_mean

Pairs = list[tuple[int, int]]  # query, key
Window = tuple[NDArray[np.float64], list[int]]  # the map of a head, the tokens that are not padding
Key = tuple[str, str]  # source, role
Row = dict[str, Any]

_NEAR = {"previous token": 1, "2 back": 2, "3 back": 3, "4 back": 4}
_ORDER: tuple[Key, ...] = (
    *(("repeated tokens", role) for role in ("induction", "duplicate token", *_NEAR, "first token", "self")),
    *(("text", role) for role in ("prefix matching", *_NEAR, "first token", "self")),
)


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, pair by pair on the stored maps, in float64."""
    sites = [site for site in batches[0].captures["pattern"] if site.kind == "self"] if batches else []
    rows: list[Row] = [
        {
            **{"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head},
            **{"source": source, "role": role},
            **_estimate(params, site, head, (source, role), batches),
        }
        for site in sites
        for head in range(site.n_heads)
        for source, role in _ORDER
    ]
    rows = [row for row in rows if row["queries"]]
    for row in rows:
        alike = [x for x in rows if (x["source"], x["role"]) == (row["source"], row["role"])]
        nulls = [x["null"] for x in alike if x["null"] is not None]
        initialised = [x["initialised_mass"] for x in alike if x["initialised_mass"] is not None]
        row["initialised"] = max(initialised, default=None)
        row["threshold"] = max([*nulls, *initialised], default=0.0) + params.margin
        row["has_role"] = row["low"] is not None and row["low"] > row["threshold"]
    columns = [{name: row[name] for name in SCHEMA} for row in rows]
    return {"heads": pl.DataFrame(columns, schema=SCHEMA), "roles": pl.DataFrame(_roles(rows), schema=ROLES_SCHEMA)}


def _estimate(params: Params, site: Site, head: int, key: Key, batches: Sequence[Batch]) -> Row:
    source, role = key
    windows = list(_windows(batches, AS_IS, source, site, head))
    pairs_by_window = [_pairs(params, key, tokens) for _, tokens in windows]
    masses = [sum(p[i, j] for i, j in pairs) for (p, _), pairs in zip(windows, pairs_by_window, strict=True)]
    queries = [len({i for i, _ in pairs}) for pairs in pairs_by_window]
    n = sum(queries)
    if n == 0:
        return {"queries": 0}
    if role == "prefix matching":
        controls = [_controls(tokens, pairs) for (_, tokens), pairs in zip(windows, pairs_by_window, strict=True)]
        mass = sum(p[i, j] for (p, _), pairs in zip(windows, controls, strict=True) for i, j in pairs)
        n_controls = sum(map(len, controls))
        null = mass / n_controls * sum(map(len, pairs_by_window)) / n if n_controls else None
    elif role in ("induction", "duplicate token"):
        null = _mean(params, key, list(_windows(batches, AS_IS, "fresh tokens", site, head)))
    else:
        lengths = [len(tokens) for _, tokens in windows]
        shares = [
            1 / _n_visible(site, i, length)
            for length, pairs in zip(lengths, pairs_by_window, strict=True)
            for i, _ in pairs
        ]
        null = sum(shares) / n
    interval = clustered_mean(torch.tensor(masses).double(), torch.tensor(queries).double())
    is_known = isfinite(interval.low)
    return {
        "value": sum(masses) / n,
        "low": max(interval.low, 0.0) if is_known else None,
        "high": min(interval.high, 1.0) if is_known else None,
        "null": null,
        "initialised_mass": _mean(params, key, list(_windows(batches, "initialised", source, site, head))),
        "queries": n,
        "windows": sum(count > 0 for count in queries),
    }


def _windows(batches: Sequence[Batch], variant: str, source: str, site: Site, head: int) -> Iterator[Window]:
    for batch in batches:
        source_read = {"": "text", "few repeated tokens": "repeated tokens"}.get(batch.made, batch.made)
        if batch.variant == variant and source_read == source:
            for maps, tokens, real in zip(batch.captures["pattern"][site], batch.tokens, batch.real, strict=True):
                yield maps[head].double().numpy(), tokens[real].tolist()


def _pairs(params: Params, key: Key, tokens: list[int]) -> Pairs:
    """The pairs of query and key that a role names in a window."""
    (source, role), n, length = key, params.tokens, len(tokens)
    if role == "prefix matching":
        return [(i, j + 1) for i in range(length) for j in range(i - 1) if tokens[j] == tokens[i]]
    distances = {"induction": n - 1, "duplicate token": n, "self": 0, **_NEAR}
    queries = range(5 if source == "text" else n + 1, length)
    return [(i, 0 if role == "first token" else i - distances[role]) for i in queries]


def _controls(tokens: list[int], pairs: Pairs) -> Pairs:
    """The pairs one token later that prefix matching does not name."""
    later = {(i + 1, j + 1) for i, j in pairs if i + 1 < len(tokens)}
    return sorted(later - set(pairs))


def _mean(params: Params, key: Key, windows: Sequence[Window]) -> float | None:
    pairs_by_window = [_pairs(params, key, tokens) for _, tokens in windows]
    n = sum(len({i for i, _ in pairs}) for pairs in pairs_by_window)
    mass = sum(p[i, j] for (p, _), pairs in zip(windows, pairs_by_window, strict=True) for i, j in pairs)
    return mass / n if n else None


def _n_visible(site: Site, i: int, length: int) -> int:
    keys = i + 1 if site.causal else length
    return keys if site.window is None else min(keys, site.window)


def _roles(rows: Sequence[Row]) -> list[Row]:
    """For each head the role whose lower end exceeds its threshold by the most, and its further roles."""
    table = []
    for place in dict.fromkeys((row["stack"], row["kind"], row["layer"], row["head"]) for row in rows):
        of_head = [row for row in rows if (row["stack"], row["kind"], row["layer"], row["head"]) == place]
        role_rows = [row for row in of_head if row["has_role"]]
        # Heads rest at the first token when they have nothing else to do.
        role_rows.sort(key=lambda row: (row["role"] == "first token", row["threshold"] - row["low"]))
        first = role_rows[0] if role_rows else dict.fromkeys(("role", "source", "value", "low", "high", "threshold"))
        further_roles = list(dict.fromkeys(row["role"] for row in role_rows if row["role"] != first["role"]))
        table.append(
            {
                **dict(zip(("stack", "kind", "layer", "head"), place, strict=True)),
                **{name: first[name] for name in ("role", "source", "value", "low", "high", "threshold")},
                "further_roles": ", ".join(further_roles) if further_roles else None,
                "windows": first["windows"] if role_rows else of_head[0]["windows"],
            }
        )
    return table
