r"""Interpolated Kneser–Ney models of n tokens, next to which a network is judged.

Definition:
    With $c_n$ the counts of n-grams in the training text, and for shorter m the number $c_m(w)$ of different
    (m + 1)-grams that end with w, the probability of a token y after a context h is
    $p_m(y | h) = \max(c_m(h y) - d_m, 0) / c_m(h) + d_m k_m(h) / c_m(h) \cdot p_{m-1}(y | h')$, where $c_m(h)$ is the
    sum over y, $k_m(h)$ how many y follow, $d_m = n_1 / (n_1 + 2 n_2)$ from the numbers of grams that count once and
    twice, h' is h without its first token, and $p_0 = 1 / V$. An unseen context has $p_m = p_{m-1}$.
Properties:
    - the sorted tables give the formula  (tested: test_kneser_ney_is_its_definition)
    - the probabilities of all tokens sum to 1  (tested: test_kneser_ney_sums_to_one)
Numerics:
    Every token is predicted from its true predecessors, also where a network at the beginning of a window reads none:
    the comparison favours the n-grams.
Reference:
    Kneser and Ney (1995), Improved backing-off for m-gram language modeling.
"""

from collections import Counter
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Gram = tuple[int, ...]


@dataclass(frozen=True)
class _Table:
    """The grams of one length as sorted numbers, with their counts and those of their contexts."""

    grams: Ints
    counts: Ints
    contexts: Ints
    totals: Ints
    followers: Ints  # how many different tokens follow each context

    @property
    def discount(self) -> float:
        """What each count gives up for tokens that never followed."""
        ones, twos = int((self.counts == 1).sum()), int((self.counts == 2).sum())
        return ones / (ones + 2.0 * twos) if ones else 0.5


class KneserNey:
    """A model of `order` tokens, fitted to a text."""

    def __init__(self, train: Ints, vocabulary: int, order: int) -> None:
        self._vocabulary, self._order = vocabulary, order
        counted = np.unique(self._grams(train, order), return_counts=True)
        tables = [self._table(*counted)]
        for n in range(order - 1, 0, -1):
            tables.append(self._table(*np.unique(tables[-1].grams % vocabulary**n, return_counts=True)))
        self._tables = tables[::-1]

    def nats(self, held_out: Ints) -> float:
        """The mean negative log-likelihood of a token; the first ones, which lack predecessors, do not count."""
        probability = np.full(len(held_out) - self._order + 1, 1.0 / self._vocabulary)
        for n, table in enumerate(self._tables, 1):
            gram = self._grams(held_out, n)
            context = gram // self._vocabulary
            total = _values_at(context, table.contexts, table.totals)
            followers = _values_at(context, table.contexts, table.followers)
            count, divisor = _values_at(gram, table.grams, table.counts), np.maximum(total, 1)
            lower = table.discount * followers / divisor * probability
            interpolated = np.maximum(count - table.discount, 0.0) / divisor + lower
            probability = np.where(total > 0, interpolated, probability)
        return float(-np.log(probability).mean())

    def _grams(self, tokens: Ints, n: int) -> Ints:
        """The last n tokens at each position that has `order` of them, as one number each."""
        count = len(tokens) - self._order + 1
        packed = np.zeros(count, dtype=np.int64)
        for shift in range(self._order - n, self._order):
            packed = packed * self._vocabulary + tokens[shift : count + shift]
        return packed

    def _table(self, grams: Ints, counts: Ints) -> _Table:
        contexts, first = np.unique(grams // self._vocabulary, return_index=True)
        totals = np.add.reduceat(counts, first)
        return _Table(grams, counts, contexts, totals, np.diff(np.append(first, len(grams))))


def definition(train: list[int], held_out: list[int], vocabulary: int, order: int) -> float:
    """The formula, gram by gram."""
    counts: dict[int, Counter[Gram]] = {order: Counter(_grams_of(train, order))}
    for m in range(order - 1, 0, -1):
        counts[m] = Counter(gram[1:] for gram in counts[m + 1])

    def probability(gram: Gram) -> float:
        m = len(gram)
        if m == 0:
            return 1.0 / vocabulary
        lower = probability(gram[1:])
        followers = [count for other, count in counts[m].items() if other[:-1] == gram[:-1]]
        if not followers:
            return lower
        ones, twos = (sum(count == n for count in counts[m].values()) for n in (1, 2))
        discount = ones / (ones + 2 * twos) if ones else 0.5
        total = sum(followers)
        return max(counts[m][gram] - discount, 0.0) / total + discount * len(followers) / total * lower

    grams = _grams_of(held_out, order)
    return -sum(log(probability(gram)) for gram in grams) / len(grams)


def _grams_of(tokens: list[int], n: int) -> list[Gram]:
    return [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]


def _values_at(queries: Ints, keys: Ints, values: Ints) -> Ints:
    """The value of each query among sorted keys; 0 where it is none of them."""
    places = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[places] == queries, values[places], 0)
