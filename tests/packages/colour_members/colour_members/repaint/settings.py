"""What can be chosen for the experiment `repaint`."""

from dataclasses import dataclass, field

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
