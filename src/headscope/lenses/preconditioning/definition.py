"""The lens `preconditioning` by its formulas: float64, all rows, plain sums."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log, nan, pi, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from headscope.core import Site, Vocabulary
from headscope.lenses.lens import Batch
from headscope.lenses.shared.table import Row

Rows = NDArray[np.float64]
Pair = tuple[int, int]
Window = Sequence[int]
# Columns of the numbers of a previous token.
CARRIERS, IS_FEW, ENTROPY, CHANCE_OF_FEW = range(4)
_NOWHERE: Row = {"stack": None, "kind": None, "layer": None, "head": None}
QUANTITIES = ("entropy_nats", "effective_dimension", "components_90", "rank", "variance_share")


def defined(
    batches: Sequence[Batch], vocabulary: Vocabulary | None, least: int, components: int, skip: int
) -> dict[str, list[Row]]:
    """All tables."""
    windows = [
        tokens[real].tolist() for batch in batches for tokens, real in zip(batch.tokens, batch.real, strict=True)
    ]
    windows = [window for window in windows if len(window) > skip + 1]
    pairs = _pairs(windows, skip)
    names = _names(pairs, vocabulary)
    tables: dict[str, list[Row]] = {"text": [], "layers": [], "tokens": [], "gaussians": []}
    occurrences = Counter(previous for previous, _ in pairs)
    frequent = [previous for previous in _by_frequency(occurrences) if occurrences[previous] >= least][:256]
    if not frequent:
        return tables
    continuations = _Continuations.of(windows, skip, frequent)
    tables["text"] = list(_text_rows(continuations, windows, skip))
    tables["tokens"] = list(_token_rows(continuations, names))
    for site, rows in _streams(batches, skip):
        gaussians = _Gaussians.of(site, rows, pairs, components)
        if gaussians is not None:
            tables["layers"] += _layer_rows(gaussians, len(windows))
            tables["gaussians"] += _gaussian_rows(gaussians, pairs, names)
    return tables


def _pairs(windows: Sequence[Window], skip: int) -> list[Pair]:
    """Neighbouring tokens, previous one first."""
    return [(window[i - 1], window[i]) for window in windows for i in range(skip + 1, len(window))]


def _names(pairs: Sequence[Pair], vocabulary: Vocabulary | None) -> dict[int, str]:
    """What each token spells; `…` marks one that continues a word."""
    names: dict[int, str] = {}
    for token in {token for pair in pairs for token in pair}:
        text = f"#{token}" if vocabulary is None else vocabulary.spelled([token])[0]
        names[token] = ("…" if text[:1].isalnum() else "") + text.strip() if text.strip() else repr(text)
    return names


def _by_frequency(occurrences: Counter[int]) -> list[int]:
    return sorted(occurrences, key=lambda token: (-occurrences[token], token))


def _numbers(counts: Sequence[int]) -> tuple[float, float, float, float]:
    """Continuations that carry 90 %, whether five do, entropy (Chao and Shen), p-value of five."""
    n, carried, k = sum(counts), 0, 0
    ordered = sorted(counts, reverse=True)
    for c in ordered:
        if 10 * carried >= 9 * n:
            break
        carried, k = carried + c, k + 1
    once = sum(c == 1 for c in counts)
    covered = 1 - (n - 1 if once == n else once) / n
    p = [covered * c / n for c in counts]
    entropy = -sum(x * log(x) / (1 - (1 - x) ** n) for x in p)
    top = sum(ordered[:5])
    return float(k), float(k <= 5), entropy, float(stats.binom.cdf(top, n, 0.9))


def _excluded(chances: Sequence[float], sizes: Sequence[float], pairs: int) -> float:
    """The share of pairs in groups with a p-value below 5 %, adjusted for false discoveries."""
    order = sorted(range(len(chances)), key=lambda index: chances[index])
    ranks = [rank for rank, index in enumerate(order, 1) if chances[index] * len(order) / rank < 0.05]
    return sum(sizes[index] for index in order[: max(ranks, default=0)]) / pairs


def _mean(values: Rows, null: Rows, n: Rows) -> tuple[float, float | None, float | None]:
    """The mean over groups weighted by size, with the interval of its distance from the null."""
    mean, m = float((values * n).sum() / n.sum()), len(n)
    if m < 2:
        return mean, None, None
    gap = values - null
    centre = float((gap * n).sum() / n.sum())
    share = n / n.sum()
    alike = [1 - 2 * float(a) + float((share**2).sum()) for a in share]
    error = sqrt(sum(float(a * (x - centre)) ** 2 / e for a, x, e in zip(share, gap, alike, strict=True)))
    freedom = float((share**2).sum()) ** 2 / float((share**4).sum()) - 1
    half = float(stats.t.ppf(0.975, max(freedom, 1.0))) * error
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class _Continuations:
    """What follows each frequent token, its numbers, and those of as many tokens drawn from all of them."""

    frequent: Sequence[int]
    after: Mapping[int, Counter[int]]
    following: Counter[int]
    sizes: Rows  # groups
    measured: Rows  # groups, numbers
    null: Rows  # draws, groups, numbers

    @classmethod
    def of(cls, windows: Sequence[Window], skip: int, frequent: Sequence[int]) -> "_Continuations":
        after = _counted(windows, skip, frequent)
        following = Counter(token for _, token in _pairs(windows, skip))
        sizes = [after[previous].total() for previous in frequent]
        measured = [_numbers(list(after[previous].values())) for previous in frequent]
        null = [_draw(seed, sizes, following) for seed in range(20)]
        return cls(frequent, after, following, np.array(sizes, dtype=float), np.array(measured), np.array(null))

    def mean(self, column: int) -> float:
        """The mean over groups, weighted by their size."""
        return float((self.measured[:, column] * self.sizes).sum() / self.sizes.sum())

    def chance(self, column: int) -> float:
        """The same mean of drawn tokens, over all draws."""
        return float(((self.null[:, :, column] * self.sizes).sum(1) / self.sizes.sum()).mean())


def _counted(windows: Sequence[Window], skip: int, frequent: Sequence[int]) -> dict[int, Counter[int]]:
    """How often each token follows each frequent one in these windows."""
    after: dict[int, Counter[int]] = {previous: Counter() for previous in frequent}
    for previous, token in _pairs(windows, skip):
        if previous in after:
            after[previous][token] += 1
    return after


def _draw(seed: int, sizes: Sequence[int], following: Counter[int]) -> list[tuple[float, float, float, float]]:
    """The numbers of groups of these sizes, drawn from all tokens that follow another one."""
    generator = torch.Generator().manual_seed(seed)
    ends = [total / following.total() for total in accumulate(following[token] for token in sorted(following))]
    numbers = []
    for size in sizes:
        uniform = torch.rand(size, generator=generator, dtype=torch.float64).tolist()
        numbers.append(_numbers(list(Counter(bisect_right(ends, u) for u in uniform).values())))
    return numbers


def _half_widths(windows: Sequence[Window], skip: int, frequent: Sequence[int]) -> list[float]:
    """Half of the 95 % interval of each mean, by leaving out each window; NaN for a single window."""
    w = len(windows)
    if w < 2:
        return [nan] * 3
    means = np.array([_means([*windows[:out], *windows[out + 1 :]], skip, frequent) for out in range(w)])
    half: list[float] = (
        stats.t.ppf(0.975, w - 1) * np.sqrt((w - 1) / w * ((means - means.mean(0)) ** 2).sum(0))
    ).tolist()
    return half


def _means(windows: Sequence[Window], skip: int, frequent: Sequence[int]) -> list[float]:
    """The means over the frequent tokens that these windows have."""
    after = _counted(windows, skip, frequent)
    groups = [(_numbers(list(counts.values())), counts.total()) for counts in after.values() if counts]
    total = sum(size for _, size in groups) or nan
    return [sum(numbers[c] * size for numbers, size in groups) / total for c in (CARRIERS, IS_FEW, ENTROPY)]


def _text_rows(continuations: _Continuations, windows: Sequence[Window], skip: int) -> Iterator[Row]:
    """The table `text`: one row per quantity."""
    sizes, measured, null = continuations.sizes, continuations.measured, continuations.null
    following, pairs = continuations.following, continuations.following.total()
    mean = [continuations.mean(column) for column in (CARRIERS, IS_FEW, ENTROPY)]
    chance = [continuations.chance(column) for column in (CARRIERS, IS_FEW, ENTROPY)]
    half = _half_widths(windows, skip, continuations.frequent)
    low, high = ([m + sign * h for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
    counts: Row = {"samples": int(sizes.sum()), "groups": len(continuations.frequent), "windows": len(windows)}
    entropy = _numbers(list(following.values()))[ENTROPY]
    # Entropies are too small by a bias between none and that of as many drawn tokens: the upper ends allow for it.
    bias, information = max(entropy - chance[ENTROPY], 0.0), chance[ENTROPY] - mean[ENTROPY]
    excluded, *by_chance = (
        _excluded(numbers[:, CHANCE_OF_FEW].tolist(), sizes.tolist(), pairs) for numbers in (measured, *null)
    )

    def row(quantity: str, value: float, low: float, high: float, null: float | None) -> Row:
        cells = {"low": low if low == low else None, "high": high if high == high else None, "null": null}
        return _NOWHERE | {"quantity": quantity, "value": value} | cells | counts

    yield row("entropy_nats", entropy, nan, nan, log(len(following))) | {"samples": pairs, "groups": None}
    ends = _at_least(low[ENTROPY], 0.0), high[ENTROPY] + bias
    yield row("conditional_entropy_nats", mean[ENTROPY], *ends, chance[ENTROPY])
    ends = information - half[ENTROPY], information + half[ENTROPY] + bias
    yield row("information_nats", information, *ends, 0.0)
    ends = _at_least(low[CARRIERS], 1.0), high[CARRIERS]
    yield row("continuations_90", mean[CARRIERS], *ends, chance[CARRIERS])
    ends = _at_least(low[IS_FEW], 0.0), -_at_least(-high[IS_FEW], -1.0)
    yield row("five_carry_90", mean[IS_FEW], *ends, chance[IS_FEW])
    types, of_drawn = float(measured[:, IS_FEW].mean()), float(null[:, :, IS_FEW].mean())
    yield row("five_carry_90_types", types, nan, nan, of_drawn)
    yield row("five_excluded_90", excluded, nan, nan, float(np.mean(by_chance)))
    yield row("counted_share", float(sizes.sum()) / pairs, nan, nan, None)


def _token_rows(continuations: _Continuations, names: Mapping[int, str]) -> Iterator[Row]:
    """The table `tokens`: the most frequent previous tokens one by one."""
    for group, previous in enumerate(continuations.frequent[:24]):
        after = continuations.after[previous]
        measured, null = continuations.measured[group], continuations.null[:, group]
        likely = sorted(after.items(), key=lambda counted: (-counted[1], counted[0]))[:3]
        yield _NOWHERE | {
            "previous": names.get(previous, f"#{previous}"),
            "value": float(measured[CARRIERS]),
            "null": float(null[:, CARRIERS].mean()),
            "entropy_nats": float(measured[ENTROPY]),
            "entropy_null": float(null[:, ENTROPY].mean()),
            "likeliest": ", ".join(f"{names.get(t, f'#{t}')} {100 * c / after.total():.0f} %" for t, c in likely),
            "continuations": len(after),
            "samples": after.total(),
        }


def _at_least(end: float, limit: float) -> float:
    """The end of an interval, no lower than the limit; NaN stays."""
    return max(end, limit) if end == end else nan


def _streams(batches: Sequence[Batch], skip: int) -> list[tuple[Site, Rows]]:
    """Rows with a token before them, of five streams per stack; the last stream leaves the last layer."""
    streams: list[tuple[Site, Rows]] = []
    if not batches:
        return streams
    entering = [site for site in batches[0].captures["resid"] if site.kind == "self"]
    for stack in dict.fromkeys(site.stack for site in entering):
        captures = [("resid", site) for site in entering if site.stack == stack]
        captures.append(("final", captures[-1][1]))
        places = sorted({round(float(at)) for at in np.linspace(0, len(captures) - 1, min(5, len(captures)))})
        for name, site in (captures[at] for at in places):
            rows = [
                x[real][skip + 1 :].double().numpy()
                for batch in batches
                for x, real in zip(batch.captures[name][site], batch.real, strict=True)
            ]
            streams.append((replace(site, layer=site.layer + 1) if name == "final" else site, np.concatenate(rows)))
    return streams


@dataclass(frozen=True)
class _Gaussians:
    """The Gaussian of a stream's rows given each frequent previous token, and of random groups of the same sizes."""

    site: Site
    dimensions: Sequence[int]  # of each quantity
    groups: Mapping[int, Sequence[int]]  # rows after each previous token
    measured: Rows  # groups, quantities
    null: Rows  # shuffles, groups, quantities
    unconditional: Sequence[float]

    @classmethod
    def of(cls, site: Site, x: Rows, pairs: Sequence[Pair], components: int) -> "_Gaussians | None":
        """None where no previous token has ten rows for each component."""
        occurrences = Counter(previous for previous, _ in pairs)
        d, k = x.shape[1], min(components, max(occurrences.values()) // 10, x.shape[1])
        groups = _groups(pairs, occurrences, k, max(256, 10 * components))
        if not groups:
            return None
        values, vectors = np.linalg.eigh(np.cov(x.T))
        y = x @ vectors[:, ::-1][:, :k]
        largest, trace = float(values[-1]), float(values.sum())

        def numbers(sets: Iterable[Sequence[int]]) -> list[tuple[float, ...]]:
            return [_gaussian(where, x, y, largest, trace) for where in sets]

        sizes = [len(where) for where in groups.values()]
        return cls(
            site,
            (k, d, d, d, d),
            groups,
            np.array(numbers(groups.values())),
            np.array([numbers(_shuffled(seed, len(x), sizes)) for seed in range(10)]),
            numbers([range(len(x))])[0],
        )

    @property
    def sizes(self) -> Rows:
        """Rows of each group."""
        return np.array([float(len(where)) for where in self.groups.values()])

    @property
    def place(self) -> Row:
        """The first columns of a row."""
        return {"stack": self.site.stack, "kind": self.site.kind, "layer": self.site.layer, "head": None}


def _groups(pairs: Sequence[Pair], occurrences: Counter[int], k: int, most: int) -> dict[int, list[int]]:
    """The rows after each of the twelve most frequent tokens, at equal steps where there are more than `most`."""
    groups = {}
    for previous in _by_frequency(occurrences)[:12]:
        if k and occurrences[previous] >= 10 * k:
            where = [i for i, pair in enumerate(pairs) if pair[0] == previous]
            groups[previous] = where[:: -(-len(where) // most)]
    return groups


def _shuffled(seed: int, n: int, sizes: Sequence[int]) -> Iterator[list[int]]:
    """Random groups of these sizes among n rows, without a row in common."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        yield order[end - size : end]


def _layer_rows(gaussians: _Gaussians, windows: int) -> Iterator[Row]:
    """The table `layers`: means over previous tokens."""
    n = gaussians.sizes
    for at, quantity in enumerate(QUANTITIES):
        null = gaussians.null[:, :, at]
        mean, low, high = _mean(gaussians.measured[:, at], null.mean(0), n)
        chance = float(((null * n).sum(1) / n.sum()).mean())
        yield (
            gaussians.place
            | {"quantity": quantity, "value": mean, "low": low, "high": high, "null": chance}
            | {"unconditional": gaussians.unconditional[at], "dimensions": gaussians.dimensions[at]}
            | {"samples": int(n.sum()), "groups": len(n), "windows": windows}
        )


def _gaussian_rows(gaussians: _Gaussians, pairs: Sequence[Pair], names: Mapping[int, str]) -> Iterator[Row]:
    """The table `gaussians`: each previous token by itself."""
    for group, (previous, where) in enumerate(gaussians.groups.items()):
        continuations = len({pairs[i][1] for i in where})
        for at, quantity in enumerate(QUANTITIES):
            value, null = float(gaussians.measured[group, at]), float(gaussians.null[:, group, at].mean())
            yield (
                gaussians.place
                | {"previous": names.get(previous, f"#{previous}"), "quantity": quantity, "value": value, "null": null}
                | {"continuations": continuations, "dimensions": gaussians.dimensions[at], "samples": len(where)}
            )


def _gaussian(where: Sequence[int], x: Rows, y: Rows, largest: float, trace: float) -> tuple[float, ...]:
    """The five quantities of some rows: `y` are their components, `trace` is the variance of all rows."""
    values = np.linalg.eigvalsh(np.cov(x[where].T).reshape(x.shape[1], -1))[::-1]
    values = values[values > 1e-10 * largest]
    total = float(values.sum())
    for_90 = next(i + 1 for i in range(len(values)) if values[: i + 1].sum() >= 0.9 * total * (1 - 1e-12))
    effective = total**2 / float((values**2).sum())
    return _shrunk_entropy(y[where]), effective, float(for_90), float(len(values)), total / trace


def _shrunk_entropy(y: Rows) -> float:
    """The entropy of a Gaussian whose covariance is shrunk towards a multiple of the identity (Ledoit and Wolf)."""
    c = y - y.mean(0)
    n, k = c.shape
    s = c.T @ c / n
    level = np.trace(s) / k
    distance = float(((s - level * np.eye(k)) ** 2).sum())
    noise = float(sum(((np.outer(row, row) - s) ** 2).sum() for row in c)) / n**2
    weight = min(1.0, noise / distance) if distance > 1e-15 * float((s**2).sum()) else 1.0
    shrunk = np.linalg.eigvalsh((1 - weight) * s + weight * level * np.eye(k))
    return 0.5 * float((np.log(2 * pi * shrunk) + 1).sum())
