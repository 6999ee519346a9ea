r"""The feed-forward part of a layer.

relu, gelu: $f(x) = \varphi(x W_1 + b_1) W_2 + b_2$ (Conti, The Math behind transformers, 1.2.4, with ReLU);
swiglu: $f(x) = (\mathrm{silu}(x W_g) \odot x W_1) W_2$ (Shazeer, GLU Variants Improve Transformer).
"""

from typing import Any

import torch
from torch import Tensor, nn

ACTIVATIONS = {"relu": torch.relu, "gelu": nn.functional.gelu}


class FeedForward(nn.Module):
    """Widen, bend, and come back."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.feed_forward]
        self.widen = nn.Linear(config.hidden_size, config.intermediate_size, config.bias)
        self.narrow = nn.Linear(config.intermediate_size, config.hidden_size, config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The part's contribution to the stream."""
        out: Tensor = self.narrow(self.activation(self.widen(x)))
        return out


class GatedFeedForward(nn.Module):
    """Widen, gate, and come back."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.intermediate_size, config.bias)
        self.widen = nn.Linear(config.hidden_size, config.intermediate_size, config.bias)
        self.narrow = nn.Linear(config.intermediate_size, config.hidden_size, config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The part's contribution to the stream."""
        out: Tensor = self.narrow(nn.functional.silu(self.gate(x)) * self.widen(x))
        return out


def feed_forward_part(config: Any) -> nn.Module | None:
    """The feed-forward part that a configuration asks for."""
    if config.feed_forward == "none":
        return None
    return GatedFeedForward(config) if config.feed_forward == "swiglu" else FeedForward(config)


def norm_of(config: Any) -> nn.Module:
    """The norm that a configuration asks for: LayerNorm, RMSNorm, or none."""
    if config.norm == "none":
        return nn.Identity()
    return (nn.LayerNorm if config.norm == "layer" else nn.RMSNorm)(config.hidden_size, eps=config.norm_epsilon)
