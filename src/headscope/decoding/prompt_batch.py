"""Prompts of different length as one batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor, nn

from headscope.decoding.special_ids import is_encoder_decoder
from headscope.errors import UsageError

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class PromptBatch:
    """Padded prompts; without a mask where none is padded."""

    ids: Int[Tensor, "prompts tokens"]
    mask: Int[Tensor, "prompts tokens"] | None


def prompt_batch(prompts: Prompts, padding: int, *, left: bool, device: torch.device) -> PromptBatch:
    """Prompts as tensors, padded on the left or on the right."""
    longest = max(map(len, prompts))
    ids, mask = [], []
    for prompt in prompts:
        gap, text = [padding] * (longest - len(prompt)), list(prompt)
        ids.append(gap + text if left else text + gap)
        mask.append([0] * len(gap) + [1] * len(text) if left else [1] * len(text) + [0] * len(gap))
    is_padded = min(map(len, prompts)) < longest
    return PromptBatch(torch.tensor(ids, device=device), torch.tensor(mask, device=device) if is_padded else None)


def check_prompts(model: nn.Module, prompts: Prompts, most_tokens: int) -> None:
    """Refuse prompts that a model cannot read.

    Raises:
        UsageError: A prompt is empty, holds a token that the model lacks, or leaves no room for `most_tokens`.
    """
    if most_tokens < 1:
        raise UsageError(f"at least 1 token must be written, got {most_tokens}")
    config = getattr(model, "config", None)
    vocabulary, context = getattr(config, "vocab_size", None), getattr(config, "max_position_embeddings", None)
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise UsageError(f"prompt {number} is empty", hint="a model needs at least one token to read")
        if vocabulary is not None and not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise UsageError(
                f"prompt {number} holds tokens from {min(prompt)} to {max(prompt)}, and the model has {vocabulary}",
                hint="use the tokenizer of this model",
            )
        needed = max(len(prompt), most_tokens) if is_encoder_decoder(model) else len(prompt) + most_tokens
        if context is not None and needed > context:
            raise UsageError(
                f"prompt {number} has {len(prompt)} tokens and {most_tokens} are to be written, "
                f"but the model has {context} positions",
                hint="shorten the prompt, or write fewer tokens",
            )
