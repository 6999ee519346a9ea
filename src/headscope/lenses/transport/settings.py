"""What can be chosen for the lens `transport`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError
from headscope.shapes import CORNER

TABLES = ("heads", "layers")  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    components: int = field(default=8, metadata={"help": "principal components for mutual information, per token"})
    distance: int = field(default=1, metadata={"help": "distance in tokens at which mutual information is taken"})
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})

    def check(self) -> None:
        """Refuse numbers that are too small, and distances beyond the first tokens."""
        if self.components < 1 or self.skip < 0 or not 1 <= self.distance < CORNER:
            raise UsageError(
                f"components={self.components}, distance={self.distance} and skip={self.skip}: at least one "
                f"component is needed, a distance from 1 to {CORNER - 1}, and no fewer than 0 tokens can be left out"
            )
