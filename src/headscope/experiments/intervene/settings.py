"""What can be chosen for the experiment `intervene`."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from headscope.errors import UsageError
from headscope.experiments.command import Command

if TYPE_CHECKING:
    from headscope.core import Selection
    from headscope.corpora import Text

COMMAND = Command(
    path=("intervene",),
    help=(
        "Change the attention weights of a model and measure its predictions, maps and text.\n\n"
        "Each change is tried alone, compared with the original and with a control of the same size in random "
        "directions, and undone. Without a change: --scale 1/4 1/2 2 4. For an encoder, sentence embeddings are "
        "compared instead of perplexity and text."
    ),
    examples=(
        "headscope intervene smollm2 --scale 1/4 1/2 2 4 --out out/scaled",
        "headscope intervene tiny --rank 4 --remove spikes --matrices qk --at L1-2",
        "headscope intervene minilm --randomise v",
        "headscope intervene smollm2 --keep diagonal,25% --tie qk --rank 64 --matrices qkv --draws 2",
    ),
    tables=("effects", "texts", "matrices", "heads"),
)
DEFAULT_CHANGES = ("scale 1/4", "scale 1/2", "scale 2", "scale 4")


class Randomise(StrEnum):
    """What is drawn anew."""

    INIT = "init"
    V = "v"
    U = "u"
    PERMUTE = "permute"


class Remove(StrEnum):
    """Which part of a spectrum is removed."""

    SPIKES = "spikes"
    BULK = "bulk"


class Tie(StrEnum):
    """Which matrix becomes which: the first letter is that of the matrix that changes."""

    QK = "qk"
    KQ = "kq"
    VK = "vk"
    KV = "kv"


@dataclass(frozen=True)
class Params:
    """What is changed where, and on how much text it is measured."""

    scale: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "multiply every singular value by ALPHA: 2, 0.25, 1/4",
            "metavar": "ALPHA...",
            "numbers": True,
        },
    )
    randomise: tuple[Randomise, ...] = field(
        default=(),
        metadata={"help": "replace by random values: all entries as initialised, V, U, or the order of the entries"},
    )
    rank: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "keep only the R largest singular values",
            "metavar": "R...",
            "numbers": True,
        },
    )
    remove: tuple[Remove, ...] = field(
        default=(),
        metadata={
            "help": "remove the singular values above the edge of the random bulk (spikes), or all others (bulk)"
        },
    )
    keep: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "keep only the main diagonal of each matrix (diagonal), or its largest entries (25%); the others "
            "become 0",
            "metavar": "diagonal|PERCENT",
        },
    )
    tie: tuple[Tie, ...] = field(
        default=(),
        metadata={"help": "let a matrix be another one: with qk W_Q becomes W_K. --matrices must name both"},
    )
    matrices: str = field(
        default="qk", metadata={"help": "which projections, by the letters q, k, v, o", "metavar": "LETTERS"}
    )
    at: "Selection | str" = field(
        default="all", metadata={"help": "which layers and heads: L10-19, L3.H7, L0,L5.H2", "metavar": "HEADS"}
    )
    prompts: tuple[str, ...] | None = field(
        default=None,
        metadata={
            "help": "what the model writes from. Default: four of our own, none for a model that writes nothing",
            "metavar": "TEXT",
            "option": "prompt",
            "commas": False,
        },
    )
    text: "Text | None" = field(
        default=None,
        metadata={
            "help": "a string that is the text, the name of one (`moby-dick:fit`), a `Path` of a UTF-8 file, or what "
            "`text` returns. Default: the shipped text"
        },
    )
    window: int = field(default=256, metadata={"help": "tokens per window", "min": 2})
    windows: int = field(default=12, metadata={"help": "number of windows, evenly spread over the text", "min": 1})
    new_tokens: int = field(default=40, metadata={"help": "most tokens that are written from a prompt", "min": 1})
    draws: int = field(default=3, metadata={"help": "number of controls for each change", "min": 1})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn at random"})
    changes: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "changes, each tried on its own: `scale 1/4`, `randomise init|v|u|permute`, `rank 8`, `remove "
            "spikes|bulk`, `keep diagonal`, `keep 25%`, `tie qk`. Without any: the spectra scaled by 1/4, 1/2, 2 and 4",
            "option": "",
            "positional": True,
        },
    )

    def spelled_changes(self) -> tuple[str, ...]:
        """Every change as it is written: `changes` first, then those of the options; the default if none."""
        kinds = ("scale", "randomise", "rank", "remove", "keep", "tie")
        options: dict[str, tuple[str, ...]] = {kind: getattr(self, kind) for kind in kinds}
        spelled = [f"{kind} {value}" for kind, values in options.items() for value in values]
        return (*self.changes, *spelled) or DEFAULT_CHANGES

    def check(self) -> None:
        """Refuse changes, letters and selections that cannot be read."""
        from headscope.experiments.intervene.change_spelling import Change, place_of  # which reads the choices above

        place = place_of(self.matrices, self.at)
        for spelled in self.spelled_changes():
            Change.of(spelled).check_matrices(place.matrices)
        if self.draws < 1:
            raise UsageError(f"draws={self.draws}: a control is drawn at least once")


# What is measured when claims are judged on a model.
FOR_CLAIMS = Params(changes=("scale 1/2", "scale 2"))
