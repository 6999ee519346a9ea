"""What can be chosen for the lens `embeddings`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError

TABLES = ("tables", "spectra", "positions", "analogies", "related", "neighbours")  # the main one first


@dataclass(frozen=True)
class Params:
    """What can be chosen."""

    words: str = field(
        default="time,water,king,France,three,good,walked,she",
        metadata={"help": "words whose nearest tokens are shown", "separator": ","},
    )
    nearest: int = field(default=5, metadata={"help": "nearest tokens that are shown of each word"})

    def listed(self) -> list[str]:
        """The words, each once."""
        return list(dict.fromkeys(word.strip() for word in self.words.split(",") if word.strip()))

    def check(self) -> None:
        """Refuse to show no tokens."""
        if self.nearest < 1:
            raise UsageError(f"nearest={self.nearest}: at least one token has to be shown")
