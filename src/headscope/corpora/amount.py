"""Amount: how much of a text is read. Loads no torch."""

from dataclasses import dataclass

from headscope.errors import UsageError

SPREAD = 32  # windows that are read by default


@dataclass(frozen=True)
class Amount:
    """The part of a text that is read: its first tokens, all of it, or some windows."""

    first_tokens: int | None = None
    every: bool = False
    spread: int = SPREAD

    def __post_init__(self) -> None:
        if self.first_tokens is not None and self.first_tokens < 1:
            raise UsageError(
                f"the first {self.first_tokens} tokens of a text hold no text", hint="use a few thousand tokens"
            )
        if self.first_tokens is not None and self.every:
            raise UsageError(
                f"the first {self.first_tokens} tokens and all windows of the text were asked for",
                hint="ask for one of the two",
            )
