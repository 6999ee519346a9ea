"""Batches of windows of one long text, for the prediction of the next token."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.errors import UsageError
from headscope.training.batches.batch_source import Place
from headscope.training.batches.seeds import generator_of
from headscope.training.objectives.objective import Batch


class TextWindows:
    """Windows of a text that do not overlap, each once in an epoch, in random order.

    They begin at another offset in each epoch. The labels are the text one token later.
    """

    def __init__(self, tokens: Int[Tensor, " tokens"], *, length: int, rows: int, seed: int = 0) -> None:
        if length < 1 or rows < 1 or len(tokens) < length * (rows + 1):
            raise UsageError(
                f"a text of {len(tokens)} tokens is too short for batches of {rows} windows of {length} tokens",
                hint=f"it needs {length * (rows + 1)} tokens: give more text, or fewer or shorter windows",
            )
        self._tokens, self._length, self._rows, self._seed = tokens, length, rows, seed

    def identity(self) -> Mapping[str, Any]:
        """The digest of the text, and how it is cut into batches."""
        return {
            "name": "text windows",
            "tokens": len(self._tokens),
            "length": self._length,
            "rows": self._rows,
            "seed": self._seed,
            "sha256": hashlib.sha256(self._tokens.long().numpy().tobytes()).hexdigest(),
        }

    def batches_in(self, epoch: int) -> int:
        """How many full batches there are, whatever the offset."""
        return (len(self._tokens) - self._length) // (self._length * self._rows)

    def batch(self, place: Place) -> Batch:
        """The batch at a place."""
        generator = generator_of(self._seed, place.epoch)
        offset = int(torch.randint(self._length, (), generator=generator))
        windows = torch.randperm((len(self._tokens) - 1 - offset) // self._length, generator=generator)
        index = windows[place.position * self._rows :][: self._rows]
        positions = offset + index[:, None] * self._length + torch.arange(self._length + 1)
        text = self._tokens[positions]
        return {"input_ids": text[:, :-1], "labels": text[:, 1:]}
