"""The numbers of the lens `preconditioning` by their formulas: float64, every row kept, plain sums."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import log, pi, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from headscope.core import Site, Vocabulary
from headscope.lenses.lens import Batch

Row = dict[str, object]
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
    _text(found, pairs, chosen, names)
    for site, rows in _streams(batches, skip):
        _gaussians(found, site, rows, pairs, components, names)
    return found


def _h(counts: Sequence[int]) -> float:
    n = sum(counts)
    return -sum(c / n * log(c / n) for c in counts)


def _numbers(counts: Sequence[int]) -> tuple[float, float, float, float]:
    """Continuations that carry 90 %, whether five do, the entropy, and the corrected entropy."""
    n, carried, k = sum(counts), 0, 0
    for c in sorted(counts, reverse=True):
        if 10 * carried >= 9 * n:
            break
        carried, k = carried + c, k + 1
    return float(k), float(k <= 5), _h(counts), _h(counts) + (len(counts) - 1) / (2 * n)


def _mean(values: Rows, null: Rows, n: Rows) -> tuple[float, float | None, float | None]:
    """Mean over groups weighted by their size; its interval is that of the distance from the null, a ratio of sums."""
    mean, m = float((values * n).sum() / n.sum()), len(n)
    if m < 2:
        return mean, None, None
    gap = values - null
    centre = float((gap * n).sum() / n.sum())
    error = sqrt(m / (m - 1) * float((n**2 * (gap - centre) ** 2).sum())) / float(n.sum())
    half = float(stats.t.ppf(0.975, m - 1)) * error
    return mean, mean - half, mean + half


def _text(
    found: dict[str, list[Row]], pairs: Sequence[tuple[int, int]], chosen: Sequence[int], names: dict[int, str]
) -> None:
    nowhere: Row = {"stack": None, "kind": None, "layer": None, "head": None}
    after = {p: Counter(token for previous, token in pairs if previous == p) for p in chosen}
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
    counts: Row = {"samples": int(n.sum()), "groups": len(chosen)}

    def z(column: int) -> float | None:
        chance = (null[:, :, column] * n).sum(1) / n.sum()
        spread = float(chance.std(ddof=1))
        return (float((ours[:, column] * n).sum() / n.sum()) - float(chance.mean())) / spread if spread else None

    def row(quantity: str, column: int) -> Row:
        mean, low, high = _mean(ours[:, column], null[:, :, column].mean(0), n)
        chance = float(((null[:, :, column] * n).sum(1) / n.sum()).mean())
        return {"quantity": quantity, "value": mean, "low": low, "high": high, "null": chance, "z": z(column)} | counts

    everything = {"low": None, "high": None, "null": log(len(whole)), "z": None, "samples": len(pairs), "groups": None}
    first = {"quantity": "entropy_nats", "value": _numbers(list(whole.values()))[3]} | everything
    told, low, high = _mean(null[:, :, 2].mean(0) - ours[:, 2], np.zeros(len(n)), n)
    minus = z(2)
    told_z = None if minus is None else -minus
    rows = [
        first,
        row("conditional_entropy_nats", 3),
        {"quantity": "information_nats", "value": told, "low": low, "high": high, "null": 0.0, "z": told_z} | counts,
        row("continuations_90", 0),
        row("five_carry_90", 1),
        {"quantity": "five_carry_90_types", "value": float(ours[:, 1].mean()), "low": None, "high": None}
        | {"null": float(null[:, :, 1].mean()), "z": None}
        | counts,
    ]
    found["text"] = [nowhere | one for one in rows]
    for index, p in enumerate(chosen[:24]):
        chance, spread = float(null[:, index, 0].mean()), float(null[:, index, 0].std(ddof=1))
        value, size = float(ours[index, 0]), after[p].total()
        likely = sorted(after[p].items(), key=lambda item: (-item[1], item[0]))[:3]
        found["tokens"].append(
            nowhere
            | {
                "previous": names.get(p, f"#{p}"),
                "value": value,
                "null": chance,
                "z": (value - chance) / spread if spread else None,
                "entropy_nats": float(ours[index, 3]),
                "entropy_null": float(null[:, index, 3].mean()),
                "likeliest": ", ".join(f"{names.get(t, f'#{t}')} {100 * c / size:.0f} %" for t, c in likely),
                "continuations": len(after[p]),
                "samples": size,
            }
        )


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

    def z(value: float, chance: Rows) -> float | None:
        spread = float(chance.std(ddof=1))
        return (value - float(chance.mean())) / spread if spread > 1e-9 * abs(float(chance.mean())) else None

    for at, quantity in enumerate(quantities):
        mean, low, high = _mean(ours[:, at], null[:, :, at].mean(0), n)
        chance = (null[:, :, at] * n).sum(1) / n.sum()
        found["layers"].append(
            place
            | {"quantity": quantity, "value": mean, "low": low, "high": high, "null": float(chance.mean())}
            | {"z": z(mean, chance), "unconditional": everything[at], "dimensions": k if at == 0 else d}
            | {"samples": int(n.sum()), "groups": len(n)}
        )
    for index, (p, where) in enumerate(groups.items()):
        for at, quantity in enumerate(quantities):
            value, chance = float(ours[index, at]), null[:, index, at]
            found["gaussians"].append(
                place
                | {"previous": names.get(p, f"#{p}"), "quantity": quantity, "value": value}
                | {"null": float(chance.mean()), "z": z(value, chance)}
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
