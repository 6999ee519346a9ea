"""What can be chosen for the lens `gaussian`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    components: int = field(default=8, metadata={"help": "principal components for divergence, information and tests"})
    distances: str = field(default="1,2,4,8,16,32,64,128", metadata={"help": "distances |i − j| in tokens, by commas"})
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
