"""Cuts a tokenised text into windows of equal length, without padding.

Documents are joined end to end, so a window may hold the end of one document and the beginning of the next; a text of
short documents loses nothing, and every window has the same length.

document tokens:  [CLS] a b c [SEP]   [CLS] d e f g [SEP]
body:             a b c d e f g                           special tokens removed
windows of 5:     [CLS] a b c [SEP]   [CLS] d e f [SEP]   put back around each window
last one:         [CLS] g [SEP]                           on its own, or dropped when it is very short
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.errors import UsageError

# Statistics of rows that see fewer keys than this say little about a head; a lone short text is still used.
SHORTEST_TAIL = 32


@dataclass(frozen=True)
class Windows:
    """Windows of equal length, and at most one shorter last window."""

    full: Int[Tensor, "windows tokens"]
    last: Int[Tensor, "one shorter"] | None
    n_dropped: int

    @property
    def count(self) -> int:
        """How many windows there are."""
        return self.full.shape[0] + (self.last is not None)

    @property
    def length(self) -> int:
        """Tokens of the longest window."""
        return self.full.shape[1] if self.full.shape[0] else 0 if self.last is None else self.last.shape[1]

    @property
    def n_tokens(self) -> int:
        """Tokens of all windows, the special ones included."""
        return self.full.numel() + (0 if self.last is None else self.last.numel())

    def beginning(self, tokens: int) -> "Windows":
        """The first windows that together hold `tokens` tokens.

        The shorter last window comes only where all windows do.
        """
        count = -(-tokens // self.full.shape[1]) if self.full.shape[0] else 0
        if count > self.full.shape[0]:
            return self
        return Windows(self.full[:count], None if count else self.last, self.n_dropped)

    def batches(self, size: int) -> list[Int[Tensor, "_ _"]]:
        """Windows grouped so that each batch has one length."""
        groups = [self.full[start : start + size] for start in range(0, self.full.shape[0], size)]
        return groups if self.last is None else [*groups, self.last]


def cut(documents: Sequence[Sequence[int]], specials: Sequence[int], length: int, most: int | None = None) -> Windows:
    """Cut the joined documents into windows of `length` tokens.

    Args:
        documents: Token ids of each document, with the special tokens that the tokenizer adds.
        specials: The tokens of an empty text: the special tokens alone.
        length: Tokens per window, special ones included.
        most: The largest number of tokens to read, without special ones.
    """
    head, tail = _surroundings(documents, specials)
    room = room_for(length, len(head) + len(tail))
    body = [token for ids in documents for token in ids[len(head) : len(ids) - len(tail)]]
    return windows_in(body[:most], head, tail, room)


def room_for(length: int, n_specials: int) -> int:
    """The number of text tokens in a window of `length`, without special tokens."""
    if length - n_specials < 1:
        raise UsageError(
            f"a window of {length} tokens leaves no room for text: {n_specials} of them are special tokens",
            hint=f"use a window of at least {n_specials + 1} tokens",
        )
    return length - n_specials


def windows_in(body: Sequence[int], head: Sequence[int], tail: Sequence[int], room: int) -> Windows:
    """The windows of a text, each with `room` text tokens between the special ones."""
    if not body:
        raise UsageError("the tokenizer gives no tokens for this text", hint="give a text with words in it")
    pieces = [body[start : start + room] for start in range(0, len(body), room)]
    rows = [[*head, *piece, *tail] for piece in pieces]
    short_row = rows.pop() if len(pieces[-1]) < room else None
    dropped = len(pieces[-1]) if short_row is not None and rows and len(short_row) < SHORTEST_TAIL else 0
    full = torch.tensor(rows, dtype=torch.long).reshape(len(rows), room + len(head) + len(tail))
    last = None if short_row is None or dropped else torch.tensor([short_row], dtype=torch.long)
    return Windows(full, last, dropped)


def _surroundings(documents: Sequence[Sequence[int]], specials: Sequence[int]) -> tuple[list[int], list[int]]:
    """The special tokens before a text and after it."""
    for n_head in range(len(specials), -1, -1):
        head, tail = list(specials[:n_head]), list(specials[n_head:])
        if all(list(ids[:n_head]) == head and list(ids[len(ids) - len(tail) :]) == tail for ids in documents):
            return head, tail
    return [], []
