"""Whether a model can fit at all, asked before the machine starts to swap."""

import os

import torch

from headscope.errors import ResourceError


def check_memory(n_numbers: int, dtype: torch.dtype, where: str) -> None:
    """Raise when `n_numbers` of `dtype` need more than this machine's whole memory."""
    need, have = n_numbers * dtype.itemsize, physical_bytes()
    if have is not None and need > have:
        raise ResourceError(
            f"the weights of {where} need {need / 1e9:.1f} GB as {str(dtype).removeprefix('torch.')}, "
            f"this machine has {have / 1e9:.1f} GB",
            hint="open it in float16 or bfloat16, or use lenses that read weights from the file",
        )


def physical_bytes() -> int | None:
    """The memory of this machine, None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
