r"""Attention of a recurrent decoder's states over an encoder's (Conti, The Math behind transformers, 1.1.1).

$c_t = \sum_k a_{tk} s_k$ and $a_{t\cdot} = \mathrm{softmax}_k\, \text{score}(h_t, s_k)$ with the score

    luong_dot        $h^\top s$
    luong_general    $h^\top W_a s$
    bahdanau         $v^\top \tanh(W_a h + U_a s)$, which is $v^\top \tanh(W [h; s])$ cut into two products

A text is one attention call with one head. Its queries, keys and values are $h$, $s$ and $s$, with $W_a$ or $U_a$ where
there is one. A score that is no product of a query and a key is handed over as a bias with scale 0: no product counts.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.networks.plain_attention import attention_function

States = Float[Tensor, "batch queries d_model"]
Memory = Float[Tensor, "batch keys d_model"]


class RecurrentAttention(nn.Module):
    """Attention of decoder states over encoder states, with one head.

    Properties:
        - scores and contexts are the definition  (tested: test_recurrent_networks_equal_the_definition)
        - sessions capture what was computed  (tested: test_recurrent_attention_is_captured)
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.is_causal, self.layer_idx = False, 0
        self.is_additive = config.score == "bahdanau"
        self.query = nn.Identity() if config.score == "luong_dot" else nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False) if self.is_additive else nn.Identity()
        if self.is_additive:
            self.direction = nn.Linear(width, 1, bias=False)

    def forward(self, states: States, memory: Memory, mask: Tensor | None) -> tuple[States, Tensor | None]:
        """The contexts of decoder states, and the map where it was computed."""
        q, k = self.query(states), self.key(memory)
        bias = self._additive_scores(q, k)[:, None] if self.is_additive else None
        function = attention_function(self.config._attn_implementation)
        scale = 0.0 if self.is_additive else 1.0
        heads = (x[:, None] for x in (q, k, memory))
        contexts, maps = function(self, *heads, mask, scaling=scale, position_bias=bias)
        return contexts.flatten(2), maps

    def _additive_scores(self, q: States, k: Memory) -> Float[Tensor, "batch queries keys"]:
        summed = torch.tanh(q[:, :, None] + k[:, None])
        scores: Tensor = self.direction(summed)[..., 0]
        return scores
