"""What a device can do: some have no float64, and what needs it runs on the CPU for them."""

from functools import cache

import torch

CPU = torch.device("cpu")


@cache
def has_float64(device: torch.device) -> bool:
    """Whether tensors of float64 can be made on this device; Apple's GPUs have none, for one.

    Properties:
        - a device without float64 is told by trying  (tested: test_a_device_without_float64_is_told_by_trying)
    """
    if device.type in ("cpu", "cuda"):
        return True
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def exact_device(device: torch.device) -> torch.device:
    """Where numbers of this device are computed in float64: on the device itself if it can, else on the CPU."""
    return device if has_float64(device) else CPU
