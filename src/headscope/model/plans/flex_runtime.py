"""Runs an exported plan: `flex_export` writes the plan between the two marks.

It imports torch alone, and transformers where a model of transformers is changed.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Allows = Callable[[Tensor, Tensor], Tensor]  # of the positions of queries and keys
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of batch, head, query and key


@dataclass(frozen=True)
class Layer:
    """The attention module of a layer, and the mask of each head; 0 is no mask."""

    module: str
    masks: tuple[int, ...]
    causal: bool
    window: int | None = None  # keys that the model itself lets a query see, its own included


# <plan>
NAME = "headscope_plan"
LAYERS: dict[int, Layer] = {}
MASKS: dict[int, Callable[[Any], Allows]] = {}
POSITIONS: int | None = None
REPAIR: str | None = None  # the sha256 of the weights that the plan was repaired with
# </plan>


def mask_mod(layer: int, device: Any = "cpu") -> MaskMod:
    """The mask function of a layer, by positions in the text."""
    described = LAYERS[layer]
    mask_of_head = torch.tensor(described.masks, device=device)
    allows_by_number = {number: MASKS[number](device) for number in sorted(set(described.masks)) if number}

    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        number_of_head = mask_of_head[h]
        allowed = number_of_head == 0
        for number, allows in allows_by_number.items():
            allowed = allowed | ((number_of_head == number) & allows(q, k))
        if described.causal:
            allowed = allowed & (k <= q)
        return allowed if described.window is None else allowed & (q - k < described.window)

    return mask


def block_mask(
    layer: int, queries: int, keys: int | None = None, *, first_query: int | None = None, device: Any = "cpu"
) -> BlockMask:
    """The block mask of a layer for the last `queries` of `keys` positions.

    With `first_query` the queries begin at that position.

    flex_attention(q, k, v, block_mask=block_mask(3, 8192, device="cuda"), enable_gqa=True)
    """
    keys = queries if keys is None else keys
    window = _Window(queries, keys, keys - queries if first_query is None else first_query)
    return window.block_mask(layer, torch.device(device))


def install(model: Any, weights: str | None = None) -> None:
    """Let a model of transformers attend by the plan.

    `model.set_attn_implementation("sdpa")` ends it. A plan that was repaired has weights of its own, in a
    file next to plan.json: they stay in the model.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    if REPAIR is not None and weights is None:
        raise ValueError('this plan was repaired: install(model, "…_repair.safetensors")')
    modules = dict(model.named_modules())
    missing = [layer.module for layer in LAYERS.values() if layer.module not in modules]
    if missing:
        raise ValueError(f"the plan is for another model: {type(model).__name__} has no module {missing[0]!r}")
    if weights is not None:
        _put_weights(model, Path(weights).read_bytes())
    _layer_of.update({modules[layer.module]: number for number, layer in LAYERS.items()})
    AttentionInterface.register(NAME, _attention)
    # Without an entry of the same name transformers gives the attention no mask at all.
    AttentionMaskInterface.register(NAME, _window)
    model.set_attn_implementation(NAME)


def _put_weights(model: Any, content: bytes) -> None:
    """Put rows (index0) and columns (index1) of parameters in place."""
    from safetensors.torch import load

    if hashlib.sha256(content).hexdigest() != REPAIR:
        raise ValueError(f"these are not the weights of this plan, whose sha256 is {REPAIR}")
    tensors = load(content)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for axis in (0, 1):
                if f"{name}.index{axis}" in tensors:
                    index, values = tensors[f"{name}.index{axis}"], tensors[name]
                    parameter.index_copy_(axis, index.to(parameter.device), values.to(parameter))


_layer_of: "WeakKeyDictionary[nn.Module, int]" = WeakKeyDictionary()


@dataclass(eq=False)
class _Window:
    """The part of the text that a forward reads, and the limits of the model.

    A cached step has queries from `first_query` on. Layers with the same heads share one block mask.
    """

    queries: int
    keys: int
    first_query: int = 0
    first_key: int = 0
    limits: Any = None  # the mask function of transformers, of positions
    real: Tensor | None = None  # [batch, positions], False at padding
    block_masks: dict[Any, BlockMask] = field(default_factory=dict)

    def block_mask(self, layer: int, device: torch.device) -> BlockMask:
        """The block mask of a layer."""
        end = self.first_query + self.queries
        if POSITIONS is not None and end > POSITIONS:
            raise ValueError(f"the masks of this plan reach over {POSITIONS} positions, and the text has {end}")
        described = LAYERS[layer]
        key = (described.masks, described.causal, described.window, device)
        if key not in self.block_masks:
            create = create_block_mask if device.type == "cpu" else _compiled(create_block_mask)
            batch = None if self.real is None else self.real.shape[0]
            self.block_masks[key] = create(
                self._mask_mod(layer, device), batch, len(described.masks), self.queries, self.keys, device=device
            )
        return self.block_masks[key]

    def _mask_mod(self, layer: int, device: torch.device) -> MaskMod:
        """The mask function of a layer, by indices.

        A tensor holds where they begin, so that a cached step does not compile anew.
        """
        starts = torch.tensor([self.first_query, self.first_key], device=device)
        plan, limits = mask_mod(layer, device), self.limits
        real, length = (None, 0) if self.real is None else (self.real.flatten(), self.real.shape[1])

        def mask(b: Tensor, h: Tensor, q_index: Tensor, k_index: Tensor) -> Tensor:
            q, k = q_index + starts[0], k_index + starts[1]
            allowed = plan(b, h, q, k)
            if limits is not None:
                allowed = allowed & limits(b, h, q, k)
            return allowed if real is None else allowed & real[b * length + k]

        return mask


def _window(
    *, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: Any = 0, mask_function: Any = None,
    attention_mask: Tensor | None = None, **options: Any,
) -> _Window:  # fmt: skip
    """The window that transformers hands to every layer in place of a mask."""
    real = attention_mask
    if real is not None and bool(real.all()):
        real = None
    if real is not None:
        real = nn.functional.pad(real.bool(), (0, max(0, int(kv_offset) + kv_length - real.shape[-1])))
    # A static cache counts on in the tensor that it gave: the number is read now.
    return _Window(q_length, kv_length, int(q_offset), int(kv_offset), mask_function, real)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float | None = None,
    dropout: float = 0.0, softcap: float | None = None, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention of one layer, from [batch, heads, tokens, width]."""
    layer = _layer_of.get(module)
    if layer is None:
        raise ValueError(f"{type(module).__name__} is not in the plan: call install(model) on this model")
    if query.shape[1] != len(LAYERS[layer].masks):
        raise ValueError(
            f"layer {layer} has {query.shape[1]} heads, and the plan was made for {len(LAYERS[layer].masks)}"
        )
    if dropout > 0:
        raise ValueError("FlexAttention has no dropout: call model.eval(), or set the dropout of attention to 0")
    if isinstance(attention_mask, Tensor):
        raise TypeError("a mask of your own cannot be joined with those of the plan: pass a mask of tokens [batch, n]")
    unsupported = [name for name in ("position_bias", "s_aux") if options.get(name) is not None]
    if unsupported:
        raise ValueError(f"an exported plan knows no {unsupported[0]} of the scores")
    keys = key.shape[2]
    window = attention_mask or _Window(query.shape[2], keys, keys - query.shape[2])
    mask = window.block_mask(layer, query.device)
    attend = flex_attention if query.device.type == "cpu" else _compiled(flex_attention)
    out = attend(
        query, key, value, score_mod=_softcap(softcap), block_mask=mask, scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
    )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


@cache
def _compiled(function: Any) -> Any:
    return torch.compile(function)


def _softcap(softcap: float | None) -> Any:
    if softcap is None:
        return None
    limit = softcap

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return limit * torch.tanh(score / limit)

    return score_mod
