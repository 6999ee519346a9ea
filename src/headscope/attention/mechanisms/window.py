r"""Window attention: every query attends to the keys near its own position, in time O(n).

Definition:
    Key j is visible to query i when the call lets it be and
    $-\text{right} \le \text{query\_position}_i - \text{key\_position}_j \le \text{left}$ and
    $(\text{query\_position}_i - \text{key\_position}_j) \bmod \text{dilation} = 0$; None is no limit.
    So `window(left=256)` on a causal call sees 257 keys: the query's own and 256 before it.
How:
    Over positions without gaps, a window with two ends goes through `headscope.attention.band`; a sink is a factor
    on its output. A dilated window is `dilation` plain windows, one for each residue of the positions. A window
    with one end, a call with padding, bias, softcap, stray mask or gaps in its positions, and a few queries at the
    end of a cache are exact through dense attention in blocks of rows that skip the keys beyond the window.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from headscope.attention import kernel
from headscope.attention.band import BLOCK, Band, band_attention
from headscope.attention.blocks import blind
from headscope.attention.call import Call, Output
from headscope.attention.explicit import explicit_attention
from headscope.attention.mechanism import Cost, Mechanism
from headscope.attention.mechanisms.dense import Dense, with_sinks
from headscope.errors import UsageError


@dataclass(frozen=True)
class Window(Mechanism):
    """Every query attends to the keys from `left` positions before to `right` positions after its own.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - without limits it is dense attention  (tested: test_infinite_window_is_dense)
        - the call's own limits hold too  (tested: test_window_intersects_the_limits_of_the_call)
        - time and memory grow like n  (tested: test_window_touches_no_far_key)
    """

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

    @classmethod
    def examples(cls, n: int) -> tuple["Window", ...]:
        """A thirty-second of the positions on both sides, and less usual ones."""
        near = max(2, n // 32)
        return (
            cls(left=near, right=near),
            cls(left=near),
            cls(left=near, right=2 * near),
            cls(left=0, right=0),
            cls(left=3 * near, dilation=3),
            cls(dilation=2),
            cls(),
        )

    @classmethod
    def as_dense(cls, n: int) -> "Window":
        """A window that reaches over all positions."""
        return cls(left=n, right=n)

    def attend(self, call: Call, *, lse: bool) -> Output:
        """The narrowed call, by residues of the positions where it is dilated."""
        narrowed = call.within(self.left, self.right)
        if self.dilation == 1:
            return _windowed(narrowed, lse=lse)
        return _dilated(narrowed, self.dilation, lse=lse)

    def seen(self, call: Call) -> Call:
        """The call narrowed to the window."""
        narrowed = call.within(self.left, self.right)
        return narrowed if self.dilation == 1 else _stepped(narrowed, self.dilation)

    def definition(self, call: Call) -> Output:
        """The dense mask of band and dilation, in float64."""
        ahead = call.query_positions[:, None, :, None] - call.key_positions[:, None, None, :]
        allowed = call.visible() & (ahead % self.dilation == 0)
        if self.left is not None:
            allowed = allowed & (ahead <= self.left)
        if self.right is not None:
            allowed = allowed & (ahead >= -self.right)
        return explicit_attention(call, allowed)

    def cost(self, n: int, d: int) -> Cost:
        """Two products over the pairs inside the window."""
        before = _pairs(n, self.left, self.dilation)
        pairs = n + before + _pairs(n, self.right, self.dilation)
        reach = sum(n - 1 if limit is None else min(limit, n - 1) for limit in (self.left, self.right))
        return Cost(flops=4.0 * d * pairs, bytes=4.0 * (n + BLOCK * (BLOCK + reach + d)))


MECHANISM = Window


def _pairs(n: int, limit: int | None, dilation: int) -> int:
    """Pairs of positions in 0…n−1 that are dilation, 2·dilation, … ≤ limit apart."""
    steps = (n - 1 if limit is None else min(limit, n - 1)) // dilation
    return steps * n - dilation * steps * (steps + 1) // 2


def _windowed(call: Call, *, lse: bool) -> Output:
    if not _is_banded(call) or call.left is None or call.right is None or call.offset is None:
        return Dense().attend(call, lse=lse)
    out, rows = band_attention(call.q, call.k, call.v, Band(call.left, call.right, call.offset, call.scale))
    return Output(with_sinks(out, rows, call.sinks), rows if lse else None)


def _is_banded(call: Call) -> bool:
    """Whether the call is a band that is narrow enough for the tiles to pay."""
    simple = replace(call, sinks=None).plain and call.q.device.type == "cpu" and kernel.has_flash()
    if not simple or call.left is None or call.right is None or call.offset is None:
        return False
    return call.q.shape[2] >= 4 * BLOCK and 2 * (call.left + call.right + BLOCK) <= call.k.shape[2]


def _dilated(call: Call, dilation: int, *, lse: bool) -> Output:
    if call.offset is None:
        return Dense().attend(_stepped(call, dilation), lse=lse)
    out, rows = (x.clone() for x in blind(call))
    for residue in range(min(dilation, call.q.shape[2])):
        queries, keys = slice(residue, None, dilation), slice((residue + call.offset) % dilation, None, dilation)
        if keys.start < call.k.shape[2]:
            part = _windowed(_undilated(call.take(queries, keys), dilation), lse=lse)
            out[:, :, queries] = part.out
            if part.lse is not None:
                rows[:, :, queries] = part.lse
    return Output(out, rows if lse else None)


def _stepped(call: Call, dilation: int) -> Call:
    """The call with a mask that lets only multiples of the dilation through."""
    ahead = call.query_positions[:, None, :, None] - call.key_positions[:, None, None, :]
    stepped = ahead % dilation == 0
    return replace(call, mask=stepped if call.mask is None else call.mask & stepped)


def _undilated(call: Call, dilation: int) -> Call:
    """Positions that are all alike modulo the dilation, in units of it."""
    return replace(
        call,
        query_positions=call.query_positions.div(dilation, rounding_mode="floor"),
        key_positions=call.key_positions.div(dilation, rounding_mode="floor"),
        left=None if call.left is None else call.left // dilation,
        right=None if call.right is None else call.right // dilation,
    )
