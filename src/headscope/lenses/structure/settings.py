"""What can be chosen for the lens `structure`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError

TABLES = ("smallest", "families", "structures")  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    windows: int = field(default=32, metadata={"help": "at most so many windows of the text are measured"})
    reach: int = field(
        default=16, metadata={"help": "tokens from the query within which neighbours count as near, at least 1"}
    )

    def check(self) -> None:
        """Refuse sizes that cannot be measured."""
        if self.windows < 1 or self.reach < 1:
            raise UsageError(
                f"windows={self.windows} and reach={self.reach}: at least one window is measured, and the reach is at "
                "least 1 token"
            )
