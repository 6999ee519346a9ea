"""Pairs as a text on which a model can be judged: the nats of translations, group by group."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.corpora.byte_pair_tokenizer import BOS_ID, PAD_ID
from headscope.model.model import Model
from headscope.training.batches.sequences import padded
from headscope.training.objectives.objective import IGNORED
from headscope.training.objectives.sequence_to_sequence import shifted

_BATCH = 64  # pairs of similar length


@dataclass(frozen=True)
class PairText:
    """Sources and translations as numbers of tokens, with groups of near-duplicates.

    Its parts are the groups: two variants of a sentence are no two observations.
    """

    sources: Sequence[Sequence[int]]
    targets: Sequence[Sequence[int]]
    groups: Sequence[int]

    @cached_property
    def tokens(self) -> Float[Tensor, " groups"]:
        """How many tokens of the translations of each group are predicted."""
        return self._sums([float(len(target)) for target in self.targets])

    def nats(self, model: Model) -> Float[Tensor, " groups"]:
        """The nats of the translations of each group.

        Properties:
            - those of single pairs  (tested: test_the_nats_of_pairs_are_those_of_single_pairs)
        """
        by_pair = [0.0] * len(self.targets)
        for indices in self._batches():
            for index, nats in zip(indices, self._nats_of(model, indices).tolist(), strict=True):
                by_pair[index] = nats
        return self._sums(by_pair)

    def _batches(self) -> Iterator[list[int]]:
        order = sorted(range(len(self.targets)), key=lambda index: (len(self.targets[index]), len(self.sources[index])))
        for start in range(0, len(order), _BATCH):
            yield order[start : start + _BATCH]

    def _nats_of(self, model: Model, indices: Sequence[int]) -> Float[Tensor, " pairs"]:
        sources, targets = ([rows[index] for index in indices] for rows in (self.sources, self.targets))
        labels = padded(targets, IGNORED)
        network: Any = model.hf
        with torch.no_grad():
            logits = network(
                input_ids=padded(sources, PAD_ID),
                attention_mask=padded([[1] * len(row) for row in sources], 0),
                decoder_input_ids=shifted(labels, BOS_ID, PAD_ID),
                use_cache=False,
            ).logits
        log_p = torch.log_softmax(logits.double(), dim=-1)
        is_label = labels != IGNORED
        return -log_p.gather(2, labels.where(is_label, 0)[..., None])[..., 0].where(is_label, 0.0).sum(1)

    def _sums(self, by_pair: Sequence[float]) -> Float[Tensor, " groups"]:
        """Numbers of pairs, summed over each group."""
        number: Int[Tensor, " pairs"] = torch.unique(torch.tensor(list(self.groups)), return_inverse=True)[1]
        sums = torch.zeros(int(number.max()) + 1, dtype=torch.float64)
        return sums.index_add_(0, number, torch.tensor(list(by_pair), dtype=torch.float64))
