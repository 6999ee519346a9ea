"""The ids of the tokens that texts are made of, and of the token that begins them."""

import re
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

# Entries that a vocabulary holds in reserve: [unused7], <unused7>, <|reserved_7|>, <extra_id_7>, madeupword0007.
_RESERVED = re.compile(r"[<\[]\|?(unused|reserved|extra|dummy|placeholder)[\w ]*\|?[>\]]|madeupword\d+", re.IGNORECASE)


def ordinary_token_ids(tokenizer: Any | None, vocabulary: int) -> Int[Tensor, " ids"]:
    """The ids of all tokens but special and unused ones, in rising order.

    Without a tokenizer nothing tells them apart: all ids that the model embeds.

    Args:
        tokenizer: The model's tokenizer, if it has one.
        vocabulary: The number of rows of the embedding; ids beyond it are left out.
    """
    if tokenizer is None:
        return torch.arange(vocabulary)
    special = {*tokenizer.all_special_ids, *_added_special_ids(tokenizer)}
    ids = {
        token
        for name, token in tokenizer.get_vocab().items()
        if token < vocabulary and token not in special and not _RESERVED.fullmatch(name)
    }
    return torch.tensor(sorted(ids), dtype=torch.long)


def first_token_id(tokenizer: Any | None, vocabulary: int) -> int | None:
    """The id of the token that begins a text (bos, or cls in encoders); None where the tokenizer has none."""
    for name in ("bos_token_id", "cls_token_id"):
        token = getattr(tokenizer, name, None)
        if isinstance(token, int) and 0 <= token < vocabulary:
            return token
    return None


def _added_special_ids(tokenizer: Any) -> list[int]:
    """Ids of further special tokens, such as the roles of a chat."""
    return [token for token, added in tokenizer.added_tokens_decoder.items() if added.special]
