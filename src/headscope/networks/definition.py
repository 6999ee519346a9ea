r"""The networks by their formulas: one text, one head and one token at a time where that is plainer, in float64.

They read the weights of a network by name and share no code with it. `x` has a row for each token.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.mechanism_spelling import spelled
from headscope.core.site import Site
from headscope.networks.layout import is_causal, planned_site, spelled_mechanisms

Weights = Mapping[str, Tensor]
Tokens = Int[Tensor, " tokens"]
Rows = Float[Tensor, "tokens d_model"]
Keys = Float[Tensor, "keys d_model"]


def defined_logits(
    config: Any, weights: Weights, source: Int[Tensor, " source"], target: Int[Tensor, " target"] | None = None
) -> Float[Tensor, "written vocabulary"]:
    """The logits of a network on one text; an encoder–decoder reads `source` and writes `target`."""
    weights = {name: weight.double() for name, weight in weights.items()}
    if config.model_type == "headscope-recurrent":
        states = _recurrent(config, weights, source, source if target is None else target)
    elif config.is_encoder_decoder:
        memory = _stack(config, weights, "enc", source, None)
        states = _stack(config, weights, "dec", source if target is None else target, memory)
    else:
        states = _stack(config, weights, "only", source, None)
    return states @ weights["lm_head.weight"].T


def _stack(config: Any, weights: Weights, stack: Any, tokens: Tokens, memory: Keys | None) -> Rows:
    prefix = {"enc": "model.encoder.", "dec": "model.decoder.", "only": "model."}[stack]
    part = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
    n_layers = {"enc": "encoder_layers", "dec": "decoder_layers", "only": "num_hidden_layers"}[stack]
    x = part["embed_tokens.weight"][tokens] * (math.sqrt(config.hidden_size) if config.scale_embedding else 1.0)
    x = x + _positions(config, part, len(tokens))
    for number in range(getattr(config, n_layers)):
        x = _layer(config, part, planned_site(config, stack, number, causal=is_causal(config, stack)), x, memory)
    return norm(config, part, "norm", x) if config.norm_place == "pre" else x


def _layer(config: Any, weights: Weights, site: Site, x: Rows, memory: Keys | None) -> Rows:
    name = f"layers.{site.layer}"
    x = _added(config, weights, f"{name}.self_attention", x, partial(attention, config, weights, site))
    if memory is not None:
        cross = planned_site(config, site.stack, site.layer, kind="cross")
        part = partial(attention, config, weights, cross, memory=memory)
        x = _added(config, weights, f"{name}.cross_attention", x, part)
    if config.feed_forward == "none":
        return x
    name = f"{name}.feed_forward"
    return _added(config, weights, name, x, partial(feed_forward, config, weights, name))


def _added(config: Any, weights: Weights, name: str, x: Rows, part: Callable[[Tensor], Tensor]) -> Rows:
    if config.norm_place == "pre":
        return x + part(norm(config, weights, f"{name}_norm", x))
    return norm(config, weights, f"{name}_norm", x + part(x))


def _positions(config: Any, weights: Weights, n: int) -> Rows:
    width = config.hidden_size
    if config.positions == "learnt":
        return weights["positions.position_embeddings.weight"][:n]
    vectors = torch.zeros(n, width, dtype=torch.float64)
    if config.positions == "sinusoidal":
        for i in range(n):
            for channel in range(width):
                angle = i / 10000 ** (2 * (channel // 2) / width)
                vectors[i, channel] = math.cos(angle) if channel % 2 else math.sin(angle)
    return vectors


def linear(weights: Weights, name: str, x: Float[Tensor, "tokens inputs"]) -> Float[Tensor, "tokens outputs"]:
    """A product with a matrix, and a bias where there is one."""
    product = x @ weights[f"{name}.weight"].T
    return product + weights[f"{name}.bias"] if f"{name}.bias" in weights else product


def norm(config: Any, weights: Weights, name: str, x: Rows) -> Rows:
    """Each row, over its deviation (LayerNorm: from its mean), with gain and bias."""
    if config.norm == "none":
        return x
    if config.norm == "layer":
        x = x - x.mean(dim=1, keepdim=True)
    deviation = torch.sqrt(x.square().mean(dim=1, keepdim=True) + config.norm_epsilon)
    scaled = x / deviation * weights[f"{name}.weight"]
    return scaled + weights[f"{name}.bias"] if config.norm == "layer" else scaled


def feed_forward(config: Any, weights: Weights, name: str, x: Rows) -> Rows:
    """The feed-forward part."""
    wide = linear(weights, f"{name}.widen", x)
    if config.feed_forward == "relu":
        wide = wide.clamp_min(0)
    elif config.feed_forward == "gelu":
        wide = wide * (1 + torch.erf(wide / math.sqrt(2))) / 2
    else:
        gate = linear(weights, f"{name}.gate", x)
        wide = gate / (1 + torch.exp(-gate)) * wide
    return linear(weights, f"{name}.narrow", wide)


def attention(config: Any, weights: Weights, site: Site, x: Rows, memory: Keys | None = None) -> Rows:
    """The attention of one layer from the rows of x over those of a memory, or of x itself, head by head."""
    y = x if memory is None else memory
    name = f"layers.{site.layer}.{site.kind}_attention"
    q, k, v = _queries_keys_values(config, weights, site, name, x, y)
    words = spelled_mechanisms(config.mechanisms, config.sites).get(site, {})
    heads = []
    for head in range(site.n_heads):
        columns = slice(head * site.d_head, (head + 1) * site.d_head)
        kv_columns = slice(site.kv_head(head) * site.d_head, (site.kv_head(head) + 1) * site.d_head)
        q_head, k_head, v_head = q[:, columns], k[:, kv_columns], v[:, kv_columns]
        if config.positions == "rotary" and site.kind == "self":
            q_head, k_head = _turned(config, q_head), _turned(config, k_head)
        heads.append(_head(site, words.get(head), q_head, k_head, v_head))
    return linear(weights, f"{name}.out", torch.cat(heads, dim=1))


def _queries_keys_values(
    config: Any, weights: Weights, site: Site, name: str, x: Rows, y: Keys
) -> tuple[Tensor, Tensor, Tensor]:
    width, kv_width = site.n_heads * site.d_head, site.n_kv_heads * site.d_head
    if site.kind == "cross":
        keys_and_values = linear(weights, f"{name}.kv", y)
        return linear(weights, f"{name}.q", x), keys_and_values[:, :kv_width], keys_and_values[:, kv_width:]
    if config.shared_queries_and_keys:
        shared = linear(weights, f"{name}.q", x)
        return shared, shared, linear(weights, f"{name}.v", x)
    joined = linear(weights, f"{name}.qkv", x)
    return joined[:, :width], joined[:, width : width + kv_width], joined[:, width + kv_width :]


def _head(site: Site, mechanism: str | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if mechanism is not None:
        at = (torch.arange(len(q))[None], torch.arange(len(k))[None])
        states = (q[None, None], k[None, None], v[None, None])
        call = Call(*states, site.d_head**-0.5, *at, right=0 if site.causal else None)
        return spelled(mechanism).definition(call).out[0, 0]
    rows = []
    for i in range(len(q)):
        keys = slice(0, i + 1) if site.causal else slice(0, len(k))
        weight = torch.exp(k[keys] @ q[i] / math.sqrt(site.d_head))
        rows.append(weight @ v[keys] / weight.sum())
    return torch.stack(rows)


def _turned(config: Any, x: Tensor) -> Tensor:
    half = config.d_head // 2
    turned = x.clone()
    for i in range(len(x)):
        for pair in range(half):
            angle = i * config.rotary_base ** (-2 * pair / config.d_head)
            a, b = x[i, pair], x[i, pair + half]
            turned[i, pair] = a * math.cos(angle) - b * math.sin(angle)
            turned[i, pair + half] = b * math.cos(angle) + a * math.sin(angle)
    return turned


def _recurrent(
    config: Any, weights: Weights, source: Int[Tensor, " source"], target: Int[Tensor, " target"]
) -> Float[Tensor, "target d_model"]:
    zeros = torch.zeros(config.hidden_size, dtype=torch.float64)
    first = [(zeros, zeros)] * config.encoder_layers
    s, last = _cells(config, weights, "model.encoder", source, first)
    h, _ = _cells(config, weights, "model.decoder", target, last)
    joined = h
    if config.score != "none":
        contexts = []
        for t in range(len(h)):
            scores = torch.stack([_score(config, weights, h[t], s[k]) for k in range(len(s))])
            contexts.append(torch.softmax(scores, dim=0) @ s)
        joined = torch.cat([torch.stack(contexts), h], dim=1)
    return linear(weights, "model.decoder.joined", joined)


def _score(config: Any, weights: Weights, h: Tensor, s: Tensor) -> Tensor:
    name = "model.decoder.attention"
    if config.score == "luong_dot":
        return h @ s
    if config.score == "luong_general":
        return h @ weights[f"{name}.query.weight"].T @ s
    summed = torch.cat([weights[f"{name}.query.weight"], weights[f"{name}.key.weight"]], dim=1) @ torch.cat([h, s])
    return weights[f"{name}.direction.weight"][0] @ torch.tanh(summed)


def _cells(
    config: Any, weights: Weights, name: str, tokens: Tokens, first: list[tuple[Tensor, Tensor]]
) -> tuple[Rows, list[tuple[Tensor, Tensor]]]:
    """The states of a stack of cells after each token, and what each layer ends with: its state and its memory."""
    x, last = weights[f"{name}.embed_tokens.weight"][tokens], []
    step = _lstm if config.cell == "lstm" else _gru
    for layer, (state, memory) in enumerate(first):
        rows = []
        for token in x:
            inputs, recurrent = (
                weights[f"{name}.cells.weight_{kind}_l{layer}"] @ vector + weights[f"{name}.cells.bias_{kind}_l{layer}"]
                for kind, vector in (("ih", token), ("hh", state))
            )
            state, memory = step(inputs, recurrent, state, memory)
            rows.append(state)
        x = torch.stack(rows)
        last.append((state, memory))
    return x, last


def _lstm(inputs: Tensor, recurrent: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    enter, forget, write, show = (inputs + recurrent).chunk(4)
    memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(write)
    return torch.sigmoid(show) * torch.tanh(memory), memory


def _gru(inputs: Tensor, recurrent: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    (reset_in, update_in, new_in), (reset_on, update_on, new_on) = inputs.chunk(3), recurrent.chunk(3)
    update = torch.sigmoid(update_in + update_on)
    new = torch.tanh(new_in + torch.sigmoid(reset_in + reset_on) * new_on)
    return (1 - update) * new + update * state, memory
