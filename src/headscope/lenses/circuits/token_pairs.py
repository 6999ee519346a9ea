r"""The strongest pairs of tokens of a head, and its skip trigrams, without a matrix of all pairs.

For each source token the largest entry of its row is computed, block by block. The k largest entries of a matrix lie in
the k rows with the largest maxima, so only these rows are looked at again. A skip trigram, source … query → target,
scores the sum of two entries that share their source, each in standard deviations over all pairs: its best query and
its best target can be chosen apart.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from headscope.core import HeadWeights, Rotary, Site, StreamNorm, StreamReading
from headscope.lenses.circuits.vocabulary import TokenTables
from headscope.lenses.shared.stream_norms import read_through, written_through

BLOCK = 1024


@dataclass(frozen=True)
class PairScores:
    """A matrix of scores in two factors, tokens × inner; entry (s, t) is left[s] · right[t]."""

    left: Float[Tensor, "sources inner"]
    right: Float[Tensor, "others inner"]

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of all entries, from sums over each side alone."""
        left, right = self.left.double(), self.right.double()
        mean = float(left.mean(0) @ right.mean(0))
        square = float(((left.T @ left / len(left)) * (right.T @ right / len(right))).sum())
        return mean, sqrt(max(square - mean**2, 0.0))

    def row_maxima(self) -> Float[Tensor, " sources"]:
        """The largest entry of each row, block by block."""
        return torch.cat([(block @ self.right.T).amax(1) for block in torch.split(self.left, BLOCK)])

    def best(self, source: int, count: int) -> tuple[list[float], list[int]]:
        """The largest entries of a row, and their columns."""
        top = (self.left[source] @ self.right.T).topk(min(count, len(self.right)))
        return top.values.tolist(), top.indices.tolist()


@dataclass(frozen=True)
class Pair:
    """An entry of a list: tokens by id, and the score in standard deviations."""

    score: float
    source: int
    query: int | None
    target: int | None


def moved_tokens(tables: TokenTables, rows: Tensor, w: HeadWeights, head: int, reading: StreamReading) -> PairScores:
    """The map from source tokens to logits: E N w_v times w_o N_f Uᵀ."""
    site, kv = w.site, w.kv_of_head(head)
    w_v = read_through(reading.before[site], (w.w_v[kv] * w.gain_v[kv]).to(rows))
    w_o = written_through(reading.final, written_through(reading.after.get(site), w.w_o[head].to(rows)))
    return PairScores(rows @ w_v, tables.unembedding[: len(rows)] @ w_o.T)


def scored_tokens(
    rows: Tensor, w: HeadWeights, head: int, norm: StreamNorm | None, rotary: Rotary | None, distance: int
) -> PairScores:
    """The scores that queries give to source tokens as keys, before scale: rows are keys, columns queries."""
    kv = w.kv_of_head(head)
    queries, keys = (
        _projected(rows, norm, matrix, bias, gain)
        for matrix, bias, gain in (
            (w.w_q[head], w.b_q[head], w.gain_q[head]),
            (w.w_k[kv], w.b_k[kv], w.gain_k[kv]),
        )
    )
    return PairScores(keys, queries if rotary is None else queries @ rotary.turn(distance).to(queries))


def _projected(rows: Tensor, norm: StreamNorm | None, w: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
    read = rows @ read_through(norm, w.to(rows)) + bias.to(rows)
    shifted = read if norm is None else read + norm.bias.to(rows) @ w.to(rows)
    return shifted * gain.to(rows)


def strongest_pairs(scores: PairScores, top: int) -> list[tuple[float, int, int]]:
    """The largest entries in standard deviations from the mean: score, row, column."""
    mean, sd = scores.moments()
    if not sd:
        return []
    sources = scores.row_maxima().topk(min(top, len(scores.left))).indices.tolist()
    entries = [
        ((score - mean) / sd, source, column)
        for source in sources
        for score, column in zip(*scores.best(source, top), strict=True)
    ]
    return sorted(entries, key=lambda entry: (-entry[0], entry[1:]))[:top]


def skip_trigrams(attended: PairScores, moved: PairScores, top: int) -> list[Pair]:
    """The source tokens that a query attends to and that raise a target most."""
    (mean_a, sd_a), (mean_m, sd_m) = attended.moments(), moved.moments()
    if not sd_a or not sd_m:
        return []
    sums = (attended.row_maxima() - mean_a) / sd_a + (moved.row_maxima() - mean_m) / sd_m
    trigrams = [
        Pair((a - mean_a) / sd_a + (m - mean_m) / sd_m, source, query, target)
        for source in sums.topk(min(top, len(sums))).indices.tolist()
        for a, query in zip(*attended.best(source, top), strict=True)
        for m, target in zip(*moved.best(source, top), strict=True)
    ]
    return sorted(trigrams, key=lambda pair: (-pair.score, pair.source, pair.query, pair.target))[:top]


def lists_of_head(attended: PairScores | None, moved: PairScores, top: int) -> dict[str, list[Pair]]:
    """The lists of a head: OV, and where its scores are known, QK and skip trigrams."""
    lists = {"OV": [Pair(score, source, None, target) for score, source, target in strongest_pairs(moved, top)]}
    if attended is not None:
        pairs = strongest_pairs(attended, top)
        lists["QK"] = [Pair(score, source, query, None) for score, source, query in pairs]
        lists["trigram"] = skip_trigrams(attended, moved, top)
    return lists


def expected_score(circuit: str, rank: int, tokens: int) -> float:
    """The score of this rank among as many independent normal numbers: what chance gives."""
    order, sd = (3, sqrt(2.0)) if circuit == "trigram" else (2, 1.0)
    return sd * float(stats.norm.isf(min((rank - 0.5) / float(tokens) ** order, 1.0 - 1e-12)))


def refusal(site: Site, status: str, reason: str) -> str:
    """Why the scores of a site cannot be listed by tokens; empty where they can."""
    if status == "normed":
        return f"{site.label} normalises queries and keys after the projection, so W_QK does not give its scores"
    return f"{site.label}: {reason}" if reason else ""
