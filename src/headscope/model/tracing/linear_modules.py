"""Tells which modules multiply their input by one matrix and do nothing else but add a bias."""

import copy
from typing import cast

import torch
from torch import Tensor, nn


def is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies its input by one matrix.

    True for torch's Linear and transformers' Conv1D. A Linear with its own forward may do more than that (a router, a
    layer that rounds its weights): it is tried.
    """
    if isinstance(module, nn.Linear):
        return type(module).forward is nn.Linear.forward or _only_multiplies(module)
    return type(module).__name__ == "Conv1D"


def out_features(module: nn.Module) -> int:
    """The number of channels that a linear module returns."""
    shape = cast(Tensor, module.weight).shape  # [out, in] in Linear, [in, out] in Conv1D
    return int(shape[0] if isinstance(module, nn.Linear) else shape[1])


def _only_multiplies(module: nn.Linear) -> bool:
    """Whether the forward of a Linear's own class gives x @ wᵀ + b, tried with a small w and b in place of its own."""
    names = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    if names - {"weight", "bias"} or next(module.children(), None) is not None:
        return False
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (torch.randn(*size, generator=generator, device="cpu") for size in ((5, 3), (5,), (4, 3)))
    bias_or_none = None if module.bias is None else bias
    stand_in = copy.copy(module)
    stand_in.__dict__["_parameters"] = {
        "weight": nn.Parameter(weight, requires_grad=False),
        "bias": None if bias_or_none is None else nn.Parameter(bias, requires_grad=False),
    }
    stand_in.in_features, stand_in.out_features = 3, 5
    # Two sizes of inputs: rounding and limits show in one of them.
    for inputs in (x, 1000 * x):
        try:
            result = type(module).forward(stand_in, inputs)
        except Exception:  # noqa: BLE001  whatever it needs beyond w and b, it is not linear
            return False
        wanted_heads = nn.functional.linear(inputs, weight, bias_or_none)
        if not isinstance(result, Tensor) or result.shape != wanted_heads.shape:
            return False
        if not torch.allclose(result, wanted_heads, rtol=1e-5, atol=1e-5):
            return False
    return True
