"""The numbers of the lens `embeddings` by their formulas: float64, every pair visited, every token ranked."""

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import cos, exp, lgamma, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from headscope.core import WeightSource
from headscope.lenses.embeddings.word_lists import RELATED, RELATIONS
from headscope.lenses.shared.defined_spectrum import defined_numbers
from headscope.lenses.shared.table import Row

Rows = dict[str, list[Row]]
Vectors = NDArray[np.float64]
PairTokens = tuple[tuple[str, str], int, int]  # two words and their tokens


class Analogy(NamedTuple):
    """Two pairs of one relation, the ranks of the answer, and whether a given word is nearest."""

    relation: str
    first: tuple[str, str]
    second: tuple[str, str]
    rank: int
    baseline: int
    nearest_is_given: bool


def defined(weights: WeightSource, words: list[str], nearest: int) -> Rows:
    """All tables, row by row."""
    rows_by_table: Rows = {"tables": [], "spectra": [], "positions": []}
    expanded = weights.spec.dequantised
    stored = f"expanded from {expanded}" if expanded else "as stored"
    vectors = {
        embedding: weights.embedding_table(embedding).double().numpy()[embedding.first :]
        for embedding in weights.embeddings
    }
    first = next(embedding for embedding in vectors if embedding.role == "token")
    for embedding, table in vectors.items():
        x = table[np.abs(table).sum(1) > 0]
        n, d = x.shape
        place: Row = {"stack": embedding.stack, "kind": None, "layer": None, "head": None}
        counts = {"rows": n, "dimensions": d, "weights": stored}
        rows_by_table["tables"] += [place | {"table": embedding.role} | row | counts for row in _shape(x)]
        sigma = np.linalg.svd(x - x.mean(0), compute_uv=False)[: min(n - 1, d)].tolist()
        numbers = defined_numbers(sigma, (n - 1, d), weights.spec.initial_sd)
        rows_by_table["spectra"] += [place | {"table": embedding.role} | row | {"weights": stored} for row in numbers]
        y = vectors[first][np.abs(vectors[first]).sum(1) > 0]
        if embedding.role != "token" and d == y.shape[1]:
            rows = list(_cross_cosines(x, y))
            if embedding.role == "output" and x.shape == y.shape:
                rows.append(_own_cosine(x, y))
            cross_counts = counts | {"rows": n * len(y)}
            rows_by_table["tables"] += [
                place | {"table": f"{embedding.role} with token"} | row | cross_counts for row in rows
            ]
        if embedding.role == "position":
            rows_by_table["positions"] += [place | {"table": embedding.role} | row for row in _distances(table)]
    if weights.vocabulary is not None:
        place = {"stack": first.stack, "kind": None, "layer": None, "head": None, "table": "token"}
        meant = _meaning(weights, vectors[first], words, nearest)
        rows_by_table |= {name: [place | row for row in of_name] for name, of_name in meant.items()}
    return rows_by_table


def _row(
    quantity: str, value: float, null: float | None, sd: float | None = None, gaussian: float | None = None
) -> Row:
    z = None if sd is None or null is None else (value - null) / sd
    return {"quantity": quantity, "value": value, "null": null, "z": z, "gaussian": gaussian}


def _cosine(a: Vectors, b: Vectors) -> float:
    return float(a @ b / sqrt(a @ a) / sqrt(b @ b))


def _shape(x: Vectors) -> Iterator[Row]:
    n, d = x.shape
    mu, sigma = x.mean(0), np.cov(x.T, bias=True)
    lengths = np.array([sqrt(row @ row) for row in x])
    chi = sqrt(2) * exp(lgamma((d + 1) / 2) - lgamma(d / 2))
    null = sqrt(d - chi**2) / chi
    mean_square = (lengths**2).mean()
    gaussian_spread = sqrt(2 * np.trace(sigma @ sigma) + 4 * mu @ sigma @ mu) / (2 * mean_square)
    yield _row("length_mean", lengths.mean(), None)
    yield _row("length_spread", lengths.std() / lengths.mean(), null, null / sqrt(2 * n), gaussian_spread)
    for name, percent in (("length_low", 5), ("length_high", 95)):
        law = sqrt(stats.chi2.ppf(percent / 100, d)) / chi
        yield _row(name, np.percentile(lengths, percent) / lengths.mean(), law)
    yield _row("mean_share", mu @ mu / mean_square, 1 / n, sqrt(2 / d) / n)
    pairs = n * (n - 1) / 2
    for prefix, rows in (("", x), ("centred_", x - mu)):
        cosines = np.array([_cosine(rows[i], rows[j]) for i in range(n) for j in range(i)])
        sd = 1 / sqrt(d * pairs), sqrt(2 * (d - 1) / d**2 / (d + 2) / pairs)
        if prefix:
            yield _row("centred_cosine_mean", cosines.mean(), -1 / (n - 1))
        else:
            yield _row("cosine_mean", cosines.mean(), 0.0, sd[0])
        yield _row(f"{prefix}cosine_square", (cosines**2).mean(), 1 / d, sd[1])
    for name, matrix, rows in (("participation", x.T @ x / n, n), ("centred_participation", sigma, n - 1)):
        values = np.linalg.eigvalsh(matrix)
        yield _row(name, values.sum() ** 2 / (values**2).sum(), (rows * d + 2) / (rows + d + 1))


def _cross_cosines(x: Vectors, y: Vectors) -> Iterator[Row]:
    d = x.shape[1]
    cosines = np.array([_cosine(a, b) for a in x for b in y])
    yield _row("cosine_mean", cosines.mean(), 0.0, 1 / sqrt(d * len(cosines)))
    yield _row("cosine_square", (cosines**2).mean(), 1 / d, sqrt(2 * (d - 1) / d**2 / (d + 2) / len(cosines)))


def _own_cosine(x: Vectors, y: Vectors) -> Row:
    own_cosines = np.array([_cosine(a, b) for a, b in zip(x, y, strict=True)])
    every = np.array([_cosine(a, b) for a in x for b in y])
    return _row("own_cosine", own_cosines.mean(), every.mean(), every.std() / sqrt(len(own_cosines)))


def _distances(x: Vectors) -> Iterator[Row]:
    n, d = x.shape
    around = x - x.mean(0)
    for distance in (2**k for k in range(32) if 2**k < n):
        pairs = [(i, i + distance) for i in range(n - distance)]
        mean = float(np.mean([_cosine(x[i], x[j]) for i, j in pairs]))
        law = sum(cos(distance * 10000 ** (-2 * m / d)) for m in range(d // 2)) / (d / 2) if d % 2 == 0 else None
        yield {
            "distance": distance,
            "value": mean,
            "null": 0.0,
            "z": mean * sqrt(d * len(pairs)),
            "centred": float(np.mean([_cosine(around[i], around[j]) for i, j in pairs])),
            "sinusoid": law,
            "pairs": len(pairs),
            "dimensions": d,
        }


def _meaning(weights: WeightSource, x: Vectors, words: list[str], nearest: int) -> Rows:
    return {
        "neighbours": list(_neighbours(weights, x, words, nearest)),
        "related": list(_related(weights, x)),
        "analogies": list(_analogies(weights, x)),
    }


def _token(weights: WeightSource, x: Vectors, word: str) -> int:
    """The row of a word; −1 where it has none."""
    token = None if weights.vocabulary is None else weights.vocabulary.token(word)
    return token if token is not None and token < len(x) and x[token].any() else -1


def _single_token_pairs(weights: WeightSource, x: Vectors, listed: Sequence[tuple[str, str]]) -> list[PairTokens]:
    pairs = [(pair, _token(weights, x, pair[0]), _token(weights, x, pair[1])) for pair in listed]
    return [
        pair_tokens
        for pair_tokens in pairs
        if pair_tokens[1] >= 0 and pair_tokens[2] >= 0 and pair_tokens[1] != pair_tokens[2]
    ]


def _neighbours(weights: WeightSource, x: Vectors, words: list[str], nearest: int) -> Iterator[Row]:
    n, d = x.shape
    chance = 1 - exp(-log(2) / (n - 1))  # P(one cosine > t) such that the largest of n − 1 is above t in half the cases

    def excess(t: float) -> float:
        return float(stats.beta.cdf((1 - t) / 2, (d - 1) / 2, (d - 1) / 2)) - chance

    largest = optimize.brentq(excess, -1 + 1e-12, 1 - 1e-12, xtol=1e-14)
    for word in words:
        if (token := _token(weights, x, word)) >= 0 and weights.vocabulary is not None:
            order = sorted((-_cosine(x[token], x[t]), t) for t in range(n) if t != token and x[t].any())[:nearest]
            for place, (minus, t) in enumerate(order, 1):
                text = weights.vocabulary.spelled([t])[0]
                spelling = ("…" if text[:1].isalnum() else "") + text.strip() if text.strip() else repr(text)
                yield {"word": word, "place": place, "neighbour": spelling, "value": -minus, "null": largest}


def _related(weights: WeightSource, x: Vectors) -> Iterator[Row]:
    pairs = _single_token_pairs(weights, x, RELATED)
    if len(pairs) < 2:
        return
    pair_cosines = np.array([_cosine(x[i], x[j]) for _, i, j in pairs])
    cross = np.array([_cosine(x[p[1]], x[q[2]]) for p in pairs for q in pairs if p is not q and p[1] != q[2]])
    null, sd, m, mean = float(cross.mean()), float(cross.std(ddof=1)), len(pairs), float(pair_cosines.mean())
    half = float(stats.t.ppf(0.975, m - 1)) * float(pair_cosines.std(ddof=1)) / sqrt(m)
    first: Row = {"word": "all", "other": "", "value": mean, "low": mean - half, "high": mean + half, "null": null}
    yield first | {"z": (mean - null) / (sd / sqrt(m)), "pairs": m}
    for ((a, b), _, _), cosine in zip(pairs, pair_cosines.tolist(), strict=True):
        yield {"word": a, "other": b, "value": cosine, "null": null, "z": (cosine - null) / sd, "pairs": 1}


def _analogies(weights: WeightSource, x: Vectors) -> Iterator[Row]:
    filled = [t for t in range(len(x)) if x[t].any()]
    solved = [
        _solved(relation, pairs, x, filled)
        for relation, listed in RELATIONS.items()
        for pairs in permutations(_single_token_pairs(weights, x, listed), 2)
        if len({token for pair in pairs for token in pair[1:]}) == 4
    ]
    for relation in dict.fromkeys(["all", *(analogy.relation for analogy in solved)]) if solved else ():
        group = [analogy for analogy in solved if relation in ("all", analogy.relation)]
        yield {"relation": relation} | _analogy_row(group, len(filled) - 3)


def _solved(relation: str, pairs: Sequence[PairTokens], x: Vectors, filled: Sequence[int]) -> Analogy:
    """The rank of the fourth word by b − a + c and by c alone, among all tokens but a, b and c."""
    (first, a, b), (second, c, answer) = pairs
    added = {t: _cosine(x[b] - x[a] + x[c], x[t]) for t in filled}
    alone = {t: _cosine(x[c], x[t]) for t in filled}
    rank, baseline = (
        1 + sum(cosine > cosines[answer] for t, cosine in cosines.items() if t not in (a, b, c))
        for cosines in (added, alone)
    )
    nearest = max(filled, key=lambda t: added[t])
    return Analogy(relation, first, second, rank, baseline, nearest in (a, b, c))


def _analogy_row(group: Sequence[Analogy], candidates: int) -> Row:
    low, high, gain_low, gain_high, z = _interval(group)
    best = min(group, key=lambda analogy: analogy.rank)
    return {
        "value": float(np.mean([analogy.rank == 1 for analogy in group])),
        "low": low,
        "high": high,
        "null": 1 / candidates,
        "baseline": float(np.mean([analogy.baseline == 1 for analogy in group])),
        "gain": float(np.mean([(analogy.rank == 1) - (analogy.baseline == 1) for analogy in group])),
        "gain_low": gain_low,
        "gain_high": gain_high,
        "z": z,
        "rank": float(np.median([analogy.rank for analogy in group])),
        "baseline_rank": float(np.median([analogy.baseline for analogy in group])),
        "null_rank": (candidates + 1) / 2,
        "given": float(np.mean([analogy.nearest_is_given for analogy in group])),
        "analogies": len(group),
        "example": f"{best.first[1]} − {best.first[0]} + {best.second[0]}: {best.second[1]} is number {best.rank}",
    }


def _interval(analogies: Sequence[Analogy]) -> tuple[float | None, ...]:
    """Intervals of the share and of the gain over the baseline, and the gain in standard errors."""
    left, gains = [], []
    pairs = sorted({analogy.first for analogy in analogies} | {analogy.second for analogy in analogies})
    for pair in pairs:
        without = [analogy for analogy in analogies if pair not in (analogy.first, analogy.second)]
        if not without or len(pairs) < 3:
            return (None,) * 5
        left.append(float(np.mean([analogy.rank == 1 for analogy in without])))
        gains.append(float(np.mean([(analogy.rank == 1) - (analogy.baseline == 1) for analogy in without])))
    # No less than half a pair, also where all pairs agree.
    least = 1 / (2 * len(pairs))
    share, more = (max(sqrt((len(left) - 1) * float(np.var(estimates))), least) for estimates in (left, gains))
    mean = float(np.mean([analogy.rank == 1 for analogy in analogies]))
    gain = float(np.mean([(analogy.rank == 1) - (analogy.baseline == 1) for analogy in analogies]))
    t = float(stats.t.ppf(0.975, len(left) - 1))
    ends = max(0.0, mean - t * share), min(1.0, mean + t * share)
    return *ends, max(-1.0, gain - t * more), min(1.0, gain + t * more), gain / more
