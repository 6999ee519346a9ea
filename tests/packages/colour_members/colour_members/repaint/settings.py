"""What can be chosen for the experiment `repaint`."""

from dataclasses import dataclass, field

from headscope.errors import UsageError
from headscope.experiments.command import Command

COMMAND = Command(
    path=("repaint",),
    help="Let every head attend more sharply or more evenly and see how far the model moves.",
    examples=("headscope repaint tiny --strength 2",),
    tables=("changes",),
)


@dataclass(frozen=True)
class Params:
    """How much W_Q is multiplied, and on how many tokens it is measured."""

    strengths: tuple[str, ...] = field(
        default=("1", "2"), metadata={"help": "factors on W_Q", "option": "strength", "metavar": "FACTOR"}
    )
    tokens: int = field(default=32, metadata={"help": "tokens of the text", "min": 2})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn at random"})

    def check(self) -> None:
        """Refuse factors that are no numbers above 0."""
        self.factors()

    def factors(self) -> tuple[float, ...]:
        """The factors as numbers."""
        return tuple(map(_number, self.strengths))


def _number(strength: str) -> float:
    try:
        number = float(strength)
    except ValueError:
        number = 0.0
    if number <= 0:
        raise UsageError(f"cannot read the strength {strength!r}: expected a number above 0", hint="write 2 or 0.5")
    return number
