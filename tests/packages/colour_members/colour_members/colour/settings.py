"""What can be chosen for the lens `colour`."""

from dataclasses import dataclass, field

TABLES = ("heads",)  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    keys: int = field(default=2, metadata={"help": "rows that see fewer keys than this do not count", "min": 1})
