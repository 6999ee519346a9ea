"""What can be chosen for the lens `dependence`."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    components: int = field(default=8, metadata={"help": "principal components of the stream, per token"})
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})
