"""Words with short crossword clues, by category, for the few-shot study.

They were written for headscope. The file holds a line `= Category` and below it lines `Word: clue`.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from headscope.errors import UsageError


@dataclass(frozen=True)
class Clue:
    """A word and its crossword clue."""

    word: str
    clue: str


@dataclass(frozen=True)
class Category:
    """Words of one kind, in alphabetical order."""

    name: str
    clues: tuple[Clue, ...]

    def clue_of(self, word: str) -> Clue:
        """The entry of a word, in any capitalisation.

        Raises:
            UsageError: The category does not have the word.
        """
        for clue in self.clues:
            if clue.word.casefold() == word.strip().casefold():
                return clue
        examples = ", ".join(clue.word for clue in self.clues[:: max(1, len(self.clues) // 8)])
        raise UsageError(
            f"the category {self.name} has no word {word!r}", hint=f"it has {len(self.clues)} words, e.g. {examples}"
        )


@cache
def categories() -> tuple[Category, ...]:
    """Every category of the shipped file, in its order."""
    content = files("headscope.corpora").joinpath("crossword_clues.txt").read_text(encoding="utf-8")
    clues_by_category: dict[str, list[Clue]] = {}
    name = ""
    for line in filter(None, map(str.strip, content.splitlines())):
        if line.startswith("= "):
            name = line.removeprefix("= ")
            clues_by_category[name] = []
        else:
            word, clue = line.split(": ", 1)
            clues_by_category[name].append(Clue(word, clue))
    return tuple(Category(title, tuple(clues)) for title, clues in clues_by_category.items())


def category_named(name: str) -> Category:
    """The category of this name, in any capitalisation.

    Raises:
        UsageError: There is no category of this name.
    """
    for category in categories():
        if category.name.casefold() == name.strip().casefold():
            return category
    raise UsageError(
        f"there is no category {name!r}", hint=f"one of {', '.join(category.name.lower() for category in categories())}"
    )
