r"""Attention with its map, as transformers' eager attention computes it, and the lookup of any other by name.

$\mathrm{softmax}(\text{scale}\; q k^\top + b + M)\, v$, with a bias b and a mask M where there are any.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# The attention that a network computes by itself; any other name is a function that somebody has put in its place.
OWN = ("eager", "sdpa")


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float = 1.0,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attend with a stored map; the output is batch × tokens × heads × width."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (key, value))
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    for added in (options.get("position_bias"), attention_mask):
        scores = scores if added is None else scores + added
    weights = nn.functional.dropout(torch.softmax(scores, dim=-1), p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2), weights


def attention_function(name: str | None) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention of this name that is registered with transformers."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    function: Callable[..., tuple[Tensor, Tensor | None]]
    function = ALL_ATTENTION_FUNCTIONS.get_interface(name or "eager", eager_attention)
    return function
