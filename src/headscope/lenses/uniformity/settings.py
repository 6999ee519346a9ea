"""What can be chosen for the lens `uniformity`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError

TABLES = ("streams", "rates", "layers")  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    tokens: int = field(default=4096, metadata={"help": "how much of the text is read, in tokens, whole windows"})
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})

    def check(self) -> None:
        """Refuse numbers that are too small."""
        if self.tokens < 1 or self.skip < 0:
            raise UsageError(
                f"tokens={self.tokens} and skip={self.skip}: at least one token is read, and no fewer than 0 left out"
            )
