"""What directions mean: nearest tokens, related words, additive analogies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.core import Vocabulary
from headscope.core.token_words import display_text
from headscope.lenses.embeddings.word_lists import RELATED, RELATIONS
from headscope.lenses.shared.table import Row
from headscope.maths.geometry.cosines import blocks, largest_cosine
from headscope.maths.resampling.jackknife import student_quantile

ALL = "all"


@dataclass(frozen=True)
class TokenVectors:
    """The table of token vectors with its vocabulary; row i is the vector of token i."""

    rows: Float[Tensor, "rows d"]
    vocabulary: Vocabulary

    def token(self, word: str) -> int | None:
        """The token of a word; None without a single token or without a vector of nonzero length."""
        token = self.vocabulary.token(word)
        return token if token is not None and token < len(self.rows) and bool(self.rows[token].any()) else None

    def vectors(self, tokens: Sequence[int]) -> Float[Tensor, "some d"]:
        """The vectors of tokens in float64."""
        return self.rows[list(tokens)].to(torch.float64)

    def cosines(self, with_: Float[Tensor, "some d"]) -> Iterator[tuple[int, Float[Tensor, "some block"]]]:
        """Cosines with all rows by block, each with the index of its first row; −∞ for zero rows."""
        u = torch.nn.functional.normalize(with_, dim=1)
        first = 0
        for stored in blocks(self.rows):
            block = stored.to(torch.float64)
            length = block.norm(dim=1)
            yield first, torch.where(length > 0, u @ block.mT / length, -torch.inf)
            first += len(block)


def neighbour_rows(token_vectors: TokenVectors, words: Sequence[str], nearest: int) -> Iterator[Row]:
    """The nearest tokens of each word, and the largest cosine among as many random vectors."""
    tokens = {word: token for word in words if (token := token_vectors.token(word)) is not None}
    if not tokens:
        return
    word_tokens = torch.tensor(list(tokens.values()))
    best = torch.zeros(len(word_tokens), 0, dtype=torch.float64)
    neighbours = torch.zeros(len(word_tokens), 0, dtype=torch.int64)
    for first, cosines in token_vectors.cosines(token_vectors.vectors(list(tokens.values()))):
        numbers = first + torch.arange(cosines.shape[1])
        cosines = cosines.masked_fill(numbers == word_tokens[:, None], -torch.inf)
        candidates, at = torch.cat((best, cosines), 1), torch.cat((neighbours, numbers.expand(len(word_tokens), -1)), 1)
        best, order = candidates.topk(min(nearest, candidates.shape[1]), dim=1)
        neighbours = at.gather(1, order)
    null = largest_cosine(token_vectors.rows.shape[1], max(1, len(token_vectors.rows) - 1))
    for word, cosines, near in zip(tokens, best, neighbours, strict=True):
        for place, (cosine, spelling) in enumerate(
            zip(cosines.tolist(), token_vectors.vocabulary.spelled(near.tolist()), strict=True), 1
        ):
            if cosine > -torch.inf:
                yield {"word": word, "place": place, "neighbour": display_text(spelling), "value": cosine, "null": null}


def related_rows(token_vectors: TokenVectors) -> list[Row]:
    """Cosines of related words, and of the same words paired otherwise as null; the mean first."""
    pairs = _single_token_pairs(token_vectors, RELATED)
    if len(pairs) < 2:
        return []
    sides = [pair[2] for pair in pairs], [pair[3] for pair in pairs]
    u, v = (torch.nn.functional.normalize(token_vectors.vectors(side), dim=1) for side in sides)
    cosines = u @ v.mT
    other = torch.tensor([[a[2] != b[3] and x != y for y, b in enumerate(pairs)] for x, a in enumerate(pairs)])
    pair_cosines, mismatched = cosines.diagonal(), cosines[other]
    null, sd = float(mismatched.mean()), float(mismatched.std())
    n, mean = len(pairs), float(pair_cosines.mean())
    half = student_quantile(n) * float(pair_cosines.std()) / sqrt(n)
    first: Row = {"word": ALL, "other": "", "value": mean, "low": mean - half, "high": mean + half, "null": null}
    rows: list[Row] = [first | {"z": (mean - null) / sd * sqrt(n) if sd else None, "pairs": n}]
    for (word, also, _, _), cosine in zip(pairs, pair_cosines.tolist(), strict=True):
        z = (cosine - null) / sd if sd else None
        rows.append({"word": word, "other": also, "value": cosine, "null": null, "z": z, "pairs": 1})
    return rows


@dataclass(frozen=True)
class Analogies:
    """a is to b as c is to d, for all pairs of a relation: ranks of d, 1 being the nearest of all but a, b, c.

    `ranks` is for b − a + c, `baseline` for c alone; `nearest_is_given` says whether the nearest of all tokens is a, b
    or c.
    """

    relation: tuple[str, ...]
    words: tuple[tuple[str, str, str, str], ...]
    ranks: Int[Tensor, " n"]
    baseline: Int[Tensor, " n"]
    nearest_is_given: Int[Tensor, " n"]
    candidates: int  # tokens that could be the answer

    @classmethod
    def of(cls, token_vectors: TokenVectors) -> "Analogies | None":
        """Analogies of every relation with two pairs of single tokens; None where there is none."""
        relation, words, ids = [], [], []
        for name, listed in RELATIONS.items():
            for (a, b, ia, ib), (c, d, ic, id_) in permutations(_single_token_pairs(token_vectors, listed), 2):
                if len({ia, ib, ic, id_}) == 4:
                    relation.append(name)
                    words.append((a, b, c, d))
                    ids.append((ia, ib, ic, id_))
        if not ids:
            return None
        tokens = torch.tensor(ids)
        of_a, of_b, of_c, of_d = (token_vectors.vectors(tokens[:, k].tolist()) for k in range(4))
        ranks, nearest_is_given = _ranks(token_vectors, of_b - of_a + of_c, of_d, tokens)
        baseline, _ = _ranks(token_vectors, of_c, of_d, tokens)
        filled = sum(int(block.any(1).sum()) for block in blocks(token_vectors.rows))
        return cls(tuple(relation), tuple(words), ranks, baseline, nearest_is_given, filled - 3)

    def rows(self) -> Iterator[Row]:
        """One row for all relations together, then one for each, with an example."""
        for name in (ALL, *dict.fromkeys(self.relation)):
            yield {"relation": name} | self._of(torch.tensor([name in (ALL, relation) for relation in self.relation]))

    def _of(self, mask: Tensor) -> Row:
        ranks, baseline = self.ranks[mask].double(), self.baseline[mask].double()
        words = [analogy for analogy, selected in zip(self.words, mask.tolist(), strict=True) if selected]
        right = (ranks == 1).double()
        gain = right - (baseline == 1).double()
        n_pairs = len({analogy[:2] for analogy in words})
        mean, more = float(right.mean()), float(gain.mean())
        error, spread = _jackknife(right, words), _jackknife(gain, words)
        half, wide = (None if sd is None else student_quantile(n_pairs) * sd for sd in (error, spread))
        best = int(ranks.argmin())
        a, b, c, d = words[best]
        return {
            "value": mean,
            "low": None if half is None else max(0.0, mean - half),
            "high": None if half is None else min(1.0, mean + half),
            "null": 1 / self.candidates,
            "baseline": float((baseline == 1).double().mean()),
            "gain": more,
            "gain_low": None if wide is None else max(-1.0, more - wide),
            "gain_high": None if wide is None else min(1.0, more + wide),
            "z": None if spread is None else more / spread,
            "rank": float(ranks.quantile(0.5)),
            "baseline_rank": float(baseline.quantile(0.5)),
            "null_rank": (self.candidates + 1) / 2,
            "given": float(self.nearest_is_given[mask].double().mean()),
            "analogies": len(words),
            "example": f"{b} − {a} + {c}: {d} is number {int(ranks[best])}",
        }


def _single_token_pairs(
    token_vectors: TokenVectors, listed: Sequence[tuple[str, str]]
) -> list[tuple[str, str, int, int]]:
    pairs = []
    for a, b in listed:
        tokens = token_vectors.token(a), token_vectors.token(b)
        if tokens[0] is not None and tokens[1] is not None and tokens[0] != tokens[1]:
            pairs.append((a, b, tokens[0], tokens[1]))
    return pairs


def _ranks(
    token_vectors: TokenVectors,
    queries: Float[Tensor, "n d"],
    answers: Float[Tensor, "n d"],
    tokens: Int[Tensor, "n 4"],
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """The rank of each answer without the three given words, and whether one of these is nearest."""
    of_answer = torch.cosine_similarity(queries, answers, dim=1)
    above = torch.zeros(len(queries), dtype=torch.int64)
    best = torch.full((len(queries),), -torch.inf, dtype=torch.float64)
    nearest = torch.zeros(len(queries), dtype=torch.int64)
    for first, cosines in token_vectors.cosines(queries):
        top, at = cosines.max(1)
        nearest = torch.where(top > best, at + first, nearest)
        best = torch.maximum(best, top)
        inside = (tokens >= first) & (tokens < first + cosines.shape[1])
        rows = torch.arange(len(queries))[:, None].expand(-1, 4)
        cosines[rows[inside], tokens[inside] - first] = -torch.inf
        above += (cosines > of_answer[:, None]).sum(1)
    return above + 1, (nearest[:, None] == tokens[:, :3]).any(1).to(torch.int64)


def _jackknife(values: Float[Tensor, " n"], words: Sequence[tuple[str, str, str, str]]) -> float | None:
    """Standard error of a mean over analogies, leaving out each pair of words in turn.

    Words that all agree leave no spread: what n pairs can tell ends at half a pair.
    """
    pairs = sorted({analogy[:2] for analogy in words} | {analogy[2:] for analogy in words})
    sets_without = [
        [at for at, analogy in enumerate(words) if pair not in (analogy[:2], analogy[2:])] for pair in pairs
    ]
    if len(pairs) < 3 or not all(sets_without):
        return None
    left = torch.stack([values[indices].mean() for indices in sets_without])
    error = sqrt((len(left) - 1) / len(left) * float((left - left.mean()).square().sum()))
    return max(error, 0.5 / len(pairs))
