"""The formulas of the lens `transport` as written, block by block, in float64 and with numpy and scipy alone.

Nothing here is shared with the fold but the names of the columns. The fold sends every window through constant weights
and takes moments of what comes out; here moments of the tokens are carried through the formulas instead.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, log, nan, pi, sqrt

import numpy as np
import polars as pl
import torch
from scipy import stats

from headscope.core import Site, WeightSource
from headscope.errors import WeightsRefused
from headscope.lenses.lens import Batch
from headscope.lenses.shared.table import Row
from headscope.lenses.transport.tables import SCHEMAS

# As the lens has them: samples per dimension, first tokens, draws per position, and when a norm is recognised.
PER_DIMENSION, FIRST, DRAWS, RECOGNISED = 10, 64, 4, 1e-4

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
# Mean by position, covariance of a token, covariance of a pair; the last two are means over positions.
Law = tuple[Array, Array, Array]


def defined(
    batches: Sequence[Batch], source: WeightSource | None, components: int, distance: int, skip: int
) -> dict[str, pl.DataFrame]:
    """The tables of the lens, from the windows of the commonest shape."""
    tables: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    for site in batches[0].captures["resid"] if batches else ():
        if site.kind == "self" and source is not None:
            one = _Site(site, batches, source, components, distance, skip)
            where = {"stack": site.stack, "kind": site.kind, "layer": site.layer}
            heads = [one.head(head) for head in range(site.n_heads)]
            for head, found in enumerate(heads):
                tables["heads"] += [{**where, "head": head, **_row(name, x)} for name, x in found.items()]
            stages = [("heads", _average(heads)), *one.layer()]
            tables["layers"] += [
                {**where, "stage": stage, **_row(name, x)} for stage, found in stages for name, x in found.items()
            ]
    return {name: pl.DataFrame(rows, schema=SCHEMAS[name]) for name, rows in tables.items()}


@dataclass
class _Number:
    """One quantity: its parts for all windows and for all but each, and what it was estimated from."""

    parts: dict[str, list[float]]
    dimensions: int | None
    held: float
    samples: int
    windows: int


@dataclass
class _Stage:
    """Vectors of a stage, and laws of one half (some of its windows) by the formulas where all is linear."""

    measured: Array
    fixed: tuple[Array, Array]
    uniform: Array | None
    before: Array
    fixed_law: Callable[[int, list[int]], Law] | None = None
    uniform_law: Callable[[list[int]], Law] | None = None
    drawn: tuple[tuple[Array, Array], tuple[Array, Array]] | None = None


class _Site:
    """One site by the formulas."""

    def __init__(
        self, site: Site, batches: Sequence[Batch], source: WeightSource, components: int, distance: int, skip: int
    ) -> None:
        self.site, self.source, self.components, self.t, self.skip = site, source, components, distance, skip
        shown = []
        for batch in batches:
            for index, real in enumerate(batch.real.numpy()):
                x, v, a, z = (
                    batch.captures[name][site][index].double().numpy() for name in ("resid", "v", "early", "corner_z")
                )
                n, keys = int(real.sum()), int(real[: a.shape[-1]].sum())
                first = min(n, FIRST)
                shown.append((x[:first], v[:, :keys], a[:, :first, :keys], z[:, :first]))
        shapes = [a.shape[1:] for _, _, a, _ in shown]
        shape = max(shapes, key=lambda one: (shapes.count(one), one))
        same = [one for one in shown if one[2].shape[1:] == shape]
        kv = [site.kv_head(head) for head in range(site.n_heads)]
        self.x = np.array([one[0] for one in same])
        self.v = np.array([one[1][kv] for one in same])
        self.a = np.array([one[2] for one in same])
        self.z = np.array([one[3] for one in same])
        self.w, self.q = len(same), shape[0]
        self.halves = [list(range(0, self.w, 2)), list(range(1, self.w, 2))]
        self.p = [self.a[half].mean(0) for half in self.halves]
        visible = (self.a > 0).any((0, 1)).astype(float)
        self.flat = visible / np.maximum(visible.sum(-1, keepdims=True), 1)
        self.at = list(range(skip, self.q))

    def head(self, head: int) -> dict[str, _Number]:
        d = self.v.shape[-1]
        sources = self.v[:, head].reshape(self.w, -1)

        def law(weights: Array, members: list[int]) -> Law:
            return _mixed([np.kron(weights[i], np.eye(d)) for i in self.at], sources[members], np.zeros(d), self.t)

        def mixed(weights: Array) -> Array:
            return np.array([weights @ v for v in self.v[:, head]])[:, self.skip :]

        stage = _Stage(
            self.z[:, head, self.skip :],
            (mixed(self.p[0][head]), mixed(self.p[1][head])),
            mixed(self.flat),
            self.v[:, head, self.skip : self.q],
            lambda half, members: law(self.p[half][head], members),
            lambda members: law(self.flat, members),
        )
        return self.quantities(stage)

    def layer(self) -> Iterator[tuple[str, dict[str, _Number]]]:
        if self.source.status(self.site).status == "refused":
            return
        weights = self.source.weights(self.site)
        w_o, b_o = weights.w_o.double().numpy(), weights.b_o.double().numpy()
        heads, d, d_value, out = range(self.site.n_heads), self.x.shape[-1], self.v.shape[-1], w_o.shape[-1]
        # All that enters: the stream of every token, and the values of every head and key.
        sources = np.concatenate((self.x.reshape(self.w, -1), self.v.reshape(self.w, -1)), 1)

        def maps(weights: Sequence[Array], skipped: bool) -> list[Array]:
            found = []
            for i in self.at:
                stream = np.zeros((out, self.q, d))
                if skipped:
                    stream[:, i] = np.eye(out)
                values = [np.einsum("k,vo->okv", weights[h][i], w_o[h]).reshape(out, -1) for h in heads]
                found.append(np.concatenate((stream.reshape(out, -1), *values), 1))
            return found

        def written(z: Callable[[int, int], Array]) -> Array:
            return np.array([sum(z(w, h) @ w_o[h] for h in heads) + b_o for w in range(self.w)])

        fixed_z = [np.array([[self.p[a][h] @ self.v[w, h] for h in heads] for w in range(self.w)]) for a in (0, 1)]
        own = written(lambda w, h: self.z[w, h])
        fixed = [written(lambda w, h, z=z: z[w, h]) for z in fixed_z]  # type: ignore[misc]
        flat = written(lambda w, h: self.flat @ self.v[w, h])
        x, here = self.x[:, self.skip :], slice(self.skip, None)

        def linear(skipped: bool) -> _Stage:
            added = self.x if skipped else np.zeros_like(own)
            of_half = [maps(list(self.p[half]), skipped) for half in (0, 1)]
            of_flat = maps([self.flat for _ in heads], skipped)
            return _Stage(
                (own + added)[:, here],
                ((fixed[0] + added)[:, here], (fixed[1] + added)[:, here]),
                (flat + added)[:, here],
                x,
                lambda half, members: _mixed(of_half[half], sources[members], b_o, self.t),
                lambda members: _mixed(of_flat, sources[members], b_o, self.t),
            )

        yield "output", self.quantities(linear(False))
        few = min(len(half) for half in self.halves) < 2 or len(self.at) <= self.t
        try:
            later = None if few else self.later(fixed_z, own + self.x, d_value)
        except WeightsRefused:
            later = None
        if later is None:
            yield "skip", self.quantities(linear(True))
            return
        if later[0] is not None:
            yield "skip", self.quantities(linear(True))
            yield "norm", self.quantities(later[0])
        if later[1] is not None:
            yield "layer", self.quantities(later[1])

    def later(self, fixed_z: Sequence[Array], summed: Array, d_value: int) -> list[_Stage | None]:
        def run(x: Array, z: Array) -> tuple[Array | None, Array]:
            after = self.source.after_heads(self.site, torch.from_numpy(x), torch.from_numpy(z))
            return None if after.normed is None else after.normed.double().numpy(), after.out.double().numpy()

        runs = [run(self.x, self.z), run(self.x, fixed_z[0]), run(self.x, fixed_z[1])]
        drawn = [self.draws(fixed_z[half], half) for half in (0, 1)]
        after = [run(x, z) for _, x, z in drawn]
        found: list[_Stage | None] = []
        for stage in (0, 1):
            rows = [one[stage] for one in (*runs, *after)]
            if any(row is None for row in rows) or (stage == 0 and not _is_norm(runs[0][0], summed)):
                found.append(None)
                continue
            own, even, odd, first, second = (row[:, self.skip :] if n < 3 else row for n, row in enumerate(rows))  # type: ignore[index]
            draws = ((drawn[0][0], first), (drawn[1][0], second))
            found.append(_Stage(own, (even, odd), None, self.x[:, self.skip :], drawn=draws))  # type: ignore[arg-type]
        return found

    def draws(self, z: Array, half: int) -> tuple[Array, Array, Array]:
        """Combinations of the pairs of a half, with orthonormal coefficients of either sign."""
        half_windows = self.halves[half]
        both = [np.concatenate((self.x[w], z[w].swapaxes(0, 1).reshape(self.q, -1)), 1) for w in half_windows]
        mean = np.mean(both, 0)
        places = [i for i in self.at if i - self.t >= self.skip]
        pairs = np.array(
            [np.concatenate((y[i] - mean[i], y[i - self.t] - mean[i - self.t])) for y in both for i in places]
        )
        many = max(DRAWS * len(places), len(pairs))
        generator = torch.Generator().manual_seed(2 * self.site.layer + half)
        noise = torch.randn(many, len(pairs), generator=generator, dtype=torch.float64).numpy()
        columns, upper = np.linalg.qr(noise)
        columns = columns * np.sign(np.diag(upper))
        scale = sqrt(many / ((len(both) - 1) * len(places)))
        drawn, at = [], []
        for sign in (1, -1):
            for r in range(many):
                i = places[r % len(places)]
                gap = sign * scale * (columns[r] @ pairs)
                drawn.append((np.concatenate((mean[i], mean[i - self.t])) + gap).reshape(2, -1))
                at.append(float(i - self.skip))
        d, heads = self.x.shape[-1], self.site.n_heads
        all_drawn = np.array(drawn)
        z_drawn = all_drawn[..., d:].reshape(len(drawn), 2, heads, -1).swapaxes(1, 2)
        return np.array(at), all_drawn[..., :d], np.ascontiguousarray(z_drawn)

    def quantities(self, stage: _Stage) -> dict[str, _Number]:
        samples, t, apart = stage.measured.shape[0] * stage.measured.shape[1], self.t, False
        halves = self.halves
        if min(map(len, halves)) < 2:
            apart, p = True, stage.measured.shape[1]

            def single(x: Array) -> Array:
                return x.reshape(-1, 1, x.shape[-1])

            uniform = None if stage.uniform is None else single(stage.uniform)
            fixed = (single(stage.fixed[0]), single(stage.fixed[1]))
            stage = _Stage(single(stage.measured), fixed, uniform, single(stage.before))
            halves = [[w * p + i for w in half for i in range(p)] for half in halves]
        return _Quantities(stage, halves, self.components, 0 if apart else t, apart).numbers(samples, self.w)


class _Quantities:
    """All numbers of one stage."""

    def __init__(self, stage: _Stage, halves: list[list[int]], components: int, t: int, apart: bool) -> None:
        self.stage, self.halves, self.t = stage, halves, t
        n, total = min(map(len, halves)), len(stage.measured)
        positions, d = stage.measured.shape[1:]
        share = len(halves[0]) / total
        self.all = share * stage.fixed[0] + (1 - share) * stage.fixed[1]
        rows = [
            np.concatenate([(x[half] - x[half].mean(0)).reshape(-1, d) for half in halves])
            for x in (stage.measured, self.all)
        ]
        _, sigma, axes = np.linalg.svd(np.concatenate(rows), full_matrices=False)
        rank = int((sigma**2 > 1e-13 * max(2 * len(rows[0]), d) * max(sigma[0] ** 2, 1e-300)).sum())
        self.k = min(d, (n - 1) * positions // PER_DIMENSION, rank)
        self.axes = axes[: self.k].T
        pairs = (n - 1) * (positions - t) // (2 * PER_DIMENSION) if 0 < t < positions else 0
        self.c = min(components, self.k, pairs)
        self.held = float(((rows[0] @ self.axes) ** 2).sum() / (rows[0] ** 2).sum()) if self.k else nan
        everyone = list(range(total))
        self.sets = [everyone] + (
            [[w for w in everyone if w != out] for out in everyone] if n > 2 and not apart else []
        )
        self.laws = [self.of_set(chosen) for chosen in self.sets]
        self.shapes = [self.shape(half) for half in (0, 1)] if stage.drawn is not None else None

    def of_set(self, chosen: list[int]) -> dict[tuple[str, int], Law]:
        """Every law that is needed, from some of the windows; of fixed weights those of that half."""
        stage, found = self.stage, {}
        for half in (0, 1):
            own, other = ([w for w in self.halves[side] if w in chosen] for side in (half, 1 - half))
            found["measured", half] = self.seen(stage.measured, own)
            found["before", half] = self.seen(stage.before, own)
            law = stage.fixed_law if self.t else None
            for name, members in (("own", own), ("other", other)):
                found[name, half] = law(half, members) if law else self.seen(stage.fixed[half], members)
            if stage.uniform is not None:
                flat = stage.uniform_law if self.t else None
                found["uniform", half] = flat(own) if flat else self.seen(stage.uniform, own)
        return found

    def seen(self, x: Array, members: list[int]) -> Law:
        """The moments of vectors themselves."""
        d, n, t = x.shape[-1], len(members), self.t
        some = x[members]
        if n < 2:
            return some.mean(0), np.full((d, d), nan), np.full((2 * d, 2 * d), nan)
        cov = np.mean([np.cov(some[:, i].T, ddof=1).reshape(d, d) for i in range(x.shape[1])], 0)
        pairs = [np.concatenate((some[:, i], some[:, i - t]), 1) for i in range(t, x.shape[1])] if t else []
        joint = np.mean([np.cov(pair.T, ddof=1) for pair in pairs], 0) if pairs else np.zeros((2 * d, 2 * d))
        return some.mean(0), cov, joint

    def shape(self, half: int) -> tuple[Array, Array, float, float]:
        """What draws of the Gaussian of a half have more than its tokens, at the same positions."""
        at, y = self.stage.drawn[half]  # type: ignore[index]
        own, t = self.stage.fixed[half][self.halves[half]], self.t
        positions, d = own.shape[1:]
        where = [(r, side, int(at[r]) - side * t) for r in range(len(y)) for side in (0, 1)]
        mean = np.array([np.mean([y[r, side] for r, side, i in where if i == p], 0) for p in range(positions)])
        centred = np.array([[y[r, 0] - mean[int(at[r])], y[r, 1] - mean[int(at[r]) - t]] for r in range(len(y))])
        rows = centred.reshape(-1, d) @ self.axes
        there = rows.T @ rows / len(rows)
        ends = [np.cov(own[:, i].T, ddof=1) for i in (*range(t, positions), *range(positions - t))]
        here = self.axes.T @ np.mean(ends, 0) @ self.axes
        both = (centred @ self.axes)[..., : self.c].reshape(len(y), -1)
        law = self.laws[0]["own", half]
        return (
            mean - law[0],
            there - here,
            _entropy(there) - _entropy(here) if self.k else nan,
            _information(both.T @ both / len(both)) - _information(self.pair(law)) if self.c else nan,
        )

    def pair(self, law: Law) -> Array:
        a = self.axes[:, : self.c]
        d = len(a)
        j = law[2]
        return np.block([[a.T @ j[:d, :d] @ a, a.T @ j[:d, d:] @ a], [a.T @ j[d:, :d] @ a, a.T @ j[d:, d:] @ a]])

    def numbers(self, samples: int, windows: int) -> dict[str, _Number]:
        def one(parts: dict[str, list[float]], k: int | None) -> _Number:
            return _Number(parts, k, nan if k is None else self.held, samples, windows)

        def flat(law: Law) -> Array:
            return law[0].ravel()

        def covariance(law: Law) -> Array:
            return np.asarray(self.axes.T @ law[1] @ self.axes).ravel()

        shapes = self.shapes
        found = {"mean": one(self.squares(flat, None if shapes is None else [x[0].ravel() for x in shapes]), None)}
        positions = self.stage.measured.shape[1]
        for name in ("measured", "predicted"):
            found["mean"].parts[name] = [x / positions for x in found["mean"].parts[name]]
        if self.k:
            k = self.k
            added = None if shapes is None else [x[1].ravel() for x in shapes]
            parts = self.squares(covariance, added)
            eye, more = (
                np.eye(k).ravel(),
                0.0 if added is None else float(np.eye(k).ravel() @ (added[0] + added[1])) / 2,
            )
            for key, name, extra in (("measured", "measured", 0.0), ("predicted", "own", more)):
                parts[key] = [
                    extra + float(np.mean([eye @ covariance(laws[name, half]) for half in (0, 1)]))
                    for laws in self.laws
                ]
            found["covariance"] = one(parts, k)
            found["entropy"] = one(
                self.signed(
                    lambda law: _entropy(self.axes.T @ law[1] @ self.axes),
                    None if shapes is None else [x[2] for x in shapes],
                ),
                k,
            )
        if self.c:
            found["information"] = one(
                self.signed(
                    lambda law: _information(self.pair(law)), None if shapes is None else [x[3] for x in shapes]
                ),
                self.c,
            )
        if self.stage.uniform is not None:
            found["vector"] = one(self.vector(self.stage.uniform), None)
        return found

    def squares(self, of: Callable[[Law], Array], shapes: Sequence[Array] | None) -> dict[str, list[float]]:
        parts: dict[str, list[float]] = {}
        fields = [{key: of(law) for key, law in laws.items()} for laws in self.laws]

        def weights(f: dict[tuple[str, int], Array], half: int) -> Array:
            return f["other", half] - f["measured", 1 - half]

        def error(f: dict[tuple[str, int], Array], half: int) -> Array:
            return f["own", half] + (0 if shapes is None else shapes[half]) - f["measured", 1 - half]

        def chance(x: Callable[..., Array], y: Callable[..., Array]) -> float:
            total = 0.0
            for half in (0, 1):
                left = [fields[1 + w] for w in self.halves[1 - half]]
                a, b = (np.array([one(f, half) for f in left]) for one in (x, y))
                total += (len(left) - 1) / len(left) * float(((a - a.mean(0)) * (b - b.mean(0))).sum())
            return total

        for f in fields:
            target = sum(float(f["measured", half] @ f["measured", half]) for half in (0, 1))
            said = [f["own", half] + (0 if shapes is None else shapes[half]) for half in (0, 1)]
            found = {
                "error": sum(float(error(f, half) @ error(f, half)) for half in (0, 1)),
                "sampling": sum(float(np.sum((f["own", half] - f["other", half]) ** 2)) for half in (0, 1)),
                "floor": 2 * float(np.sum((f["measured", 0] - f["measured", 1]) ** 2)),
            }
            if len(fields) > 1:
                found["weights"] = sum(float(weights(f, half) @ weights(f, half)) for half in (0, 1))
                found["weights"] -= chance(weights, weights)
                found["along"] = sum(float(weights(f, half) @ error(f, half)) for half in (0, 1))
                found["along"] -= chance(weights, error)
            if ("uniform", 0) in f:
                found["null"] = sum(
                    float(np.sum((f["uniform", half] - f["measured", 1 - half]) ** 2)) for half in (0, 1)
                )
            if shapes is not None:
                found["shape"] = sum(float(x @ x) for x in shapes)
            found |= {"target": target, "measured": target / 2, "predicted": sum(float(x @ x) for x in said) / 2}
            for name, x in found.items():
                parts.setdefault(name, []).append(x)
        return parts

    def signed(self, of: Callable[[Law], float], shapes: list[float] | None) -> dict[str, list[float]]:
        parts: dict[str, list[float]] = {}
        for laws in self.laws:
            mean = {
                name: (of(laws[name, 0]) + of(laws[name, 1])) / 2
                for name in ("measured", "own", "other", "uniform", "before")
                if (name, 0) in laws
            }
            added = 0.0 if shapes is None else (shapes[0] + shapes[1]) / 2
            found = {
                "measured": mean["measured"],
                "predicted": mean["own"] + added,
                "weights": mean["other"] - mean["measured"],
                "sampling": mean["own"] - mean["other"],
                "before": mean["before"],
            }
            found |= {} if "uniform" not in mean else {"null": mean["uniform"]}
            found |= {} if shapes is None else {"shape": added}
            for name, x in found.items():
                parts.setdefault(name, []).append(x)
        return parts

    def vector(self, uniform: Array) -> dict[str, list[float]]:
        parts: dict[str, list[float]] = {"error": [], "null": [], "target": [], "measured": [], "predicted": []}
        t, total = self.stage.measured, len(self.stage.measured)
        rows = (total - 1) * t.shape[1]
        for chosen in self.sets:
            # The spread of the others about their own mean, in units of the one about all.
            spread = float(((t[chosen] - t[chosen].mean(0)) ** 2).sum())
            parts["error"].append(float(((t - self.all)[chosen] ** 2).sum()))
            parts["null"].append(float(((t - uniform)[chosen] ** 2).sum()))
            parts["target"].append(spread)
            parts["measured"].append(spread / rows)
            parts["predicted"].append(float(((self.all - self.all.mean(0)) ** 2).sum()) / rows)
        return parts


def _mixed(maps: Sequence[Array], sources: Array, shift: Array, t: int) -> Law:
    """The formulas: means and covariances of sources carried through linear maps, one for each position."""
    mean = sources.mean(0)
    sigma = np.cov(sources.T, ddof=1)
    means = np.array([m @ mean + shift for m in maps])
    half = [m @ sigma for m in maps]
    cov = np.mean([h @ m.T for h, m in zip(half, maps, strict=True)], 0)
    blocks = [
        np.block(
            [[half[i] @ maps[i].T, half[i] @ maps[i - t].T], [half[i - t] @ maps[i].T, half[i - t] @ maps[i - t].T]]
        )
        for i in range(t, len(maps))
    ]
    return means, cov, np.mean(blocks, 0) if blocks else np.zeros((2 * len(cov), 2 * len(cov)))


def _entropy(cov: Array) -> float:
    sign, value = np.linalg.slogdet(cov)
    low = np.linalg.eigvalsh(cov)[0] / max(float(np.diag(cov).max()), 1e-300)
    return float((log(2 * pi) + 1 + value / len(cov)) / 2) if sign > 0 and low > 1e-14 else nan


def _information(joint: Array) -> float:
    c = len(joint) // 2
    parts = [_entropy(joint[:c, :c]) * c, _entropy(joint[c:, c:]) * c, _entropy(joint) * 2 * c]
    return parts[0] + parts[1] - parts[2]


def _is_norm(normed: Array | None, summed: Array) -> bool:
    if normed is None:
        return False
    d = summed.shape[-1]
    step = max(1, summed.shape[0] * summed.shape[1] // 256)
    y, r = normed.reshape(-1, d)[::step], summed.reshape(-1, d)[::step]
    for centred in (r - r.mean(-1, keepdims=True), r):
        unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True))
        left = sum(
            float(np.sum((y[:, i] - np.polyval(np.polyfit(unit[:, i], y[:, i], 1), unit[:, i])) ** 2)) for i in range(d)
        )
        if left <= RECOGNISED * float(((y - y.mean(0)) ** 2).sum()):
            return True
    return False


def _average(heads: Sequence[dict[str, _Number]]) -> dict[str, _Number]:
    found = {}
    for name in ("mean", "covariance", "entropy", "information", "vector"):
        some = [one[name] for one in heads if name in one]
        keys = ("error",) if name in ("mean", "covariance", "vector") else ("measured", "predicted")
        some = [one for one in some if np.isfinite([one.parts[key] for key in keys]).all()]
        if some:
            parts = {key: np.mean([one.parts[key] for one in some], 0).tolist() for key in some[0].parts}
            sizes = [one.dimensions for one in some if one.dimensions is not None]
            held = float(np.mean([one.held for one in some]))
            found[name] = _Number(parts, min(sizes, default=None), held, some[0].samples, some[0].windows)
    return found


def _row(name: str, one: _Number) -> Row:
    parts, row = one.parts, dict[str, float]()
    if name in ("mean", "covariance", "vector"):
        value = [sqrt(x / y) for x, y in zip(parts["error"], parts["target"], strict=True)]
        share = [a / b for a, b in zip(parts["along"], parts["error"], strict=True)] if "along" in parts else [nan]
        row |= {
            key: sqrt(max(0.0, parts[key][0]) / parts["target"][0])
            for key in ("null", "floor", "weights", "sampling", "shape")
            if key in parts
        }
        power = 0.5 if name == "mean" else 1.0
        row |= {key: parts[key][0] ** power for key in ("measured", "predicted")}
    else:
        value = [a - b for a, b in zip(parts["predicted"], parts["measured"], strict=True)]
        share = [w / v for w, v in zip(parts["weights"], value, strict=True)]
        row |= {key: x[0] for key, x in parts.items()}
        if "null" in row:
            row["null"] -= row["measured"]
    for key, (low, high), some in (("value", ("low", "high"), value), ("share", ("share_low", "share_high"), share)):
        row[key] = some[0]
        rest, n = np.array(some[1:]), len(some) - 1
        if n > 1:
            half = stats.t.ppf(0.975, n - 1) * sqrt((n - 1) / n * float(((rest - rest.mean()) ** 2).sum()))
            row[low], row[high] = some[0] - half, some[0] + half
            if key == "value" and name in ("mean", "covariance", "vector"):
                row[low] = max(row[low], 0.0)
    if name in ("entropy", "information") and not row.get("low", nan) * row.get("high", nan) > 0:
        row = {key: x for key, x in row.items() if not key.startswith("share")}
    row["held"] = one.held
    told: Row = {key: float(x) for key, x in row.items() if isfinite(x)}
    return {"quantity": name, **told, "dimensions": one.dimensions, "samples": one.samples, "windows": one.windows}
