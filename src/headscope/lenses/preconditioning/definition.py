"""The numbers of the lens `preconditioning` by their formulas: float64, every row kept, plain sums."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
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


def defined(
    batches: Sequence[Batch], vocabulary: Vocabulary | None, least: int, components: int, skip: int
) -> dict[str, list[Row]]:
    """All tables."""
    windows = [
        tokens[real].tolist() for batch in batches for tokens, real in zip(batch.tokens, batch.real, strict=True)
    ]
    pairs = [(window[i - 1], window[i]) for window in windows for i in range(skip + 1, len(window))]
    names: dict[int, str] = {}
    for token in {token for pair in pairs for token in pair}:
        text = f"#{token}" if vocabulary is None else vocabulary.spelled([token])[0]
        names[token] = ("…" if text[:1].isalnum() else "") + text.strip() if text.strip() else repr(text)
    found: dict[str, list[Row]] = {"text": [], "layers": [], "tokens": [], "gaussians": []}
    seen = Counter(previous for previous, _ in pairs)
    chosen = sorted((p for p in seen if seen[p] >= least), key=lambda p: (-seen[p], p))[:256]
    if not chosen:
        return found
    _text(found, [window for window in windows if len(window) > skip + 1], skip, chosen, names)
    for site, rows in _streams(batches, skip):
        _gaussians(found, site, rows, pairs, components, names, sum(len(window) > skip + 1 for window in windows))
    return found


def _numbers(counts: Sequence[int]) -> tuple[float, float, float, float]:
    """Continuations that carry 90 %, whether five do, the entropy by Chao and Shen, and the p-value of five doing."""
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
    """The share of pairs in groups whose p-value stays below 5 % when false discoveries are held there."""
    order = sorted(range(len(chances)), key=lambda index: chances[index])
    ranks = [rank for rank, index in enumerate(order, 1) if chances[index] * len(order) / rank < 0.05]
    return sum(sizes[index] for index in order[: max(ranks, default=0)]) / pairs


def _mean(values: Rows, null: Rows, n: Rows) -> tuple[float, float | None, float | None]:
    """Mean over groups weighted by their size; its interval is that of the distance from the null, a ratio of sums."""
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


def _counted(windows: Sequence[Sequence[int]], skip: int, chosen: Sequence[int]) -> dict[int, Counter[int]]:
    """What follows each chosen token in these windows."""
    after: dict[int, Counter[int]] = {p: Counter() for p in chosen}
    for window in windows:
        for i in range(skip + 1, len(window)):
            if window[i - 1] in after:
                after[window[i - 1]][window[i]] += 1
    return after


def _text(
    found: dict[str, list[Row]],
    windows: Sequence[Sequence[int]],
    skip: int,
    chosen: Sequence[int],
    names: dict[int, str],
) -> None:
    nowhere: Row = {"stack": None, "kind": None, "layer": None, "head": None}
    pairs = [(window[i - 1], window[i]) for window in windows for i in range(skip + 1, len(window))]
    after = _counted(windows, skip, chosen)
    whole = Counter(token for _, token in pairs)
    order = sorted(whole)
    ends = [total / len(pairs) for total in accumulate(whole[token] for token in order)]
    n = np.array([float(after[p].total()) for p in chosen])
    ours = np.array([_numbers(list(after[p].values())) for p in chosen])
    draws = []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        drawn = []
        for p in chosen:
            uniform = torch.rand(after[p].total(), generator=generator, dtype=torch.float64).tolist()
            drawn.append(_numbers(list(Counter(bisect_right(ends, u) for u in uniform).values())))
        draws.append(drawn)
    null = np.array(draws)  # draws, groups, numbers
    sets = []
    for out in range(len(windows) if len(windows) > 1 else 0):
        others = _counted([window for index, window in enumerate(windows) if index != out], skip, chosen)
        groups = [(_numbers(list(others[p].values())), others[p].total()) for p in chosen if others[p]]
        total = sum(size for _, size in groups) or nan
        sets.append([sum(numbers[c] * size for numbers, size in groups) / total for c in (0, 1, 2)])
    mean = [float((ours[:, c] * n).sum() / n.sum()) for c in range(3)]
    chance = [float(((null[:, :, c] * n).sum(1) / n.sum()).mean()) for c in range(3)]
    half = [nan] * 3
    if sets:
        w, rest = len(sets), np.array(sets)
        half = (stats.t.ppf(0.975, w - 1) * np.sqrt((w - 1) / w * ((rest - rest.mean(0)) ** 2).sum(0))).tolist()
    counts: Row = {"samples": int(n.sum()), "groups": len(chosen), "windows": len(windows)}

    def row(quantity: str, value: float, low: float, high: float, null: float | None) -> Row:
        cells = {"low": low if low == low else None, "high": high if high == high else None, "null": null}
        return {"quantity": quantity, "value": value} | cells | counts

    entropy = _numbers(list(whole.values()))[2]
    bias, told = max(entropy - chance[2], 0.0), chance[2] - mean[2]
    excluded = _excluded(ours[:, 3].tolist(), n.tolist(), len(pairs))
    by_chance = float(np.mean([_excluded(one[:, 3].tolist(), n.tolist(), len(pairs)) for one in null]))
    lowest = [one - h if h == h else nan for one, h in zip(mean, half, strict=True)]
    rows = [
        row("entropy_nats", entropy, nan, nan, log(len(whole))) | {"samples": len(pairs), "groups": None},
        row("conditional_entropy_nats", mean[2], _most(lowest[2], 0.0), mean[2] + half[2] + bias, chance[2]),
        row("information_nats", told, told - half[2], told + half[2] + bias, 0.0),
        row("continuations_90", mean[0], _most(lowest[0], 1.0), mean[0] + half[0], chance[0]),
        row("five_carry_90", mean[1], _most(lowest[1], 0.0), -_most(-mean[1] - half[1], -1.0), chance[1]),
        row("five_carry_90_types", float(ours[:, 1].mean()), nan, nan, float(null[:, :, 1].mean())),
        row("five_excluded_90", excluded, nan, nan, by_chance),
        row("counted_share", float(n.sum()) / len(pairs), nan, nan, None),
    ]
    found["text"] = [nowhere | one for one in rows]
    for index, p in enumerate(chosen[:24]):
        size = after[p].total()
        likely = sorted(after[p].items(), key=lambda item: (-item[1], item[0]))[:3]
        found["tokens"].append(
            nowhere
            | {
                "previous": names.get(p, f"#{p}"),
                "value": float(ours[index, 0]),
                "null": float(null[:, index, 0].mean()),
                "entropy_nats": float(ours[index, 2]),
                "entropy_null": float(null[:, index, 2].mean()),
                "likeliest": ", ".join(f"{names.get(t, f'#{t}')} {100 * c / size:.0f} %" for t, c in likely),
                "continuations": len(after[p]),
                "samples": size,
            }
        )


def _most(end: float, limit: float) -> float:
    """The end of an interval, no lower than the limit; NaN stays."""
    return max(end, limit) if end == end else nan


def _streams(batches: Sequence[Batch], skip: int) -> list[tuple[Site, Rows]]:
    """The rows of five streams of each stack that have a token before them, the stream behind the last layer last."""
    found: list[tuple[Site, Rows]] = []
    if not batches:
        return found
    entering = [site for site in batches[0].captures["resid"] if site.kind == "self"]
    for stack in dict.fromkeys(site.stack for site in entering):
        own = [("resid", site) for site in entering if site.stack == stack]
        own.append(("final", own[-1][1]))
        places = sorted({round(float(at)) for at in np.linspace(0, len(own) - 1, min(5, len(own)))})
        for name, site in (own[at] for at in places):
            rows = [
                x[real][skip + 1 :].double().numpy()
                for batch in batches
                for x, real in zip(batch.captures[name][site], batch.real, strict=True)
            ]
            found.append((replace(site, layer=site.layer + 1) if name == "final" else site, np.concatenate(rows)))
    return found


def _gaussians(
    found: dict[str, list[Row]],
    site: Site,
    x: Rows,
    pairs: Sequence[tuple[int, int]],
    components: int,
    names: dict[int, str],
    windows: int,
) -> None:
    seen = Counter(previous for previous, _ in pairs)
    d, k = x.shape[1], min(components, max(seen.values()) // 10, x.shape[1])
    order = sorted(seen, key=lambda p: (-seen[p], p))[:12]
    most = max(256, 10 * components)
    groups = {}
    for p in order:
        if k and seen[p] >= 10 * k:
            where = [i for i, pair in enumerate(pairs) if pair[0] == p]
            groups[p] = where[:: -(-len(where) // most)]
    if not groups:
        return
    values, vectors = np.linalg.eigh(np.cov(x.T))
    y = x @ vectors[:, ::-1][:, :k]
    args = (x, y, float(values[-1]), float(values.sum()))
    ours = np.array([_gaussian(where, *args) for where in groups.values()])
    shuffles = []
    for seed in range(10):
        mixed = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).tolist()
        drawn = []
        for where in groups.values():
            drawn.append(_gaussian(mixed[: len(where)], *args))
            mixed = mixed[len(where) :]
        shuffles.append(drawn)
    null, everything = np.array(shuffles), _gaussian(list(range(len(x))), *args)
    n = np.array([float(len(where)) for where in groups.values()])
    quantities = ("entropy_nats", "effective_dimension", "components_90", "rank", "variance_share")
    place: Row = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": None}

    for at, quantity in enumerate(quantities):
        mean, low, high = _mean(ours[:, at], null[:, :, at].mean(0), n)
        chance = (null[:, :, at] * n).sum(1) / n.sum()
        found["layers"].append(
            place
            | {"quantity": quantity, "value": mean, "low": low, "high": high, "null": float(chance.mean())}
            | {"unconditional": everything[at], "dimensions": k if at == 0 else d}
            | {"samples": int(n.sum()), "groups": len(n), "windows": windows}
        )
    for index, (p, where) in enumerate(groups.items()):
        for at, quantity in enumerate(quantities):
            value, chance = float(ours[index, at]), null[:, index, at]
            found["gaussians"].append(
                place
                | {"previous": names.get(p, f"#{p}"), "quantity": quantity, "value": value}
                | {"null": float(chance.mean())}
                | {"continuations": len({pairs[i][1] for i in where}), "dimensions": k if at == 0 else d}
                | {"samples": len(where)}
            )


def _gaussian(where: Sequence[int], x: Rows, y: Rows, largest: float, trace: float) -> tuple[float, ...]:
    """Entropy in the components, effective dimension, components for 90 %, rank, and share of all variance."""
    values = np.linalg.eigvalsh(np.cov(x[where].T).reshape(x.shape[1], -1))[::-1]
    values = values[values > 1e-10 * largest]
    total = float(values.sum())
    for_90 = next(i + 1 for i in range(len(values)) if values[: i + 1].sum() >= 0.9 * total * (1 - 1e-12))
    c = y[where] - y[where].mean(0)
    n, k = c.shape
    s = c.T @ c / n
    level = np.trace(s) / k
    # Ledoit and Wolf: the weight of the multiple of the identity.
    apart = float(((s - level * np.eye(k)) ** 2).sum())
    noise = float(sum(((np.outer(row, row) - s) ** 2).sum() for row in c)) / n**2
    weight = min(1.0, noise / apart) if apart > 1e-15 * float((s**2).sum()) else 1.0
    shrunk = np.linalg.eigvalsh((1 - weight) * s + weight * level * np.eye(k))
    entropy = 0.5 * float((np.log(2 * pi * shrunk) + 1).sum())
    return entropy, total**2 / float((values**2).sum()), float(for_90), float(len(values)), total / trace
