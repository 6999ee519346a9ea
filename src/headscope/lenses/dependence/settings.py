"""What can be chosen for the lens `dependence`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError

TABLES = ("heads", "joint", "pairs", "profile")  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    components: int = field(default=8, metadata={"help": "principal components of the stream, per token"})
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})

    def check(self) -> None:
        """Refuse no components and a negative number of tokens."""
        if self.components < 1 or self.skip < 0:
            raise UsageError(
                f"components={self.components} and skip={self.skip}: at least one component is needed, and no fewer "
                "than 0 tokens can be left out"
            )
