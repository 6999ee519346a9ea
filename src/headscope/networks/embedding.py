r"""The vectors of tokens: a row of a table, times $\sqrt{d}$ where the configuration asks for it, and its position."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscope.networks.positions import LearntPositions, Positions, SinusoidalPositions


class TokenEmbedding(nn.Embedding):
    """A table of vectors, multiplied by a fixed scale as they are read."""

    def __init__(self, vocabulary: int, width: int, embed_scale: float) -> None:
        super().__init__(vocabulary, width)
        self.embed_scale = embed_scale

    def forward(self, input: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens d_model"]:
        """The scaled vectors of some tokens."""
        vectors = super().forward(input)
        return vectors if self.embed_scale == 1.0 else vectors * self.embed_scale


def token_embedding(config: Any) -> TokenEmbedding:
    """The table of a configuration."""
    scale = config.hidden_size**0.5 if config.scale_embedding else 1.0
    return TokenEmbedding(config.vocab_size, config.hidden_size, scale)


def position_table(config: Any) -> LearntPositions | SinusoidalPositions | None:
    """What is added to token vectors to tell positions; None where positions are rotary or none."""
    if config.positions == "learnt":
        return LearntPositions(config.max_position_embeddings, config.hidden_size)
    return SinusoidalPositions(config.hidden_size) if config.positions == "sinusoidal" else None


def placed(
    vectors: Float[Tensor, "batch tokens d_model"],
    positions: Positions,
    table: LearntPositions | SinusoidalPositions | None,
) -> Float[Tensor, "batch tokens d_model"]:
    """The vectors of tokens with those of their positions added."""
    if table is None:
        return vectors
    added: torch.Tensor = vectors + table(positions, vectors.dtype)
    return added
