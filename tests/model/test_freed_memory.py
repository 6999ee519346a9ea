"""Freed memory: a process gives it back to the system."""

import sys
from pathlib import Path

import pytest
import torch

from headscope.model.freed_memory import return_freed_memory

STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_freed_memory_is_given_back() -> None:
    """A block on top of freed ones keeps the C library from shrinking its heap by itself."""
    blocks = [torch.ones(2**14) for _ in range(4096)]  # 256 MB in blocks of 64 KB
    full, top = resident_bytes(), torch.ones(2**14)
    del blocks
    return_freed_memory()
    assert resident_bytes() < full - 200 * 2**20
    assert float(top.sum()) == 2**14
