"""The settings of a training, without network, data and objective.

Loads no torch, so that they are refused without it.
"""

from dataclasses import dataclass, field

from headscope.errors import UsageError

DECAYS = ("inverse-root", "cosine", "linear", "constant")
CLOCKS = ("wall", "processor")
PRECISIONS = ("float32", "bfloat16")
Number = float | int


@dataclass(frozen=True)
class Budget:
    """What ends a training, whichever comes first.

    Minutes are those of the steps alone, added up over all resumed parts; validation and saving are not counted.
    """

    steps: int | None = None
    epochs: int | None = None
    minutes: Number | None = None
    clock: str = "wall"

    def __post_init__(self) -> None:
        limits = {"steps": self.steps, "epochs": self.epochs, "minutes": self.minutes}
        if all(limit is None for limit in limits.values()):
            raise UsageError("the training has no budget", hint="give steps, epochs or minutes")
        for name, limit in limits.items():
            if limit is not None and not limit > 0:
                raise UsageError(f"the budget of {name} must be greater than 0, got {limit}")
        check_choice("clock", self.clock, CLOCKS)


@dataclass(frozen=True)
class Rate:
    """The learning rate: its peak, and how it rises and falls.

    `schedule.py` has the formula.
    """

    peak: Number = 1e-3
    warmup_steps: int = 100
    decay: str = "inverse-root"

    def __post_init__(self) -> None:
        check_range("the peak of the learning rate", self.peak, above=0.0)
        check_range("the number of warm-up steps", self.warmup_steps, least=0)
        check_choice("decay", self.decay, DECAYS)


@dataclass(frozen=True)
class Optimisation:
    """The numbers of AdamW, and what happens to gradients before it.

    A step reads `batches` batches, on one process or shared among several, so that their number changes no result
    beyond rounding. Weight decay acts on matrices alone. With the precision `bfloat16` a training step multiplies
    matrices of that type; weights, sums and validation stay float32.
    """

    rate: Rate = field(default_factory=Rate)
    betas: tuple[Number, Number] = (0.9, 0.98)
    epsilon: Number = 1e-9
    weight_decay: Number = 0.01
    clip: Number | None = 1.0
    batches: int = 1
    precision: str = "float32"

    def __post_init__(self) -> None:
        for beta in self.betas:
            check_range("beta", beta, least=0.0, below=1.0)
        check_range("epsilon", self.epsilon, above=0.0)
        check_range("weight_decay", self.weight_decay, least=0.0)
        check_range("batches per step", self.batches, least=1)
        check_choice("precision", self.precision, PRECISIONS)
        if self.clip is not None:
            check_range("clip", self.clip, above=0.0)


@dataclass(frozen=True)
class Target:
    """A measure of the model and the value at which the training ends."""

    measure: str
    at_least: Number


@dataclass(frozen=True)
class Validation:
    """When held-out batches are read, and what ends a training early.

    With `patience` it ends after so many validations in a row without a gain of at least `least_gain` nats.
    """

    every_steps: int = 200
    patience: int | None = None
    least_gain: Number = 0.0
    target: Target | None = None

    def __post_init__(self) -> None:
        check_range("steps between validations", self.every_steps, least=1)
        check_range("least_gain", self.least_gain, least=0.0)
        if self.patience is not None:
            check_range("patience", self.patience, least=1)


@dataclass(frozen=True)
class Saving:
    """How often things are written; nothing here changes a result.

    A checkpoint, from which a killed training goes on, is written every `checkpoint_seconds`. The trajectory holds the
    weights at logarithmically spaced steps, so many for each doubling; 0 saves none.
    """

    checkpoint_seconds: Number = 60.0
    steps_per_doubling: int = 2
    metrics_every: int = 20

    def __post_init__(self) -> None:
        check_range("seconds between checkpoints", self.checkpoint_seconds, least=0.0)
        check_range("steps_per_doubling", self.steps_per_doubling, least=0)
        check_range("metrics_every", self.metrics_every, least=1)


@dataclass(frozen=True)
class Recipe:
    """All settings of a training."""

    budget: Budget
    seed: int = 0
    optimisation: Optimisation = field(default_factory=Optimisation)
    validation: Validation = field(default_factory=Validation)
    saving: Saving = field(default_factory=Saving)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a word that is not among the choices."""
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_range(
    name: str, value: Number, *, least: Number | None = None, above: Number | None = None, below: Number | None = None
) -> None:
    """Refuse a number outside its range, and one that is not finite."""
    is_inside = (
        value - value == 0
        and (least is None or value >= least)
        and (above is None or value > above)
        and (below is None or value < below)
    )
    if not is_inside:
        limits = {"at least": least, "greater than": above, "less than": below}
        expected = " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)
        raise UsageError(f"{name} must be {expected}, got {value}")
