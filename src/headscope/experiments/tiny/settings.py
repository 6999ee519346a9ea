"""What can be chosen for the experiment `tiny`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError
from headscope.experiments.command import Command
from headscope.experiments.training_clock import Clock

COMMAND = Command(
    path=("study", "tiny"),
    help=(
        "Train the small language model that ships with headscope, and set it next to the shipped one.\n\n"
        "First cycles of random tokens until an induction head has formed, then text. Held-out loss by length of the "
        "window, next to two n-gram models; what the heads do; and for each figure of the shipped weights whether the "
        "new one lies in its band. Every training saves its weights at logarithmically spaced steps, as `headscope "
        "trajectory` reads them. A study that was stopped goes on when the same command runs again."
    ),
    examples=(
        "headscope study tiny --out out/tiny-again",
        "headscope study tiny --minutes 3 --seed 1 --out out/brief",
        "headscope study tiny --texts notes.txt,letters.txt --vocabulary 800 --minutes 10",
    ),
    tables=("bands", "losses", "heads", "course", "sizes"),
    default_out="headscope-tiny",
    makes_model=True,
)

# The recipe of the shipped weights.
TEXTS = ("bible", "moby-dick", "addresses")
MINUTES = 36.0


@dataclass(frozen=True)
class Params:
    """Which texts, for how long, and how it is judged. The defaults are the recipe of the shipped weights."""

    texts: tuple[str, ...] = field(
        default=TEXTS,
        metadata={
            "help": "texts to learn from and to be judged on: names (`headscope data` lists them) or files in which a "
            "line *** separates documents",
            "metavar": "TEXT",
        },
    )
    vocabulary: int = field(default=1536, metadata={"help": "tokens of the tokenizer", "min": 259})
    minutes: float = field(default=MINUTES, metadata={"help": "minutes of all training steps together"})
    clock: Clock = field(
        default=Clock.PROCESSOR,
        metadata={"help": "minutes of the processor, which leave out the time that other work takes; or of time"},
    )
    steps: int | None = field(
        default=None,
        metadata={
            "help": "end each training after this many steps, if its minutes are not spent before. Default: no limit",
            "min": 1,
        },
    )
    judged: int = field(
        default=150_000,
        metadata={
            "help": "least held-out tokens to judge: whole documents of each text, in proportion to its length",
            "min": 1024,
        },
    )
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn at random"})

    def check(self) -> None:
        """Refuse texts that do not exist, sizes that do not fit, and budgets that train nothing."""
        from headscope.corpora.splits import SPLITS
        from headscope.corpora.text_argument import check_spelling, parse_spelling
        from headscope.training.recipe import Budget, check_range

        if not self.texts:
            raise UsageError("the study needs a text", hint="name one, or a file")
        for text in self.texts:
            check_spelling(text)
            name, split = parse_spelling(text)
            if split is not None:
                raise UsageError(
                    f"the study needs all splits of a text ({', '.join(SPLITS)}), and {text} is one split",
                    hint=f"name the whole: {name}",
                )
        if len(set(self.texts)) < len(self.texts):
            raise UsageError(f"a text is named twice: {', '.join(self.texts)}", hint="name each text once")
        check_range("vocabulary", self.vocabulary, least=259)
        check_range("judged", self.judged, least=1024)
        check_range("minutes", self.minutes, above=0.0)  # a budget alone may be infinite
        Budget(minutes=self.minutes, steps=self.steps, clock=self.clock.value)
