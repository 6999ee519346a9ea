"""What can be chosen for the experiment `fewshot`."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headscope.errors import UsageError
from headscope.experiments.command import Command

if TYPE_CHECKING:
    from headscope.core import Selection

MOST_SHOTS = 8
FEWEST = MOST_SHOTS + 2  # words of a study: with fewer, an exchanged shot would hold the word that is asked for
COMMAND = Command(
    path=("study", "fewshot"),
    help=(
        "Crossword clues after 0 to 8 examples: how expected they are, what is written, and where attention goes.\n\n"
        "The words and clues ship with headscope. Every number stands beside a null: clues behind wrong words, "
        "attention that is uniform or knows only nearness, the freshly initialised model."
    ),
    examples=(
        "headscope study fewshot smollm2 --category animals --word Ant --shots 3 --out out/ant",
        "headscope study fewshot smollm2 --category food --words 20 --alpha 1/4,1/2,2,4",
        "headscope study fewshot tiny --table layers --format csv",
    ),
    tables=("shots", "clues", "quality", "states", "layers", "heads"),
    needs_writer=True,
)


@dataclass(frozen=True)
class Params:
    """What the prompts ask, on how many words, and in which states of the model."""

    category: str = field(
        default="animals",
        metadata={
            "help": "animals, plants, food, professions, music, sports, household, transport, landscape or clothing.",
            "metavar": "NAME",
        },
    )
    word: str = field(
        default="", metadata={"help": "the target word whose maps are drawn. Default: the first", "metavar": "WORD"}
    )
    shots: int = field(default=3, metadata={"help": "examples before the target word", "min": 1, "max": MOST_SHOTS})
    words: int | None = field(
        default=None, metadata={"help": "number of words, drawn at random. Default: all", "min": FEWEST}
    )
    clues: int = field(
        default=8, metadata={"help": "number of words for which clues are written, after 3, 5 and 8 shots"}
    )
    alphas: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "also measure the model with W_Q and W_K scaled by this factor: 2, 1/4",
            "metavar": "ALPHA",
            "option": "alpha",
        },
    )
    initialised: bool = field(default=True, metadata={"help": "also measure the freshly initialised model"})
    layers: "Selection | str | None" = field(
        default=None,
        metadata={
            "help": "layers whose word maps are drawn, e.g. L0,L5-7. Default: four from first to last",
            "metavar": "LAYERS",
        },
    )
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn at random"})

    def check(self) -> None:
        """Refuse unknown categories and words, and numbers that the words do not suffice for."""
        from headscope.core.selection import Selection
        from headscope.corpora.crossword_clues import category_named
        from headscope.experiments.intervene.change_spelling import Change

        category = category_named(self.category)
        if self.word:
            category.clue_of(self.word)
        n = len(category.clues)
        if self.words is not None and not FEWEST <= self.words <= n:
            raise UsageError(
                f"words={self.words}: {category.name} has {n} words, and at least {FEWEST} are needed for "
                f"{MOST_SHOTS} shots, a target, and a wrong word behind every clue"
            )
        if not 1 <= self.shots <= MOST_SHOTS:
            raise UsageError(f"shots={self.shots}: between 1 and {MOST_SHOTS} shots can be given")
        if self.clues < 0:
            raise UsageError(f"clues={self.clues}: a number of words cannot be negative")
        for alpha in self.alphas:
            Change.of(f"scale {alpha}")
        Selection.of(self.layers)


# What is measured when claims are judged on a model.
FOR_CLAIMS = Params(words=12, clues=0, initialised=False)
