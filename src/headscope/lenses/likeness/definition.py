"""The formulas of the lens `likeness` as written, pair by pair, with numpy and scipy alone."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from headscope.core import Site, WeightSource
from headscope.lenses.lens import Batch
from headscope.lenses.shared.table import Row

Array = NDArray[np.float64]
BACK = (0, 1, 4, 16, 64)
USED = 512  # tokens of a window


def defined(weights: WeightSource, batches: Sequence[Batch], skip: int) -> list[Row]:
    """The rows of the table."""
    rows: list[Row] = []
    for site in batches[0].captures["q"] if batches else ():
        if site.kind == "self":
            rows += _site(weights, batches, site, skip)
    for row in rows:
        chances = sorted(float(str(x["p"])) for x in rows if x["p"] is not None and x["distance"] == row["distance"])
        head_p = row["p"]
        row["adjusted"] = (
            None
            if head_p is None
            else min(len(chances) * p / (rank + 1) for rank, p in enumerate(chances) if p >= float(str(head_p)))
        )
    return rows


def _rows_of(batches: Sequence[Batch], name: str, site: Site) -> list[Array]:
    return [
        batch.captures[name][site][index].double().numpy()[..., batch.real[index].numpy(), :]
        for batch in batches
        for index in range(len(batch.real))
    ]


def _site(weights: WeightSource, batches: Sequence[Batch], site: Site, skip: int) -> list[Row]:
    queries, keys = ([rows[:, :USED] for rows in _rows_of(batches, name, site)] for name in ("q", "k"))
    scale = float(batches[0].captures["scale"][site])
    share = site.n_heads // site.n_kv_heads
    predicted = _predicted(weights, batches, site, skip)
    rows: list[Row] = []
    for t in BACK:
        for head in range(site.n_heads):
            gaps, all_unrelated, pairs = [], list[float](), 0
            for now in range(1, len(queries)):
                q, k, before = queries[now][head], keys[now][head // share], keys[now - 1][head // share]
                places = range(skip + t, len(q))
                related_scores = [scale * float(q[i] @ k[i - t]) for i in places]
                unrelated_scores = [scale * float(q[i] @ before[i - t]) for i in places if i < len(before)]
                if related_scores and unrelated_scores:
                    gaps.append(
                        sum(related_scores) / len(related_scores) - sum(unrelated_scores) / len(unrelated_scores)
                    )
                    all_unrelated += unrelated_scores
                    pairs += len(related_scores)
            if not gaps:
                continue
            value, spread, m = sum(gaps) / len(gaps), float(np.std(all_unrelated)), len(gaps)
            error = float(np.std(gaps, ddof=1)) / sqrt(m) if m > 1 else 0.0
            half = float(stats.t.ppf(0.975, m - 1)) * error if m > 1 else 0.0
            rows.append(
                {
                    "stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head, "distance": t,
                    "value": value, "low": value - half if m > 1 else None, "high": value + half if m > 1 else None,
                    "spread": spread, "effect": value / spread if spread > 0 else None,
                    "p": float(2 * stats.t.sf(abs(value) / error, m - 1)) if m > 1 and error > 0 else None,
                    "isotropic": None if t or predicted is None else scale * predicted[head][0],
                    "folded": None if t or predicted is None else scale * predicted[head][1],
                    "pairs": pairs, "windows": m,
                }
            )  # fmt: skip
    # Heads follow one another within a distance, as in the lens.
    return rows


def _predicted(
    weights: WeightSource, batches: Sequence[Batch], site: Site, skip: int
) -> list[tuple[float, float]] | None:
    if weights.status(site).status != "exact":
        return None
    x = np.concatenate([rows[skip:] for rows in _rows_of(batches, "x", site)])
    variance = x.var(0)
    w = weights.weights(site)
    pairs = []
    for head in range(site.n_heads):
        key = head // (site.n_heads // site.n_kv_heads)
        form = (w.w_q[head].double() * w.gain_q[head].double()) @ (w.w_k[key].double() * w.gain_k[key].double()).T
        diagonal = form.diagonal().numpy()
        pairs.append((float(variance.mean() * diagonal.sum()), float(diagonal @ variance)))
    return pairs
