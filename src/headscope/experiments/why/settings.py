"""What can be chosen for the experiment `why`."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from headscope.errors import UsageError
from headscope.experiments.command import Command

if TYPE_CHECKING:
    from headscope.corpora import Text

COMMAND = Command(
    path=("why",),
    help=(
        "Say why a head attends where it does: which earlier parts of the model wrote what it reads.\n\n"
        "The score of a query and a key is an exact sum over writers of the stream (the embedding, every earlier head, "
        "every feed-forward part). The strongest writers are taken out, in the arithmetic and in a run of the model, "
        "and the mass on the key is measured again. Without a head: the strongest induction head. Without a text: "
        "random tokens that come twice."
    ),
    examples=(
        "headscope why",
        "headscope why smollm2 L18.H6 --out out/why",
        'headscope why tiny L1.H3 --text "God said unto Moses, and Moses said unto God"',
        "headscope why tiny L1.H3 --query 60 --key 21",
        "headscope why smollm2 L18.H6 --trigrams 5",
    ),
    tables=("keys", "queries", "pairs", "checks", "sequences", "trigrams", "chain", "positions"),
    default_out="headscope-why",
    default_model="tiny",
    reads_sentences=True,
)
MOST_TRIGRAMS = 20


class Pairs(StrEnum):
    """Which queries and keys are explained."""

    AUTO = "auto"
    REPEAT = "repeat"
    ATTENDED = "attended"


@dataclass(frozen=True)
class Params:
    """Which head is explained on which text, and at which queries and keys."""

    head: str | None = field(
        default=None,
        metadata={
            "help": "the head, such as L1.H3. Default: the strongest induction head of the model",
            "argument": True,
            "heads": True,
        },
    )
    text: "Text | None" = field(
        default=None,
        metadata={
            "help": "a string that is the text, the name of one (`moby-dick:fit`), a `Path` of a UTF-8 file, or what "
            "`text` returns. Default: random tokens that come twice"
        },
    )
    query: int | None = field(default=None, metadata={"help": "position of the query, from 0; with --key", "min": 0})
    key: int | None = field(default=None, metadata={"help": "position of the key, from 0; with --query", "min": 0})
    pairs: Pairs = field(
        default=Pairs.AUTO,
        metadata={
            "help": "which pairs without --query: the token that followed the earlier copy (repeat), the key with the "
            "most mass (attended), or whichever suits the head (auto)"
        },
    )
    tokens: int = field(default=128, metadata={"help": "how many tokens of the text are read", "min": 2})
    random_tokens: int = field(
        default=40, metadata={"help": "how many random tokens come twice, where there is no text", "min": 4}
    )
    strongest: int = field(
        default=3, metadata={"help": "how many writers of each side are taken out of the model", "min": 1}
    )
    sequences: int = field(
        default=4,
        metadata={
            "help": "on how many further random sequences the strongest path of each side is taken out, for an "
            "interval; 0 for none. A text has no further sequences"
        },
    )
    trigrams: int = field(
        default=0,
        metadata={
            "help": "how many skip trigrams of the head's weights are checked on text (--text, or the text that ships "
            "with headscope), with the head and with its mean output. They cost 1,024 tokens twice: about ten seconds "
            "for smollm2",
            "max": MOST_TRIGRAMS,
        },
    )
    draws: int = field(default=200, metadata={"help": "how often random keys are drawn for the null", "min": 20})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn at random"})

    def check(self) -> None:
        """Refuse a query without a key, positions that are no pair, and numbers that are too small."""
        if (self.query is None) != (self.key is None):
            lacking, present = ("--key", "--query") if self.key is None else ("--query", "--key")
            raise UsageError(
                f"{present} is there and {lacking} is not: one score needs both",
                hint=f"add {lacking}, or leave out {present} to explain all suitable queries of the text",
            )
        if self.query is not None and self.pairs is not Pairs.AUTO:
            raise UsageError(
                f"--pairs {self.pairs} chooses queries and keys, and --query and --key name them",
                hint="leave out one of the two",
            )
        least = {"tokens": 2, "random_tokens": 4, "strongest": 1, "draws": 20, "sequences": 0, "trigrams": 0}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise UsageError(f"{name}={getattr(self, name)}: needed are at least {number}")
        self._check_positions()
        if self.trigrams > MOST_TRIGRAMS:
            raise UsageError(f"trigrams={self.trigrams}: at most {MOST_TRIGRAMS} can be checked")
        if self.head is not None:
            _check_label(self.head)

    def _check_positions(self) -> None:
        """Refuse positions beyond the tokens that will be read; a shorter text is refused when it is read."""
        count = 2 * self.random_tokens + 1 if self.text is None else self.tokens
        option = "--random-tokens" if self.text is None else "--tokens"
        for name, position in (("query", self.query), ("key", self.key)):
            if position is not None and position >= count:
                raise UsageError(
                    f"--{name} {position} is beyond the text, of which at most {count} tokens are read",
                    hint=f"positions run from 0 to {count - 1}; a larger {option} reads more",
                )


def _check_label(head: str) -> None:
    parts = head.split(".")
    if not parts[-1].startswith("H") or not parts[-1][1:].isdigit():
        raise UsageError(f"{head!r} is not the name of one head", hint="write L1.H3, or dec.L1.H3 with two stacks")
