"""What can be chosen for the lens `angles`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError

TABLES = ("heads", "arcs", "drawn")  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})

    def check(self) -> None:
        """Refuse a negative number of tokens."""
        if self.skip < 0:
            raise UsageError(f"skip={self.skip}: no fewer than 0 tokens can be left out")
