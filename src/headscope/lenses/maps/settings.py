"""What can be chosen for the lens `maps`."""

from dataclasses import dataclass, field

from headscope.shapes import CORNER

FIRST = "first"


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    tokens: int = field(default=32, metadata={"help": f"tokens of each window that are shown, at most {CORNER}"})
    windows: int = field(default=8, metadata={"help": "windows in the numbers; the first one is drawn"})
    leave_out: str = field(
        default=FIRST, metadata={"help": "tokens left out, by blanks: `first`, or as they are spelled"}
    )
    at: str = field(
        default="", metadata={"help": "layer that is drawn large, e.g. L3; by default the one whose average hides most"}
    )
