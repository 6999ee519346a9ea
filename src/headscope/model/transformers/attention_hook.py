"""Hooks into attention: a function registered with transformers' interface.

Most families of transformers compute attention through a function that is looked up by name in the config. headscope
registers one name; while a `Tap` is open on a model, this module passes every attention call of that model to the tap,
already projected, rotated and cached. The name is registered with the mask interface too: otherwise transformers
silently passes no mask at all.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.attention.call import Call
from headscope.attention.head_mechanisms import mechanisms_of
from headscope.attention.maps import pattern
from headscope.attention.mechanisms.dense import Dense
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


class _OfThisThread(threading.local):
    """What one thread has open: another thread that runs the same model sees none of it."""

    def __init__(self) -> None:
        # The innermost tap of each attention module, by its identity: nothing is written into the model.
        self.handlers: dict[int, Handler] = {}
        # The number of attention calls being answered: computations meanwhile are ours, not the model's.
        self.answering = 0


_open = _OfThisThread()


def answering() -> bool:
    """Whether an attention call is being answered, including lenses that read it."""
    return _open.answering > 0


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    handler = _open.handlers.get(id(module))
    if handler is None and _own_implementation(module) == "sdpa" and mechanisms_of(module) is None:
        # Another thread has a session on this model, or a model shares its config: it computes what it always does.
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
        return out, None
    raw = RawCall(module, query, key, value, attention_mask, scaling, options)
    _open.answering += 1
    try:
        return (handler or plain_attention)(raw), None
    finally:
        _open.answering -= 1


def _eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    return _attention(module, query, key, value, attention_mask, **{**options, "is_causal": False})


def plain_attention(raw: RawCall) -> Tensor:
    """The model's own attention."""
    return as_transformers(own_attention(Reader().call(raw), raw.module))


def own_attention(call: Call, module: nn.Module | None = None) -> Float[Tensor, "batch heads queries d_value"]:
    """The output of the model's own attention; a module whose heads have mechanisms of their own computes these.

    The way to compute it depends only on sizes, never on who is watching: another order of the same sums rounds
    differently, and every number of later layers would follow. A small map is stored and multiplied with the values, as
    transformers' eager attention does, so that maps agree with its own to the last bits in deep layers too. A larger
    one goes through the fused kernel, and its deep layers agree with eager ones as well as transformers' own sdpa does.
    So does a single query, the step of a generation with a cache: to store its map, the keys are copied for each head
    that shares them, which takes up to ten times as long as the kernel.
    """
    queries, keys = call.q.shape[2], call.k.shape[2]
    if torch.is_autocast_enabled(call.q.device.type):
        return DENSE(call).out
    mechanisms = mechanisms_of(module)
    if mechanisms is not None:
        return mechanisms(call)
    if queries == 1 or queries * keys > SMALL_MAP:
        return DENSE.attend(call, lse=False).out
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
    """Send every attention call that this thread makes of `model` to `handler`.

    A tap inside another one takes its place until it closes. The model is restored on exit, whatever happens.
    """
    register()
    modules = list(model.modules())
    names = [id(module) for module in modules]
    before = {name: _open.handlers[name] for name in names if name in _open.handlers}
    try:
        _open.handlers.update(dict.fromkeys(names, handler))
        with _implementation(modules, NAME if getattr(model, "_supports_sdpa", False) else EAGER_NAME):
            yield
    finally:
        for name in names:
            _open.handlers.pop(name, None)
        _open.handlers.update(before)


@contextmanager
def handled(module: nn.Module, handler: Handler) -> Iterator[None]:
    """Send the attention calls of one module to another handler, while a tap is open on its model."""
    before = _open.handlers.get(id(module))
    _open.handlers[id(module)] = handler
    try:
        yield
    finally:
        if before is None:
            _open.handlers.pop(id(module), None)
        else:
            _open.handlers[id(module)] = before


@dataclass
class _Switch:
    """The attention implementation of one config: the model's own, and those that stand in for it, newest last."""

    config: Any
    own: Any
    stand_ins: list[tuple[object, str]] = field(default_factory=list)

    def apply(self) -> None:
        self.config._attn_implementation_internal = self.stand_ins[-1][1] if self.stand_ins else self.own


# Threads may open and close on one config in any order, so each takes back its own switch and no other.
_switches: dict[int, _Switch] = {}
_switching = threading.Lock()


def _own_implementation(module: nn.Module) -> Any:
    """The implementation that a module's config names when nothing is open on it."""
    config = getattr(module, "config", None)
    switch = _switches.get(id(config))
    return getattr(config, "_attn_implementation_internal", None) if switch is None else switch.own


@contextmanager
def implementation(model: nn.Module, name: str) -> Iterator[None]:
    """Run `model` with another attention implementation ("eager", "sdpa", ours)."""
    with _implementation(list(model.modules()), name):
        yield


@contextmanager
def _implementation(modules: Sequence[nn.Module], name: str) -> Iterator[None]:
    configs, opened = _configs(modules), object()
    try:
        with _switching:
            for config in configs:
                switch = _switches.setdefault(id(config), _Switch(config, config._attn_implementation_internal))
                switch.stand_ins.append((opened, name))
                switch.apply()
        yield
    finally:
        with _switching:
            for config in configs:
                _close(config, opened)


def _close(config: Any, opened: object) -> None:
    switch = _switches.get(id(config))
    if switch is not None:
        switch.stand_ins = [(by, name) for by, name in switch.stand_ins if by is not opened]
        switch.apply()
        if not switch.stand_ins:
            del _switches[id(config)]


def _configs(modules: Sequence[nn.Module]) -> list[Any]:
    """Every config in which a module may look up its attention, nested ones included."""
    configs: dict[int, Any] = {}
    queue = list({id(config): config for module in modules if (config := module.__dict__.get("config"))}.values())
    while queue:
        config = queue.pop()
        if not hasattr(config, "_attn_implementation_internal") or id(config) in configs:
            continue
        configs[id(config)] = config
        queue += [getattr(config, key, None) for key in getattr(config, "sub_configs", {})]
    return list(configs.values())
