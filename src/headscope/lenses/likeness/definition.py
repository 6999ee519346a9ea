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
    """The rows of one site; heads follow one another within a distance."""
    queries, keys = ([rows[:, :USED] for rows in _rows_of(batches, name, site)] for name in ("q", "k"))
    scale = float(batches[0].captures["scale"][site])
    share = site.n_heads // site.n_kv_heads
    predicted = _predicted(weights, batches, site, skip, scale)
    rows: list[Row] = []
    for t in BACK:
        for head in range(site.n_heads):
            q, k = [window[head] for window in queries], [window[head // share] for window in keys]
            scores = [_scores(scale, q[now], k[now], k[now - 1], skip, t) for now in range(1, len(q))]
            scores = [(related, unrelated) for related, unrelated in scores if related and unrelated]
            if not scores:
                continue
            where = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head, "distance": t}
            rows.append(where | _numbers(scores) | ({} if t else predicted[head]))
    return rows


# Scores of the queries of one window: with keys of their own window, and of the window before.
Scores = tuple[list[float], list[float]]


def _scores(scale: float, q: Array, k: Array, before: Array, skip: int, t: int) -> Scores:
    """Scores of each query with the key t tokens before it, in its own window and in the one before."""
    places = range(skip + t, len(q))
    related = [scale * float(q[i] @ k[i - t]) for i in places]
    unrelated = [scale * float(q[i] @ before[i - t]) for i in places if i < len(before)]
    return related, unrelated


def _numbers(scores: Sequence[Scores]) -> Row:
    """The mean difference over windows, with its interval, its test and its size in units of the spread."""
    gaps = [sum(related) / len(related) - sum(unrelated) / len(unrelated) for related, unrelated in scores]
    value, m = sum(gaps) / len(gaps), len(gaps)
    spread = float(np.std([score for _, unrelated in scores for score in unrelated]))
    error = float(np.std(gaps, ddof=1)) / sqrt(m) if m > 1 else 0.0
    half = float(stats.t.ppf(0.975, m - 1)) * error if m > 1 else 0.0
    return {
        "value": value, "low": value - half if m > 1 else None, "high": value + half if m > 1 else None,
        "spread": spread, "effect": value / spread if spread > 0 else None,
        "p": float(2 * stats.t.sf(abs(value) / error, m - 1)) if m > 1 and error > 0 else None,
        "pairs": sum(len(related) for related, _ in scores), "windows": m,
    }  # fmt: skip


def _predicted(weights: WeightSource, batches: Sequence[Batch], site: Site, skip: int, scale: float) -> list[Row]:
    """For each head the score of a token with itself by the weights; nothing where they are not known."""
    if weights.status(site).status != "exact":
        return [{} for _ in range(site.n_heads)]
    x = np.concatenate([rows[skip:] for rows in _rows_of(batches, "x", site)])
    variance = x.var(0)
    w = weights.weights(site)
    predicted: list[Row] = []
    for head in range(site.n_heads):
        key = head // (site.n_heads // site.n_kv_heads)
        form = (w.w_q[head].double() * w.gain_q[head].double()) @ (w.w_k[key].double() * w.gain_k[key].double()).T
        diagonal = form.diagonal().numpy()
        isotropic, folded = float(variance.mean() * diagonal.sum()), float(diagonal @ variance)
        predicted.append({"isotropic": scale * isotropic, "folded": scale * folded})
    return predicted
