"""What can be chosen for the lens `composition`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError

TABLES = ("heads", "pairs")  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    at: str = field(
        default="",
        metadata={
            "help": "heads that read, whose strongest writers are listed: L3.H7; by default all",
            "metavar": "HEADS",
        },
    )
    top: int = field(default=20, metadata={"help": "pairs listed of each quantity", "min": 1})

    def check(self) -> None:
        """Refuse an empty list, and a selection that cannot be read."""
        from headscope.core.selection import Selection

        if self.top < 1:
            raise UsageError(f"top={self.top}: at least one pair has to be listed")
        Selection.parse(self.at or "all")
