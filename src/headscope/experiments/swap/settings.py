"""What can be chosen for the experiment `swap`."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from headscope.errors import UsageError
from headscope.experiments.command import Command

if TYPE_CHECKING:
    from headscope.corpora import Text

COMMAND = Command(
    path=("swap",),
    help=(
        "Let heads attend through cheaper mechanisms, and measure quality lost and speed gained.\n\n"
        "Name the replacements (--replace), read them from a file (--plan), or let a search find them (--budget): the "
        "cheapest mechanism of each head such that perplexity stays within the budget on the split `search` of the "
        "text. Every plan is then judged on the split `test`, which the search never reads."
    ),
    examples=(
        "headscope swap smollm2 --replace 'L10-20=window(left=256)' --text moby-dick",
        "headscope swap smollm2 --budget 1% --text moby-dick --save plan.json --out out/swap",
        "headscope swap smollm2 --budget 1% --text moby-dick --also handbook-en --save plan.json",
        "headscope swap smollm2 --budget 1% --for cache --text moby-dick --save plan.json",
        "headscope swap smollm2 --plan plan.json --text handbook-en --lengths 2048,8192",
        "headscope swap smollm2 --plan plan.json --export flex",
        "headscope swap smollm2 --plan plan.json --repair 50000 --text moby-dick --save repaired.json",
    ),
    tables=(
        *(
            "quality",
            "embeddings",
            "speed",
            "decoding",
            "heads",
            "recall",
            "frontier",
            "repair",
            "repair_layers",
            "texts",
        ),
    ),
)
_LARGEST_BUDGET = 1.0  # a perplexity twice the original's
FEWEST_REPAIR_TOKENS = 256
PROMPT = "The old house at the end of the road had been empty for years, until"


def share_of(percentage: str) -> float:
    """The share that a percentage means; 0 for what is none."""
    number, percent, ending = percentage.partition("%")
    try:
        return float(number) / 100 if percent and not ending.strip() else 0.0
    except ValueError:
        return 0.0


class Goal(StrEnum):
    """What a search makes cheap."""

    PREFILL = "prefill"
    CACHE = "cache"


@dataclass(frozen=True)
class Params:
    """Where the plan comes from, and how it is judged."""

    replace: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "heads and their mechanism, as in L10-20=window(left=256); `headscope mechanisms` lists them",
            "metavar": "HEADS=MECHANISM",
            "commas": False,
        },
    )
    plan: str = field(default="", metadata={"help": "a plan that was saved", "metavar": "FILE"})
    budget: str = field(
        default="", metadata={"help": "search a plan that costs at most this much perplexity: 1%", "metavar": "PERCENT"}
    )
    goal: Goal = field(
        default=Goal.PREFILL,
        metadata={
            "help": "what a search makes cheap: the prefill, head by head, or the cache, by groups of heads that share "
            "keys and values",
            "option": "for",
        },
    )
    also: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "further texts: a searched plan stays within the budget on the split search of each",
            "metavar": "TEXT,TEXT",
        },
    )
    mechanisms: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "a further mechanism that a search tries besides windows, as in top_blocks(block=64, blocks=8)",
            "metavar": "MECHANISM",
            "option": "try",
            "commas": False,
        },
    )
    recall: str = field(
        default="",
        metadata={
            "help": "a second budget of the search: lose at most this share of the hidden facts that the model finds",
            "metavar": "PERCENT",
        },
    )
    fit: bool = field(
        default=False,
        metadata={
            "help": "choose columns, global positions, features and projections for each head, from its activations"
        },
    )
    save: str = field(default="", metadata={"help": "write the plan into this file", "metavar": "FILE"})
    repair: int = field(
        default=0,
        metadata={
            "help": "train the projections of the swapped heads on so many tokens of the split fit, layer by layer, "
            "against what the heads gave before",
            "metavar": "TOKENS",
        },
    )
    export: str = field(
        default="",
        metadata={
            "help": "write the plan as mask functions for torch's FlexAttention: `flex` writes PLAN_flex.py next to "
            "the plan; or name a file that ends in .py",
            "metavar": "flex|FILE.py",
        },
    )
    text: "Text | None" = field(
        default=None,
        metadata={
            "help": "the name of a text (`moby-dick`), a string that is the text, a `Path` of a UTF-8 file, or what "
            "`text` returns. A search needs a whole text: its documents are split. Default: the shipped text"
        },
    )
    tokens: int = field(default=2048, metadata={"help": "tokens per window of the search", "min": 64})
    windows: int = field(default=12, metadata={"help": "most windows of the search and of each judgement", "min": 4})
    lengths: tuple[int, ...] = field(
        default=(),
        metadata={
            "help": "tokens per window at which a plan is judged and timed. Default: 2048 and 8192, or what model and "
            "text have room for",
            "metavar": "N...",
        },
    )
    recall_lengths: tuple[int, ...] = field(
        default=(512,),
        metadata={"help": "tokens of the texts that hide facts, which the model is asked for", "metavar": "N..."},
    )
    minutes: float = field(default=30.0, metadata={"help": "the search ends after this time with its best plan"})
    repeats: int = field(default=3, metadata={"help": "how often each prefill is timed", "min": 1})
    prompt: str = field(
        default=PROMPT, metadata={"help": "what the model writes from, with and without the plan", "metavar": "TEXT"}
    )
    new_tokens: int = field(default=40, metadata={"help": "most tokens that are written", "min": 1})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn at random"})

    @property
    def allowed(self) -> float:
        """The budget as a share of the perplexity; 0 without a search."""
        return share_of(self.budget)

    def check(self) -> None:
        """Refuse rules, plans and budgets that cannot be read, and several sources of a plan at once."""
        from headscope.attention.mechanism_spelling import check_spelling
        from headscope.experiments.swap.rules import rules_of
        from headscope.model.plans.plan import Plan

        sources = [name for name in ("replace", "plan", "budget") if getattr(self, name)]
        if len(sources) != 1:
            named = " and ".join(f"--{name}" for name in sources) or "none of them"
            raise UsageError(
                f"a plan comes from --replace, from --plan or from --budget; given: {named}",
                hint="for example --replace 'L10-20=window(left=256)', or --budget 1%",
            )
        if self.budget and not 0 < self.allowed <= _LARGEST_BUDGET:
            raise UsageError(
                f"the budget {self.budget!r} is no percentage above 0 % and up to 100 %",
                hint="1% lets the perplexity grow from 20 to at most 20.2",
            )
        if self.goal is not Goal.PREFILL and not self.budget:
            raise UsageError(f"--for {self.goal} says what a search makes cheap", hint="add --budget 1%")
        if self.recall and not self.budget:
            raise UsageError("--recall is a second budget of a search", hint="add --budget 1%")
        if self.recall and not 0 < share_of(self.recall) < 1:
            raise UsageError(
                f"the budget of recall {self.recall!r} is no percentage above 0 % and below 100 %",
                hint="--recall 5% lets a plan lose one of twenty facts that the original finds",
            )
        for option, values in (("--also", self.also), ("--try", self.mechanisms)):
            if values and not self.budget:
                raise UsageError(f"{option} is for a search", hint="add --budget 1%")
        self._check_texts()
        for mechanism in self.mechanisms:
            check_spelling(mechanism)
        if self.lengths and min(self.lengths) < 16:
            raise UsageError(f"lengths are at least 16 tokens, got {list(self.lengths)}")
        if 0 < self.repair < FEWEST_REPAIR_TOKENS:
            raise UsageError(f"a repair needs at least {FEWEST_REPAIR_TOKENS} tokens, got {self.repair}")
        if self.export not in ("", "flex") and not self.export.endswith(".py"):
            raise UsageError(f"cannot export to {self.export!r}: expected flex, or a file that ends in .py")
        if not self.minutes > 0:
            raise UsageError(f"the search needs time: minutes={self.minutes}")
        rules_of(self.replace)
        if self.plan:
            Plan.read(self.plan)

    def _check_texts(self) -> None:
        """Refuse texts that do not exist, and splits where whole texts are split."""
        from headscope.corpora.text_argument import check_spelling

        # The command line hands over the name of a text before it is read.
        searched = [("--text", str(getattr(self.text, "name", self.text))), *(("--also", name) for name in self.also)]
        for option, spelling in searched:
            name, _, split = spelling.rpartition(":")
            if (self.budget or self.repair) and split in ("fit", "search", "test"):
                task = "search" if self.budget else "repair"
                raise UsageError(
                    f"a {task} splits the text by its documents, and {name}:{split} is one split already",
                    hint=f"name the whole text: {option} {name}",
                )
        for name in self.also:
            check_spelling(name)
