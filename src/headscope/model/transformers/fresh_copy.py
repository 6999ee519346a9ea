"""Loads a second model of a checkpoint by transformers itself, for comparison.

An opened model agrees with itself, whatever was done to it. So `verify` loads the checkpoint again, through
transformers' own path and with its eager attention, and compares with that. A model in memory is built
again from its configuration and its weights.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.model.load import load
from headscope.model.sources.names import Source
from headscope.model.transformers.library_messages import quiet, reason
from headscope.model.transformers.model_state import random_restored

# Attributes that say where a model came from, not what it computes.
_ORIGIN = ("name_or_path", "is_quantized", "quantization_method")


@dataclass(frozen=True)
class FreshCopy:
    """A freshly loaded model, and a sentence about how it was made."""

    hf: Any
    method: str


def fresh_copy(hf: Any, source: Source | None) -> FreshCopy:
    """Load the model of a checkpoint a second time, or rebuild a model in memory."""
    with quiet(), random_restored(hf):
        fresh = _rebuilt(hf) if source is None else _reload(hf, source)
    fresh.hf.eval().requires_grad_(False)
    fresh.hf.set_attn_implementation("eager")
    return fresh


def _reload(hf: Any, source: Source) -> FreshCopy:
    if source.kind == "random":
        return FreshCopy(load(source, dtype=hf.dtype).model, "drawn again from the same configuration and seed")
    if getattr(source, "adapter", None) is not None:
        return FreshCopy(load(source, dtype=hf.dtype).model, "loaded again by headscope, with its adapter")
    try:
        model = source.checkpoint.reference(type(hf), hf.dtype)
    except Exception as error:  # noqa: BLE001  transformers may lack a package or refuse a file that headscope reads
        why = f"loaded again by headscope: transformers itself does not load it ({reason(error)})"
        return FreshCopy(load(source, dtype=hf.dtype).model, why)
    return FreshCopy(model, "loaded again by transformers itself")


def _rebuilt(hf: Any) -> FreshCopy:
    try:
        model = type(hf)._from_config(copy.deepcopy(hf.config), dtype=hf.dtype)
        model.load_state_dict(hf.state_dict())
        buffers = dict(hf.named_buffers())
        for name, buffer in model.named_buffers():
            # A move of a model to a narrow dtype rounds its buffers too.
            _set_buffer(model, name, buffer.to(buffers[name].device, buffers[name].dtype))
    except Exception as error:  # noqa: BLE001  a model in memory may have been put together by hand
        return FreshCopy(copy.deepcopy(hf), f"a copy: it cannot be built from its configuration ({reason(error)})")
    return FreshCopy(model.to(hf.device), "built again from the configuration and weights of the model in memory")


def _set_buffer(model: nn.Module, name: str, value: Tensor) -> None:
    owner, _, last = name.rpartition(".")
    model.get_submodule(owner)._buffers[last] = value


def differences(hf: nn.Module, fresh: nn.Module) -> list[str]:
    """The names of weights, buffers, modules and attributes that differ."""
    parts, fresh_parts = (dict(model.named_modules()) for model in (hf, fresh))
    names = [*dict.fromkeys((*parts, *fresh_parts))]
    return [where for name in names for where in _module_differences(name, parts.get(name), fresh_parts.get(name))]


def _module_differences(name: str, module: nn.Module | None, fresh: nn.Module | None) -> list[str]:
    # Compared by name: torch makes a new class for every module with a parametrised weight.
    if module is None or fresh is None or type(module).__qualname__ != type(fresh).__qualname__:
        return [name]
    tensors, fresh_tensors = ({**part._parameters, **part._buffers} for part in (module, fresh))
    plain, fresh_plain = (_plain_attributes(part) for part in (module, fresh))
    return [
        *(f"{name}.{key}" for key in tensors.keys() | fresh_tensors.keys() if not _same(tensors, fresh_tensors, key)),
        *(f"{name}.{key}" for key in plain.keys() | fresh_plain.keys() if plain.get(key) != fresh_plain.get(key)),
    ]


def _same(a: dict[str, Tensor | None], b: dict[str, Tensor | None], key: str) -> bool:
    first, second = a.get(key), b.get(key)
    if first is None or second is None:
        return first is second
    return first.dtype == second.dtype and torch.equal(first, second.to(first.device))


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    """The simple public attributes of a module, without those about its origin."""
    return {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and key not in _ORIGIN and isinstance(value, str | int | float | bool | None)
    }
