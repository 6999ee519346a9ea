"""The lens `maps` by its formulas, in float64; the fast path shares none of it."""

from collections.abc import Sequence
from math import exp, log

import polars as pl
from scipy import stats
from torch import Tensor

from headscope.core import Site, WeightSource
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.maps.settings import Params
from headscope.lenses.maps.tables import _HEADS, SCHEMA


def definition(params: Params, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
    """The formulas as written, cell by cell on the stored maps, in float64."""
    windows = [(batch, i) for batch in batches if batch.variant == AS_IS for i in range(len(batch.real))]
    windows = windows[: params.windows]
    layers: list[dict[str, object]] = []
    heads: list[dict[str, object]] = []
    for site in windows[0][0].captures["pattern"] if windows else ():
        w_o = None if weights is None else weights.weights(site).w_o.double()
        of_layer: dict[str, list[float]] = {}
        of_head: dict[tuple[int, str], list[float]] = {}
        nulls: list[float] = []
        for batch, index in windows:
            seen = _defined(params, site, batch, index, w_o)
            for name, value in seen[0].items():
                if name == "uniform":
                    nulls.append(value)
                else:
                    of_layer.setdefault(name, []).append(value)
            for key, value in seen[1].items():
                of_head.setdefault(key, []).append(value)
        n = site.n_heads
        ends: dict[str, tuple[float | None, float | None]] = {
            "hidden": (0.0, 1 - 1 / n), "divergence_nats": (0.0, log(n)), "weighting": (0.0, 1 - 1 / n),
            "effective_heads": (float(n), float(n)), "largest_average": (None, 1.0), "largest_head": (None, 1.0),
            "diagonal_words": (sum(nulls) / len(nulls) if nulls else None, 1.0),
            "apart": (0.0, 1 - 1 / n), "shown": (None, 1.0), "written": (None, None), "weight": (1 / n, 1.0),
        }  # fmt: skip
        where = {"stack": site.stack, "kind": site.kind, "layer": site.layer}
        layers += [
            {**where, "head": None, "quantity": name, **_defined_estimate(values, *ends[name])}
            for name, values in of_layer.items()
        ]
        heads += [
            {**where, "head": head, "quantity": name, **_defined_estimate(values, *ends[name])}
            for (head, name), values in sorted(of_head.items(), key=lambda item: (item[0][0], _HEADS.index(item[0][1])))
        ]
    return {"layers": pl.DataFrame(layers, schema=SCHEMA), "heads": pl.DataFrame(heads, schema=SCHEMA)}


def _defined(
    params: Params, site: Site, batch: Batch, index: int, w_o: Tensor | None
) -> tuple[dict[str, float], dict[tuple[int, str], float]]:
    p = batch.captures["pattern"][site][index].double().tolist()
    heads = range(site.n_heads)
    n = min(params.tokens, int(batch.real[index].sum()))
    keys = n if site.kind == "self" else min(params.tokens, len(p[0][0]))
    chosen = params.leave_out.split()
    out = [text for text in chosen if text != "first"]
    texts = list(batch.spelling[index][:n])
    key_texts = texts if keys == n else [f" {key}" for key in range(keys)]
    rows = [i for i in range(n) if not (i == 0 and "first" in chosen) and texts[i].strip() not in out]
    columns = [j for j in range(keys) if not (j == 0 and "first" in chosen) and key_texts[j].strip() not in out]
    if not rows or not columns:
        return {}, {}
    cells = {h: [[*(p[h][i][j] for j in columns), 1 - sum(p[h][i][j] for j in columns)] for i in rows] for h in heads}
    mean = [
        [sum(cells[h][a][b] for h in heads) / len(heads) for b in range(len(columns) + 1)] for a in range(len(rows))
    ]
    apart = {
        h: sum(abs(x - y) for r, s in zip(cells[h], mean, strict=True) for x, y in zip(r, s, strict=True))
        for h in heads
    }
    apart = {h: value / 2 / len(rows) for h, value in apart.items()}

    def entropy(row: Sequence[float]) -> float:
        return -sum(x * log(x) for x in row if x > 0)

    flat = sum(entropy(row) for row in mean) / len(rows)
    sharp = sum(entropy(row) for h in heads for row in cells[h]) / len(rows) / len(heads)
    layer = {"hidden": sum(apart.values()) / len(heads), "divergence_nats": max(flat - sharp, 0.0)}
    layer["shown"] = sum(sum(row[:-1]) for row in mean) / len(rows)
    head = {(h, "apart"): apart[h] for h in heads}
    head |= {(h, "shown"): sum(sum(row[:-1]) for row in cells[h]) / len(rows) for h in heads}
    if w_o is not None:
        z = batch.captures["z"][site][index].double()
        length = [sum(float((z[h, i] @ w_o[h]).norm()) for i in rows) / len(rows) for h in heads]
        w = [one / sum(length) for one in length]
        moved = [
            [sum((w[h] - 1 / len(heads)) * cells[h][a][b] for h in heads) for b in range(len(columns) + 1)]
            for a in range(len(rows))
        ]
        layer["weighting"] = sum(abs(x) for row in moved for x in row) / 2 / len(rows)
        layer["effective_heads"] = exp(entropy(w))
        head |= {(h, "written"): length[h] for h in heads} | {(h, "weight"): w[h] for h in heads}
    layer["largest_average"] = max(x for row in mean for x in row[:-1])
    layer["largest_head"] = max(x for h in heads for row in cells[h] for x in row[:-1])
    if site.kind == "self":
        layer |= _defined_diagonal(site, rows, texts, mean)
    return layer, head


def _defined_diagonal(
    site: Site, rows: Sequence[int], texts: Sequence[str], mean: Sequence[Sequence[float]]
) -> dict[str, float]:
    word = []
    for i, text in enumerate(texts):
        # The words of the text up to here; a lone blank belongs to the word behind it.
        upto = next((k for k in range(i, len(texts)) if texts[k].strip()), i) if text.isspace() else i
        word.append(max(len("".join(texts[: upto + 1]).split()), 1))
    found: dict[str, float] = {}
    for name in ("diagonal_words", "uniform"):
        values = []
        for of in dict.fromkeys(word[i] for i in rows):
            own = total = 0.0
            for a, i in enumerate(rows):
                for b, j in enumerate(rows):
                    seen = (j <= i or not site.causal) and (site.window is None or abs(i - j) < site.window)
                    x = mean[a][b] if name == "diagonal_words" else float(seen)
                    if word[i] == of:
                        total += x
                        own += x if word[j] == of else 0.0
            if total > 0:
                values.append(own / total)
        found[name] = sum(values) / len(values)
    return found


def _defined_estimate(values: Sequence[float], null: float | None, most: float | None) -> dict[str, object]:
    mean = sum(values) / len(values)
    low = high = None
    if len(values) > 1:
        half = float(stats.t.ppf(0.975, len(values) - 1)) * float(stats.sem(values))
        low, high = max(0.0, mean - half), mean + half
        high = high if most is None else min(most, high)
    return {"value": mean, "low": low, "high": high, "null": null, "most": most, "windows": len(values)}
