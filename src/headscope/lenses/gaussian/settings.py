"""What can be chosen for the lens `gaussian`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError

TABLES = ("layers", "positions", "normality", "components", "information", "joint")  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    components: int = field(default=8, metadata={"help": "principal components for divergence, information and tests"})
    distances: str = field(
        default="1,2,4,8,16,32,64,128", metadata={"help": "distances |i − j| in tokens", "separator": ","}
    )
    skip: int = field(default=1, metadata={"help": "tokens left out at the start of each window"})
    tokens: int = field(default=4, metadata={"help": "neighbouring tokens in the joint Gaussian"})

    def checked_distances(self) -> tuple[int, ...]:
        """The distances as numbers, ascending."""
        parts = [part.strip() for part in self.distances.split(",") if part.strip()]
        if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise UsageError(
                f"distances={self.distances!r} cannot be read: expected whole numbers ≥ 1 separated by commas",
                hint="write for example 1,8,64",
            )
        return tuple(sorted({int(part) for part in parts}))

    def check(self) -> None:
        """Refuse distances that cannot be read, and numbers that are too small."""
        self.checked_distances()
        if self.components < 1 or self.skip < 0:
            raise UsageError(
                f"components={self.components} and skip={self.skip}: at least one component is needed, and no fewer "
                "than 0 tokens can be left out"
            )
        if self.tokens < 2:
            raise UsageError(f"tokens={self.tokens}: a joint Gaussian of neighbours needs at least two of them")
