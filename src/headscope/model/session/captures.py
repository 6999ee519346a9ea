"""The registry of captures: one entry for each quantity that a session can show.

Everything that concerns a quantity is in its entry: the session captures and patches it, families that are watched at
their softmax show it, messages and docs/captures.md describe it, and nothing else knows its name. A new quantity is one
more entry in `QUANTITIES`; its function, where it needs one, belongs to `attention/maps.py`. The class of an entry says
where the session gets hold of the quantity:

- `InputQuantity`: read off an attention call before anything is computed;
- `MapQuantity`: computed from the softmax call that the heads amount to, whatever mechanism replaces them;
- `OutputQuantity`: read off what the heads give, after patches and ablation;
- `WatchedQuantity`: a tensor that enters or leaves a module elsewhere in the model.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Literal

import torch
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.maps import corner, early, pairs_of, pattern, pattern_pairs, score_rows, scores
from headscope.core.site import Site
from headscope.errors import UsageError
from headscope.model.session import axes, places
from headscope.model.session.axes import Axis, Extent
from headscope.model.session.places import Place
from headscope.shapes import CORNER

Heads = tuple[int, ...]
MapName = Literal["scores", "pattern"]


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """One entry of the registry.

    `meaning` is one sentence. With `of_size` the name may be followed by a number, as in `corner:256`.
    """

    name: str
    meaning: str
    axes: tuple[Axis, ...]
    of_size: Callable[[int], "Quantity"] | None = None

    @property
    def patchable(self) -> bool:
        """Whether a session can put another tensor in its place."""
        return False

    @property
    def off_map(self) -> bool:
        """Whether it can be read off a stored map."""
        return False

    @property
    def spellings(self) -> tuple[str, ...]:
        """How it is asked for."""
        return (self.name,) if self.of_size is None else (self.name, f"{self.name}:N")

    def numbers_per_window(self, extent: Extent) -> int:
        """How many numbers the tensor of one site holds for each window of a batch."""
        return prod(axis.length(extent) for axis in self.axes)

    def tensor_heads(self, site: Site, heads: Heads) -> Heads | None:
        """Where the tensor holds these query heads: the key/value heads they read, each once; None without heads."""
        if axes.KV_HEADS in self.axes:
            return tuple(dict.fromkeys(site.kv_head(head) for head in heads))
        return heads if axes.HEADS in self.axes else None


@dataclass(frozen=True, kw_only=True)
class InputQuantity(Quantity):
    """A quantity of the call as the model makes it; with `write` another tensor can take its place."""

    read: Callable[[Call], Tensor]
    write: Callable[[Call, Tensor], Call] | None = None

    @property
    def patchable(self) -> bool:
        """Whether a session can put another tensor in its place."""
        return self.write is not None


@dataclass(frozen=True, kw_only=True)
class MapQuantity(Quantity):
    """A quantity of the scores or of the pattern; its tensor has the heads on axis 1.

    `cut` takes it from the stored map that `of` names; without one it cannot be had where only the map is there: in
    families that are watched at their softmax, and of a patched pattern. `mixes`: the quantity is the whole map that
    mixes the values, so that another map can take its place.
    """

    compute: Callable[[Call], Tensor]
    of: MapName
    cut: Callable[[Tensor], Tensor] | None = None
    mixes: bool = False

    @property
    def patchable(self) -> bool:
        """Whether a session can put another tensor in its place."""
        return self.mixes

    @property
    def off_map(self) -> bool:
        """Whether it can be read off a stored map."""
        return self.cut is not None


@dataclass(frozen=True, kw_only=True)
class OutputQuantity(Quantity):
    """A quantity of the heads' outputs; with `write` other outputs can take their place."""

    read: Callable[[Tensor], Tensor]
    write: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def patchable(self) -> bool:
        """Whether a session can put another tensor in its place."""
        return self.write is not None


@dataclass(frozen=True, kw_only=True)
class WatchedQuantity(Quantity):
    """A tensor that passes a module outside the attention call.

    `needs`: what must be known of a family before the place is: the order of its layers, or where its weights are.
    """

    place: Place
    needs: Literal["layers", "weights"]


def _whole(stored: Tensor) -> Tensor:
    return stored


def _corner(size: int) -> MapQuantity:
    return MapQuantity(
        name=f"corner:{size}",
        meaning=f"The pattern of the first {size} queries and keys.",
        axes=(axes.BATCH, axes.HEADS, axes.first_queries(size), axes.first_keys(size)),
        compute=partial(corner, size=size),
        of="pattern",
        cut=lambda stored: stored[..., :size, :size],
    )


_MAP_AXES = (axes.BATCH, axes.HEADS, axes.QUERIES, axes.KEYS)
_STREAM_AXES = (axes.BATCH, axes.TOKENS, axes.D_MODEL)

_ENTRIES: tuple[Quantity, ...] = (
    InputQuantity(
        name="q",
        meaning="The queries as the scores see them, after rotary positions and norms.",
        axes=(axes.BATCH, axes.HEADS, axes.QUERIES, axes.D_HEAD),
        read=lambda call: call.q,
        write=lambda call, q: replace(call, q=q),
    ),
    InputQuantity(
        name="k",
        meaning="The keys as the scores see them, after rotary positions and norms; each key/value head once.",
        axes=(axes.BATCH, axes.KV_HEADS, axes.KEYS, axes.D_HEAD),
        read=lambda call: call.k,
        write=lambda call, k: replace(call, k=k),
    ),
    InputQuantity(
        name="v",
        meaning="The values; each key/value head once.",
        axes=(axes.BATCH, axes.KV_HEADS, axes.KEYS, axes.D_VALUE),
        read=lambda call: call.v,
        write=lambda call, v: replace(call, v=v),
    ),
    MapQuantity(
        name="scores",
        meaning="The scores after scale, softcap and bias, before the mask; at least float32.",
        axes=_MAP_AXES,
        compute=scores,
        of="scores",
        cut=_whole,
    ),
    MapQuantity(
        name="rows",
        meaning="The scores of a few rows, −∞ where masked.",
        axes=(axes.BATCH, axes.HEADS, axes.ROWS, axes.KEYS),
        compute=score_rows,
        of="scores",
    ),
    InputQuantity(
        name="scale",
        meaning="The factor of q·k.",
        axes=(),
        read=lambda call: torch.tensor(call.scale, dtype=torch.float64),
    ),
    MapQuantity(
        name="pattern",
        meaning="The attention weights: what the softmax gives, 0 where masked.",
        axes=_MAP_AXES,
        compute=pattern,
        of="pattern",
        cut=_whole,
        mixes=True,
    ),
    replace(
        _corner(CORNER),
        name="corner",
        meaning=f"The pattern of the first {CORNER} queries and keys; `corner:N` that of the first N.",
        of_size=_corner,
    ),
    MapQuantity(
        name="early",
        meaning=f"The pattern of the first {CORNER} queries with every key that they may see.",
        axes=(axes.BATCH, axes.HEADS, axes.first_queries(CORNER), axes.VISIBLE_KEYS),
        compute=early,
        of="pattern",
    ),
    MapQuantity(
        name="pairs",
        meaning="The pattern among some tokens, which lie at every distance from the end of the window.",
        axes=(axes.BATCH, axes.HEADS, axes.SAMPLED_QUERIES, axes.SAMPLED_KEYS),
        compute=pattern_pairs,
        of="pattern",
        cut=pairs_of,
    ),
    OutputQuantity(
        name="z",
        meaning="What the heads give, before the output projection: the values mixed by the pattern.",
        axes=(axes.BATCH, axes.HEADS, axes.QUERIES, axes.D_VALUE),
        read=_whole,
        write=lambda before, after: after,
    ),
    OutputQuantity(
        name="corner_z",
        meaning=f"What the heads give at the first {CORNER} queries.",
        axes=(axes.BATCH, axes.HEADS, axes.first_queries(CORNER), axes.D_VALUE),
        read=lambda out: out[:, :, :CORNER],
    ),
    WatchedQuantity(
        name="resid",
        meaning="The residual stream that enters the layer.",
        axes=_STREAM_AXES,
        place=places.layer_inputs,
        needs="layers",
    ),
    WatchedQuantity(
        name="x",
        meaning="The input of the query projection, at the sites whose weights are known.",
        axes=_STREAM_AXES,
        place=places.query_inputs,
        needs="weights",
    ),
    WatchedQuantity(
        name="final",
        meaning="The residual stream that leaves the last layer of each stack, before any norm that follows; it is "
        "stored at the last self-attention of the stack.",
        axes=_STREAM_AXES,
        place=places.stack_outputs,
        needs="layers",
    ),
)
QUANTITIES: dict[str, Quantity] = {quantity.name: quantity for quantity in _ENTRIES}


def find_quantity(name: str) -> Quantity | None:
    """The entry of a name, also of one with a size (`corner:256`)."""
    stem, colon, size = name.partition(":")
    quantity = QUANTITIES.get(stem)
    if quantity is None or not colon:
        return quantity
    is_size = size.isdecimal() and int(size) > 0
    return replace(quantity.of_size(int(size)), name=name) if quantity.of_size is not None and is_size else None


def quantities_named(names: tuple[str, ...]) -> tuple[Quantity, ...]:
    """The entries of some names.

    Raises:
        UsageError: A name has no entry, or there is no name.
    """
    entries = {name: find_quantity(name) for name in names}
    unknown = [name for name, quantity in entries.items() if quantity is None]
    if unknown or not names:
        raise UsageError(f"cannot capture {', '.join(unknown) or 'nothing'}", hint=f"one of {_spelled()}")
    return tuple(quantity for quantity in entries.values() if quantity is not None)


def patchable_quantity(name: str) -> Quantity:
    """The entry of a quantity that can be patched.

    Raises:
        UsageError: Nothing of this name can be patched.
    """
    quantity = find_quantity(name)
    if quantity is None or not quantity.patchable:
        patchable = [entry.name for entry in QUANTITIES.values() if entry.patchable]
        raise UsageError(f"cannot patch {name!r}", hint=f"one of {', '.join(patchable)}")
    return quantity


def _spelled() -> str:
    return ", ".join(spelling for quantity in QUANTITIES.values() for spelling in quantity.spellings)
