"""Held-out text in windows that do not overlap, each read after the token that begins a text.

Properties:
    - every token of the windows is predicted once  (tested: test_every_held_out_token_is_predicted_once)
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from headscope.errors import UsageError
from headscope.training import Batch, NextToken, Place

TOKENS_PER_BATCH = 8192


class HeldOutWindows:
    """The full windows of a text, or evenly spaced ones: no fewer than `least`, where the text has as many."""

    def __init__(self, tokens: Int[Tensor, " tokens"], *, length: int, start: int, least: int | None = None) -> None:
        count = len(tokens) // length
        if not count:
            raise UsageError(
                f"the held-out text has {len(tokens)} tokens, expected at least the {length} of a window",
                hint="give more text",
            )
        windows = tokens[: count * length].reshape(count, length)
        spacing = 1 if least is None else max(1, count // least)
        self._windows, self._start = windows[::spacing], start
        self._rows = max(1, TOKENS_PER_BATCH // length)

    def identity(self) -> Mapping[str, Any]:
        """The digest of the windows."""
        digest = hashlib.sha256(self._windows.contiguous().numpy().tobytes()).hexdigest()
        return {"name": "held-out windows", "shape": list(self._windows.shape), "sha256": digest}

    def batches_in(self, epoch: int) -> int:
        """How many batches hold all windows."""
        return -(-len(self._windows) // self._rows)

    def batch(self, place: Place) -> Batch:
        """The batch at a place."""
        labels = self._windows[place.position * self._rows :][: self._rows]
        inputs = labels.roll(1, dims=1)
        inputs[:, 0] = self._start
        return {"input_ids": inputs, "labels": labels}


@torch.no_grad()
def summed_nats(network: nn.Module, windows: HeldOutWindows) -> tuple[float, int]:
    """The negative log-likelihood of all tokens, and how many there are."""
    losses = [NextToken().loss(network, windows.batch(Place(0, turn))) for turn in range(windows.batches_in(0))]
    return sum(float(loss.nats) for loss in losses), sum(loss.n_predicted for loss in losses)
