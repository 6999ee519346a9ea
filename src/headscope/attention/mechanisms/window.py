"""Window attention (first version)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from headscope.attention.call import Call, Output
from headscope.attention.explicit import explicit_attention
from headscope.attention.mechanism import Cost, Mechanism
from headscope.errors import UsageError


@dataclass(frozen=True)
class Window(Mechanism):
    """Every query attends to the keys near its own position."""

    left: int | None = None
    right: int | None = None
    dilation: int = 1
    name: ClassVar[str] = "window"

    def __post_init__(self) -> None:
        for side, reach in (("left", self.left), ("right", self.right)):
            if reach is not None and reach < 0:
                raise UsageError(f"window: {side} must be None (no limit) or at least 0, got {reach}")
        if self.dilation < 1:
            raise UsageError(f"window: dilation must be at least 1, got {self.dilation}")

    def attend(self, call: Call, *, lse: bool) -> Output:
        """For now the definition, in the dtype of the call."""
        exact = self.definition(call)
        return Output(exact.out.to(call.q.dtype), exact.lse if lse else None)

    def definition(self, call: Call) -> Output:
        """The dense mask of band and dilation, in float64."""
        ahead = call.query_positions[:, None, :, None] - call.key_positions[:, None, None, :]
        allowed = call.visible() & (ahead % self.dilation == 0)
        if self.left is not None:
            allowed = allowed & (ahead <= self.left)
        if self.right is not None:
            allowed = allowed & (ahead >= -self.right)
        return explicit_attention(replace(call), allowed)

    def cost(self, n: int, d: int) -> Cost:
        """For now the dense one."""
        return Cost(flops=4.0 * n * n * d, bytes=4.0 * n)


MECHANISM = Window
