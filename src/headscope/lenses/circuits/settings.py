"""What can be chosen for the lens `circuits`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError

TABLES = ("heads", "tokens", "successors")  # the main one first
ROWS = ("normed", "stored")


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    at: str = field(
        default="",
        metadata={
            "help": "heads whose strongest pairs of tokens are listed: L3, L3.H7; by default the head that copies most",
            "metavar": "HEADS",
        },
    )
    distance: int = field(default=1, metadata={"help": "tokens between key and query in the pairs that W_QK scores"})
    tokens: int = field(
        default=8192, metadata={"help": "tokens in the lists of pairs: those with the lowest ids; 0 for all"}
    )
    top: int = field(default=10, metadata={"help": "pairs in each list", "min": 1, "max": 1000})
    rotations: int = field(default=45, metadata={"help": "heads turned at random for the null of each layer", "min": 2})
    rows: str = field(
        default="normed",
        metadata={"help": "token vectors at the scale that the norm gives them (normed), or as stored"},
    )
    effective: bool = field(
        default=False, metadata={"help": "token vectors after the first layer, for the layers that follow it"}
    )

    def check(self) -> None:
        """Refuse sizes that make no list or no null, and words that mean nothing."""
        from headscope.core.selection import Selection

        if self.top < 1 or self.rotations < 2 or self.tokens < 0 or self.distance < 0:
            raise UsageError(
                f"top={self.top}, rotations={self.rotations}, tokens={self.tokens}, distance={self.distance}: at least "
                "one pair and two rotations are needed, and no number may be negative"
            )
        if self.rows not in ROWS:
            raise UsageError(f"rows={self.rows!r} is not known", hint=f"one of {', '.join(ROWS)}")
        Selection.parse(self.at or "all")
