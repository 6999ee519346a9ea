"""The formulas of the lens `dependence` as written, pair by pair, in float64 and with numpy and scipy alone.

Nothing here is shared with the fold but the names of the columns: the fold draws some of many windows and works on
whole maps; both must give the same tables where every window is kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import nan, sqrt

import numpy as np
import polars as pl
from scipy import stats

from headscope.core import Site
from headscope.lenses.dependence.tables import SCHEMAS
from headscope.lenses.lens import Batch
from headscope.lenses.shared.table import Row

# As the lens has them: samples per dimension, keys in a row, distance of dependent pairs, other windows, and decimals.
PER_DIMENSION, KEYS, NEAR, SHIFTS, DECIMALS = 10, 4, 8, 4, 9
# And where pooled distances begin, and the measures.
EDGES = sorted({1} | {2**octave for octave in range(1, 25)} | {3 * 2**octave for octave in range(24)})
MEASURES = ("pointwise", "cosine", "nearness", "information", "trace")


def defined(batches: Sequence[Batch], components: int, skip: int) -> dict[str, pl.DataFrame]:
    """The tables of the lens, from the windows of the commonest length."""
    tables: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    sites: list[_SiteByFormula] = []
    for site in batches[0].captures["resid"] if batches else ():
        if site.kind == "self":
            defined_site = _SiteByFormula(components, skip, site, batches)
            where = {"stack": site.stack, "kind": site.kind, "layer": site.layer}
            for name, rows in (
                ("heads", defined_site.heads()),
                ("pairs", defined_site.pairs()),
                ("profile", defined_site.profile()),
            ):
                tables[name] += [where | row for row in rows]
            sites.append(defined_site)
    tables["joint"] = list(_joint(sites))
    for name in ("heads", "pairs"):
        for quantity in {row["quantity"] for row in tables[name]}:
            _adjust([row for row in tables[name] if row["quantity"] == quantity])
    return {name: pl.DataFrame(rows, schema=SCHEMAS[name]) for name, rows in tables.items()}


def _adjust(rows: Sequence[Row]) -> None:
    """Write the p-values adjusted by Benjamini and Hochberg, from the largest p down."""
    tested = [row for row in rows if row.get("p") is not None]
    tested.sort(key=lambda row: float(str(row["p"])), reverse=True)
    least = 1.0
    for rank, row in zip(range(len(tested), 0, -1), tested, strict=True):
        least = min(least, float(str(row["p"])) * len(tested) / rank)
        row["adjusted"] = least


Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class _SiteByFormula:
    """One site by the formulas. Tokens are numbered within the sample; `at` holds their positions."""

    def __init__(self, components: int, skip: int, site: Site, batches: Sequence[Batch]) -> None:
        windows = [
            _sampled_tokens(
                [batch.captures[name][site][index].double().numpy() for name in ("resid", "q", "k", "pairs")], real
            )
            for batch in batches
            for index, real in enumerate(batch.real.tolist())
        ]
        shapes = [(n, at) for n, at, _ in windows]
        self.n, self.at = max(shapes, key=lambda shape: (shapes.count(shape), shape))
        same = [arrays for n, at, arrays in windows if (n, at) == (self.n, self.at)]
        self.x = [x for x, _, _, _ in same]
        self.q = [q for _, q, _, _ in same]
        self.k = [k[[site.kv_head(h) for h in range(site.n_heads)]] for _, _, k, _ in same]
        self.a = [a for _, _, _, a in same]
        self.w, self.site, self.components = len(same), site, components
        tokens = range(len(self.at))
        self.inside = [i for i in tokens if self.at[i] >= skip]
        visible = [[j for j in self.inside if any((a[:, i, j] > 0).any() for a in self.a)] for i in tokens]
        self.visible = [keys if i in self.inside else [] for i, keys in enumerate(visible)]
        rows = [[j for j in keys if j != i] for i, keys in enumerate(self.visible)]
        self.keys = [keys if len(keys) >= KEYS else [] for keys in rows]
        # Fits, and ranks of a measure by window, are needed many times: each is computed once.
        self.fits: dict[tuple[int, int | None, int], tuple[Array, Array]] = {}
        self.ranked: dict[tuple[str, int, int], list[Array] | None] = {}
        # How much each head's correlation exceeds its null, of all windows and of all but each, by measure.
        self.excess: dict[str, list[list[float]]] = {}
        self.prepare()

    def prepare(self) -> None:
        either = {(max(i, j), min(i, j)) for i, keys in enumerate(self.keys) for j in keys}
        self.either = sorted(either)
        inside = np.concatenate([stream[self.inside] for stream in self.x])
        mean = inside.mean(0)
        _, sigma, axes = np.linalg.svd(inside - mean, full_matrices=False)
        rank = int((sigma**2 > 1e-13 * max(inside.shape) * sigma[0] ** 2).sum())
        k = min(self.components, rank, len(either) * (self.w - 1) // (2 * PER_DIMENSION))
        self.dimensions = k
        self.pool: dict[tuple[int, int], int] = {}
        self.y = [(stream - mean) @ axes[:k].T for stream in self.x]
        if not k:
            return
        groups: dict[int, list[tuple[int, int]]] = {}
        for i, j in self.either:
            groups.setdefault(max(edge for edge in EDGES if edge <= self.gap(i, j)), []).append((i, j))
        left, number, pooled = len(self.either), 0, 0
        for edge in sorted(groups):
            self.pool |= dict.fromkeys(groups[edge], number)
            pooled, left = pooled + len(groups[edge]), left - len(groups[edge])
            if min(pooled, left) * (self.w - 1) >= 2 * PER_DIMENSION * k:
                number, pooled = number + 1, 0

    def gap(self, i: int, j: int) -> int:
        return abs(self.at[i] - self.at[j])

    def members(self, pool: int) -> list[tuple[int, int]]:
        return [pair for pair in self.either if self.pool[pair] == pool]

    def fit(self, pool: int, out: int | None, shift: int = 0) -> tuple[Array, Array]:
        if (pool, out, shift) not in self.fits:
            self.fits[pool, out, shift] = self._fit(pool, out, shift)
        return self.fits[pool, out, shift]

    def _fit(self, pool: int, out: int | None, shift: int) -> tuple[Array, Array]:
        z = [
            np.concatenate((self.y[(w + shift) % self.w][i], self.y[w][j]))
            for w in range(self.w)
            for i, j in self.members(pool)
            if w != out
        ]
        return np.mean(z, 0), np.cov(np.array(z).T, ddof=1)

    def information(self, pool: int, out: int | None, shift: int = 0) -> float:
        k, cov = self.dimensions, self.fit(pool, out, shift)[1]
        a, b, joint = (float(np.linalg.slogdet(block)[1]) for block in (cov[:k, :k], cov[k:, k:], cov))
        return 0.5 * (a + b - joint)

    def shuffled(self, pool: int, out: int | None, shifts: Sequence[int]) -> float:
        return float(np.mean([self.information(pool, out, shift) for shift in shifts]))

    def shifts(self) -> range:
        return range(1, min(SHIFTS, self.w - 1) + 1)

    def measure(self, name: str, head: int, shift: int) -> list[dict[tuple[int, int], float]] | None:
        """The measure of each counted pair (query, key) by window; with a shift, its null."""
        pairs = [(i, j) for i, keys in enumerate(self.keys) for j in keys]
        pooled, null_shifts = bool(self.pool), [s for s in self.shifts() if s != shift]
        if name == "pointwise" and pooled:
            return [{pair: self.pointwise(w, *pair, shift) for pair in pairs} for w in range(self.w)]
        if name == "cosine":
            return [{(i, j): self.cosine(w, i, j, shift) for i, j in pairs} for w in range(self.w)]
        if name == "nearness":
            return [{(i, j): -float(self.gap(i, j)) for i, j in pairs} for _ in range(self.w)]
        if name == "information" and pooled and null_shifts:
            return self.information_excess(pairs, shift, null_shifts)
        if name == "trace" and pooled and self.w > 2:
            return [self.traces(head, w, shift, pairs) for w in range(self.w)]
        return None

    def information_excess(
        self, pairs: Sequence[tuple[int, int]], shift: int, null_shifts: Sequence[int]
    ) -> list[dict[tuple[int, int], float]]:
        """The information of each pair's pool without the window, less that of shuffled windows."""
        pools = range(max(self.pool.values()) + 1)
        by_pool = [
            [self.information(pool, w, shift) - self.shuffled(pool, w, null_shifts) for pool in pools]
            for w in range(self.w)
        ]
        return [{pair: by_pool[w][self.pool[_sorted(pair)]] for pair in pairs} for w in range(self.w)]

    def pointwise(self, w: int, i: int, j: int, shift: int) -> float:
        k, (late, early) = self.dimensions, _sorted((i, j))
        mean, cov = self.fit(self.pool[late, early], w)
        query, key = self.y[(w + shift) % self.w][i], self.y[w][j]
        z = np.concatenate((query, key) if i > j else (key, query))
        laws = [(slice(0, 2 * k), 1.0), (slice(0, k), -1.0), (slice(k, 2 * k), -1.0)]
        return sum(
            sign * float(stats.multivariate_normal(mean[part], cov[part, part]).logpdf(z[part])) for part, sign in laws
        )

    def cosine(self, w: int, i: int, j: int, shift: int) -> float:
        a, b = self.x[(w + shift) % self.w][i], self.x[w][j]
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))

    def traces(self, head: int, out: int, shift: int, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
        windows = [w for w in range(self.w) if w != out]
        traces: dict[tuple[int, int], float] = {}
        for pair in pairs:
            swapped = [
                float(np.mean([self.score(head, (w + s) % self.w, w, pair) for w in windows]))
                for s in (shift, 2 * shift)
            ]
            traces[pair] = swapped[0] - swapped[1] if shift else self.trace(head, pair, windows)
        groups: dict[tuple[int, bool], list[float]] = {}
        for (i, j), trace in traces.items():
            groups.setdefault((self.pool[_sorted((i, j))], i > j), []).append(trace)
        return {(i, j): float(np.mean(groups[self.pool[_sorted((i, j))], i > j])) for i, j in pairs}

    def ranks(self, values: Mapping[tuple[int, int], float], rounded: bool = True) -> Array:
        rank_rows = []
        for i, keys in enumerate(self.keys):
            row = np.array([values[i, j] for j in keys])
            rank = stats.rankdata(row.round(DECIMALS) if rounded else row) if keys else np.zeros(0)
            spread = rank.std() if keys else 0.0
            rank_rows.append((rank - rank.mean()) / spread if spread > 0 else np.zeros(len(keys)))
        return np.concatenate(rank_rows)

    def columns(self, head: int, name: str, shift: int) -> list[Array] | None:
        """The ranks of pattern, measure and nearness by window, stacked."""
        measured = self._measured(head, name, shift)
        if measured is None:
            return None
        near = {(i, j): -float(self.gap(i, j)) for i, keys in enumerate(self.keys) for j in keys}
        pattern = [{pair: float(self.a[w][head][pair]) for pair in near} for w in range(self.w)]
        return [np.array([self.ranks(pattern[w], rounded=False), measured[w], self.ranks(near)]) for w in range(self.w)]

    def _measured(self, head: int, name: str, shift: int) -> list[Array] | None:
        key = (name, head if name == "trace" else 0, shift)
        if key not in self.ranked:
            measure = self.measure(name, head, shift)
            self.ranked[key] = None if measure is None else [self.ranks(window_measure) for window_measure in measure]
        return self.ranked[key]

    def correlations(self, columns: Sequence[Array] | None, only: Sequence[int]) -> tuple[float, float]:
        """The plain and the partial correlation over the windows in `only`."""
        if columns is None:
            return nan, nan
        a, m, d = np.concatenate([columns[w] for w in only], 1)
        if not (m**2).sum():
            return nan, nan
        r = float(a @ m / sqrt((a @ a) * (m @ m)))
        left = [ranks - (ranks @ d) / (d @ d) * d for ranks in (a, m)]
        squares = [float(ranks @ ranks) for ranks in left]
        identified = squares[0] > 1e-10 * (a @ a) and squares[1] > 1e-10 * (m @ m)
        return r, float(left[0] @ left[1]) / sqrt(squares[0] * squares[1]) if identified else nan

    def residual_correlation(self, columns: Sequence[Array] | None, only: Sequence[int]) -> float:
        """The correlation of ranks centred over windows at each position, then over each key."""
        if columns is None or len(only) < 2:
            return nan
        places = [(i, j) for i, keys in enumerate(self.keys) for j in keys]
        z = np.array([columns[w][:2] for w in only])
        z = z - z.mean(0)
        for key in {j for _, j in places}:
            of_key = [index for index, (_, j) in enumerate(places) if j == key]
            z[:, :, of_key] -= z[:, :, of_key].mean(-1, keepdims=True)
        a, m = z[:, 0].ravel(), z[:, 1].ravel()
        return float(a @ m / sqrt((a @ a) * (m @ m))) if min(a @ a, m @ m) > 1e-10 else nan

    def heads(self) -> Iterator[Row]:
        for head in range(self.site.n_heads if any(self.keys) else 0):
            for name in MEASURES:
                numbers = self.head_numbers(head, name)
                cells = {key: float(number) if number == number else None for key, number in numbers.items()}
                k = self.dimensions if self.pool and name in ("pointwise", "information") else None
                samples = self.w * sum(len(keys) for keys in self.keys)
                counts = {"dimensions": k, "samples": samples, "windows": self.w}
                yield {"head": head, "quantity": name, **cells, **counts}

    def sets(self) -> list[list[int]]:
        """All windows, then all windows but one, for each."""
        every = list(range(self.w))
        return [every, *([w for w in every if w != out] for out in every if self.w > 1)]

    def head_numbers(self, head: int, name: str) -> dict[str, float]:
        """The correlation of attention with a measure, its interval and its null."""
        columns = self.columns(head, name, 0)
        shifts = {"nearness": [], "trace": [1]}.get(name, list(self.shifts()))
        swapped = [self.columns(head, name, shift) for shift in shifts]
        correlations = [self.correlations(columns, only) for only in self.sets()]
        plain = [r for r, _ in correlations]
        null = [self.correlations(null_columns, self.sets()[0])[0] for null_columns in swapped]
        value, low, high = self.interval(plain)
        numbers: dict[str, float] = {"value": value, "low": low, "high": high}
        numbers["null"] = float(np.mean(null)) if null else nan
        if name == "nearness":
            numbers |= {"null": 0.0, "p": self.p_value(plain)}
        if name in ("pointwise", "cosine"):
            numbers |= self.beyond_numbers(name, columns, swapped) | {"given_distance": correlations[0][1]}
        return numbers

    def beyond_numbers(
        self, name: str, columns: Sequence[Array] | None, swapped: Sequence[Sequence[Array] | None]
    ) -> dict[str, float]:
        """The correlation beyond positions, and its excess over that with queries of other windows."""
        beyond = [self.residual_correlation(columns, only) for only in self.sets()]
        numbers = dict(zip(("beyond", "beyond_low", "beyond_high"), self.interval(beyond), strict=True))
        if not swapped:
            return numbers
        nulls = [
            float(np.mean([self.residual_correlation(null_columns, only) for null_columns in swapped]))
            for only in self.sets()
        ]
        excess = [estimate - null for estimate, null in zip(beyond, nulls, strict=True)]
        self.excess.setdefault(name, []).append(excess)
        numbers |= dict(zip(("excess", "excess_low", "excess_high"), self.interval(excess), strict=True))
        return numbers | {
            "beyond_null": nulls[0],
            "p": self.p_value(excess),
            "detectable": self.detectable(excess),
        }

    def error(self, estimates: Sequence[float]) -> float:
        w, without = len(estimates) - 1, np.array(estimates[1:])
        return sqrt((w - 1) / w * float(((without - without.mean()) ** 2).sum())) if w > 1 else nan

    def interval(self, estimates: Sequence[float]) -> tuple[float, float, float]:
        value, w = estimates[0], len(estimates) - 1
        half = float(stats.t.ppf(0.975, w - 1)) * self.error(estimates) if w > 1 else nan
        return value, value - half, value + half

    def detectable(self, estimates: Sequence[float]) -> float:
        """What a test at the 5 % level finds with a power of 80 %."""
        freedom = len(estimates) - 2
        if freedom < 1:
            return nan
        return float(stats.t.ppf(0.975, freedom) + stats.t.ppf(0.8, freedom)) * self.error(estimates)

    def p_value(self, estimates: Sequence[float]) -> float:
        error = self.error(estimates)
        if not error > 0:
            return nan
        return 2 * float(stats.t.sf(abs(estimates[0]) / error, len(estimates) - 2))

    def pairs(self) -> Iterator[Row]:
        if self.w < 2 or not any(self.keys):
            return
        near = [(i, j) for i, keys in enumerate(self.visible) for j in keys if 0 < self.gap(i, j) <= NEAR]
        same = [(i, i) for i, keys in enumerate(self.visible) if i in keys]
        for head in range(self.site.n_heads):
            for name, pairs in (("self", same), ("dependent", near), ("independent", near)):
                if pairs:
                    numbers = self.independent(head, pairs) if name == "independent" else self.dependent(head, pairs)
                    cells = {key: number if number == number else None for key, number in numbers.items()}
                    counts = {"samples": self.w * len(pairs), "windows": self.w}
                    yield {"head": head, "quantity": name, **cells, **counts}

    def score(self, head: int, a: int, b: int, pair: tuple[int, int]) -> float:
        return float(self.q[a][head, pair[0]] @ self.k[b][head, pair[1]])

    def dependent(self, head: int, pairs: Sequence[tuple[int, int]]) -> dict[str, float]:
        every = list(range(self.w))
        sets = [every, *([w for w in every if w != out] for out in every if self.w > 2)]
        means = [np.mean([self.score(head, w, w, pair) for pair in pairs for w in only]) for only in sets]
        shifts = [np.mean([self.trace(head, pair, only) for pair in pairs]) for only in sets]
        products = [self.mean_product(head, pair) for pair in pairs]
        value, low, high = self.interval([float(estimate) for estimate in means])
        shift, shift_low, shift_high = self.interval([float(estimate) for estimate in shifts])
        variances = [np.var([self.score(head, w, w, pair) for w in every], ddof=1) for pair in pairs]
        wide = [self._keys_seen(i) for i, _ in pairs]
        moments = {
            "value": value,
            "low": low,
            "high": high,
            "predicted": float(np.mean(products)) + shift,
            "shift": shift,
            "shift_low": shift_low,
            "shift_high": shift_high,
            "p": self.p_value([float(estimate) for estimate in shifts]),
            "variance": float(np.mean(variances)),
            "attention": float(np.mean([self.a[w][head][pair] for w in every for pair in pairs])),
            "uniform": float(np.mean([1 / keys for keys in wide])),
        }
        if self.w >= 4:
            moments["predicted_variance"] = float(np.mean([sum(self.variance(head, pair)) for pair in pairs]))
        return moments

    def mean_product(self, head: int, pair: tuple[int, int]) -> float:
        """The product of mean query and mean key, without the share of the trace that it holds."""
        every = range(self.w)
        q = np.mean([self.q[w][head, pair[0]] for w in every], 0)
        k = np.mean([self.k[w][head, pair[1]] for w in every], 0)
        return float(q @ k - self.trace(head, pair, every) / self.w)

    def _keys_seen(self, i: int) -> int:
        keys = self.at[i] + 1 if self.site.causal else self.n
        return min(keys, self.site.window) if self.site.window is not None and self.site.causal else keys

    def trace(self, head: int, pair: tuple[int, int], only: Sequence[int]) -> float:
        q = np.array([self.q[w][head, pair[0]] for w in only])
        k = np.array([self.k[w][head, pair[1]] for w in only])
        return float(((q - q.mean(0)) * (k - k.mean(0))).sum()) / (len(only) - 1)

    def variance(self, head: int, pair: tuple[int, int]) -> tuple[float, float]:
        """The variance of independent pairs, and what dependence adds to it, from all pairs of windows."""
        w, every = self.w, range(self.w)
        s = np.array([[self.score(head, a, b, pair) for b in every] for a in every])
        residual = np.array([[s[a, b] - s[a].mean() - s[:, b].mean() + s.mean() for b in every] for a in every]) * (
            w / (w - 1)
        )
        noise = np.mean([residual[a, b] ** 2 for a in every for b in every if a != b])
        crossing = np.mean([residual[a, b] * residual[b, a] for a in every for b in every if a != b])
        query = [np.mean([s[a, b] for b in every if b != a]) for a in every]
        key = [np.mean([s[b, a] for b in every if b != a]) for a in every]
        spread = np.cov(query, key, ddof=1)
        free = noise + spread[0, 0] + spread[1, 1] - 2 * noise / (w - 1)
        return float(free), float(crossing + 2 * spread[0, 1])

    def independent(self, head: int, pairs: Sequence[tuple[int, int]]) -> dict[str, float]:
        every = range(self.w)
        shifted_scores = {
            (pair, s): [self.score(head, (w + s) % self.w, w, pair) for w in every]
            for pair in pairs
            for s in self.shifts()
        }
        crossed_scores = [self.score(head, a, b, pair) for pair in pairs for a in every for b in every if a != b]
        moments = {
            "value": float(np.mean(list(shifted_scores.values()))),
            "predicted": float(np.mean(crossed_scores)),
            "variance": float(np.mean([np.var(scores, ddof=1) for scores in shifted_scores.values()])),
        }
        if self.w >= 4:
            moments["predicted_variance"] = float(np.mean([self.variance(head, pair)[0] for pair in pairs]))
        return moments

    def profile(self) -> Iterator[Row]:
        for pool in range(max(self.pool.values(), default=-1) + 1):
            k, members = self.dimensions, self.members(pool)
            raw = self.information(pool, None)
            without = [self.information(pool, out) for out in range(self.w)]
            null = self.shuffled(pool, None, self.shifts())
            value = raw - null
            half = self.interval([raw, *without])[2] - raw
            slack = max(null - k * k / (2 * self.w * len(members)), 0.0)
            numbers = {
                "value": value,
                "low": value - half,
                "high": value + half + slack,
                "null": null,
                "raw": raw,
                "covariance": float(np.trace(self.fit(pool, None)[1][:k, k:])),
            }
            cells = {key: number if number == number else None for key, number in numbers.items()}
            distances = [self.gap(i, j) for i, j in members]
            counts = {"dimensions": k, "samples": self.w * len(members), "windows": self.w}
            yield {"head": None, "distance": min(distances), "upto": max(distances), **cells, **counts}


def _sampled_tokens(arrays: Sequence[Array], real: Sequence[bool]) -> tuple[int, tuple[int, ...], list[Array]]:
    """The length of a window, the positions of its sampled tokens, and their x, q, k and pattern."""
    n = len(real)
    starts = [n - 8 * 2**octave for octave in range(24) if 8 * 2**octave <= n]
    sampled = [t for t in range(n) if n <= 56 or t < 8 or any(start <= t < start + 8 for start in starts)]
    real_columns = [number for number, t in enumerate(sampled) if real[t]]
    real_tokens = [sampled[number] for number in real_columns]
    x, q, k, a = arrays
    return (
        sum(real),
        tuple(sum(real[:t]) for t in real_tokens),
        [x[real_tokens], q[:, real_tokens], k[:, real_tokens], a[:, real_columns][:, :, real_columns]],
    )


def _joint(sites: Sequence[_SiteByFormula]) -> Iterator[Row]:
    """The mean over all heads of a stack and of each layer, leaving windows out of all heads at once."""
    for name in ("pointwise", "cosine"):
        for stack, kind in dict.fromkeys((measured.site.stack, measured.site.kind) for measured in sites):
            in_stack = [measured for measured in sites if (measured.site.stack, measured.site.kind) == (stack, kind)]
            members = [measured for measured in in_stack if name in measured.excess]
            groups = [(None, _comparable(members)), *((measured.site.layer, [measured]) for measured in members)]
            for layer, group in groups:
                place: Row = {"stack": stack, "kind": kind, "layer": layer, "head": None, "quantity": name}
                heads = [excess for measured in group for excess in measured.excess[name] if excess[0] == excess[0]]
                if heads:
                    yield place | _joint_cells(group[0], heads)


def _comparable(members: Sequence[_SiteByFormula]) -> list[_SiteByFormula]:
    """The sites with the commonest number of windows."""
    sizes = [measured.w for measured in members]
    commonest = max(sizes, key=lambda w: (sizes.count(w), w), default=0)
    return [measured for measured in members if measured.w == commonest]


def _joint_cells(measured: _SiteByFormula, heads: Sequence[Sequence[float]]) -> Row:
    """The mean excess over heads, its interval and its test, and how many heads lie above 0."""
    mean = [float(np.mean(estimates)) for estimates in zip(*heads, strict=True)]
    value, low, high = measured.interval(mean)
    numbers = {"value": value, "low": low, "high": high, "null": 0.0}
    numbers |= {"p": measured.p_value(mean), "detectable": measured.detectable(mean)}
    cells = {key: number if number == number else None for key, number in numbers.items()}
    positive = sum(excess[0] > 0 for excess in heads)
    return {**cells, "positive": positive, "heads": len(heads), "windows": measured.w}


def _sorted(pair: tuple[int, int]) -> tuple[int, int]:
    return max(pair), min(pair)
