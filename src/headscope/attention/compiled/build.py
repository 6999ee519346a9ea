"""Builds the kernel with torch's extension loader, once per machine and source.

Nothing is built without a request: by `use()` or by the environment variable HEADSCOPE_COMPILED=1. Without it
every path is complete in torch alone. The kernel is built for the processor at hand (`-march=native`), so its name
carries digests of the processor's features and of its source.
"""

import ctypes
import hashlib
import os
import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from headscope.errors import ResourceError

SOURCE = Path(__file__).with_name("rows.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
         "-fno-signed-zeros", "-pthread", "-Wno-ignored-attributes", "-Wno-psabi")  # fmt: skip
VARIABLE = "HEADSCOPE_COMPILED"
_enabled: bool | None = None  # None: as the environment says


def use(enabled: bool = True) -> None:
    """Turn the compiled kernel on or off; the first use on a machine builds it."""
    global _enabled
    if enabled:
        library()
    _enabled = enabled


def is_used() -> bool:
    """Whether the compiled kernel is on; it is built by then."""
    if _enabled is None:
        use(os.environ.get(VARIABLE, "") not in ("", "0"))
    return bool(_enabled)


def takes(x: Tensor) -> bool:
    """Whether the kernel is on and supports a tensor like this one."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and is_used()


@cache
def library() -> ctypes.CDLL:
    """The kernel, built if necessary; a `ResourceError` says what is missing."""
    from torch.utils import cpp_extension

    name = f"headscope_rows_{_digest()}"
    try:
        cpp_extension.load(name, [str(SOURCE)], extra_cflags=list(FLAGS), is_python_module=False, verbose=False)
        folder = Path(cpp_extension._get_build_directory(name, False))
        return ctypes.CDLL(str(folder / f"{name}.so"))
    except (RuntimeError, OSError, ImportError) as error:
        first = str(error).strip().split("\n")[0]
        raise ResourceError(
            f"the compiled kernel could not be built: {first}",
            hint=f"it needs a C++ compiler and ninja (pip install ninja); without {VARIABLE} torch alone is used",
        ) from error


def _digest() -> str:
    digest_inputs = [SOURCE.read_text(encoding="utf-8"), *FLAGS, platform.machine(), _features()]
    return hashlib.sha256("\n".join(digest_inputs).encode()).hexdigest()[:12]


def _features() -> str:
    """Features of the processor, where the system reports them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
