"""The pictured window: cosines of its first tokens, and their attention averaged over heads."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.lenses.angles.window import cosines

# Tokens of a picture, at most and at least.
MOST_TOKENS, FEWEST_TOKENS = 21, 4


@dataclass(frozen=True)
class Picture:
    """Square maps of one site's first tokens, after the skipped ones, and the texts of these tokens."""

    spelling: tuple[str, ...]
    weights: Float[Tensor, "n n"]
    inputs: Float[Tensor, "n n"]
    embeddings: Float[Tensor, "n n"]
    visible: Bool[Tensor, "n n"]


def picture_of(
    captured: Mapping[str, Tensor],
    embedding: Float[Tensor, "n d_model"],
    real: Bool[Tensor, "text"],
    spelling: tuple[str, ...],
    skip: int,
) -> Picture | None:
    """The picture of one window; None where it has too few tokens."""
    x, corner = captured["resid"], captured["corner"]
    first = real[: corner.shape[1]]
    # A stream of other length than the text (a picture's) has no padding.
    at = first.nonzero()[:, 0] if len(first) == corner.shape[1] else torch.arange(corner.shape[1])
    at = at[skip:MOST_TOKENS]
    if len(at) < FEWEST_TOKENS:
        return None
    maps = corner[:, at][:, :, at].to(torch.float64)
    texts = tuple(spelling[i] if i < len(spelling) else f" {i}" for i in at.tolist())
    return Picture(texts, maps.mean(0), cosines(x[at]), cosines(embedding[at]), (maps > 0).any(0))
