"""What a device can do: without float64, the CPU computes it."""

from functools import cache

import torch

CPU = torch.device("cpu")


@cache
def has_float64(device: torch.device) -> bool:
    """Whether this device has float64; Apple's GPUs do not.

    Properties:
        - an attempt shows whether a device has float64  (tested: test_a_device_without_float64_is_told_by_trying)
    """
    if device.type in ("cpu", "cuda"):
        return True
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def exact_device(device: torch.device) -> torch.device:
    """Where float64 numbers of this device are computed: there, or on the CPU."""
    return device if has_float64(device) else CPU
