r"""The strongest pairs of tokens of a head, and its skip trigrams, without a matrix of all pairs.

For each source token the largest entry of its row is computed, block by block. The k largest entries of a matrix lie in
the k rows with the largest maxima, so only these rows are looked at again. A skip trigram, source … query → target,
scores the sum of two entries that share their source, each in standard deviations over all pairs: its best query and
its best target can be chosen apart.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import sqrt
from statistics import fmean

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import HeadWeights, Rotary, Site, StreamNorm, StreamReading
from headscope.lenses.circuits.vocabulary import TokenTables
from headscope.lenses.shared.stream_norms import read_through, written_through
from headscope.maths.random_matrices.haar import haar_frames

BLOCK = 1024
TURNS = 3  # turned heads behind the null of a list


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

    @cached_property
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
    sources = scores.row_maxima.topk(min(top, len(scores.left))).indices.tolist()
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
    sums = (attended.row_maxima - mean_a) / sd_a + (moved.row_maxima - mean_m) / sd_m
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


def turned_heads(w: HeadWeights, head: int) -> Iterator[HeadWeights]:
    """Yield the head with random directions in its output and in its keys."""
    kv = w.kv_of_head(head)
    d, widths = w.w_o.shape[2], (w.w_o.shape[1], w.w_k.shape[2])
    for written, read in zip(*(directions(TURNS, d, width) for width in widths), strict=True):
        w_o, w_k = w.w_o.clone(), w.w_k.clone()
        w_o[head] = turned_factor(w.w_v[kv] * w.gain_v[kv], w.w_o[head].T, written).T
        w_k[kv] = turned_factor(w.w_q[head] * w.gain_q[head] * w.gain_k[kv], w.w_k[kv], read)
        yield replace(w, w_o=w_o, w_k=w_k)


def turned_factor(
    near: Float[Tensor, "d width"], far: Float[Tensor, "d width"], frame: Float[Tensor, "d width"]
) -> Float[Tensor, "d width"]:
    """F Vᵀ far, where near farᵀ = U S Vᵀ: V is exchanged for random directions F.

    Signs are fixed by the sums of columns of V, so that the inner basis of a head does not matter.
    """
    left, right = torch.linalg.qr(near.double()), torch.linalg.qr(far.double())
    _, _, vh = torch.linalg.svd(left.R @ right.R.T)
    columns = right.Q @ vh.T
    signs = torch.where(columns.sum(0) < 0, -1.0, 1.0).to(columns)
    turned: Tensor = frame[:, : len(vh)] @ (signs[:, None] * vh @ right.R)
    return turned.to(far)


@lru_cache(maxsize=8)
def directions(count: int, d: int, width: int) -> Float[Tensor, "count d width"]:
    """Random orthonormal directions, the same for every head."""
    return haar_frames(count, d, min(width, d), torch.Generator().manual_seed(0))


def turned_lists(
    attended: PairScores | None, turns: Iterable[tuple[PairScores | None, PairScores]], top: int
) -> dict[str, dict[int, float]]:
    """For each list the mean score of each rank over turned heads.

    A skip trigram of a turned head is attended to as before, and only what is written is turned.
    """
    scores: dict[str, dict[int, list[float]]] = {}
    for turned_attended, turned_moved in turns:
        lists = {"OV": [score for score, *_ in strongest_pairs(turned_moved, top)]}
        if attended is not None and turned_attended is not None:
            lists["QK"] = [score for score, *_ in strongest_pairs(turned_attended, top)]
            lists["trigram"] = [pair.score for pair in skip_trigrams(attended, turned_moved, top)]
        for circuit, scores_of_circuit in lists.items():
            for rank, score in enumerate(scores_of_circuit, 1):
                scores.setdefault(circuit, {}).setdefault(rank, []).append(score)
    return {circuit: {rank: fmean(numbers) for rank, numbers in by_rank.items()} for circuit, by_rank in scores.items()}


def refusal(site: Site, status: str, reason: str) -> str:
    """Why the scores of a site cannot be listed by tokens; empty where they can."""
    if status == "normed":
        return f"{site.label} normalises queries and keys after the projection, so W_QK does not give its scores"
    return f"{site.label}: {reason}" if reason else ""
