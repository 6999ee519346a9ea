"""What can be chosen for the lens `scores`."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})
