"""What can be chosen for the lens `maps`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError
from headscope.shapes import CORNER

FIRST = "first"
TABLES = ("layers", "heads")  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    tokens: int = field(default=32, metadata={"help": f"tokens of each window that are shown, at most {CORNER}"})
    windows: int = field(default=8, metadata={"help": "windows in the numbers; the first one is drawn"})
    leave_out: str = field(
        default=FIRST,
        metadata={"help": "tokens left out, by blanks: `first`, or as they are spelled", "separator": " "},
    )
    at: str = field(
        default="",
        metadata={
            "help": "layer or head that is drawn large: L3, L3.H7; by default the layer whose average hides most",
            "metavar": "HEADS",
        },
    )

    def check(self) -> None:
        """Refuse sizes that cannot be shown, and a selection that cannot be read."""
        from headscope.core.selection import Selection

        if not 1 <= self.tokens <= CORNER or self.windows < 1:
            raise UsageError(
                f"tokens={self.tokens} and windows={self.windows}: between 1 and {CORNER} tokens of at least one "
                "window can be shown"
            )
        Selection.parse(self.at or "all")
