"""Groups of sequences of similar length, so that little of a batch is padding."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.errors import UsageError


def length_buckets(
    lengths: Int[Tensor, "sequences sides"], tokens: int, generator: torch.Generator
) -> tuple[tuple[int, ...], ...]:
    """The sequences of each batch of an epoch, in random order.

    A batch has at most `tokens` tokens with its padding. Its sequences are neighbours in the order of lengths, in which
    sequences of equal length stand in random order.

    Properties:
        - every sequence is in one batch  (tested: test_buckets_hold_every_sequence_once)
        - no batch exceeds its tokens  (tested: test_no_bucket_exceeds_its_tokens)
        - the order depends on the seed alone  (tested: test_buckets_depend_on_the_seed)
    """
    shuffled = torch.randperm(len(lengths), generator=generator)
    order = shuffled[lengths[shuffled].sum(dim=1).sort(stable=True).indices]
    buckets = _filled(order.tolist(), lengths[order].tolist(), tokens)
    return tuple(buckets[index] for index in torch.randperm(len(buckets), generator=generator).tolist())


def check_lengths(lengths: Int[Tensor, "sequences sides"], tokens: int) -> None:
    """Refuse no sequences, empty ones, and those that exceed a batch."""
    if not len(lengths):
        raise UsageError("there are no sequences to make batches of")
    if int(lengths.min()) < 1:
        raise UsageError(f"sequence {int(lengths.min(dim=1).values.argmin())} is empty", hint="leave empty ones out")
    sizes = lengths.sum(dim=1)
    if int(sizes.max()) > tokens:
        raise UsageError(
            f"sequence {int(sizes.argmax())} has {int(sizes.max())} tokens, and a batch at most {tokens}",
            hint="leave long sequences out, or allow more tokens per batch",
        )


def _filled(order: Sequence[int], lengths: Sequence[Sequence[int]], tokens: int) -> list[tuple[int, ...]]:
    buckets: list[tuple[int, ...]] = []
    bucket: list[int] = []
    longest = [0] * len(lengths[0])
    for index, sides in zip(order, lengths, strict=True):
        longest_with = [max(pair) for pair in zip(longest, sides, strict=True)]
        if bucket and (len(bucket) + 1) * sum(longest_with) > tokens:
            buckets.append(tuple(bucket))
            bucket, longest_with = [], list(sides)
        bucket.append(index)
        longest = longest_with
    return [*buckets, tuple(bucket)]
