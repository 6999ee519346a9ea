"""What can be chosen for the experiment `prune`."""

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from headscope.errors import UsageError
from headscope.experiments.command import Command

if TYPE_CHECKING:
    from headscope.corpora import Text

COMMAND = Command(
    path=("prune",),
    help=(
        "Switch heads off, and measure what the model loses.\n\n"
        "Each head alone, on the split `search` of a text: how far the predictions move when it gives zero, or its "
        "mean, and what gradients predict. Then more and more heads together, the least important first, on the split "
        "`test`: the perplexity, compared with that of random heads."
    ),
    examples=(
        "headscope prune tiny",
        "headscope prune smollm2 --text moby-dick --out out/prune",
        "headscope prune smollm2 --off mean --windows 16 --draws 8",
    ),
    tables=("curve", "heads", "spared", "correlations"),
    needs_writer=True,
)
BUDGETS = (0.01, 0.05)  # of perplexity, for which the number of heads that can go is counted


class Off(StrEnum):
    """What a head gives when it is switched off."""

    ZERO = "zero"
    MEAN = "mean"


@dataclass(frozen=True)
class Params:
    """On how much text heads are switched off, and how."""

    text: "Text | None" = field(
        default=None,
        metadata={
            "help": "the name of a text (`moby-dick`), a string that is the text, a `Path` of a UTF-8 file, or what "
            "`text` returns; its documents are split. Default: the shipped text"
        },
    )
    off: Off = field(
        default=Off.ZERO,
        metadata={"help": "what heads that are switched off together give: zero, or their mean over the split fit"},
    )
    tokens: int = field(default=64, metadata={"help": "tokens per window", "min": 16})
    windows: int = field(
        default=4, metadata={"help": "windows of the split search, on which each head is switched off", "min": 4}
    )
    test_windows: int = field(
        default=8, metadata={"help": "windows of the split test, on which many heads are switched off", "min": 4}
    )
    draws: int = field(default=3, metadata={"help": "number of random orders of the heads", "min": 1})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn at random"})

    def check(self) -> None:
        """Refuse windows and draws that measure nothing, and a text that is one split already."""
        for setting in fields(self):
            least = setting.metadata.get("min")
            if least is not None and getattr(self, setting.name) < least:
                raise UsageError(f"{setting.name} is at least {least}, got {getattr(self, setting.name)}")
        # The command line hands over the name of a text before it is read.
        name, _, split = str(getattr(self.text, "name", self.text)).rpartition(":")
        if split in ("fit", "search", "test"):
            raise UsageError(
                f"pruning splits the text by its documents, and {name}:{split} is one split already",
                hint=f"name the whole text: --text {name}",
            )
