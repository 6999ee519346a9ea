"""What can be chosen for the lens `lowrank`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError

SMALLEST, LARGEST = 8, 1024
TABLES = ("growth", "components")  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    tokens: int = field(
        default=256, metadata={"help": f"largest n, {SMALLEST} to {LARGEST}; the time grows with its cube"}
    )
    windows: int = field(default=64, metadata={"help": "at most so many windows of the text are measured"})

    def check(self) -> None:
        """Refuse sizes that cannot be measured."""
        if not SMALLEST <= self.tokens <= LARGEST or self.windows < 1:
            raise UsageError(
                f"tokens={self.tokens} and windows={self.windows}: between {SMALLEST} and {LARGEST} tokens of at least "
                "one window can be measured"
            )
