"""The formulas of the lens `scores` as written, row by row and key by key, in float64 and with numpy alone.

Nothing here is shared with the fold but the names of the columns: the fold takes its numbers from sums and merged
moments; both must give the same tables.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log, nan, sqrt

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from headscope.core import Site, WeightSource
from headscope.lenses.lens import Batch
from headscope.lenses.scores.tables import SCHEMAS
from headscope.lenses.shared.table import Row

Array = NDArray[np.float64]

# Most rows of a window, keys from one that is tested to the next, fewest of them, level: as the lens has them.
SAMPLED_ROWS, APART, FEWEST, LEVEL = 16, 4, 20, 0.05
# Rows whose Jacobian is computed: the third of each four.
JACOBIAN_FIRST, JACOBIAN_STEP = 2, 4


def defined(weights: WeightSource | None, batches: Sequence[Batch], skip: int) -> dict[str, pl.DataFrame]:
    """The tables of the lens."""
    sites = list(batches[0].captures["rows"]) if batches else []
    first = {site.stack: min(s.layer for s in sites if s.stack == site.stack) for site in sites}
    heads: list[Row] = []
    bounds: list[Row] = []
    terms: list[Row] = []
    for site in sites:
        windows = [_Window.of(skip, site, batch, index) for batch in batches for index in range(len(batch.tokens))]
        for head in range(site.n_heads):
            formulas = _Head(site, head, windows)
            heads += formulas.head_rows()
            bounds += formulas.bound_rows(weights)
            # The specifications of the models that this is compared on do not name their positions: they are split.
            if site.kind == "self" and site.layer == first[site.stack]:
                terms += formulas.term_rows()
    return {
        name: pl.DataFrame(rows, schema=SCHEMAS[name])
        for name, rows in (("heads", heads), ("bounds", bounds), ("terms", terms))
    }


@dataclass(frozen=True)
class _Window:
    """One window in numpy: all its tokens, the rows at `indices`, and which queries and keys are real."""

    skip: int
    scale: float
    q: Array
    k: Array
    x: Array
    rows: Array
    indices: list[int]
    queries: list[int]
    keys: list[int]

    @classmethod
    def of(cls, skip: int, site: Site, batch: Batch, index: int) -> "_Window":
        captured = {name: by_site[site].double().numpy() for name, by_site in batch.captures.items() if site in by_site}
        q, rows = captured["q"][index], captured["rows"][index]
        step = -(-q.shape[1] // SAMPLED_ROWS)
        queries = [i for i in range(q.shape[1]) if bool(batch.real[index, i])]
        looked_at = [j for j in range(rows.shape[-1]) if np.isfinite(rows[:, :, j]).any()]
        return cls(
            skip, float(captured["scale"]), q, captured["k"][index], captured["x"][index], rows,
            list(range(step // 2, q.shape[1], step)), queries, queries if site.kind == "self" else looked_at,
        )  # fmt: skip


class _Head:
    """Everything about one head, by the formulas."""

    def __init__(self, site: Site, head: int, windows: Sequence[_Window]) -> None:
        self.site, self.head, self.windows = site, head, windows
        self.kv = head // (site.n_heads // site.n_kv_heads)
        self.where: Row = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head}
        # Rows that count, window by window, by the query that they belong to.
        self.rows = [
            {r: row for r, i in enumerate(window.indices) if (row := self.row(window, r, i))} for window in windows
        ]
        self.measured = [list(rows.values()) for rows in self.rows if rows]
        self.scale = windows[0].scale
        self.q = np.concatenate([self.queries(window) for window in windows])
        self.k = np.concatenate([self.keys(window) for window in windows])

    def queries(self, window: _Window) -> Array:
        """The queries of a window that count."""
        return window.q[self.head, [i for i in window.queries if i >= window.skip]]

    def keys(self, window: _Window) -> Array:
        """The keys of a window that count."""
        return window.k[self.kv, [j for j in window.keys if j >= window.skip]]

    def row(self, window: _Window, r: int, i: int) -> dict[str, float]:
        """The numbers of one row; none where it does not count."""
        visible = [j for j in range(window.rows.shape[-1]) if window.rows[self.head, r, j] > -inf]
        used = [j for j in visible if j >= window.skip]
        if i not in window.queries or i < window.skip or len(used) < 2:
            return {}
        s = np.array([window.scale * window.q[self.head, i] @ window.k[self.kv, j] for j in used])
        t, with_first = window.rows[self.head, r, used], window.rows[self.head, r, visible]
        spaced = window.rows[self.head, r, [j for j in used if j % APART == 0]]
        numbers = _product_moments(s) | _softmax_numbers(t) | _entropy_with_first(with_first) | _shape(t)
        if len(spaced) >= FEWEST:
            numbers["rejected"] = float(stats.normaltest(spaced).pvalue < LEVEL)
        if r % JACOBIAN_STEP == JACOBIAN_FIRST:
            numbers |= _jacobians(with_first, window.scale, self.site.d_head)
        return numbers

    def estimates(self, windows: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
        rows = [row for window in windows for row in window]

        def mean(name: str) -> float:
            numbers = [row[name] for row in rows if name in row]
            return sum(numbers) / len(numbers) if numbers else nan

        m1, m2, m3, m4 = (mean(name) for name in ("first", "second", "third", "fourth"))
        variance = m2 - m1**2
        same = ("row_variance", "row_skewness", "row_kurtosis")
        same_end = ("freezing", "jacobian_trained", "jacobian_root_d", "jacobian_unscaled")
        return {
            "mean": m1,
            "variance": variance,
            "pair_kurtosis": (m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4) / variance**2 - 3,
            **{name: mean(name) for name in same},
            "rejected_share": mean("rejected"),
            "log_mean_exp": mean("lifted"),
            "entropy_share": mean("entropy"),
            "entropy_share_all": mean("entropy_all"),
            **{name: mean(name) for name in same_end},
            **{f"({name})": mean(name) for name in ("lifted_predicted", "lifted_stated", "entropy_predicted")},
            **{f"({name})": mean(name) for name in ("entropy_all_predicted", "melting", "uniform", "kurtosis_null")},
        }

    def theory(self) -> dict[str, float]:
        """Moments of scale · q·k for independent Gaussian q and k."""
        a, mu, nu = self.scale, self.q.mean(0), self.k.mean(0)
        d = len(mu)
        of_q, of_k = (np.cov(x.T, ddof=1).reshape(d, d) for x in (self.q, self.k))
        within = a**2 * (np.trace(of_q @ of_k) + mu @ of_k @ mu)
        variance = within + a**2 * (nu @ of_q @ nu)
        # κ₄ of gᵀMg, g = (q, k): 48 (Tr (MΣ)⁴ + 4 μᵀ M (ΣM)³ μ).
        nothing, half = np.zeros((d, d)), a / 2 * np.eye(d)
        m, sigma = np.block([[nothing, half], [half, nothing]]), np.block([[of_q, nothing], [nothing, of_k]])
        g, step = np.concatenate((mu, nu)), m @ sigma
        fourth = 48 * (np.trace(step @ step @ step @ step) + 4 * g @ step @ step @ step @ m @ g)
        return {"mean": a * mu @ nu, "variance": variance, "row_variance": within, "kurtosis": fourth / variance**2}

    def references(self, value: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """Predictions, stated formulas and nulls of each quantity."""
        theory = self.theory()
        return {
            "mean": {"predicted": theory["mean"]},
            "variance": {"predicted": theory["variance"]},
            "row_variance": {"predicted": theory["row_variance"]},
            "pair_kurtosis": {"predicted": theory["kurtosis"], "stated": 0.0},
            "row_skewness": {"predicted": 0.0},
            "row_kurtosis": {"predicted": value["(kurtosis_null)"]},
            "rejected_share": {"null": LEVEL},
            "log_mean_exp": {"predicted": value["(lifted_predicted)"], "stated": value["(lifted_stated)"]},
            "entropy_share": {"predicted": value["(entropy_predicted)"], "null": 1.0},
            "entropy_share_all": {"predicted": value["(entropy_all_predicted)"], "null": 1.0},
            "freezing": {"predicted": sqrt(theory["row_variance"]) * value["(melting)"]},
            **{f"jacobian_{name}": {"null": value["(uniform)"]} for name in ("trained", "root_d", "unscaled")},
        }

    def head_rows(self) -> Iterator[Row]:
        """The table `heads`: one row per quantity."""
        if not self.measured:
            return
        value, w = self.estimates(self.measured), len(self.measured)
        without = [self.estimates([*self.measured[:out], *self.measured[out + 1 :]]) for out in range(w)]
        references = self.references(value)
        of_rows = {"rejected_share": "rejected", "row_skewness": "row_skewness", "row_kurtosis": "row_kurtosis"}
        for name, number in value.items():
            if name.startswith("("):
                continue
            low, high = _interval(name, number, np.array([estimates[name] for estimates in without]))
            counted = of_rows.get(name, name if "jacobian" in name else "first")
            cells = {"value": number, "low": low, "high": high, "predicted": nan, "stated": nan, "null": nan}
            cells |= references[name]
            yield {
                **self.where,
                "quantity": name,
                **{key: cell if np.isfinite(cell) else None for key, cell in cells.items()},
                "rows": sum(counted in row for window in self.measured for row in window),
                "samples": len(self.q),
                "dimensions": self.site.d_head,
                "windows": w,
            }

    def weight_norm(self, weights: WeightSource | None) -> float:
        """Product of the operator norms of w_q and w_k, with biases and gains; NaN where they are not read."""
        if weights is None or self.site.kind != "self":
            return nan
        w = weights.weights(self.site)
        factors = ((w.w_q[self.head], w.b_q[self.head], w.gain_q[self.head]),
                   (w.w_k[self.kv], w.b_k[self.kv], w.gain_k[self.kv]))  # fmt: skip
        norm = 1.0
        for matrix, bias, gain in factors:
            stacked = np.vstack((matrix.double().numpy(), bias.double().numpy())) * gain.double().numpy()
            norm *= float(np.linalg.svd(stacked, compute_uv=False)[0])
        return norm

    def bound_rows(self, weights: WeightSource | None) -> Iterator[Row]:
        """The table `bounds`: the largest score and what bounds it."""
        tops = [self.top(window, rows) for window, rows in zip(self.windows, self.rows, strict=True) if rows]
        if not tops:
            return
        norm = self.weight_norm(weights)
        size, lengths, x, y = max(tops, key=lambda top: top[0])
        cosine = abs(float(x @ y)) / float(np.linalg.norm(x) * np.linalg.norm(y))
        limit = self.scale * norm * float(np.linalg.norm(x) * np.linalg.norm(y))
        beyond = [s > self.scale * norm * abs(float(a @ b)) for s, _, a, b in tops]
        cells: dict[str, float] = {
            "value": size, "bound": self.scale * lengths, "weights_bound": limit, "stated": limit * cosine,
            "beyond": sum(beyond) / len(tops) if norm == norm else nan,
        }  # fmt: skip
        numbers = {key: cell if abs(cell) < inf else None for key, cell in cells.items()}
        yield {**self.where, **numbers, "windows": len(tops)}

    def top(self, window: _Window, rows: Mapping[int, object]) -> tuple[float, float, Array, Array]:
        """The largest |score| of a window, the two lengths, and the two tokens with a 1 behind them."""
        size, i, j = max(
            (
                abs(window.scale * float(window.q[self.head, window.indices[r]] @ window.k[self.kv, j])),
                window.indices[r],
                j,
            )
            for r in rows
            for j in range(window.rows.shape[-1])
            if window.rows[self.head, r, j] > -inf
        )
        lengths = float(np.linalg.norm(window.q[self.head, i]) * np.linalg.norm(window.k[self.kv, j]))
        y = window.x[j] if self.site.kind == "self" else window.x[i]
        return size, lengths, np.append(window.x[i], 1.0), np.append(y, 1.0)

    def term_rows(self) -> Iterator[Row]:
        """The table `terms`: the row variance by what of query and key it comes from."""
        values, sizes = self.terms(self.windows)
        longest = max(sum(len(window.queries) > i for window in self.windows) for i in range(self.windows[0].skip, 99))
        groups = min(8, len(self.windows))
        without = [
            self.terms([window for index, window in enumerate(self.windows) if index % 8 != group])[0]
            for group in range(groups)
        ]
        for (a, b), value in values.items():
            share, null = value / sum(values.values()), sizes[a, b] / sum(sizes.values())
            low, high = self.ends(value, [terms[a, b] for terms in without])
            share_low, share_high = self.ends(share, [terms[a, b] / sum(terms.values()) for terms in without])
            yield {
                **self.where, "quantity": f"{a}_{b}", "value": value, "low": low, "high": high, "share": share,
                "share_low": share_low, "share_high": share_high, "null": null, "samples": len(self.q),
                "windows": longest,
            }  # fmt: skip

    def ends(self, value: float, without: Sequence[float]) -> tuple[float, float]:
        """Jackknife over groups of windows."""
        g = len(without)
        mean = sum(without) / g
        half = float(stats.t.ppf(0.975, g - 1)) * sqrt((g - 1) / g * sum((x - mean) ** 2 for x in without))
        return value - half, value + half

    def terms(self, windows: Sequence[_Window]) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
        """The six parts of the row variance, and the sizes that they would have by chance."""
        of_q = self.split([self.queries(window) for window in windows])
        of_k = self.split([self.keys(window) for window in windows])
        pairs = [(a, b) for a in of_q for b in of_k if b != "constant"]
        values = {(a, b): self.scale**2 * float(np.trace(of_q[a] @ of_k[b])) for a, b in pairs}
        return values, {(a, b): float(np.trace(of_q[a]) * np.trace(of_k[b])) for a, b in pairs}

    def split(self, windows: Sequence[Array]) -> dict[str, Array]:
        """Products of different windows at one position, each pair once either way round."""
        everything = np.concatenate(windows)
        mean, d = everything.mean(0), everything.shape[1]
        total, pairs = np.zeros((d, d)), 0
        for a, first in enumerate(windows):
            for b, second in enumerate(windows):
                for x, y in zip(first, second, strict=False) if a != b else ():
                    total += np.outer(x - mean, y - mean)
                    pairs += 1
        position = total / pairs
        content = np.cov(everything.T, ddof=1).reshape(d, d) - position
        return {"constant": np.outer(mean, mean), "position": position, "content": content}


def _product_moments(s: Array) -> dict[str, float]:
    """The moments of the products of a query with its keys."""
    return {
        "first": float(s.mean()), "second": float((s**2).mean()), "third": float((s**3).mean()),
        "fourth": float((s**4).mean()), "row_variance": float(s.var(ddof=1)),
    }  # fmt: skip


def _softmax_numbers(t: Array) -> dict[str, float]:
    """Log mean exponential and entropy of a row, with what Gaussian scores of its variance would have."""
    n, mean, variance = len(t), float(t.mean()), float(t.var(ddof=1))
    entropy, lifted = _gaussian_row(n, variance)
    return {
        "lifted": log(float(np.exp(t).mean())) - mean, "lifted_predicted": lifted,
        "lifted_stated": (mean + variance) / 2 - mean,
        "entropy": _entropy(t) / log(n), "entropy_predicted": entropy / log(n),
        "freezing": sqrt(variance) / sqrt(2 * log(n)), "melting": 1 / sqrt(2 * log(n)),
    }  # fmt: skip


def _entropy_with_first(t: Array) -> dict[str, float]:
    """The entropy of a row with the tokens that are left out elsewhere."""
    n = len(t)
    predicted = _gaussian_row(n, float(t.var(ddof=1)))[0]
    return {"entropy_all": _entropy(t) / log(n), "entropy_all_predicted": predicted / log(n)}


def _shape(t: Array) -> dict[str, float]:
    """Skewness and excess kurtosis of a row; none for fewer than four keys or equal scores."""
    n = len(t)
    if n < 4 or not float(t.var(ddof=1)) > 0:
        return {}
    y = (t - float(t.mean())) / t.std()
    return {"row_skewness": (y**3).mean(), "row_kurtosis": (y**4).mean() - 3, "kurtosis_null": -6 / (n + 1)}


def _jacobians(t: Array, trained: float, d_head: int) -> dict[str, float]:
    """The largest eigenvalue of diag p − p pᵀ at three scales, and of uniform attention."""
    norms = {"uniform": 1 / len(t)}
    for name, scale in (("trained", trained), ("root_d", d_head**-0.5), ("unscaled", 1.0)):
        p = np.exp(t * scale / trained)
        p /= p.sum()
        norms[f"jacobian_{name}"] = float(np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)).max())
    return norms


def _interval(name: str, value: float, without: Array) -> tuple[float, float]:
    """Jackknife over windows, Student t, within what the quantity can be; NaN where a window cannot be left out."""
    w = len(without)
    if w < 2 or not np.isfinite(without).all():
        return nan, nan
    half = float(stats.t.ppf(0.975, w - 1)) * sqrt((w - 1) / w * ((without - without.mean()) ** 2).sum())
    low, high = value - half, value + half
    if name not in ("mean", "pair_kurtosis", "row_skewness", "row_kurtosis"):
        low = max(low, 0.0)
    return low, min(high, 1.0) if "share" in name else min(high, 0.5) if "jacobian" in name else high


def _entropy(t: Array) -> float:
    """The entropy of the softmax of a row, in nats."""
    p = np.exp(t - t.max())
    p /= p.sum()
    return float(-sum(x * log(x) for x in p if x > 0))


@lru_cache(maxsize=4096)
def _gaussian_row(n: int, variance: float) -> tuple[float, float]:
    """Mean entropy and log mean exponential of n Gaussian scores: n e^(s₁) ln(…) by Frullani's integral of ln."""
    sigma = sqrt(variance)
    g, u = np.arange(-9, 9.01, 0.12), np.exp(np.arange(-9 * sigma - log(n) - 40, 9 * sigma + 8, 0.15))
    weight = np.exp(-(g**2) / 2)
    weight /= weight.sum()
    e = np.exp(sigma * g)
    decay = np.exp(-np.outer(u, e))
    phi, tilted = decay @ weight, (decay * e) @ (weight * g * sigma)
    # E ln Σ = ∫ (e^(−u) − φⁿ) du/u, and E Σ p s = n ∫ E[s e^s e^(−u e^s)] φ^(n−1) du.
    mean_log = 0.15 * float((np.exp(-u) - phi**n).sum())
    mean_score = 0.15 * n * float((u * tilted * phi ** (n - 1)).sum())
    return mean_log - mean_score, mean_log - log(n)
