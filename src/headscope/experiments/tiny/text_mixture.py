"""Batches of text with cycles and repeated passages among them, in rows that grow with the training.

Definition:
    Rows are windows of the text (`TextWindows`). In nine of ten the token that begins a text takes the place of the
    first token. With probability 0.12 a row holds a cycle instead, with 0.06 a passage of 8 tokens to half the row,
    over and over.
Properties:
    - the rows grow with the used share of the budget  (tested: test_rows_grow_with_the_budget)
    - rows of each kind come as often as they should  (tested: test_a_mixture_has_its_shares)
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.corpora.byte_pair_tokenizer import BOS_ID
from headscope.experiments.tiny.token_cycles import after_start, cycles
from headscope.training import Batch, Place, TextWindows
from headscope.training.batches.seeds import generator_of

TOKENS_PER_STEP = 2048
# The used share of the budget from which on rows have a length.
LENGTHS = ((0.0, 128), (0.45, 256), (0.70, 512), (0.92, 1024))
CYCLE_SHARE = 0.12
REPEATED_SHARE = 0.06
WITHOUT_START = 0.1
SHORTEST_PASSAGE = 8
_KINDS = 1  # stream of random numbers


class TextMixture:
    """Batches of text, cycles and repeated passages; the kind of each row is drawn."""

    def __init__(self, tokens: Int[Tensor, " tokens"], *, vocabulary: int, seed: int) -> None:
        self._vocabulary, self._seed = vocabulary, seed
        self._windows = {
            length: TextWindows(tokens, length=length, rows=TOKENS_PER_STEP // length, seed=seed)
            for _, length in LENGTHS
        }

    def identity(self) -> Mapping[str, Any]:
        """The text, the lengths and the shares."""
        return {
            "name": "text mixture",
            "windows": {str(length): dict(windows.identity()) for length, windows in self._windows.items()},
            "lengths": [list(stage) for stage in LENGTHS],
            "shares": [CYCLE_SHARE, REPEATED_SHARE, WITHOUT_START],
            "vocabulary": self._vocabulary,
            "seed": self._seed,
        }

    def batches_in(self, epoch: int) -> int:
        """How many full batches there are, whatever their length."""
        return min(windows.batches_in(epoch) for windows in self._windows.values())

    def batch(self, place: Place) -> Batch:
        """The batch at a place."""
        length = row_length(place.share)
        text = self._windows[length].batch(replace(place, share=0.0))
        inputs, labels = text["input_ids"].clone(), text["labels"].clone()
        rows = len(inputs)
        generator = generator_of(self._seed, _KINDS, place.epoch, place.position)
        kind_draw, start_draw = torch.rand(2, rows, generator=generator)
        inputs[start_draw >= WITHOUT_START, 0] = BOS_ID
        is_cycle, is_repeated = kind_draw < CYCLE_SHARE, kind_draw >= 1.0 - REPEATED_SHARE
        if is_cycle.any():
            walk = cycles(int(is_cycle.sum()), length, self._vocabulary, generator)
            inputs[is_cycle], labels[is_cycle] = walk["input_ids"], walk["labels"]
        for row in is_repeated.nonzero()[:, 0].tolist():
            labels[row] = repeated_passage(labels[row], generator)
            inputs[row] = after_start(labels[row : row + 1])[0]
        return {"input_ids": inputs, "labels": labels}


def row_length(share: float) -> int:
    """The length of rows when a share of the budget is used up."""
    return [length for start, length in LENGTHS if share >= start][-1]


def repeated_passage(text: Int[Tensor, " tokens"], generator: torch.Generator) -> Int[Tensor, " tokens"]:
    """The beginning of a text, over and over, as long as the text."""
    period = int(torch.randint(SHORTEST_PASSAGE, len(text) // 2 + 1, (), generator=generator))
    return text[torch.arange(len(text)) % period]
