"""An item of the index: part of a document, and the steps that reproduce it.

An item names its steps: commands of headscope as one would type them, with MODEL where a model goes. Whether a step can
be taken is never written down. It is found by asking (`ways`): a step that names a lens, a command or a claim which is
not there yet becomes a reason, and turns into a command by itself on the day it is there.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headscope.core import Figure, Finding

Kind = Literal["figure", "table", "formula", "theorem", "question", "statement"]
KINDS: tuple[Kind, ...] = ("figure", "table", "formula", "theorem", "question", "statement")
MODEL = "MODEL"  # the word of a step that the reader's model replaces

Numbers = tuple[float | None, float | None]  # measured here, and what a null or a formula says here


@dataclass(frozen=True)
class Published:
    """A number that the document gives, and how to find ours.

    `error` is the relative error of reading it.

    `predicted` is what theory says for the published model; `ours` reads the same quantity off a lens's finding.
    """

    quantity: str
    value: float
    error: float = 0.0
    predicted: float | None = None
    ours: "Callable[[Finding], Numbers] | None" = None


@dataclass(frozen=True)
class Step:
    """One command of an item.

    For a lens, `mentions` names a word that its description must contain before it answers this item.
    """

    words: tuple[str, ...]
    mentions: str = ""

    @classmethod
    def of(cls, text: str, mentions: str = "") -> "Step":
        """A step in the form one types it, without the name of the program."""
        return cls(tuple(shlex.split(text)), mentions)

    @property
    def claims(self) -> tuple[str, ...]:
        """The claims that it judges."""
        return tuple(word for word in self.words[1:] if _is_claim(word)) if self.words[0] == "claims" else ()

    @property
    def lens(self) -> str:
        """The lens that it uses."""
        return self.words[1] if self.words[0] == "lens" else ""

    def on(self, model: str) -> "Step":
        """The same step for a model; `random:` is not repeated."""
        fresh = model if model.startswith("random:") else f"random:{model}"
        replacements = {MODEL: model, f"random:{MODEL}": fresh}
        return replace(self, words=tuple(replacements.get(word, word) for word in self.words))

    def __str__(self) -> str:
        return shlex.join(("headscope", *self.words))


@dataclass(frozen=True)
class Item:
    """A figure, table, formula, theorem, question or statement of a document.

    `reason` is set where nothing here will ever reproduce it. `figures` are those of the lens's figures that show the
    same; `comparison` draws ours and the published numbers on the same axes; `read` says how the numbers were obtained.
    """

    document: str
    label: str
    kind: Kind
    section: str
    title: str
    steps: tuple[Step, ...] = ()
    reason: str = ""
    figures: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    read: str = ""
    comparison: "Callable[[Finding], Figure] | None" = None

    @property
    def id(self) -> str:
        """Its name on the command line."""
        return f"{self.document}:{self.label}"

    @property
    def claims(self) -> tuple[str, ...]:
        """The claims of the ledger that judge it."""
        return tuple(dict.fromkeys(name for step in self.steps for name in step.claims))

    @property
    def lenses(self) -> tuple[str, ...]:
        """The lenses that measure it."""
        return tuple(dict.fromkeys(step.lens for step in self.steps if step.lens))


@dataclass(frozen=True)
class Document:
    """One of the works, cited by author and title, with its items in their order."""

    name: str
    author: str
    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Way:
    """A step with what it lacks: nothing where it can be taken today.

    It is final where the step never can be taken.
    """

    step: Step
    lacks: str = ""
    is_final: bool = False


def steps(*texts: str) -> tuple[Step, ...]:
    """Several steps in the form one types them."""
    return tuple(Step.of(text) for text in texts if text)


def numbered(document: str, kind: Kind, prefix: str, rows: Sequence[tuple[str, ...]]) -> tuple[Item, ...]:
    """Items from rows of number, section, title and steps.

    A step that begins with an id means its claim.
    """
    return tuple(
        Item(document, f"{prefix}.{number}", kind, section, title, steps(*map(_spelled, step_texts)))
        for number, section, title, *step_texts in rows
    )


def _spelled(step: str) -> str:
    return f"claims {step}" if _is_claim(step) else step


def _is_claim(word: str) -> bool:
    """Whether a word begins like an id of the ledger: a letter and a dash."""
    return word[:1].isupper() and word[1:2] == "-"
