r"""Splits documents into fit, search and test, so that no test text is fitted to.

Definition:
    The sha256 of a document's key gives a number $u \in [0, 1)$, and that number decides the split:
    fit [0, 0.7), search [0.7, 0.85), test [0.85, 1). The key is the document itself, without regard to case and
    white space, or its name in its source (the page of a book that exists in several languages).
    Documents that are nearly the same or have the same key form a group; its smallest key decides for all.
    Two documents are nearly the same when a quarter of the runs of eight words of the shorter occur in the other.
Properties:
    - every document is in exactly one split  (tested: test_every_document_is_in_exactly_one_split)
    - the order of the documents changes nothing  (tested: test_the_order_of_the_documents_changes_nothing)
    - other documents change nothing, unless they are near-duplicates  (tested: test_strangers_change_nothing)
    - near-duplicates are never in two splits  (tested: test_near_duplicates_stay_together)
Numerics:
    Texts of more than a million words are compared on a sample of their runs of words, the same one everywhere.
"""

import hashlib
import re
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from typing import Literal, get_args

from headscope.corpora.text import Text
from headscope.errors import UsageError

Split = Literal["fit", "search", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
SHARES: dict[Split, float] = {"fit": 0.7, "search": 0.15, "test": 0.15}

RUN_WORDS = 8
SHARED = 0.25
# A run that more documents share is compared between neighbours only, or the number of pairs would explode.
COMMONPLACE = 64
_MAX_WORDS = 1_000_000
# Scripts that do not separate words: each sign counts as one.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]|\w+")


def split_of(key: str) -> Split:
    """The split for a key; `splits_of` also considers near-duplicates."""
    u = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) / 2**64
    edge = 0.0
    for split, share in SHARES.items():
        edge += share
        if u < edge:
            return split
    return SPLITS[-1]


def splits_of(documents: Sequence[str], keys: Sequence[str] | None = None) -> tuple[Split, ...]:
    """The split of each document.

    `keys` are the names of the documents in their source, where these say more than the words.
    """
    document_keys = [_key(document) for document in documents] if keys is None else list(keys)
    # Sorted, so that the order of the arguments cannot matter.
    order = sorted(range(len(document_keys)), key=lambda index: (document_keys[index], documents[index]))
    same = [(a, b) for a, b in pairwise(order) if document_keys[a] == document_keys[b]]
    groups = _groups(len(document_keys), [*same, *_near_duplicates(documents, order)])
    smallest_key: dict[int, str] = {}
    for key, group in zip(document_keys, groups, strict=True):
        smallest_key[group] = min(smallest_key.get(group, key), key)
    return tuple(split_of(smallest_key[group]) for group in groups)


def part_of(text: Text, splits: Sequence[Split], split: Split) -> Text:
    """The documents of one split, in their order."""
    documents = tuple(
        document for document, document_split in zip(text.documents, splits, strict=True) if document_split == split
    )
    if not documents:
        counts = ", ".join(f"{splits.count(name)} in {name}" for name in SPLITS)
        raise UsageError(
            f"{text.name}: no document is in the split {split!r} ({counts})",
            hint="give a text of more documents: a line `***` separates them",
        )
    return Text(f"{text.name}:{split}", documents)


def checked_split(name: str) -> Split:
    """Check the name of a split; the error lists all splits."""
    if name not in SPLITS:
        raise UsageError(f"there is no split {name!r}", hint=f"the splits are {', '.join(SPLITS)}")
    return name


def _key(document: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", document).casefold().split())


def _near_duplicates(documents: Sequence[str], order: Sequence[int]) -> list[tuple[int, int]]:
    words = [_WORD.findall(document.casefold()) for document in documents]
    every = 1 + sum(map(len, words)) // _MAX_WORDS
    runs = [_runs(document_words, every) for document_words in words]
    where: dict[int, list[int]] = defaultdict(list)
    for index in order:
        for run in runs[index]:
            where[run].append(index)
    shared = Counter(pair for holders in where.values() for pair in _pairs(holders))
    return [(a, b) for (a, b), count in shared.items() if count >= SHARED * min(len(runs[a]), len(runs[b]))]


def _pairs(holders: Sequence[int]) -> Iterable[tuple[int, int]]:
    return combinations(holders, 2) if len(holders) <= COMMONPLACE else pairwise(holders)


def _runs(words: Sequence[str], every: int) -> set[int]:
    """Hashes of all runs of eight words, or of one in `every`.

    A shorter document is one run.
    """
    starts = range(max(1, len(words) - RUN_WORDS + 1))
    hashes = (zlib.crc32(" ".join(words[start : start + RUN_WORDS]).encode()) for start in starts)
    return {run_hash for run_hash in hashes if run_hash % every == 0}


def _groups(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """A group number per document, the same for connected documents."""
    parent = list(range(count))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for a, b in pairs:
        parent[root(a)] = root(b)
    return [root(index) for index in range(count)]
