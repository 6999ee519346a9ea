"""What can be chosen for the lens `uniformity`."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    tokens: int = field(default=4096, metadata={"help": "how much of the text is read, in tokens, whole windows"})
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})
