"""Tinted attention: dense attention whose scores are multiplied by a strength.

Definition:
    The output of dense attention on the call with scale `strength` times as large. Strength 1 is dense attention.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from headscope.attention.call import Call, Output
from headscope.attention.mechanism import Cost, Mechanism
from headscope.attention.mechanisms.dense import Dense
from headscope.errors import UsageError


@dataclass(frozen=True)
class Tint(Mechanism):
    """Dense attention whose scores are multiplied by `strength`."""

    strength: float = 1.0
    name: ClassVar[str] = "tint"

    def __post_init__(self) -> None:
        if self.strength <= 0:
            raise UsageError(f"tint: strength must be above 0, got {self.strength}")

    @classmethod
    def examples(cls, n: int) -> tuple["Tint", ...]:
        """Twice as sharp, and half as sharp."""
        return (cls(2.0), cls(0.5))

    @classmethod
    def as_dense(cls, n: int) -> "Tint":
        """Strength 1."""
        return cls()

    def seen(self, call: Call) -> Call:
        """The call with the larger scale: its plain softmax is what is computed."""
        return replace(call, scale=call.scale * self.strength)

    def attend(self, call: Call, *, lse: bool) -> Output:
        """Dense attention on that call."""
        return Dense().attend(self.seen(call), lse=lse)

    def definition(self, call: Call) -> Output:
        """Its definition."""
        return Dense().definition(self.seen(call))

    def cost(self, n: int, d: int) -> Cost:
        """That of dense attention."""
        return Dense().cost(n, d)


MECHANISM = Tint
