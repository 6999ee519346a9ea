"""What can be chosen for the lens `alignment`."""

from dataclasses import dataclass

TABLES = ("heads", "layers", "factors")  # the main one first


@dataclass(frozen=True)
class Params:
    """Nothing can be chosen."""
