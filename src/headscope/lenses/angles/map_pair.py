"""The window that is drawn: cosines of its first tokens, and what they pay to each other, averaged over heads."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.lenses.angles.window import cosines

# Tokens that are drawn at most, and at least.
SHOWN, FEWEST = 21, 4


@dataclass(frozen=True)
class Picture:
    """One site: square maps of the first tokens, without those left out, and the texts of these tokens."""

    spelling: tuple[str, ...]
    weights: Float[Tensor, "n n"]
    inputs: Float[Tensor, "n n"]
    embeddings: Float[Tensor, "n n"]
    seen: Bool[Tensor, "n n"]


def picture_of(
    captured: Mapping[str, Tensor],
    embedding: Float[Tensor, "n d_model"],
    real: Bool[Tensor, "text"],
    spelling: tuple[str, ...],
    skip: int,
) -> Picture | None:
    """Of one window; None where too few of its tokens are left."""
    x, corner = captured["resid"], captured["corner"]
    first = real[: corner.shape[1]]
    # A stream of other length than the text (a picture's) has no padding.
    at = first.nonzero()[:, 0] if len(first) == corner.shape[1] else torch.arange(corner.shape[1])
    at = at[skip:SHOWN]
    if len(at) < FEWEST:
        return None
    maps = corner[:, at][:, :, at].to(torch.float64)
    texts = tuple(spelling[i] if i < len(spelling) else f" {i}" for i in at.tolist())
    return Picture(texts, maps.mean(0), cosines(x[at]), cosines(embedding[at]), (maps > 0).any(0))
