"""What can be chosen for the lens `roles`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError

TABLES = ("heads", "roles")  # the main one first
SHORTEST = 6  # with fewer tokens the copy of a token is one of the four keys before it


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    tokens: int = field(default=40, metadata={"help": f"random tokens before they repeat, at least {SHORTEST}"})
    sequences: int = field(default=24, metadata={"help": "sequences of repeated tokens, at least 2"})
    ids: str = field(default="", metadata={"help": "range of token ids to draw from, as 100-49052; all ordinary ones"})
    margin: float = field(default=0.1, metadata={"help": "mass by which a role must exceed every null, 0 to 1"})
    with_text: bool = field(default=True, metadata={"help": "read the text too; without it no tokenizer is needed"})

    def id_range(self) -> tuple[int, int] | None:
        """The first and the last id to draw from; None for all ordinary tokens."""
        if not self.ids.strip():
            return None
        ends = [part.strip() for part in self.ids.split("-")]
        if len(ends) != 2 or not all(end.isdecimal() for end in ends) or int(ends[0]) > int(ends[1]):
            raise UsageError(
                f"ids={self.ids!r} cannot be read: expected two whole numbers, the smaller one first",
                hint="write for example 100-49052",
            )
        return int(ends[0]), int(ends[1])

    def check_vocabulary(self, model_name: str, size: int) -> None:
        """Refuse a range of ids that lies beyond those that the model embeds."""
        ids = self.id_range()
        if ids is not None and ids[0] >= size:
            raise UsageError(
                f"ids={self.ids!r} begins at {ids[0]}; {model_name} embeds tokens with ids from 0 to {size - 1}",
                hint=f"write for example 0-{size - 1}",
            )

    def check(self) -> None:
        """Refuse sizes that cannot be measured."""
        self.id_range()
        if self.tokens < SHORTEST or self.sequences < 2 or not 0 <= self.margin < 1:
            raise UsageError(
                f"tokens={self.tokens}, sequences={self.sequences} and margin={self.margin}: expected at least "
                f"{SHORTEST} tokens, 2 sequences, and a margin from 0 to 1"
            )
