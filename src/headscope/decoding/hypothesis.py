"""What a model may write in answer to a prompt."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """A text with its probability.

    `tokens` are the written ones, without prompt, first token of the decoder, and end token. `log_probability` is that
    of the model for all of them and, if it `has_ended`, the end token. `score` is what it is ranked by.
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    has_ended: bool
