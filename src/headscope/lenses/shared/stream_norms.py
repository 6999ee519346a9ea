"""Norms of the stream as linear maps, up to one positive scale for each token."""

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import StreamNorm


def read_through(norm: StreamNorm | None, w: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d k"]:
    """What a matrix reads of the stream itself, where it reads through a norm."""
    if norm is None:
        return w
    gained = norm.gain.to(w)[:, None] * w
    return gained - gained.mean(-2, keepdim=True) if norm.centred else gained


def written_through(norm: StreamNorm | None, w: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch k d"]:
    """What rows of the stream become behind a norm, without its scale and bias."""
    if norm is None:
        return w
    return (w - w.mean(-1, keepdim=True) if norm.centred else w) * norm.gain.to(w)


def normed_rows(norm: StreamNorm | None, rows: Float[Tensor, "rows d"]) -> Float[Tensor, "rows d"]:
    """Rows at the scale that a norm gives them, before gain and bias; the norm's small constant is left out."""
    if norm is None:
        return rows
    directions = rows - rows.mean(-1, keepdim=True) if norm.centred else rows
    scale = directions.square().mean(-1, keepdim=True).sqrt()
    return directions / torch.where(scale > 0, scale, torch.ones_like(scale))
