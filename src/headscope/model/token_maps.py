"""The tokens of a text as a model reads them, and the pattern of one head on it."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headscope.core.card import listed
from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.core.token_map import TokenMap
from headscope.errors import CaptureError, UsageError
from headscope.model.language import encode
from headscope.model.token_spelling import spelled_tokens

if TYPE_CHECKING:
    from headscope.model.model import Model

# A token is spelled with the tokens before it, so a long text is spelled in pieces. They overlap by more tokens than a
# character can have.
_PIECE, _OVERLAP = 256, 16


def token_texts(model: "Model", text: str) -> list[str]:
    """The tokens of a text as strings, special ones included.

    A token begins with a blank where a blank begins its word, whatever the tokenizer writes there (`Ġ`, `▁`, `##`).
    Special tokens are spelled as the tokenizer names them; so is a token that is only a part of a character.

    Raises:
        UsageError: The model has no tokenizer, or the text is empty.
    """
    return _spelled(model.tokenizer, encode(model, text).tolist())


def spelled_ids(model: "Model", ids: Sequence[int]) -> tuple[str, ...]:
    """The tokens with these ids as strings, as `token_texts` spells them."""
    return tuple(_spelled(model.tokenizer, ids))


def head_pattern(model: "Model", text: str, at: Selection | str) -> TokenMap:
    """The attention pattern of one head on a text, with its tokens.

    Definition:
        Row q holds what query q gives to each key: the softmax of its scores, after the mask.
    An encoder–decoder reads the text on both sides: rows of its cross-attention are tokens of the decoder, columns
    are tokens of the encoder.

    Raises:
        UsageError: The selection is not of one head, the text is longer than the context, or the model reads no text.
    """
    site, head = _single_head(model, at)
    if not model.reads_tokens:
        raise UsageError(f"{model.spec.name} ({model.spec.architecture}) does not read text alone")
    ids = encode(model, text)
    _check_length(model, len(ids))
    place = Selection.at(layers=site.layer, heads=head, stack=site.stack, kind=site.kind)
    with model.session() as session:
        capture = session.capture("pattern", at=place)
        session.run(ids[None])
        pattern = capture.take()["pattern"][site][0, 0]
    return _token_map(pattern, _spelled(model.tokenizer, ids.tolist()), f"{site.head_label(head)} of {model.spec.name}")


def _token_map(pattern: Tensor, tokens: list[str], head: str) -> TokenMap:
    n_queries, n_keys = pattern.shape
    if (n_queries, n_keys) != (len(tokens), len(tokens)):
        raise CaptureError(
            f"the pattern of {head} has {n_queries} queries and {n_keys} keys, but the text has {len(tokens)} tokens: "
            "which token is which is not known",
            hint="capture the pattern in a session",
        )
    values = pattern.cpu() if pattern.dtype in (torch.float32, torch.float64) else pattern.float().cpu()
    return TokenMap(values.numpy(), tokens, tokens, f"attention pattern of {head}")


def _single_head(model: "Model", at: Selection | str) -> tuple[Site, int]:
    """The one head that is meant; a label as it is printed means that head alone."""
    for site in model.sites:
        for head in range(site.n_heads):
            if at == site.head_label(head):
                return site, head
    selection = Selection.of(at)
    heads = [(site, head) for site, heads in selection.resolve(model.sites).items() for head in heads]
    if len(heads) > 1:
        labels = [site.head_label(head) for site, head in heads]
        raise UsageError(
            f"a pattern is that of one head, and {selection.text!r} selects {len(labels)} heads: {listed(labels)}",
            hint=f"name one of them, e.g. {labels[0]!r}; `session.capture` gives the patterns of many",
        )
    return heads[0]


def _check_length(model: "Model", n_tokens: int) -> None:
    context = model.spec.context
    if context is not None and n_tokens > context:
        raise UsageError(
            f"the text has {n_tokens} tokens, but {model.spec.name} reads at most {context}", hint="give a shorter text"
        )


def _spelled(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The texts of tokens; between special tokens they are spelled as one text."""
    special = set(tokenizer.all_special_ids)
    texts: list[str] = []
    for is_special, group in itertools.groupby(ids, lambda token: token in special):
        tokens = list(group)
        spellings = [""] * len(tokens) if is_special else _ordinary(tokenizer, tokens)
        texts += [spelling or _entry(tokenizer, token) for token, spelling in zip(tokens, spellings, strict=True)]
    return texts


def _ordinary(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    spellings: list[str] = []
    for start in range(0, len(tokens), _PIECE):
        before = min(start, _OVERLAP)
        spellings += spelled_tokens(tokenizer, tokens[start - before : start + _PIECE])[before:]
    return spellings


def _entry(tokenizer: Any, token: int) -> str:
    """The name of a token in the vocabulary; its number where it has none."""
    return str(tokenizer.convert_ids_to_tokens(token) or f"#{token}")
