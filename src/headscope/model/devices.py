"""The device that a model runs on: from a name to a device of this machine."""

import torch

from headscope.errors import ResourceError, UsageError

DEVICES_HELP = "cpu, cuda, cuda:1, mps, xpu, or another name that torch knows"


def device_named(name: str) -> torch.device:
    """The device of this name.

    Raises:
        UsageError: torch knows no such name.
        ResourceError: This machine, or this build of torch, has no such device.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"there is no device {name!r}", hint=f"use {DEVICES_HELP}") from error
    if device.type == "meta":
        raise UsageError("the device 'meta' holds no numbers, so nothing can be measured on it", hint=DEVICES_HELP)
    try:
        torch.zeros(1, device=device)
    except Exception as error:  # every backend refuses in its own way: AssertionError, RuntimeError, ImportError
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ResourceError(
            f"the device {name!r} cannot be used here: {reason}",
            hint="leave the device out to run on the CPU, or install a torch that is built for it",
        ) from error
    return device
