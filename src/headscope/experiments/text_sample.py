"""What experiments run a model on: splits of a text, and windows of tokens evenly spread over it."""

from array import array

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.corpora import Text, Windows
from headscope.corpora.splits import SPLITS, Split, part_of, splits_of
from headscope.corpora.text_argument import names, with_splits
from headscope.corpora.windows import room_for, windows_in
from headscope.model.model import Model
from headscope.model.token_ids import check_token_ids
from headscope.model.token_pieces import SAMPLE, surroundings_of, token_pieces

Tokens = Int[Tensor, " _"]


def split_parts(text: Text) -> dict[Split, Text]:
    """The three splits of a whole text; those of a named text are what `NAME:test` gives."""
    if text.name in names():
        full_text, splits = with_splits(text.name)
    else:
        full_text, splits = text, splits_of(text.documents)
    return {split: part_of(full_text, splits, split) for split in SPLITS}


def windows_of(model: Model, text: Text, length: int) -> Windows:
    """The windows of a text, which is tokenised piece by piece: a token takes four bytes while they are gathered."""
    sample = next((part for parts in text.streams() for part in parts), "")[:SAMPLE]
    surroundings = surroundings_of(model.tokenizer, sample)
    body = array("i")
    for parts in text.streams():
        for piece in token_pieces(model.tokenizer, parts, surroundings):
            body.extend(piece)
    check_token_ids(torch.tensor([max(body, default=0)]), model.spec)
    return windows_in(body, surroundings.head, surroundings.tail, room_for(length, surroundings.count))


def spread(windows: Windows, count: int) -> tuple[Tokens, ...]:
    """`count` full windows, evenly spread; the shorter window where no full one exists."""
    n = windows.full.shape[0]
    if n == 0:
        return () if windows.last is None else (windows.last[0],)
    picked = sorted({round(i * n / min(count, n)) for i in range(min(count, n))})
    return tuple(windows.full[index] for index in picked)
