"""The tokens that begin, end and pad a text, as a model names them."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from headscope.errors import UsageError


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens that decoding must know.

    `start` is the first token of the decoder of an encoder–decoder. Tokens in `forbidden` are never written.
    """

    ends: tuple[int, ...]
    padding: int
    start: int | None = None
    forbidden: tuple[int, ...] = ()


def special_tokens(model: nn.Module) -> SpecialTokens:
    """The special tokens of a model, from its generation_config and its configuration.

    A model without padding is padded with its end token: a mask hides it.

    Raises:
        UsageError: The decoder of an encoder–decoder has no first token.
    """
    ends = _listed(_named(model, "eos_token_id"))
    padding = _named(model, "pad_token_id")
    start = _named(model, "decoder_start_token_id")
    if is_encoder_decoder(model) and start is None:
        raise UsageError(
            f"the configuration of {type(model).__name__} names no first token for its decoder",
            hint="set decoder_start_token_id in its configuration",
        )
    words = _named(model, "bad_words_ids") or []
    forbidden = tuple(int(word[0]) for word in words if len(word) == 1)
    return SpecialTokens(ends, int(padding) if padding is not None else (*ends, 0)[0], start, forbidden)


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether a model reads with one stack and writes with another."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _named(model: nn.Module, name: str) -> Any:
    for settings in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        value = getattr(settings, name, None)
        if value is not None:
            return value
    return None


def _listed(tokens: Any) -> tuple[int, ...]:
    if tokens is None:
        return ()
    return tuple(tokens) if isinstance(tokens, (list, tuple)) else (int(tokens),)
