"""Reads a call of transformers: from tensors, mask and options to a `Call`.

transformers describes what a query may see in several ways: no mask and a flag, a boolean mask, an additive
one. Here all of them become positions, a band (`left`, `right`), key padding, and a mask only where
these are not enough. The translation is exact: it is kept only if it reproduces the mask bit by bit.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from headscope.attention.call import Call
from headscope.errors import CaptureError


@dataclass(frozen=True)
class RawCall:
    """One attention call exactly as transformers makes it."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scaling: float | None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Visibility:
    """The keys that a query may see, in the terms of `Call`."""

    left: int | None = None
    right: int | None = None
    key_padding: Bool[Tensor, "batch keys"] | None = None
    mask: Bool[Tensor, "mask_batch mask_heads queries keys"] | None = None


@dataclass(frozen=True)
class Positions:
    """Where the queries and the keys of a call are in the text, without gaps."""

    first_query: int
    first_key: int
    queries: Int[Tensor, "1 queries"]
    keys: Int[Tensor, "1 keys"]


# Options that select keys by content: none of our descriptions covers them.
_SELECTING = ("indices", "block_indices")


class Reader:
    """Translates calls.

    It remembers positions and the translation of a mask, which all layers of a forward share.
    """

    def __init__(self) -> None:
        self._positions: dict[tuple[int, int, int, int, torch.device], Positions] = {}
        self._visibilities: dict[tuple[int | None, ...], tuple[Tensor, Visibility, Tensor | None]] = {}

    def forget(self) -> None:
        """Forget positions and masks: a new forward begins."""
        self._positions.clear()
        self._visibilities.clear()

    def call(self, raw: RawCall, *, query_offset: int | None = None, cross: bool = False) -> Call:
        """The call in our terms.

        `query_offset` is the position of the first query, if the caller knows it.
        """
        if any(raw.options.get(name) is not None for name in _SELECTING):
            raise CaptureError(f"{type(raw.module).__name__} selects keys by content, which headscope cannot describe")
        positions = self._positions_of(raw, query_offset, cross)
        visibility, mask_bias = self._visibility(raw, positions)
        bias = _sum(raw.options.get("position_bias"), mask_bias)
        call = Call(
            q=raw.query,
            k=raw.key,
            v=raw.value,
            scale=raw.query.shape[-1] ** -0.5 if raw.scaling is None else float(raw.scaling),
            query_positions=positions.queries,
            key_positions=positions.keys,
            left=visibility.left,
            right=visibility.right,
            key_padding=visibility.key_padding,
            mask=visibility.mask,
            bias=None if bias is None else bias[..., : raw.query.shape[2], : raw.key.shape[2]],
            softcap=raw.options.get("softcap"),
            sinks=raw.options.get("s_aux"),
        )
        # Reading it off the positions would cost more than all else that is done around the kernel.
        call.__dict__["offset"] = positions.first_query - positions.first_key
        return call

    def _positions_of(self, raw: RawCall, offset: int | None, cross: bool) -> Positions:
        queries, keys, device = raw.query.shape[2], raw.key.shape[2], raw.query.device
        if offset is None:
            # Without a mask several queries start at position 0 (transformers aligns "causal" top left, which
            # matters for a cache longer than the text so far); otherwise the queries are the last of the keys.
            offset = 0 if cross or keys < queries or (raw.mask is None and queries > 1) else keys - queries
        # A sliding cache holds only the last keys; a static one may hold room for later ones.
        first_key = 0 if cross else max(0, offset + queries - keys)
        place = (offset, first_key, queries, keys, device)
        if place not in self._positions:
            self._positions[place] = Positions(
                offset,
                first_key,
                torch.arange(offset, offset + queries, device=device)[None],
                torch.arange(first_key, first_key + keys, device=device)[None],
            )
        return self._positions[place]

    def _visibility(self, raw: RawCall, positions: Positions) -> tuple[Visibility, Tensor | None]:
        if raw.mask is None:
            return Visibility(right=0 if _is_causal(raw, positions) else None), None
        # Tensors of inference mode do not count their writes, so their masks are read each time.
        version = None if raw.mask.is_inference() else raw.mask._version
        # A mask that is learnt is read each time too: its bias belongs to a graph.
        lasts = version is not None and not raw.mask.requires_grad
        key = (raw.mask.data_ptr(), version, positions.first_query, *raw.mask.shape, *raw.query.shape, *raw.key.shape)
        if not lasts or key not in self._visibilities:
            allowed, bias = _boolean(raw.mask[..., : raw.key.shape[2]])
            expanded = allowed.expand(-1, -1, raw.query.shape[2], raw.key.shape[2])
            # The mask is kept with its translation: while it lives its address cannot be reused.
            described = visibility_of(expanded, positions.queries, positions.keys, raw.key.shape[0])
            self._visibilities[key] = (raw.mask, described, bias)
        return self._visibilities[key][1:]


def _is_causal(raw: RawCall, positions: Positions) -> bool:
    """Whether the call is causal, by the rule of transformers' sdpa path.

    One query without a mask sees every key. Where no key is after it this is causal too, and a mechanism may need to
    know.
    """
    flag = raw.options.get("is_causal")
    causal = getattr(raw.module, "is_causal", True) if flag is None else flag
    last_key = positions.first_key + raw.key.shape[2] - 1
    return bool(causal) and (raw.query.shape[2] > 1 or last_key <= positions.first_query)


def _boolean(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """An additive mask as (visible keys, added bias); a boolean one unchanged."""
    if mask.dtype == torch.bool:
        return mask, None
    allowed = mask > torch.finfo(mask.dtype).min / 2
    bias = torch.where(allowed, mask, torch.zeros((), dtype=mask.dtype))
    return allowed, bias if bool(bias.any()) else None


def visibility_of(
    mask: Bool[Tensor, "mask_batch mask_heads queries keys"],
    query_positions: Int[Tensor, "1 queries"],
    key_positions: Int[Tensor, "1 keys"],
    batch: int,
) -> Visibility:
    """The band and the padding that reproduce `mask` exactly, or the mask itself."""
    if mask.shape[1] > 1 and not bool((mask == mask[:, :1]).all()):
        return Visibility(mask=mask)
    ahead = query_positions[0][:, None] - key_positions[0][None, :]
    visible = mask[:, :1].any(dim=0)[0]
    real = mask[:, 0].any(dim=1)
    padding = None if bool(real.all()) else real
    for left, right in _bands(ahead, visible):
        band = torch.ones_like(ahead, dtype=torch.bool)
        if left is not None:
            band = band & (ahead <= left)
        if right is not None:
            band = band & (ahead >= -right)
        if bool((mask[:, 0] == (band & real[:, None, :])).all()):
            return Visibility(left, right, None if padding is None else padding.expand(batch, -1))
    return Visibility(mask=mask[:, :1])


def _bands(ahead: Tensor, visible: Tensor) -> list[tuple[int | None, int | None]]:
    """The bands to try, simplest first: causal, all, causal window, two-sided window."""
    if not bool(visible.any()):
        return [(None, None)]
    left, right = int(ahead[visible].max()), int(-ahead[visible].min())
    return [(None, 0), (None, None), (left, 0), (left, right)]


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b
