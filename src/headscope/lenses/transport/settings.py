"""What can be chosen for the lens `transport`."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    components: int = field(default=8, metadata={"help": "principal components for mutual information, per token"})
    distance: int = field(default=1, metadata={"help": "distance in tokens at which mutual information is taken"})
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})
