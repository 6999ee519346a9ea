r"""Recognises a norm by what it computes, whatever its class is called.

A norm maps a vector $r$ of the stream to $g \odot (r - \mu\,\bar r)/\sigma(r) + b$: with $\mu = 1$ the mean is taken
away (LayerNorm), with $\mu = 0$ it is not (RMSNorm). $\sigma$ is one number for each token. With $\sigma$ held
fixed the norm is linear in $r$, so that each part of the stream can be followed through it.

The module is asked: at 0 it gives $b$; vectors with a constant added tell $\mu$; long random vectors tell $g$ by least
squares, and check the form. Long vectors make the small number that norms add to the variance vanish in rounding.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.attention.devices import exact_device
from headscope.model.rounding import agreement

Vectors = Float[Tensor, "*batch tokens d_model"]
_LONG = 1e3  # the size of the entries of the vectors that a module is asked with


@dataclass(frozen=True)
class Norm:
    """A norm of the stream: its module, whether it takes the mean away, and g and b."""

    module: str
    centred: bool
    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"]

    def direction(self, stream: Vectors) -> Vectors:
        """What is divided by the scale: the vectors, without their mean where the norm takes it away."""
        return stream - stream.mean(dim=-1, keepdim=True) if self.centred else stream

    def scale(self, stream: Vectors, normed: Vectors) -> Float[Tensor, "*batch tokens 1"]:
        """The σ of each token, from what the norm was given and what it gave.

        Both are proportional after g and b, so σ is a ratio of two inner products: no term of it is small.
        """
        exact = exact_device(stream.device)
        gain, bias, entering, leaving = (tensor.to(exact).double() for tensor in (self.gain, self.bias, stream, normed))
        gained = gain * self.direction(entering)
        return (gained.square().sum(-1, keepdim=True) / (gained * (leaving - bias)).sum(-1, keepdim=True)).to(stream)

    def apply(self, stream: Vectors, scale: Float[Tensor, "*batch tokens 1"]) -> Vectors:
        """The norm with a given scale: linear in the stream, but for its bias."""
        return self.linear(stream, scale) + self.bias

    def linear(self, stream: Vectors, scale: Float[Tensor, "*batch tokens 1"]) -> Vectors:
        """What a part of the stream contributes through the norm at a given scale."""
        return self.gain * self.direction(stream) / scale


def recognise(name: str, module: nn.Module, width: int) -> Norm | None:
    """The norm that a module is; None where it is not a norm of this form."""
    like = next(iter(module.parameters()), torch.zeros(()))
    generator = torch.Generator().manual_seed(0)
    vectors = (torch.randn(3, 4, width, generator=generator) * _LONG).to(like.device, like.dtype)
    zero = torch.zeros(1, 1, width, device=like.device, dtype=like.dtype)
    bias = _asked(module, zero)
    shifted = _asked(module, vectors + _LONG)
    normed = _asked(module, vectors)
    if bias is None or shifted is None or normed is None:
        return None
    centred = _agree(shifted, normed, like.dtype)
    shift, entering, leaving = (tensor.cpu().double() for tensor in (bias.flatten(), vectors, normed))
    unit = Norm(name, centred, torch.ones_like(shift), shift)
    directions = unit.direction(entering)
    sizes = directions.square().mean(dim=-1, keepdim=True).sqrt()
    norm = Norm(name, centred, _gain(unit, directions / sizes, leaving), shift)
    if not _agree(norm.apply(entering, sizes), leaving, like.dtype) or not bool(norm.gain.any()):
        return None
    return Norm(name, centred, norm.gain.to(like), bias.flatten())


def _gain(unit: Norm, scaled: Tensor, normed: Tensor) -> Tensor:
    """g by least squares over the tokens: each channel is g times its normalised direction."""
    return ((normed - unit.bias) * scaled).sum((0, 1)) / scaled.square().sum((0, 1))


def _asked(module: Any, vectors: Tensor) -> Tensor | None:
    """What a module makes of some vectors; None where it takes something else."""
    with torch.no_grad():
        try:
            answer = module(vectors)
        except Exception:  # noqa: BLE001  a module that is not a norm may do anything with vectors alone
            return None
    is_alike = isinstance(answer, Tensor) and answer.shape == vectors.shape and bool(torch.isfinite(answer).all())
    return answer if is_alike else None


def _agree(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    largest = b.abs().max().clamp_min(torch.finfo(dtype).tiny)
    return bool((a - b).abs().max() <= agreement(dtype, 1) * largest)
