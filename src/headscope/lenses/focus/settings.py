"""What can be chosen for the lens `focus`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError

TABLES = ("heads",)  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    bands: str = field(default="1,8,64", metadata={"help": "half-widths of the bands, in tokens", "separator": ","})

    def widths(self) -> tuple[int, ...]:
        """The half-widths as numbers, ascending."""
        parts = [part.strip() for part in self.bands.split(",") if part.strip()]
        if not all(part.isdecimal() for part in parts):
            raise UsageError(
                f"bands={self.bands!r} cannot be read: expected whole numbers ≥ 0 separated by commas",
                hint="write for example 1,8,64",
            )
        return tuple(sorted({int(part) for part in parts}))

    def check(self) -> None:
        """Refuse bands that cannot be read."""
        self.widths()
