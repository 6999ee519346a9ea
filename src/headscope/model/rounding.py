r"""The tolerances of opening and verifying a model, by its dtype.

In float32 and float64 two equally exact ways to compute a model differ by a few roundings, far below what a family that
does something else would show; one tolerance serves both. In float16 and bfloat16 rounding alone is as large as such a
difference: on 43 families of two layers, attention computed twice differs by up to 2 ε √sites relative to the largest
output (ε = 2⁻¹⁰ and 2⁻⁷), and where the largest score chooses experts, the difference has no bound. So a narrow model
is judged as a float32 copy, which holds its weights exactly. Only where the machine has no memory for the copy, the
model is judged in its own dtype, with twice the largest error that was measured, and the model's notes say so.

Scores of some hundreds make a softmax so sharp that roundings of float32 grow from layer to layer. A model that
disagrees in float32 is judged once more as a float64 copy, in which a family that does something else still disagrees.
"""

import copy
import math
from typing import Any

import torch

from headscope.model.formats.memory import physical_bytes

# Relative to the largest output: float32 attention summed in another order differs by about 1e-6.
AGREEMENT = 1e-4
# Roundings of a narrow dtype per square root of the number of attention sites: twice the largest that was measured.
ROUNDINGS = 4.0


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether a dtype has fewer digits than float32."""
    return torch.finfo(dtype).eps > torch.finfo(torch.float32).eps


def agreement(dtype: torch.dtype, sites: int) -> float:
    r"""The allowed difference of two computations: 1e-4, or 4 ε √sites if narrow."""
    if not is_narrow(dtype):
        return AGREEMENT
    return ROUNDINGS * float(torch.finfo(dtype).eps) * math.sqrt(max(sites, 1))


def widened(model: Any, dtype: torch.dtype = torch.float32) -> Any | None:
    """The model, as a copy in `dtype` if its own has fewer digits.

    None where there is no memory for the copy.
    """
    if torch.finfo(model.dtype).eps <= torch.finfo(dtype).eps:
        return model
    numbers = sum(weight.numel() for weight in (*model.parameters(), *model.buffers()))
    memory = physical_bytes()
    if memory is not None and numbers * (model.dtype.itemsize + dtype.itemsize) > memory:
        return None
    try:
        return copy.deepcopy(model).to(dtype)
    except (MemoryError, torch.OutOfMemoryError):
        return None
