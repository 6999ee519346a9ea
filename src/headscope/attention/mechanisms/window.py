r"""Window attention: every query attends to near keys, in time O(n).

Definition:
    Key j is visible to query i when the call lets it be and
    $-\text{right} \le \text{query\_position}_i - \text{key\_position}_j \le \text{left}$ and
    $(\text{query\_position}_i - \text{key\_position}_j) \bmod \text{dilation} = 0$; None is no limit.
    So `window(left=256)` on a causal call sees 257 keys: the query's own and 256 before it.
How:
    Over positions without gaps, a window with two ends (its own, or those of the call: `left` on a causal call is
    enough) goes through `attention.sparse.band`, with padding at the ends of a sequence too; a sink is a factor
    on its output. A dilated window is `dilation` plain windows, one for each residue of the positions; heads of
    one dilation go together. A window with one end, a call with bias, softcap, stray mask or gaps in its positions,
    and a few queries at the end of a cache are exact through dense attention in blocks of rows that skip the keys
    beyond the window.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.flex_mask import FlexMask, band_expression
from headscope.attention.mechanism import Cost, Mechanism
from headscope.attention.mechanisms.dense import Dense, with_sinks
from headscope.attention.sparse.band import band_attention, narrow_band
from headscope.attention.sparse.blocks import blind, real_runs
from headscope.attention.sparse.explicit_softmax import explicit_attention
from headscope.attention.sparse.pair_counts import farthest, side_pairs
from headscope.attention.sparse.working_memory import FLOAT, band_bytes, band_is_narrow, flash_bytes, limited_bytes
from headscope.errors import UsageError


@dataclass(frozen=True)
class Window(Mechanism):
    """Every query attends to keys from `left` before to `right` after its position.

    Properties:
        - equals its float64 definition, with gradients  (tested: test_fast_equals_definition)
        - without limits it is dense attention  (tested: test_infinite_window_is_dense)
        - the call's own limits hold too  (tested: test_window_intersects_the_limits_of_the_call)
        - time and memory grow like n  (tested: test_window_touches_no_far_key)
        - heads may have dilations of their own  (tested: test_a_dilation_per_head)
        - padding at the ends costs nothing  (tested: test_padding_at_the_ends_is_a_shorter_band)
    """

    left: int | None = None
    right: int | None = None
    dilation: int | tuple[int, ...] = 1  # a tuple: one per head
    name: ClassVar[str] = "window"

    def __post_init__(self) -> None:
        for side, reach in (("left", self.left), ("right", self.right)):
            if reach is not None and reach < 0:
                raise UsageError(f"window: {side} must be None (no limit) or at least 0, got {reach}")
        if not self._dilations or min(self._dilations) < 1:
            raise UsageError(f"window: dilation must be at least 1, or one such number per head, got {self.dilation}")

    @property
    def _dilations(self) -> tuple[int, ...]:
        return self.dilation if isinstance(self.dilation, tuple) else (self.dilation,)

    def supports(self, call: Call) -> str | None:
        """Refuses dilations per head for a call with another number of heads."""
        heads = call.q.shape[1]
        if isinstance(self.dilation, tuple) and len(self.dilation) != heads:
            return f"it has dilations for {len(self.dilation)} heads, and the call has {heads}"
        return None

    @classmethod
    def examples(cls, n: int) -> tuple["Window", ...]:
        """A thirty-second of the positions on both sides, and less usual windows."""
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
        if isinstance(self.dilation, tuple):
            return _by_head(narrowed, self.dilation, lse=lse)
        return _dilated(narrowed, self.dilation, lse=lse)

    def seen(self, call: Call) -> Call:
        """The call narrowed to the window."""
        narrowed = call.within(self.left, self.right)
        return narrowed if set(self._dilations) == {1} else _stepped(narrowed, self._dilations)

    def still_read(self, keys: Int[Tensor, " keys"], query: int) -> Bool[Tensor, " keys"] | None:
        """Those within `left` of the next query whose distance is a multiple of the dilation."""
        if self.left is None or isinstance(self.dilation, tuple):
            return None
        nearest = (query - keys + self.dilation - 1).div(self.dilation, rounding_mode="floor") * self.dilation
        return nearest <= self.left

    def flex_mask(self, n: int, *, causal: bool) -> FlexMask | str:
        """Band and dilation; there is none where heads differ in dilation."""
        del n, causal
        if isinstance(self.dilation, tuple):
            return "its heads have dilations of their own: name them in rules of their own, each with one dilation"
        band = band_expression(self.left, self.right)
        return FlexMask(band if self.dilation == 1 else f"({band} & ((q - k) % {self.dilation} == 0))")

    def definition(self, call: Call) -> Output:
        """The dense mask of band and dilation, in float64."""
        ahead = call.query_positions[:, None, :, None] - call.key_positions[:, None, None, :]
        steps = [self.dilation] if isinstance(self.dilation, int) else list(self.dilation)
        allowed = call.visible() & torch.stack([ahead[:, 0] % step == 0 for step in steps], dim=1)
        if self.left is not None:
            allowed = allowed & (ahead <= self.left)
        if self.right is not None:
            allowed = allowed & (ahead >= -self.right)
        return explicit_attention(call, allowed)

    def cost(self, n: int, d: int) -> Cost:
        """Two products over the pairs inside the window.

        Where heads differ it is the mean over them.
        """
        sides = [side_pairs(n, limit, step) for limit in (self.left, self.right) for step in self._dilations]
        pairs = n + sum(sides) / len(self._dilations)
        return Cost(flops=4.0 * d * pairs, bytes=max(self._bytes(n, d, step) for step in self._dilations))

    def _bytes(self, n: int, d: int, dilation: int) -> float:
        """A dilated window is a plain one on copies of every `dilation`-th position."""
        positions = -(-n // dilation)
        copies = 0.0 if dilation == 1 else 3.0 * FLOAT * positions * d
        if self.left is None and self.right is None:
            return copies + flash_bytes(positions, positions, d)
        limits = [None if limit is None else limit // dilation for limit in (self.left, self.right)]
        left, right = (farthest(positions, limit) for limit in limits)
        is_narrow = band_is_narrow(positions, left + right)
        return copies + (band_bytes(positions, d, left, right) if is_narrow else limited_bytes(positions, d))


MECHANISM = Window


def _windowed(call: Call, *, lse: bool) -> Output:
    band = narrow_band(call)
    runs = None if band is None else real_runs(call)
    if band is None or runs is None:
        return Dense().attend(call, lse=lse)
    out, rows = band_attention(call.q, call.k, call.v, band, runs)
    return Output(with_sinks(out, rows, call.sinks), rows if lse else None)


def _by_head(call: Call, dilations: tuple[int, ...], *, lse: bool) -> Output:
    """Attend to heads of one dilation together, and restore their order."""
    heads = [tuple(h for h, step in enumerate(dilations) if step == dilation) for dilation in sorted(set(dilations))]
    parts = [_dilated(call.heads(head_group), dilations[head_group[0]], lse=lse) for head_group in heads]
    order = torch.tensor([h for head_group in heads for h in head_group], device=call.q.device).argsort()
    out = torch.cat([part.out for part in parts], dim=1).index_select(1, order)
    rows = [part.lse for part in parts if part.lse is not None]
    return Output(out, torch.cat(rows, dim=1).index_select(1, order) if lse else None)


def _dilated(call: Call, dilation: int, *, lse: bool) -> Output:
    if dilation == 1:
        return _windowed(call, lse=lse)
    if call.offset is None:
        return Dense().attend(_stepped(call, (dilation,)), lse=lse)
    out, rows = (x.clone() for x in blind(call))
    for residue in range(min(dilation, call.q.shape[2])):
        queries, keys = slice(residue, None, dilation), slice((residue + call.offset) % dilation, None, dilation)
        if keys.start < call.k.shape[2]:
            part = _windowed(_undilated(call.take(queries, keys), dilation), lse=lse)
            out[:, :, queries] = part.out
            if part.lse is not None:
                rows[:, :, queries] = part.lse
    return Output(out, rows if lse else None)


def _stepped(call: Call, dilations: tuple[int, ...]) -> Call:
    """The call with a mask that admits only multiples of the dilation.

    There is one mask for all heads, or one for each.
    """
    ahead = call.query_positions[:, None, :, None] - call.key_positions[:, None, None, :]
    stepped = ahead % ahead.new_tensor(dilations)[:, None, None] == 0
    return replace(call, mask=stepped if call.mask is None else call.mask & stepped)


def _undilated(call: Call, dilation: int) -> Call:
    """Positions that agree modulo the dilation, in units of it."""
    return replace(
        call,
        query_positions=call.query_positions.div(dilation, rounding_mode="floor"),
        key_positions=call.key_positions.div(dilation, rounding_mode="floor"),
        left=None if call.left is None else call.left // dilation,
        right=None if call.right is None else call.right // dilation,
    )
