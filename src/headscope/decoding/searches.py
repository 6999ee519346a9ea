"""The ways to choose tokens: greedy, sampling, beam search.

Loads no torch, so that wrong settings are refused without it.
"""

from dataclasses import dataclass

from headscope.errors import UsageError

STOPPING = ("likely", "certain")


@dataclass(frozen=True)
class Greedy:
    """The most probable token at every step."""


@dataclass(frozen=True)
class Sampling:
    """A random token at every step.

    Logits are divided by `temperature`. Of the tokens in the order of their probability only the first `top_k` may be
    drawn, and of these only as many as are needed to reach the share `top_p` of their probability.
    """

    temperature: float | int = 1.0
    top_k: int | None = None
    top_p: float | int = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise UsageError(
                f"the temperature must be greater than 0, got {self.temperature}", hint="greedy decoding has none"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k must be at least 1, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be greater than 0 and at most 1, got {self.top_p}")


@dataclass(frozen=True)
class Beam:
    """The `width` best beginnings at every step.

    The score of a hypothesis is its log-probability over its length to the power `length_penalty`; the end token
    counts. A sentence is over when `width` hypotheses have ended and no beginning would do better: if it ended now
    (`likely`), or at any length that it may reach (`certain`).
    """

    width: int = 4
    length_penalty: float | int = 1.0
    n_best: int = 1
    stopping: str = "likely"

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.width:
            raise UsageError(
                f"a beam of width {self.width} cannot give {self.n_best} hypotheses",
                hint="the width is at least 1, and n_best at least 1 and at most the width",
            )
        if not abs(self.length_penalty) < float("inf"):
            raise UsageError(f"the length penalty must be finite, got {self.length_penalty}")
        if self.stopping not in STOPPING:
            raise UsageError(f"stopping must be one of {', '.join(STOPPING)}, got {self.stopping!r}")

    def score(self, log_probability: float, length: int) -> float:
        """The score of a hypothesis of `length` tokens."""
        return log_probability / float(length**self.length_penalty)

    def bound(self, log_probability: float, length: int, most_tokens: int) -> float:
        """The score that a beginning of `length` tokens may reach.

        `stopping` says how far it looks ahead.
        """
        favours_length = self.stopping == "certain" and self.length_penalty > 0
        return self.score(log_probability, most_tokens if favours_length else length)


Search = Greedy | Sampling | Beam
