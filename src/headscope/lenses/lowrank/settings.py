"""What can be chosen for the lens `lowrank`."""

from dataclasses import dataclass, field

SMALLEST, LARGEST = 8, 1024


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    tokens: int = field(
        default=256, metadata={"help": f"largest n, {SMALLEST} to {LARGEST}; the time grows with its cube"}
    )
    windows: int = field(default=64, metadata={"help": "at most so many windows of the text are measured"})
