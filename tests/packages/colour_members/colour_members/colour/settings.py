"""What can be chosen for the lens `colour`."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    shade: float = field(default=1.0, metadata={"help": "factor on every colour"})
