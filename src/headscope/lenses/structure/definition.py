"""The lens `structure` by its formulas, in float64; the fold shares none of it."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, sqrt

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from headscope.core import Site, WeightSource
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.structure.settings import Params
from headscope.lenses.structure.tables import SCHEMAS

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Key = tuple[str, int | None, int | None]  # structure, size, entries
Row = dict[str, object]

WIDTHS = (0, *(2**k for k in range(13)))
PAIRS: tuple[Key, ...] = (
    *(("band", w, None) for w in WIDTHS),
    *(("band and first token", w, None) for w in WIDTHS),
    *(("band and entries", w, s) for w in (1, 8) for s in (1, 4, 16, 64, 128, 256)),
    *(("first tokens", c, None) for c in (1, 4, 16)),
    *(("columns", c, None) for c in (1, 2, 4, 8, 16, 32)),
    *(("offsets", c, None) for c in (1, 2, 4, 8)),
    *(("blocks", b, None) for b in (8, 32, 128, 512, 2048)),
)
OTHERS: tuple[Key, ...] = (*(("low rank", r, None) for r in (1, 2, 4, 8, 16)), ("linear kernel", 16, None))
BASELINES: tuple[Key, ...] = (("zero", None, None), ("uniform", None, None), ("visible uniform", None, None))
COMPARED = 4  # windows behind low rank and linear kernel as structures


@dataclass(frozen=True)
class Window:
    """The rows of one head in one window, all values, and the Gram matrix of W_O."""

    a: Array
    v: Array
    gram: Array
    visible: Mask
    positions: list[int]
    noise: Array

    @property
    def away(self) -> NDArray[np.int64]:
        """Query position less key position."""
        return np.array(self.positions)[:, None] - np.arange(self.a.shape[1])

    def written(self, rows: Array) -> float:
        """‖rows · V · W_O‖², from the Gram matrix of W_O."""
        x = rows @ self.v
        return float(np.trace(x @ self.gram @ x.T))


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, head by head on the stored maps, in float64."""
    text_batches = [batch for batch in batches if batch.variant == AS_IS]
    rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    for site in text_batches[0].captures["pattern"] if text_batches else ():
        for head in range(site.n_heads if site.kind == "self" else 0):
            windows = [
                window
                for batch in text_batches
                for index in range(len(batch.real))
                if (window := _window(site, head, batch, index)) is not None
            ][: params.windows]
            if windows:
                place: Row = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head}
                table = [place | row for row in _structure_rows(windows)]
                rows["structures"] += table
                rows["smallest"] += [place | row for row in _smallest_rows(windows, table)]
                rows["families"].append(place | _family_row(params, windows))
    columns = {name: [{column: row.get(column) for column in SCHEMAS[name]} for row in rows[name]] for name in rows}
    return {name: pl.DataFrame(columns[name], schema=SCHEMAS[name]) for name in SCHEMAS if columns[name]}


def _window(site: Site, head: int, batch: Batch, index: int) -> Window | None:
    """Rows with two visible keys or more, of the last 16 of each part of a window."""
    pattern = batch.captures["pattern"][site][index].double().numpy()
    real = batch.real[index].numpy()
    real = real if len(real) == pattern.shape[2] else np.ones(pattern.shape[2], dtype=bool)
    part = 16
    while 4 * part < pattern.shape[1]:
        part *= 2
    read = [i for i in range(pattern.shape[1]) if real[i] and i % part >= part - 16]
    positions = [int(real[:i].sum()) for i in read]
    a = pattern[:, read][:, :, real]
    n = a.shape[2]
    away = np.array(positions, dtype=int).reshape(-1, 1) - np.arange(n)
    visible: Mask = np.ones((len(read), n), dtype=bool)
    if site.causal:
        visible = np.asarray((away >= 0) & (away < (site.window or inf)))
    elif site.window is not None:
        visible = np.asarray((a > 0).any(0))
    counted = visible.sum(1) >= 2
    if not counted.any():
        return None
    text = batch.tokens[index].to(torch.int64).numpy()
    text = text[batch.real[index].numpy()]
    seed = int.from_bytes(hashlib.sha256(text.tobytes()).digest()[:7], "big")
    noise = torch.rand(int(counted.sum()), n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    v = batch.captures["v"][site][index, site.kv_head(head)].double().numpy()[real]
    gram = batch.captures["output_gram"][site][index, head].double().numpy()
    kept_positions = [p for p, is_counted in zip(positions, counted, strict=True) if is_counted]
    return Window(a[head][counted], v, gram, visible[counted], kept_positions, noise.numpy())


def _mask(key: Key, window: Window) -> Mask:
    """The pairs that a structure keeps."""
    name, size, entries = key
    a, away, size = window.a, window.away, size or 0
    n = a.shape[1]
    mask = np.zeros_like(window.visible)
    if name.startswith("band"):
        mask = np.abs(away) <= size
    if name == "band and first token":
        mask[:, 0] = True
    if name == "band and entries":
        for i, row in enumerate(a):
            outside = np.flatnonzero(window.visible[i] & ~mask[i])
            mask[i, outside[np.argsort(-row[outside], kind="stable")][:entries]] = True
    if name == "first tokens":
        mask[:, :size] = True
    if name == "columns":
        sums = a.sum(0)
        mask[:, sorted(range(n), key=lambda j: -sums[j])[:size]] = True
    if name == "offsets":
        sums_of = {d: a[away == d].sum() for d in range(-n, n)}
        mask = np.isin(away, sorted(sums_of, key=lambda d: -sums_of[d])[:size])
    if name == "blocks":
        mask = np.array(window.positions)[:, None] // size == np.arange(n) // size
    return mask & window.visible


def _renormalised(a: Array, mask: Mask) -> Array:
    """Each row without the other pairs, at its former sum; 0 if nothing is left."""
    x = np.where(mask, a, 0.0)
    sums = x.sum(1, keepdims=True)
    return np.where(sums > 1e-30, x / np.maximum(sums, 1e-30) * a.sum(1, keepdims=True), 0.0)


def _fitted(key: Key, window: Window) -> Array:
    """The map by which a structure replaces A."""
    name, size, _ = key
    a, sums = window.a, window.a.sum(1, keepdims=True)
    if name == "zero":
        return np.zeros_like(a)
    if name == "uniform":
        return np.asarray(np.ones_like(a) * sums / a.shape[1])
    if name == "visible uniform":
        return np.asarray(window.visible / window.visible.sum(1, keepdims=True) * sums)
    if name == "low rank":
        return _low_rank(a, size or 0)
    if name == "linear kernel":
        return _kernel(a, window.visible, size or 0)
    return _renormalised(a, _mask(key, window))


def _low_rank(a: Array, rank: int) -> Array:
    u, sigma, vh = np.linalg.svd(a, full_matrices=False)
    low: Array = (u[:, :rank] * sigma[:rank]) @ vh[:rank]
    return low


def _low_rank_with_as_many_numbers(key: Key, window: Window) -> Array:
    return _low_rank(window.a, _numbers(key, window) // (2 * len(window.a)))


def _kernel(a: Array, visible: Mask, features: int) -> Array:
    """φψᵀ on the visible pairs after 20 updates of each, rows at the sums of A."""
    starts = [int((f + 0.5) * len(a) / features) for f in range(features)]
    psi = a[starts].T + 1 / a.shape[1]
    phi = np.ones((len(a), features))

    def over(x: Array, y: Array) -> Array:
        return np.divide(x, y, out=np.zeros_like(x), where=y > 1e-30)

    for _ in range(20):
        phi = phi * over(over(a, phi @ psi.T) * visible @ psi, visible @ psi)
        psi = psi * over((over(a, phi @ psi.T) * visible).T @ phi, visible.T @ phi)
    kernel = (phi @ psi.T) * visible
    return over(kernel * a.sum(1, keepdims=True), np.broadcast_to(kernel.sum(1, keepdims=True), a.shape))


def _numbers(key: Key, window: Window) -> int:
    """All numbers kept: visible pairs, or two per row for each rank and feature."""
    if key in PAIRS:
        return int(_mask(key, window).sum())
    pairs = {"zero": 0, "uniform": window.a.size, "visible uniform": int(window.visible.sum())}
    return pairs[key[0]] if key[0] in pairs else 2 * (key[1] or 0) * len(window.a)


def _structure_rows(windows: Sequence[Window]) -> Iterator[Row]:
    baseline = {key[0]: _pooled(windows, partial(_fitted, key)) for key in BASELINES}
    visible = _mean_numbers(("visible uniform", None, None), windows)
    for key in (*PAIRS, *OTHERS, *BASELINES):
        used = windows[:COMPARED] if key in OTHERS else windows
        mean_numbers = _mean_numbers(key, used)
        if key in PAIRS and mean_numbers == visible:
            continue
        rows = sum(len(w.a) for w in used)
        variation = sum(float(np.abs(w.a - _fitted(key, w)).sum()) / 2 for w in used)
        yield {
            "structure": _words(key), "form": key[0], "size": key[1], "entries": key[2],
            "kept": mean_numbers,
            "value": _pooled(used, partial(_fitted, key)),
            "map_error": variation / rows,
            "low_rank": _pooled(used, partial(_low_rank_with_as_many_numbers, key)),
            "zero": baseline["zero"], "uniform": baseline["uniform"],
            "visible_uniform": baseline["visible uniform"], "windows": len(used),
        }  # fmt: skip


def _words(key: Key) -> str:
    name, size, entries = key
    plural = "" if size == 1 else "s"
    return {
        "band": f"band {size}", "band and first token": f"band {size} and first token",
        "band and entries": f"band {size} and {entries} entr{'y' if entries == 1 else 'ies'}",
        "first tokens": "first token" if size == 1 else f"first {size} tokens",
        "columns": f"{size} column{plural}", "offsets": f"{size} offset{plural}", "blocks": f"blocks of {size}",
        "low rank": f"rank {size}", "linear kernel": f"{size} positive features",
    }.get(name, name)  # fmt: skip


def _mean_numbers(key: Key, windows: Sequence[Window]) -> float:
    return sum(_numbers(key, w) for w in windows) / sum(len(w.a) for w in windows)


def _pooled(windows: Sequence[Window], fit: Callable[[Window], Array]) -> float | None:
    """‖(A − Ã) V W_O‖ / ‖A V W_O‖ over the rows of all windows."""
    energy = sum(w.written(w.a) for w in windows)
    return sqrt(max(sum(w.written(w.a - fit(w)) for w in windows), 0.0) / energy) if energy > 0 else None


def _smallest_rows(windows: Sequence[Window], table: Sequence[Row]) -> Iterator[Row]:
    visible = _mean_numbers(("visible uniform", None, None), windows)
    all_keys: Row = {
        "structure": "all keys",
        "form": "all keys",
        "size": None,
        "entries": None,
        "kept": visible,
        "value": 0.0,
    }
    pairs = {name for name, *_ in PAIRS}
    for within in (1, 5, 10):
        fits = [row for row in table if row["form"] in pairs and _number(row["value"]) <= within / 100]
        best = min([*fits, all_keys], key=lambda row: _number(row["kept"]))
        most = max(len(w.a) for w in windows)
        ranks = range(most + 1)
        rank = next(r for r in ranks if r == most or (_pooled_rank(windows, r) or 0.0) <= within / 100)
        yield {
            "within": within, "structure": best["structure"], "form": best["form"], "size": best["size"],
            "entries": best["entries"], "kept": best["kept"], "visible": visible,
            "share": _number(best["kept"]) / visible, "low_rank": 2.0 * rank, "value": best["value"],
            "windows": len(windows),
        }  # fmt: skip


def _pooled_rank(windows: Sequence[Window], rank: int) -> float | None:
    return _pooled(windows, lambda w: _low_rank(w.a, rank))


def _number(cell: object) -> float:
    return float(cell) if isinstance(cell, (int, float)) else inf


def _family_row(params: Params, windows: Sequence[Window]) -> Row:
    sums = [_sums(params, w, w.a) for w in windows]
    nulls = [_sums(params, w, _permuted(w), part["width"]) for w, part in zip(windows, sums, strict=True)]
    rows = sum(len(w.a) for w in windows)

    def share(parts: Sequence[dict[str, float]], name: str, of: str = "rest") -> float:
        total = sum(part[of] for part in parts)
        return sum(part[name] for part in parts) / total if total > 0 else 0.0

    masses = {name: share(sums, name) for name in ("positional", "rare_token", "near")}
    chance = {name: share(nulls, name) for name in masses}
    first = share(sums, "first", "whole")
    first_null = sum(float((1 / w.visible.sum(1)).sum()) for w in windows) / rows
    blocks = sum(part["blocks"] for part in sums)
    beyond = {name: _beyond_chance(masses[name], chance[name]) for name in masses}
    if blocks == 0:
        beyond["rare_token"] = -inf
    best = next(name for name in masses if beyond[name] >= max(beyond.values()) - 0.1)
    names = {"positional": "positional", "rare_token": "rare token", "near": "syntactic"}
    family = names[best] if max(beyond.values()) >= 0.5 else "none"
    value, null = masses[best], chance[best]
    if _beyond_chance(first, first_null) >= 0.5:
        family, value, null = "first token", first, first_null
    distances = [sum(part[f"at {d}"] for part in sums) for d in range(params.reach + 1)]
    offset = max(range(len(distances)), key=lambda d: distances[d])
    return {
        "family": family, "value": value, "null": null,
        "width": share([part | {"one": 1.0} for part in sums], "width", "one"),
        "positions": 16 * blocks / rows,
        "block_width": sum(part["in_blocks"] for part in sums) / blocks if blocks else None,
        **masses, **{f"{name}_null": number for name, number in chance.items()},
        "first": first, "first_null": first_null, "offset": offset,
        "offset_mass": share(sums, f"at {offset}"), "windows": len(windows),
    }  # fmt: skip


def _beyond_chance(mass: float, chance: float) -> float:
    """The part of what chance leaves over that the mass covers."""
    return (mass - chance) / (1 - chance) if chance < 1 - 1e-9 else -inf


def _permuted(window: Window) -> Array:
    """The weights of each row in random order; that of the first token stays."""
    a = np.array(window.a)
    for i in range(len(a)):
        keys = [j for j in np.flatnonzero(window.visible[i]).tolist() if j > 0]
        a[i, keys] = window.a[i, sorted(keys, key=lambda j: window.noise[i, j])]
    return a


def _sums(params: Params, window: Window, a: Array, width: float | None = None) -> dict[str, float]:
    """Masses without the first key: at distances, on the diagonal, on shared keys."""
    n = a.shape[1]
    away = np.abs(window.away)
    later = np.arange(n) > 0
    near = [float(a[:, later][away[:, later] == d].sum()) for d in range(params.reach + 1)]
    if width is None:
        width = next(w for w in range(params.reach + 1) if sum(near[: w + 1]) >= 0.9 * sum(near) - 1e-12)
    top = np.where(window.visible, a, -1.0).argmax(1).tolist()
    rare, blocks, in_blocks = 0.0, 0, 0
    for i, position in enumerate(window.positions):
        same = [
            top[k] == top[i] > 0 and abs(k - i) == 1 and abs(window.positions[k] - position) == 1 for k in range(len(a))
        ]
        rare += float(a[i, top[i]]) if any(same) else float(a[i, position]) if position > 0 else 0.0
        in_blocks += any(same)
        blocks += any(same[i + 1 :]) and not any(same[:i])
    return {
        "rest": float(a[:, 1:].sum()), "first": float(a[:, 0].sum()), "whole": float(a.sum()),
        "positional": near[0], "near": sum(near[: int(width) + 1]), "rare_token": rare,
        "width": float(width), "blocks": float(blocks), "in_blocks": float(in_blocks),
        **{f"at {d}": mass for d, mass in enumerate(near)},
    }  # fmt: skip
