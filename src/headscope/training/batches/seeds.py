"""Seeds that follow from the place in a training.

So no state of a generator has to be saved.
"""

import hashlib

import torch


def seed_of(*numbers: int) -> int:
    """A seed that depends on all numbers.

    It has 32 bits: torch's generator on the CPU takes no more.
    """
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:4], "big")


def generator_of(*numbers: int) -> torch.Generator:
    """A generator that is seeded by numbers."""
    return torch.Generator().manual_seed(seed_of(*numbers))
