r"""Where a token stands: sinusoidal, learnt and rotary positions.

Sinusoidal (Conti, The Math behind transformers, 1.2.1): entry 2t of the vector of position i is $\sin(i\,\omega_t)$ and
entry 2t + 1 is $\cos(i\,\omega_t)$, with $\omega_t = 10000^{-2t/d}$. Rotary: the pair (t, t + d/2) of a query or key at
position i is turned by the angle $i\,\omega_t$, so that products depend on differences of positions alone.

Positions count real tokens: what stands in front as padding has none, so a padded text is read like the bare one.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscope.errors import UsageError

Positions = Int[Tensor, "rows tokens"]
Angles = Float[Tensor, "rows tokens pairs"]


def frequencies(width: int, base: float, device: torch.device) -> Float[Tensor, " pairs"]:
    """The frequency of each pair of channels, in float64."""
    pairs = torch.arange(0, width, 2, device=device, dtype=torch.float64)
    return base ** (-pairs / width)


def token_positions(mask: Int[Tensor, "batch keys"] | None, first: int, like: Tensor) -> Positions:
    """The positions of the last tokens of a text, as many as `like` has (batch × tokens × …).

    `mask` is 0 at padding; `first` is the number of tokens before them.
    """
    tokens = like.shape[1]
    if mask is None:
        return torch.arange(first, first + tokens, device=like.device)[None]
    return (mask.long().cumsum(dim=1) - 1).clamp_min(0)[:, -tokens:]


class SinusoidalPositions(nn.Module):
    """The sinusoidal vectors, computed when they are needed: any length can be read.

    Properties:
        - they are the formula  (tested: test_sinusoidal_positions_are_the_formula)
    """

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__()
        self.width, self.base = width, base

    def forward(self, positions: Positions, dtype: torch.dtype) -> Float[Tensor, "rows tokens d_model"]:
        """The vectors of these positions."""
        angles = positions[..., None] * frequencies(self.width, self.base, positions.device)
        vectors = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return vectors[..., : self.width].to(dtype)


class LearntPositions(nn.Module):
    """A table of vectors that are learnt, one for each position up to a limit."""

    def __init__(self, limit: int, width: int) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(limit, width)

    def forward(self, positions: Positions, dtype: torch.dtype) -> Float[Tensor, "rows tokens d_model"]:
        """The vectors of these positions.

        Raises:
            UsageError: The text is longer than the table.
        """
        limit = self.position_embeddings.num_embeddings
        last = int(positions.max()) if positions.numel() else 0
        if last >= limit:
            raise UsageError(
                f"a text of {last + 1} tokens, and this network has learnt {limit} positions",
                hint="cut the text, or make the network with a larger max_position_embeddings",
            )
        vectors: Tensor = self.position_embeddings(positions)
        return vectors.to(dtype)


def rotary_angles(positions: Positions, width: int, base: float) -> Angles:
    """The angle of each pair of channels at each position."""
    return positions[..., None] * frequencies(width, base, positions.device)


def turned(
    x: Float[Tensor, "batch some_heads tokens width"],
    cosine: Float[Tensor, "rows 1 tokens pairs"],
    sine: Float[Tensor, "rows 1 tokens pairs"],
) -> Float[Tensor, "batch some_heads tokens width"]:
    """Queries or keys, each pair of channels turned by its angle.

    Properties:
        - products depend on differences of positions alone  (tested: test_rotary_products_depend_on_differences)
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
