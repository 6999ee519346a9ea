"""Batches of sequences, or of pairs of them, by a budget of tokens."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.errors import UsageError
from headscope.training.batches.batch_source import Place
from headscope.training.batches.length_buckets import check_lengths, length_buckets
from headscope.training.batches.seeds import generator_of
from headscope.training.objectives.objective import IGNORED, Batch

Ids = Sequence[Sequence[int]]


class SequenceBatches:
    """Sequences of similar length, each once in an epoch.

    With targets a batch has `input_ids`, `attention_mask` and `labels`, without them the first two.
    """

    def __init__(self, ids: Ids, *, tokens: int, padding: int, seed: int = 0, targets: Ids | None = None) -> None:
        sides = (ids,) if targets is None else (ids, targets)
        if targets is not None and len(targets) != len(ids):
            raise UsageError(f"there are {len(ids)} source sequences and {len(targets)} target sequences")
        self._sides, self._tokens, self._padding, self._seed = sides, tokens, padding, seed
        self._lengths = torch.tensor([[len(row) for row in side] for side in sides], dtype=torch.long).T
        check_lengths(self._lengths, tokens)
        self._plan: tuple[int, tuple[tuple[int, ...], ...]] = (-1, ())  # of the present epoch

    def identity(self) -> Mapping[str, Any]:
        """The digest of all sequences, and how they are cut into batches."""
        digest = hashlib.sha256(b"".join(_bytes(side) for side in self._sides)).hexdigest()
        return {
            "name": "sequences",
            "sequences": len(self._sides[0]),
            "sides": len(self._sides),
            "tokens_per_batch": self._tokens,
            "padding": self._padding,
            "seed": self._seed,
            "sha256": digest,
        }

    def batches_in(self, epoch: int) -> int:
        """How many batches an epoch has."""
        return len(self._buckets(epoch))

    def batch(self, place: Place) -> Batch:
        """The batch at a place."""
        bucket = self._buckets(place.epoch)[place.position]
        rows = [self._sides[0][index] for index in bucket]
        ids, mask = padded(rows, self._padding), padded([[1] * len(row) for row in rows], 0)
        batch = {"input_ids": ids, "attention_mask": mask}
        if len(self._sides) == 1:
            return batch
        return batch | {"labels": padded([self._sides[1][index] for index in bucket], IGNORED)}

    def _buckets(self, epoch: int) -> tuple[tuple[int, ...], ...]:
        if self._plan[0] != epoch:
            self._plan = epoch, length_buckets(self._lengths, self._tokens, generator_of(self._seed, epoch))
        return self._plan[1]


def padded(rows: Ids, padding: int) -> Int[Tensor, "batch tokens"]:
    """Rows of different length as a tensor, padded on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows], dtype=torch.long)


def _bytes(side: Ids) -> bytes:
    return repr([list(row) for row in side]).encode()
