"""Hooks into attention: a function registered with transformers' interface.

Most families of transformers compute attention through a function that is looked up by name in the config. headscope
registers one name; while a `Tap` is open on a model, this module passes every attention call of that model to the tap,
already projected, rotated and cached. The name is registered with the mask interface too: otherwise transformers
silently passes no mask at all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.attention.call import Call
from headscope.attention.maps import pattern
from headscope.attention.mechanisms.dense import Dense
from headscope.errors import UsageError
from headscope.model.transformers.call_reader import RawCall, Reader

# Two names, because families differ in what a missing mask means. Where transformers' own sdpa may be used, it goes by
# the module's `is_causal`; where only eager may be used, everything is visible and a causal mask is always passed.
NAME, EAGER_NAME = (
    "headscope",
    "headscope_plain",
)  # must not contain "sdpa", "flash", "flex", "paged|" or "/", which transformers treats specially


DENSE = Dense()
# The largest map of one head that is computed as transformers' eager attention does: 128 × 128 entries.
SMALL_MAP = 1 << 14
Handler = Callable[[RawCall], Tensor]  # returns [batch, queries, heads, d_value], as transformers expects

# The open tap of each attention module. Modules are keyed by identity and removed when the tap closes,
# so nothing is written into the model and several models can be open at once.
_handlers: dict[int, Handler] = {}
# The number of attention calls being answered: computations meanwhile are ours, not the model's.
_answering = [0]


def answering() -> bool:
    """Whether an attention call is being answered, including lenses that read it."""
    return _answering[0] > 0


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    raw = RawCall(module, query, key, value, attention_mask, scaling, options)
    # A second model that shares the config object of a tapped one also gets here: it computes as usual.
    _answering[0] += 1
    try:
        return _handlers.get(id(module), plain_attention)(raw), None
    finally:
        _answering[0] -= 1


def _eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    return _attention(module, query, key, value, attention_mask, **{**options, "is_causal": False})


def plain_attention(raw: RawCall) -> Tensor:
    """The model's own attention."""
    return as_transformers(own_attention(Reader().call(raw)))


def own_attention(call: Call) -> Float[Tensor, "batch heads queries d_value"]:
    """The output of the model's own attention.

    The way to compute it depends only on sizes, never on who is watching: another order of the same sums rounds
    differently, and every number of later layers would follow. A small map is stored and multiplied with the values, as
    transformers' eager attention does, so that maps agree with its own to the last bits in deep layers too. A larger
    one goes through the fused kernel, and its deep layers agree with eager ones as well as transformers' own sdpa does.
    """
    if call.q.shape[2] * call.k.shape[2] > SMALL_MAP or torch.is_autocast_enabled(call.q.device.type):
        return DENSE(call).out
    return pattern(call).to(call.v.dtype) @ call.v.repeat_interleave(call.groups, dim=1)


def as_transformers(out: Tensor) -> Tensor:
    """Transpose [batch, heads, queries, d_value] to the layout of transformers."""
    return out.transpose(1, 2).contiguous()


def register() -> None:
    """Register the names with transformers; harmless when done twice."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask, sdpa_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    AttentionInterface.register(EAGER_NAME, _eager_attention)
    AttentionMaskInterface.register(EAGER_NAME, eager_mask)


@contextmanager
def tapped(model: nn.Module, handler: Handler) -> Iterator[None]:
    """Send every attention call of `model` to `handler`.

    The model is restored on exit, whatever happens.
    """
    register()
    modules = list(model.modules())
    if any(id(module) in _handlers for module in modules):
        raise UsageError(
            "a session is already open on this model",
            hint="one session takes captures, streams, replacements, ablations and patches together",
        )
    try:
        for module in modules:
            _handlers[id(module)] = handler
        with implementation(model, NAME if getattr(model, "_supports_sdpa", False) else EAGER_NAME):
            yield
    finally:
        for module in modules:
            _handlers.pop(id(module), None)


@contextmanager
def implementation(model: nn.Module, name: str) -> Iterator[None]:
    """Run `model` with another attention implementation ("eager", "sdpa", ours)."""
    implementations = [(config, config._attn_implementation_internal) for config in _configs(model)]
    try:
        for config, _ in implementations:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, before in implementations:
            config._attn_implementation_internal = before


def _configs(model: nn.Module) -> list[Any]:
    """Every config in which a module may look up its attention, nested ones included."""
    configs: dict[int, Any] = {}
    queue = [getattr(module, "config", None) for module in model.modules()]
    while queue:
        config = queue.pop()
        if not hasattr(config, "_attn_implementation_internal") or id(config) in configs:
            continue
        configs[id(config)] = config
        queue += [getattr(config, key, None) for key in getattr(config, "sub_configs", {})]
    return list(configs.values())
