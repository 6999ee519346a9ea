"""What can be chosen for the lens `alignment`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Params:
    """Nothing can be chosen."""
