"""The contract of a lens: one folder, one question about a model.

A `WeightLens` reads weights alone. A `TextLens` is a fold over batches of text:

    start(params, model, sites, text) → state
    update(state, batch)              → state         once per batch and variant, or site by site (`Needs.pieces`)
    merge(a, b)                       → state         any split of the text gives the same answer
    finish(state, weights)            → Measurement

A lens never calls the model. It declares what it needs; the pipeline unions the needs of all chosen lenses and runs the
text once per variant of the model. It asks its weights what the rest of a layer does with other outputs of its heads
(`WeightSource.after_heads`). The pipeline alone turns a measurement into a `Finding`.

`definition` is the formula transcribed in float64; it shares no code with the fold. It reads the stored maps of the
same batches (`Batch.captures["pattern"]`) and the weights, and returns the same tables; the contract test compares
both.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from headscope.attention.statistics import Request, RowStatistics
from headscope.core import (
    About,
    Figure,
    HeadCurve,
    Headline,
    HeadPatterns,
    HeadQuantity,
    ModelSpec,
    Site,
    WeightSource,
    read_about,
)
from headscope.core.card import Card, Shown, listed
from headscope.core.finding import contents
from headscope.errors import LensError

AS_IS = "as is"

P = TypeVar("P")
S = TypeVar("S")
Tables = Mapping[str, pl.DataFrame]


class NotApplicable(LensError):
    """The lens does not apply to this model; the message is the reason, not a failure."""

    def __init__(self, reason: str, *, warnings: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.warnings = warnings


@dataclass(frozen=True, repr=False)
class Measurement(Shown):
    """The numbers of a lens: tables of values with nulls or predictions, and the method.

    `quantities` are the columns that hold one number per head: whoever shows a model as a grid of heads reads them and
    knows no lens by name. `curves` and `patterns` are curves and attention maps of every head, for the page of a head.
    """

    tables: Tables
    figures: tuple[Figure, ...] = ()
    arrays: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    method: str = ""
    warnings: tuple[str, ...] = ()
    quantities: tuple[HeadQuantity, ...] = ()
    curves: tuple[HeadCurve, ...] = ()
    patterns: HeadPatterns | None = None

    def _card(self) -> Card:
        labels = [quantity.label for quantity in self.quantities]
        more = (("per head", listed(labels) if labels else ""), ("method", self.method))
        facts = (*contents(self.tables, self.figures, self.warnings), *more)
        return Card("measurement", facts=tuple((name, text) for name, text in facts if text))


@dataclass(frozen=True)
class TextSize:
    """The amount of text that a lens will read: nothing where it sees only windows that it makes."""

    windows: int
    tokens_per_window: int


@dataclass(frozen=True)
class MadeWindows:
    """Windows of tokens that a lens makes itself, such as repeated random tokens.

    `make` is called once with the ids of the ordinary tokens (no special and no unused ones; without a tokenizer all
    ids that the model embeds), a generator whose seed follows from the run's seed and `name`, the count, and the
    length, or the model's context where that is shorter. It returns the ids, in int64. Lenses that ask for equal
    windows share them. With `begins` the token that begins a text, if the tokenizer has one, then replaces the first
    token of each window. `variants` are the forms of the model that read them, by default all that the lens asks for.
    """

    name: str
    count: int
    length: int
    make: Callable[[Int[Tensor, " ids"], torch.Generator, int, int], Int[Tensor, "count length"]]
    begins: bool = False
    variants: tuple[str, ...] | None = None

    def is_read_by(self, variant: str) -> bool:
        """Whether a form of the model reads these windows."""
        return self.variants is None or variant in self.variants


@dataclass(frozen=True)
class Needs:
    """What a lens asks for; the pipeline takes the union over the chosen lenses.

    `captures` names quantities of the registry in `model/session/captures.py` (docs/captures.md lists them, with
    meaning and shape). What is `welcome` may be missing: it is captured where the family shows it, and the lens goes
    without it elsewhere. What is for the `opening` is welcome too, of the first batch alone: what is costly and needed
    once. `variants` are changed forms of the model on which the same text is run too:

    - "initialised": the same architecture, freshly initialised;
    - "without skips": no skip connection carries anything, layers give what they would add;
    - "without mlp", "without attention": what the feed-forward parts, or the attention, would add is not added;
    - "attention alone": without skips, and with the feed-forward parts passed by.

    A family may not allow some of them: `Batch.refused` then says why, and the lens goes on with the others. `tokens`
    says how much text from its beginning the changed forms need to see: they are shown the whole batches that hold it,
    whatever other lenses need, and the model as it is sees all of it.

    `spelling` asks for the texts of the first tokens of each window; without a tokenizer there are none.

    `made` asks for windows that the lens makes itself. They are run as the text is, in every variant, and only the
    lenses that ask for them see them. A lens that sets `reads_text` to False sees these and no text: it can be asked
    about a model without a tokenizer.

    With `pieces` the lens is handed a batch in pieces while the forward runs, so that nothing of all sites is ever held
    at once. A piece holds whole sites: the pipeline waits until everything that this lens needs of a site is there, or
    the forward has ended, and hands each site over once per batch, the first site of a stack before the others of the
    stack. All pieces of a batch have the same tokens; a whole batch is a piece too.

    `built` asks for the weights of a model that is built, not of a file alone: norms and turns by position
    (`WeightSource.stream_reading`, `WeightSource.rotary`) are found in a model that runs.
    """

    weights: bool = False
    built: bool = False
    statistics: Request | None = None
    captures: frozenset[str] = frozenset()
    welcome: frozenset[str] = frozenset()
    opening: frozenset[str] = frozenset()
    variants: tuple[str, ...] = (AS_IS,)
    pieces: bool = False
    spelling: bool = False
    tokens: int | None = None
    made: tuple[MadeWindows, ...] = ()
    reads_text: bool = True

    @property
    def text(self) -> bool:
        """Whether the model has to be run at all."""
        return self.statistics is not None or bool(self.captures)

    def of_batch(self, index: int) -> "Needs":
        """What is needed of one batch, counted from 0: what the opening asks for is welcome in the first."""
        return replace(self, welcome=self.welcome | (frozenset() if index else self.opening), opening=frozenset())


@dataclass(frozen=True)
class Batch:
    """What one forward pass on one variant yields, or some sites of it, on the CPU.

    `uniform` holds the same statistics for attention that is uniform over the visible keys: the null. Padding
    is False in `real`, and rows of padding hold NaN in every statistic. `spelling` holds, for each window, the texts of
    its first tokens (`shapes.CORNER` of them, in the first batch `shapes.OPENING`), with a blank in front where a word
    begins.

    Where the model cannot be run in this variant, `refused` says why, and there are no tokens; what was shown of the
    variant before does not count. `made` is the name of the `MadeWindows` that the batch is of, and empty for the text.
    """

    variant: str
    tokens: Int[Tensor, "batch tokens"]
    real: Bool[Tensor, "batch tokens"]
    statistics: Mapping[Site, RowStatistics] = field(default_factory=dict)
    uniform: Mapping[Site, RowStatistics] = field(default_factory=dict)
    captures: Mapping[str, Mapping[Site, Tensor]] = field(default_factory=dict)
    spelling: tuple[tuple[str, ...], ...] = ()
    refused: str = ""
    made: str = ""

    def captures_at(self, site: Site, names: Collection[str]) -> dict[str, Tensor] | None:
        """The captures of a site by their names; None where one of them is missing."""
        captured = {name: self.captures[name][site] for name in names if site in self.captures.get(name, {})}
        return captured if len(captured) == len(names) else None


class Lens(Shown, ABC, Generic[P]):
    """A question about a model: what both kinds of lenses have in common.

    `params` is the frozen dataclass of `settings.py`: few fields, each with a default and `metadata={"help": …}`. They
    become the options of `headscope lens NAME`.

    `invariant` names the symmetries of the model under which the numbers do not change:

    - "qk": w_q → w_q G, w_k → w_k G⁻ᵀ with any G that the model's own function allows;
    - "vo": w_v → w_v G, w_o → G⁻¹ w_o;
    - "rotated qk", "rotated vo": the same with an orthogonal G only;
    - "heads": a permutation of heads, which permutes the rows that are about heads.

    "qk:heads" says that under "qk" only the table called `heads` stays the same; any symmetry can be narrowed so.
    """

    name: str
    params: type[P]
    invariant: frozenset[str] = frozenset()

    @cached_property
    def about(self) -> About:
        """The prose of `about.md`, which lies in the lens's folder."""
        home = sys.modules[type(self).__module__].__file__
        return read_about(Path(str(home)).with_name("about.md"))

    def _card(self) -> Card:
        """Its question, the columns of its tables, and what can be chosen."""
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self.params()).items())
        return Card(
            f"lens {self.name}: {self.about.title}",
            lead=(self.about.question,),
            facts=tuple(self.about.columns.items()),
            end=(f"Settings: {settings or 'none'}", f'`headscope.measure(model, lenses=["{self.name}"])` asks it.'),
        )

    @abstractmethod
    def needs(self, params: P) -> Needs:
        """What the pipeline must provide; wrong parameters are refused before any work."""

    @abstractmethod
    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """One to three statements with numbers, the most important first."""


class WeightLens(Lens[P]):
    """A question that the weights alone answer."""

    def needs(self, params: P) -> Needs:
        """The weights, and no text."""
        return Needs(weights=True)

    @abstractmethod
    def measure(self, params: P, weights: WeightSource) -> Measurement:
        """The answer.

        Raises:
            NotApplicable: The model has nothing that the question is about.
        """

    @abstractmethod
    def definition(self, params: P, weights: WeightSource) -> dict[str, pl.DataFrame]:
        """The tables by their formulas: float64, no code of the fast path."""


class TextLens(Lens[P], Generic[P, S]):
    """A question that a model answers while it reads a text."""

    @abstractmethod
    def start(self, params: P, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> S:
        """The state before the first batch."""

    @abstractmethod
    def update(self, state: S, batch: Batch) -> S:
        """The state after one more batch, or whole sites of one, of a variant it asked for."""

    @abstractmethod
    def merge(self, a: S, b: S) -> S:
        """The state after the text of both, a's first."""

    @abstractmethod
    def finish(self, state: S, weights: WeightSource | None) -> Measurement:
        """The answer.

        Raises:
            NotApplicable: The text showed nothing that the question is about.
        """

    @abstractmethod
    def definition(self, params: P, weights: WeightSource | None, batches: Sequence[Batch]) -> dict[str, pl.DataFrame]:
        """The tables by their formulas: float64, no code of the fold."""


AnyLens = WeightLens[Any] | TextLens[Any, Any]
