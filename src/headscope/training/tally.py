"""Sums over batches: loss, tokens and time."""

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Tally:
    """What a number of batches add up to."""

    total: float = 0.0
    nats: float = 0.0
    n_predicted: float = 0.0
    n_read: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(a + b for a, b in zip(self.numbers, other.numbers, strict=True)))

    @property
    def numbers(self) -> tuple[float, ...]:
        """All sums."""
        return astuple(self)

    @property
    def loss(self) -> float:
        """The loss for each predicted token."""
        return self.total / max(self.n_predicted, 1)

    @property
    def nats_per_token(self) -> float:
        """The negative log-likelihood for each predicted token."""
        return self.nats / max(self.n_predicted, 1)

    @property
    def tokens_per_second(self) -> float:
        """How many tokens were read in a second."""
        return self.n_read / self.seconds if self.seconds > 0 else 0.0
