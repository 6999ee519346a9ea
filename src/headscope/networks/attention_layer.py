r"""The attention of one layer: projections, heads, mechanisms, and the way back.

$q = x W_Q$, $k = y W_K$, $v = y W_V$ in heads of width $d_{head}$, with y = x in self-attention and the states of the
encoder in cross-attention; $\text{head}_h = \mathrm{softmax}(q_h k_{g(h)}^\top / \sqrt{d_{head}} + M)\, v_{g(h)}$. The
heads are joined and multiplied by $W_O$. Several heads share a key/value head where there are fewer of these.

One product computes what reads the same states: q, k and v in self-attention, k and v in cross-attention. Where
queries and keys of self-attention share a matrix, the keys are the queries. Attention itself is looked up by name in
transformers, as in every family there. A layer with mechanisms computes them itself, unless something else, such as a
session, has put a function of its own in that place.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.attention.call import Call
from headscope.attention.head_mechanisms import HeadMechanisms
from headscope.attention.mechanism_spelling import spelled
from headscope.core.site import Site
from headscope.errors import UsageError
from headscope.networks.initialisation import product
from headscope.networks.layout import spelled_mechanisms
from headscope.networks.plain_attention import OWN, attention_function
from headscope.networks.positions import turned
from headscope.networks.view import View

States = Float[Tensor, "batch tokens d_model"]
Memory = Float[Tensor, "batch keys d_model"]
HeadStates = Float[Tensor, "batch some_heads some_tokens d_head"]
Queries = Float[Tensor, "batch heads tokens d_head"]
Keys = Float[Tensor, "batch kv_heads keys d_head"]


class AttentionLayer(nn.Module):
    """Multi-head self- or cross-attention.

    Properties:
        - it is torch's layer of the same weights  (tested: test_blocks_equal_torch)
        - a head with a mechanism computes it  (tested: test_mechanisms_are_computed_in_plain_use)
        - one head per channel is allowed  (tested: test_one_channel_per_head)
    """

    q: nn.Linear
    v: nn.Linear
    kv: nn.Linear
    qkv: nn.Linear

    def __init__(self, config: Any, site: Site) -> None:
        super().__init__()
        self.config = config
        self.is_causal, self.is_cross, self.layer_idx = site.causal, site.kind == "cross", site.layer
        self.d_head, self.scaling, self.dropout = site.d_head, site.d_head**-0.5, config.attention_dropout
        # Who asks how positions enter the scores looks for an attribute of this name.
        self.rotary_base = config.rotary_base if config.positions == "rotary" and not self.is_cross else None
        self.num_key_value_groups = site.n_heads // site.n_kv_heads  # transformers' attention functions read it
        self.mechanisms = _mechanisms(config, site)
        self.widths = {"q": site.n_heads * site.d_head, "k": site.n_kv_heads * site.d_head}
        self.widths["v"] = self.widths["k"]
        for letters in _products(self.is_cross, config.shared_queries_and_keys):
            outputs = tuple(self.widths[letter] for letter in letters)
            setattr(self, letters, product(config.initialisation, config.hidden_size, outputs, bias=config.bias))
        self.out = nn.Linear(self.widths["q"], config.hidden_size, config.bias)

    def forward(
        self, x: States, view: View, memory: Memory | None = None, past_key_values: Any = None
    ) -> tuple[States, Tensor | None]:
        """Attend; the second result holds the maps where they were computed."""
        q, k, v = self._cross(x, memory, past_key_values) if self.is_cross else self._itself(x)
        if view.cosine is not None and view.sine is not None:
            q, k = (turned(states, view.cosine, view.sine) for states in (q, k))
        if past_key_values is not None and not self.is_cross:
            k, v = getattr(past_key_values, "self_attention_cache", past_key_values).update(k, v, self.layer_idx)
        mixed, maps = self._attended(q, k, v, view)
        out: Tensor = self.out(mixed.flatten(2))
        return out, maps

    def _itself(self, x: States) -> tuple[Queries, Tensor, Tensor]:
        if self.config.shared_queries_and_keys:
            shared = self._heads(self.q(x))
            return shared, shared, self._heads(self.v(x))
        q, k, v = self.qkv(x).split(list(self.widths.values()), dim=-1)
        return self._heads(q), self._heads(k), self._heads(v)

    def _cross(self, x: States, memory: Memory | None, past_key_values: Any) -> tuple[Queries, Keys, Keys]:
        q = self._heads(self.q(x))
        if past_key_values is None:
            return (q, *self._keys_and_values(memory))
        cache = past_key_values.cross_attention_cache
        if not past_key_values.is_updated.get(self.layer_idx):
            cache.update(*self._keys_and_values(memory), self.layer_idx)
            past_key_values.is_updated[self.layer_idx] = True
        return q, cache.layers[self.layer_idx].keys, cache.layers[self.layer_idx].values

    def _keys_and_values(self, memory: Memory | None) -> tuple[Keys, Keys]:
        k, v = self.kv(memory).chunk(2, dim=-1)
        return self._heads(k), self._heads(v)

    def _heads(self, projected: Tensor) -> HeadStates:
        return projected.view(*projected.shape[:-1], -1, self.d_head).transpose(1, 2)

    def _attended(self, q: Queries, k: Keys, v: Keys, view: View) -> tuple[Tensor, Tensor | None]:
        """The heads' outputs as batch × tokens × heads × d_head, and their maps where they were computed."""
        name = self.config._attn_implementation
        if self.mechanisms is not None and name in OWN:
            call = self._call(q, k, v, view)
            maps = self.mechanisms.pattern(call) if name == "eager" else None
            return self.mechanisms(call).transpose(1, 2), maps
        dropout = self.dropout if self.training else 0.0
        mixed, maps = attention_function(name)(self, q, k, v, view.mask, dropout=dropout, scaling=self.scaling)
        return mixed, maps

    def _call(self, q: Queries, k: Keys, v: Keys, view: View) -> Call:
        if view.first_query and self.mechanisms is not None and self.mechanisms.needs_all_queries:
            raise UsageError(
                "a mechanism of this network needs the queries of earlier tokens, and a cache holds none",
                hint="generate with use_cache=False",
            )
        queries = torch.arange(view.first_query, view.first_query + q.shape[2], device=q.device)[None]
        keys = torch.arange(k.shape[2], device=q.device)[None]
        right = 0 if self.is_causal else None
        return Call(q, k, v, self.scaling, queries, keys, right=right, key_padding=view.real)


def _products(is_cross: bool, shared: bool) -> tuple[str, ...]:
    """The letters that each product computes."""
    if is_cross:
        return ("q", "kv")
    return ("q", "v") if shared else ("qkv",)


def _mechanisms(config: Any, site: Site) -> HeadMechanisms | None:
    """The mechanisms of the heads of a layer, as the configuration spells them; None where all attend densely."""
    words = spelled_mechanisms(config.mechanisms, config.sites).get(site)
    if words is None:
        return None
    by_word = {word: spelled(word) for word in words.values()}
    mechanisms = HeadMechanisms(tuple(by_word[words[head]] if head in words else None for head in range(site.n_heads)))
    if site.kind == "cross" and mechanisms.needs_all_queries:
        raise UsageError(
            f"{site.label}: a row of a mechanism there depends on other queries, and in cross-attention these are "
            "tokens that come later",
            hint="name self-attention alone, such as dec.self",
        )
    return mechanisms
