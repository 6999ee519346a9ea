"""What can be chosen for the lens `preconditioning`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError

TABLES = ("text", "layers", "tokens", "gaussians")  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    least: int = field(default=10, metadata={"help": "occurrences that a previous token needs to be looked at"})
    components: int = field(default=8, metadata={"help": "principal components for the entropy of the Gaussian"})
    skip: int = field(default=1, metadata={"help": "tokens at the start of each window that are no previous tokens"})

    def check(self) -> None:
        """Refuse numbers that are too small."""
        if self.least < 2 or self.components < 1 or self.skip < 0:
            raise UsageError(
                f"least={self.least}, components={self.components} and skip={self.skip}: at least two occurrences "
                "and one component are needed, and no fewer than 0 tokens can be left out"
            )
