"""The registry of captures: one entry for each quantity that a session can show.

Everything that concerns a quantity is in its entry: the session captures and patches it, families that are watched at
their softmax show it, messages and docs/captures.md describe it, and nothing else knows its name. A new quantity is one
more entry in `QUANTITIES`; its function, where it needs one, belongs to `attention/maps.py`. The class of an entry says
where the session gets hold of the quantity:

- `InputQuantity`: read off an attention call before anything is computed;
- `MapQuantity`: computed from the softmax call that the heads amount to, whatever mechanism replaces them;
- `TokenMapQuantity`: such a quantity that also depends on the tokens that were read;
- `OutputQuantity`: read off what the heads give, after patches and ablation;
- `WatchedQuantity`: a tensor that passes elsewhere in the model, or something that follows from it.

A quantity that can be patched says how: what it becomes when another tensor takes its place.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.maps import (
    corner,
    early,
    pairs_of,
    pattern,
    pattern_pairs,
    query_runs,
    query_runs_of,
    score_rows,
    scores,
)
from headscope.attention.token_repeats import repeat_masses, repeat_masses_of
from headscope.core.site import Site
from headscope.errors import CaptureError, UsageError, WeightsRefused
from headscope.model.session import axes, places
from headscope.model.session.axes import Axis, Extent
from headscope.model.session.places import Place, Spot, Spots
from headscope.model.session.stream_map import StreamMap
from headscope.model.tracing.norms import Norm
from headscope.shapes import CORNER

if TYPE_CHECKING:
    from headscope.model.model import Model

Heads = tuple[int, ...]
# Tokens before a text repeats itself, where no other number is asked for.
PERIOD = 40
_POSITIONS = (axes.TOKENS, axes.QUERIES, axes.KEYS)
MapName = Literal["scores", "pattern"]
# Where quantities are, in the order of the documentation.
Group = Literal["attention call", "around the attention", "feed-forward part", "stream", "whole model"]


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """One entry of the registry.

    `meaning` is one sentence, `group` says where in a model it is. With `of_size` the name may be followed by a number,
    as in `corner:256`. `part_of_all`: who asks for everything gets it; what is only a part of another quantity is left
    out.
    """

    name: str
    meaning: str
    axes: tuple[Axis, ...]
    of_size: Callable[[int], "Quantity"] | None = None
    part_of_all: bool = True
    group: Group = "attention call"

    @property
    def token_axis(self) -> int | None:
        """The axis of the positions of the text; None where it has none."""
        return next((self.axes.index(axis) for axis in _POSITIONS if axis in self.axes), None)

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
    families that are watched at their softmax, and of a patched map. `is_whole`: the quantity is the whole map, so that
    another map can take its place.
    """

    compute: Callable[[Call], Tensor]
    of: MapName
    cut: Callable[[Tensor], Tensor] | None = None
    is_whole: bool = False

    @property
    def patchable(self) -> bool:
        """Whether a session can put another tensor in its place."""
        return self.is_whole

    @property
    def off_map(self) -> bool:
        """Whether it can be read off a stored map."""
        return self.cut is not None


@dataclass(frozen=True, kw_only=True)
class TokenMapQuantity(MapQuantity):
    """A quantity of the map that also depends on the tokens that were read.

    `bind` gives the entry for the tokens of a forward, or for None where the keys are not those of its tokens.
    """

    bind: Callable[[Tensor | None], MapQuantity]


@dataclass(frozen=True, kw_only=True)
class OutputQuantity(Quantity):
    """A quantity of the heads' outputs; with `write` other outputs can take their place."""

    read: Callable[[Tensor], Tensor]
    write: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def patchable(self) -> bool:
        """Whether a session can put another tensor in its place."""
        return self.write is not None


@dataclass(frozen=True)
class Passage:
    """A tensor on its way through the model, at the spot of a place.

    `given`: what the module was given, where the tensor is what it gave. `z`: what the heads of the site gave.
    """

    model: "Model"
    site: Site
    spot: Spot
    tensor: Tensor
    incoming: Tensor | None = None
    z: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class WatchedQuantity(Quantity):
    """A quantity of a tensor that passes outside the attention call.

    `needs`: what must be known of a family before the place is: the order of its layers, where its weights are, or
    where its layers add. `write` makes the tensor that has `after` as this quantity in the place of `before`;
    `gradient` turns a gradient with respect to the tensor into one with respect to the quantity. What is `of_weights`
    follows from the weights at the place, whatever passes: nothing can be put there.
    """

    place: Place
    needs: Literal["layers", "weights", "additions"]
    read: Callable[[Passage], Tensor] = lambda passage: passage.tensor
    write: Callable[[Passage, Tensor, Tensor], Tensor] = lambda passage, before, after: after
    gradient: Callable[[Passage, Tensor], Tensor] = lambda passage, gradient: gradient
    of_weights: bool = False

    @property
    def patchable(self) -> bool:
        """Whether a session can put another tensor in its place."""
        return not self.of_weights


def output_matrices(model: "Model", site: Site) -> Tensor:
    """W_O of each head of a site, as the built model holds it now: heads × d_value × d_model."""
    plan = model.plan(site)
    if plan.output is None:
        raise WeightsRefused(f"{site.label} has no output matrix: {plan.status.reason}")
    linear = model.hf.get_submodule(plan.output.module)
    # Linear stores [out, in], Conv1D [in, out].
    matrix: Tensor = linear.weight.T if isinstance(linear, torch.nn.Linear) else linear.weight
    index = plan.output.row.to(matrix.device)
    return matrix[index.flatten()].reshape(*index.shape, matrix.shape[1])


def _head_parts(passage: Passage) -> Tensor:
    if passage.z is None:
        raise CaptureError(f"{passage.site.label}: what its heads give is not known where its output passes")
    return torch.matmul(passage.z, output_matrices(passage.model, passage.site))


def _output_gram(passage: Passage) -> Tensor:
    matrices = output_matrices(passage.model, passage.site).detach()
    matrices = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
    # Operands with different numbers of axes, as for `head_out`: not one of the products that are watched for.
    gram = torch.matmul(matrices[None], matrices.mT)
    return gram.expand(len(passage.tensor), -1, -1, -1)


def _projected(name: str, letter: Literal["q", "k"], meaning: str, shape: tuple[Axis, ...]) -> WatchedQuantity:
    """What a projection gives, head by head: some columns of the output of a matrix, which may hold others besides."""

    def columns(passage: Passage) -> Tensor:
        projections = passage.model.plan(passage.site).projections
        if projections is None:
            raise WeightsRefused(f"{passage.site.label}: it is not known which matrix its {name} comes from")
        rows = projections.q if letter == "q" else projections.k
        return rows.row.to(passage.tensor.device)

    def by_head(passage: Passage, tensor: Tensor) -> Tensor:
        index = columns(passage)
        start, count = int(index[0, 0]), index.numel()
        # Most matrices hold one head after the other: then no copy is needed to see them.
        is_range = torch.equal(index.flatten(), torch.arange(start, start + count, device=index.device))
        heads = (
            tensor.narrow(-1, start, count).view(*tensor.shape[:-1], *index.shape) if is_range else tensor[..., index]
        )
        return heads.transpose(1, 2)

    def write(passage: Passage, before: Tensor, after: Tensor) -> Tensor:
        return passage.tensor.index_copy(-1, columns(passage).flatten(), after.transpose(1, 2).flatten(2))

    return WatchedQuantity(
        name=name,
        meaning=meaning,
        axes=shape,
        group="around the attention",
        place=partial(places.projection_outputs, letter),
        needs="weights",
        read=lambda passage: by_head(passage, passage.tensor),
        write=write,
        gradient=by_head,
    )


def _norm(passage: Passage) -> tuple[Norm, Tensor]:
    """The norm that a tensor comes from, and what it was given."""
    if passage.spot.norm is None or passage.incoming is None:
        raise CaptureError(f"{passage.site.label}: {passage.spot.module} is not known as a norm")
    return passage.spot.norm, passage.incoming


def _norm_scale(passage: Passage) -> Tensor:
    norm, stream = _norm(passage)
    return norm.scale(stream, passage.tensor)


def _at_scale(passage: Passage, before: Tensor, after: Tensor) -> Tensor:
    norm, stream = _norm(passage)
    return norm.apply(stream, after)


def _scale_gradient(passage: Passage, gradient: Tensor) -> Tensor:
    """The norm gives g ⊙ d / σ + b, so its derivative by σ is −(g ⊙ d / σ) / σ."""
    norm, _ = _norm(passage)
    unshifted = passage.tensor - norm.bias
    return -(gradient * unshifted).sum(-1, keepdim=True) / _norm_scale(passage)


def _of_stream(find: Callable[[StreamMap], Spots]) -> Place:
    return lambda model: find(model.stream_map)


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
        part_of_all=False,
    )


def _repeats(period: int, tokens: Tensor | None = None) -> TokenMapQuantity:
    return TokenMapQuantity(
        name=f"repeats:{period}",
        meaning=f"The weights 1, 2, 3, 4, {period - 1} and {period} keys before the query, after copies of its token, "
        "on their controls, on the query itself, on the first key, and on a visible key where all are alike.",
        axes=(axes.BATCH, axes.HEADS, axes.QUERIES, axes.KEY_KINDS),
        compute=partial(repeat_masses, period=period, tokens=tokens),
        of="pattern",
        cut=partial(repeat_masses_of, period=period, tokens=tokens),
        part_of_all=False,
        bind=partial(_repeats, period),
    )


_MAP_AXES = (axes.BATCH, axes.HEADS, axes.QUERIES, axes.KEYS)
_STREAM_AXES = (axes.BATCH, axes.TOKENS, axes.D_MODEL)
_SCALE_AXES = (axes.BATCH, axes.TOKENS, axes.SINGLE)

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
        is_whole=True,
    ),
    MapQuantity(
        name="rows",
        meaning="The scores of a few rows, −∞ where masked.",
        axes=(axes.BATCH, axes.HEADS, axes.ROWS, axes.KEYS),
        compute=score_rows,
        of="scores",
        part_of_all=False,
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
        is_whole=True,
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
        part_of_all=False,
    ),
    MapQuantity(
        name="pairs",
        meaning="The pattern among some tokens, which lie at every distance from the end of the window.",
        axes=(axes.BATCH, axes.HEADS, axes.SAMPLED_QUERIES, axes.SAMPLED_KEYS),
        compute=pattern_pairs,
        of="pattern",
        cut=pairs_of,
        part_of_all=False,
    ),
    MapQuantity(
        name="query_runs",
        meaning="The pattern of at most four runs of 16 neighbouring queries, with every key.",
        axes=(axes.BATCH, axes.HEADS, axes.RUN_QUERIES, axes.KEYS),
        compute=query_runs,
        of="pattern",
        cut=query_runs_of,
        part_of_all=False,
    ),
    replace(
        _repeats(PERIOD),
        name="repeats",
        meaning="The weights 1, 2, 3, 4, N − 1 and N keys before the query (`repeats:N`; N is 40 without it), on keys "
        "that follow copies of its token, on their controls at the same distances, on the query itself, on the first "
        "key, and on a visible key where all are alike.",
        of_size=_repeats,
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
        part_of_all=False,
    ),
    WatchedQuantity(
        name="embed",
        group="whole model",
        meaning="The vectors of the tokens as the table of tokens gives them, before anything is added; at the first "
        "self-attention of the stack.",
        axes=_STREAM_AXES,
        place=_of_stream(StreamMap.embeddings),
        needs="layers",
    ),
    WatchedQuantity(
        name="resid",
        group="stream",
        meaning="The residual stream that enters the layer.",
        axes=_STREAM_AXES,
        place=places.layer_inputs,
        needs="layers",
    ),
    WatchedQuantity(
        name="x",
        group="around the attention",
        meaning="The input of the query projection: what the norm before it gives.",
        axes=_STREAM_AXES,
        place=_of_stream(StreamMap.attention_inputs),
        needs="additions",
    ),
    WatchedQuantity(
        name="x_scale",
        group="around the attention",
        meaning="The scale of the norm before the attention: what it divides each vector by.",
        axes=_SCALE_AXES,
        place=_of_stream(StreamMap.attention_norms),
        needs="additions",
        read=_norm_scale,
        write=_at_scale,
        gradient=_scale_gradient,
    ),
    _projected(
        "q_proj",
        "q",
        "What the projection of the queries gives, before rotary positions, norms and factors.",
        (axes.BATCH, axes.HEADS, axes.QUERIES, axes.D_HEAD),
    ),
    _projected(
        "k_proj",
        "k",
        "What the projection of the keys gives, before rotary positions and norms; each key/value head once.",
        (axes.BATCH, axes.KV_HEADS, axes.KEYS, axes.D_HEAD),
    ),
    WatchedQuantity(
        name="head_out",
        group="around the attention",
        meaning="The part of each head in what the output projection gives: z of the head times its W_O.",
        axes=(axes.BATCH, axes.HEADS, axes.QUERIES, axes.D_MODEL),
        place=places.attention_outputs,
        needs="weights",
        read=_head_parts,
        write=lambda passage, before, after: passage.tensor + (after - before).sum(1),
        gradient=lambda passage, gradient: gradient[:, None].expand(-1, passage.site.n_heads, -1, -1),
        part_of_all=False,
    ),
    WatchedQuantity(
        name="output_gram",
        group="around the attention",
        meaning="The inner products of the rows of W_O of each head, at least float32, the same for each text of a "
        "batch: with them the length of what a head writes follows from its z.",
        axes=(axes.BATCH, axes.HEADS, axes.D_VALUE, axes.D_VALUE_AGAIN),
        place=places.attention_outputs,
        needs="weights",
        read=_output_gram,
        of_weights=True,
        part_of_all=False,
    ),
    WatchedQuantity(
        name="attn_out",
        group="around the attention",
        meaning="What the output projection of the attention gives: the sum of `head_out`, and its bias.",
        axes=_STREAM_AXES,
        place=_of_stream(StreamMap.attention_outputs),
        needs="additions",
    ),
    WatchedQuantity(
        name="attn_add",
        group="around the attention",
        meaning="What the attention adds to the stream: `attn_out`, after a norm or a factor where the family has one.",
        axes=_STREAM_AXES,
        place=_of_stream(StreamMap.attention_additions),
        needs="additions",
    ),
    WatchedQuantity(
        name="resid_mid",
        group="stream",
        meaning="The stream after the attention was added, before the next part of the layer.",
        axes=_STREAM_AXES,
        place=_of_stream(StreamMap.sums_after_attention),
        needs="additions",
    ),
    WatchedQuantity(
        name="mlp_in",
        group="feed-forward part",
        meaning="The input of the feed-forward part: what the norm before it gives.",
        axes=_STREAM_AXES,
        place=_of_stream(StreamMap.feed_forward_inputs),
        needs="additions",
    ),
    WatchedQuantity(
        name="mlp_scale",
        group="feed-forward part",
        meaning="The scale of the norm before the feed-forward part: what it divides each vector by.",
        axes=_SCALE_AXES,
        place=_of_stream(StreamMap.feed_forward_norms),
        needs="additions",
        read=_norm_scale,
        write=_at_scale,
        gradient=_scale_gradient,
    ),
    WatchedQuantity(
        name="mlp_act",
        group="feed-forward part",
        meaning="The activations of the feed-forward part: the input of the matrix that leads back to the stream.",
        axes=(axes.BATCH, axes.TOKENS, axes.D_MLP),
        place=_of_stream(StreamMap.feed_forward_activations),
        needs="additions",
    ),
    WatchedQuantity(
        name="mlp_out",
        group="feed-forward part",
        meaning="What the feed-forward part gives.",
        axes=_STREAM_AXES,
        place=_of_stream(StreamMap.feed_forward_outputs),
        needs="additions",
    ),
    WatchedQuantity(
        name="mlp_add",
        group="feed-forward part",
        meaning="What the feed-forward part adds to the stream: `mlp_out`, after a norm or a factor where the family "
        "has one.",
        axes=_STREAM_AXES,
        place=_of_stream(StreamMap.feed_forward_additions),
        needs="additions",
    ),
    WatchedQuantity(
        name="resid_post",
        group="stream",
        meaning="The residual stream that leaves the layer.",
        axes=_STREAM_AXES,
        place=places.layer_outputs,
        needs="layers",
    ),
    WatchedQuantity(
        name="final",
        group="whole model",
        meaning="The residual stream that leaves the last layer of each stack, before any norm that follows; it is "
        "stored at the last self-attention of the stack.",
        axes=_STREAM_AXES,
        place=places.stack_outputs,
        needs="layers",
    ),
    WatchedQuantity(
        name="final_scale",
        group="whole model",
        meaning="The scale of the norm after the last layer; at the last self-attention of the stack.",
        axes=_SCALE_AXES,
        place=_of_stream(StreamMap.final_norms),
        needs="layers",
        read=_norm_scale,
        write=_at_scale,
        gradient=_scale_gradient,
    ),
    WatchedQuantity(
        name="logits",
        group="whole model",
        meaning="What the output head gives, before a softcap where the family has one: a number for each token of the "
        "vocabulary; at the last self-attention.",
        axes=(axes.BATCH, axes.TOKENS, axes.VOCABULARY),
        place=_of_stream(StreamMap.logits),
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
