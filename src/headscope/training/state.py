"""Where a training is, besides its weights and optimisers."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headscope.errors import CheckpointError
from headscope.training.batches.batch_source import Place
from headscope.training.tally import Tally

Ending = Literal["", "budget", "patience", "target"]


@dataclass(frozen=True)
class State:
    """The state after a number of steps; `place` is the next batch."""

    step: int = 0
    place: Place = field(default_factory=Place)
    seconds: float = 0.0
    tokens: int = 0
    best_step: int = -1
    best_nats: float | None = None
    validations_without_gain: int = 0
    ending: Ending = ""
    tally: Tally = field(default_factory=Tally)  # since the last row of the metrics

    def as_json(self) -> dict[str, Any]:
        """The state as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any, source: str) -> "State":
        """The state that `as_json` gave.

        Raises:
            CheckpointError: It is something else.
        """
        try:
            return cls(**{**content, "place": Place(**content["place"]), "tally": Tally(**content["tally"])})
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{source} is damaged: its state cannot be read ({error})") from error
