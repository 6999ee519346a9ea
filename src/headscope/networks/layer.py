"""A layer of a transformer: attention, cross-attention where there is an encoder, and a feed-forward part.

Each part f adds to the stream: `x + f(norm(x))` with the norm before it, `norm(x + f(x))` with the norm after it.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from headscope.core.site import Stack
from headscope.networks.attention_layer import AttentionLayer, Memory, States
from headscope.networks.feed_forward import feed_forward_part, norm_of
from headscope.networks.layout import is_causal, planned_site
from headscope.networks.view import View


class TransformerLayer(nn.Module):
    """One layer.

    Properties:
        - it is torch's layer of the same weights  (tested: test_blocks_equal_torch)
    """

    def __init__(self, config: Any, stack: Stack, number: int) -> None:
        super().__init__()
        self.is_pre, self.dropout = config.norm_place == "pre", config.dropout
        site = planned_site(config, stack, number, causal=is_causal(config, stack))
        self.self_attention = AttentionLayer(config, site)
        self.self_attention_norm = norm_of(config)
        self.cross_attention = None
        if stack == "dec":
            self.cross_attention = AttentionLayer(config, planned_site(config, stack, number, kind="cross"))
            self.cross_attention_norm = norm_of(config)
        self.feed_forward = feed_forward_part(config)
        if self.feed_forward is not None:
            self.feed_forward_norm = norm_of(config)

    def forward(
        self,
        x: States,
        view: View,
        memory: Memory | None = None,
        memory_view: View | None = None,
        past_key_values: Any = None,
    ) -> States:
        """The stream after this layer."""
        cache = {"past_key_values": past_key_values}
        x = self._added(x, self.self_attention_norm, lambda y: self.self_attention(y, view, **cache)[0])
        cross = self.cross_attention
        if cross is not None:
            x = self._added(x, self.cross_attention_norm, lambda y: cross(y, memory_view, memory, **cache)[0])
        return x if self.feed_forward is None else self._added(x, self.feed_forward_norm, self.feed_forward)

    def _added(self, x: States, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> States:
        """The stream with what a part adds to it."""
        write = part(norm(x) if self.is_pre else x)
        if self.training and self.dropout:
            write = nn.functional.dropout(write, p=self.dropout)
        summed: Tensor = x + write if self.is_pre else norm(x + write)
        return summed
