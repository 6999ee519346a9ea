r"""Splits pairs into train, valid and test, so that no near-duplicate of a test sentence is trained on.

Definition:
    Two pairs are connected when their sources or their targets are nearly the same (`sentence_overlap`). The sets of
    pairs that are connected, directly or through others, are the groups. The sha256 of the smallest key of a group
    gives a number $u \in [0, 1)$, and that number decides for all of its pairs: train [0, 0.9), valid [0.9, 0.94),
    test [0.94, 1). The key of a pair is its two sentences without regard to case.
Properties:
    - near-duplicates on either side are never in two splits  (tested: test_no_near_duplicate_is_in_two_splits)
    - the order of the pairs changes nothing  (tested: test_the_order_of_the_pairs_changes_nothing)
    - both directions have the same splits  (tested: test_both_directions_have_the_same_splits)
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from headscope.corpora.parallel.pairs import PAIR_SPLITS, Pair, PairSplit
from headscope.corpora.parallel.sentence_overlap import near_duplicates
from headscope.errors import UsageError

PAIR_SHARES: dict[PairSplit, float] = {"train": 0.9, "valid": 0.04, "test": 0.06}


def groups_of(pairs: Sequence[Pair]) -> tuple[int, ...]:
    """The group of each pair, numbered in the order in which groups come first."""
    links = [
        *near_duplicates([pair.source for pair in pairs]),
        *near_duplicates([pair.target for pair in pairs]),
    ]
    first, second = np.array(links, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(links), dtype=np.int8), (first, second)), shape=(len(pairs), len(pairs)))
    labels = connected_components(graph, directed=False)[1].tolist()
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return tuple(numbers[label] for label in labels)


def pair_splits(pairs: Sequence[Pair], groups: Sequence[int], name: str) -> tuple[PairSplit, ...]:
    """The split of each pair.

    Raises:
        UsageError: A split would be empty.
    """
    smallest_key: dict[int, str] = {}
    for pair, group in zip(pairs, groups, strict=True):
        smallest_key[group] = min(smallest_key.get(group, _key(pair)), _key(pair))
    split_by_group = {group: _split_of(key) for group, key in smallest_key.items()}
    splits = tuple(split_by_group[group] for group in groups)
    if set(splits) != set(PAIR_SPLITS):
        counts = ", ".join(f"{splits.count(split)} in {split}" for split in PAIR_SPLITS)
        raise UsageError(
            f"{name} is too short to be split: its {len(pairs)} pairs in {len(smallest_key)} groups of near-duplicates "
            f"give {counts}; expected some in each",
            hint="give the whole text, a few hundred pairs at least; a part of it falls into the same split again",
        )
    return splits


def _key(pair: Pair) -> str:
    # The smaller side first, so that both directions have the same key.
    return "\t".join(sorted((pair.source.casefold(), pair.target.casefold())))


def _split_of(key: str) -> PairSplit:
    u = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) / 2**64
    edge = 0.0
    for split, share in PAIR_SHARES.items():
        edge += share
        if u < edge:
            return split
    return PAIR_SPLITS[-1]
