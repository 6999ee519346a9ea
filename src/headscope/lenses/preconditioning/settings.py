"""What can be chosen for the lens `preconditioning`."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    least: int = field(default=10, metadata={"help": "occurrences that a previous token needs to be looked at"})
    components: int = field(default=8, metadata={"help": "principal components for the entropy of the Gaussian"})
    skip: int = field(default=1, metadata={"help": "tokens at the start of each window that are no previous tokens"})
