"""The nearest training sentence of each sentence, how near it is, and its translation.

Definition:
    The nearest of several sentences is the one with the largest overlap (`sentence_overlap`); of equal ones, the
    first. The band of an overlap is one of "< 0.5", "0.5–0.65", "0.65–0.8" and "≥ 0.8". The nearest-neighbour copy of
    a sentence is the translation of its nearest training source: what a memory without any model would answer.
Properties:
    - equals comparing with every sentence  (tested: test_the_nearest_equals_the_definition)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_array

from headscope.corpora.parallel.pairs import PairPart
from headscope.corpora.parallel.sentence_overlap import words_of
from headscope.errors import UsageError

BAND_EDGES = (0.5, 0.65, 0.8)
BANDS: tuple[str, ...] = (
    f"< {BAND_EDGES[0]}",
    *(f"{low}–{high}" for low, high in pairwise(BAND_EDGES)),
    f"≥ {BAND_EDGES[-1]}",
)
_ROWS = 256  # sentences that are compared at the same time


@dataclass(frozen=True)
class Nearest:
    """For each sentence the position of the nearest one, and the overlap with it."""

    positions: tuple[int, ...]
    overlaps: tuple[float, ...]

    @property
    def bands(self) -> tuple[str, ...]:
        """The band of each overlap."""
        return tuple(band_of(overlap) for overlap in self.overlaps)


def band_of(overlap: float) -> str:
    """The band in which an overlap lies; a band has its lower edge."""
    return BANDS[sum(overlap >= edge for edge in BAND_EDGES)]


def nearest_sentences(sentences: Sequence[str], candidates: Sequence[str]) -> Nearest:
    """The nearest candidate of each sentence."""
    if not candidates:
        raise UsageError("there is no training sentence to compare with", hint="give a text with training pairs")
    columns: dict[str, int] = {}
    among = _incidence([words_of(candidate) for candidate in candidates], columns)
    n_columns = len(columns)
    word_sets = [words_of(sentence) for sentence in sentences]
    positions, overlaps = list[int](), list[float]()
    transposed, sizes = among.T.tocsr(), np.diff(among.indptr)
    for start in range(0, len(word_sets), _ROWS):
        block = word_sets[start : start + _ROWS]
        common = [frozenset(words & columns.keys()) for words in block]
        shared = (_incidence(common, columns, n_columns) @ transposed).toarray()
        shares = 2 * shared / (np.array([len(words) for words in block])[:, None] + sizes[None, :])
        best = shares.argmax(axis=1)
        positions += best.tolist()
        overlaps += shares[np.arange(len(block)), best].tolist()
    return Nearest(tuple(positions), tuple(overlaps))


def nearest_copies(nearest: Nearest, training: PairPart) -> tuple[str, ...]:
    """The nearest-neighbour copies; `nearest` was taken among the sources of `training`."""
    return tuple(training.pairs[position].target for position in nearest.positions)


def _incidence(word_sets: Sequence[frozenset[str]], columns: dict[str, int], n_columns: int | None = None) -> csr_array:
    """A row per set with ones in the columns of its words; new words get new columns."""
    ends, indices = [0], list[int]()
    for words in word_sets:
        indices += sorted(columns.setdefault(word, len(columns)) for word in words)
        ends.append(len(indices))
    shape = (len(word_sets), len(columns) if n_columns is None else n_columns)
    return csr_array((np.ones(len(indices)), np.array(indices, dtype=np.int64), np.array(ends)), shape=shape)
