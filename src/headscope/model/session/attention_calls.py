"""Answers the attention calls of a model: changes, captures and streams in one fixed order.

Patches of the inputs (q, k, v); captures of inputs and maps, and the stream; the attention itself (replaced, or patched
maps, or the model's own); patches of the output (z); ablation; captures of the output. So captures and streams see what
the call really computes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headscope.attention.call import Call, head_index
from headscope.attention.maps import pattern_of, scores
from headscope.attention.mechanism import Mechanism
from headscope.attention.statistics import Request, RowStatistics, row_statistics, uniform_statistics
from headscope.core.site import Site
from headscope.errors import CaptureError
from headscope.model.session.captures import (
    Heads,
    InputQuantity,
    MapQuantity,
    OutputQuantity,
    Quantity,
    TokenMapQuantity,
)
from headscope.model.session.changes import Change, Window
from headscope.model.session.key_dropping import Part
from headscope.model.session.past_queries import PastQueries
from headscope.model.session.registered import Registered
from headscope.model.session.text_windows import TextWindows
from headscope.model.transformers.attention_hook import own_attention

InputFilter = Callable[[InputQuantity], bool]


class AttentionCalls:
    """The answers of one model, by what was registered."""

    def __init__(self, registered: Registered, windows: TextWindows) -> None:
        self._registered, self._windows = registered, windows
        self._past = PastQueries()
        self._groups_of: dict[tuple[Site, Heads], dict[Mechanism | None, Heads]] = {}
        self._uniform: dict[tuple[object, ...], tuple[Call, RowStatistics]] = {}
        # What the heads gave at the site that attended last: their parts of its output are computed from it.
        self.z: dict[Site, Tensor] = {}
        # Inputs of single heads that differ from what all others read: letter, head, and the tensor of all heads.
        self.path_inputs: dict[Site, list[tuple[str, int, Tensor]]] = {}

    def begin(self) -> None:
        """A forward begins."""
        self._uniform.clear()
        self.z.clear()
        self.path_inputs.clear()

    def refresh(self) -> None:
        """Other heads may have been replaced."""
        self._groups_of.clear()

    def answer(self, site: Site, call: Call, stored: Sequence[Part] | None = None) -> Tensor:
        """What the heads of a site give; `stored`: the calls of its parts, where a cache has dropped keys."""
        if self._registered.is_silent and not self.path_inputs:
            return self._ended(site, self._attended(site, call, stored))
        call = self._patched_inputs(site, self._with_own_inputs(site, call, shared=True))
        call = self._with_inputs_in_graph(site, call)
        self._capture_inputs(site, call)
        call = self._with_own_inputs(site, call, shared=False)
        maps = self._maps_in_graph(site, call)
        self._capture_maps(site, call)
        self._stream_rows(site, call)
        # The output never comes from a map or a pass that someone asked to see: another order of the same sums would
        # round otherwise, and every number behind it would depend on who is watching. A gradient with respect to a map
        # is the exception: there must be a map to differentiate by.
        out = self._attended(site, call, stored) if maps is None else _mixed_by(maps[1], call)
        return self._finished(site, self._with_changed_maps(site, call, out))

    def _patched_inputs(self, site: Site, call: Call, is_there: InputFilter = lambda quantity: True) -> Call:
        """The call with its inputs patched; `is_there` says which, where not all of them are there yet."""
        for change in self._registered.changes_at(site, InputQuantity):
            quantity = change.quantity
            if isinstance(quantity, InputQuantity) and quantity.write is not None and is_there(quantity):
                before = quantity.read(call)
                call = quantity.write(call, self._patched(before, site, change, self._window(quantity, site, before)))
        return call

    def _with_own_inputs(self, site: Site, call: Call, *, shared: bool) -> Call:
        """The call with inputs of single heads in place.

        Queries, and keys and values that no other head reads, are part of the call that everyone sees (`shared`). For
        the others every head is given keys and values of its own, once all that was asked for has been captured.
        """
        for letter, head, tensor in self.path_inputs.get(site, ()):
            if (letter == "q" or call.groups == 1) != shared:
                continue
            row = tensor[:, head if letter == "q" else site.kv_head(head)][:, None]
            if letter == "q":
                call = replace(call, q=with_heads(call.q, (head,), row))
                continue
            k, v = (kv.repeat_interleave(call.groups, dim=1) for kv in (call.k, call.v))
            changed = with_heads(k if letter == "k" else v, (head,), row)
            call = replace(call, k=changed, v=v) if letter == "k" else replace(call, k=k, v=changed)
        return call

    def _patched(self, tensor: Tensor, site: Site, change: Change, window: Window) -> Tensor:
        """A tensor of all heads of a site, with that of the patched heads changed."""
        heads = change.quantity.tensor_heads(site, change.at[site])
        if heads is None:
            return change.new_value(site, tensor, window)
        return with_heads(tensor, heads, change.new_value(site, tensor[:, list(heads)], window))

    def _window(self, quantity: Quantity, site: Site, tensor: Tensor) -> Window:
        return self._windows.of(quantity, site, tensor)

    def _with_inputs_in_graph(self, site: Site, call: Call) -> Call:
        """The call with inputs that gradients lead to, where these are followed."""
        for capture in self._registered.captures:
            for quantity in capture.quantities_at(site) if capture.gradient else ():
                if isinstance(quantity, InputQuantity) and quantity.write is not None:
                    call = quantity.write(call, in_graph(quantity.read(call)))
        return call

    def _capture_inputs(self, site: Site, call: Call) -> None:
        """Store inputs of the call; those that a gradient is followed by are in its graph already."""
        for capture in self._registered.captures:
            for quantity in capture.quantities_at(site):
                if isinstance(quantity, InputQuantity):
                    tensor = quantity.read(call)
                    window = self._window(quantity, site, tensor)
                    if capture.gradient and quantity.write is not None:
                        capture.keep_in_graph(quantity, site, tensor, window, tensor)
                    else:
                        capture.keep(quantity, site, tensor, window)

    def _maps_in_graph(self, site: Site, call: Call) -> tuple[Tensor, Tensor] | None:
        """Scores and pattern of all heads, where a gradient with respect to one of them is followed."""
        followed = [
            (capture, quantity)
            for capture in self._registered.captures
            for quantity in capture.quantities_at(site)
            if capture.gradient and isinstance(quantity, MapQuantity)
        ]
        if not followed:
            return None
        heads = tuple(range(site.n_heads))
        if self._registered.mechanisms(site):
            raise CaptureError(f"{site.label}: gradients of the map of replaced heads cannot be followed")
        raw = in_graph(self._patched_map(site, scores(call), heads, "scores"))
        weights = self._patched_map(site, pattern_of(raw, call), heads, "pattern")
        for capture, quantity in followed:
            tensor = raw if quantity.of == "scores" else weights
            capture.keep_in_graph(quantity, site, tensor, self._window(quantity, site, tensor), tensor)
        return raw, weights

    def _capture_maps(self, site: Site, call: Call) -> None:
        for capture in self._registered.captures:
            raw: Tensor | None = None
            for quantity in () if capture.gradient else capture.quantities_at(site):
                if isinstance(quantity, MapQuantity):
                    heads = capture.at[site]
                    tensor = self._map(site, call, heads, self._bound(quantity, site, call.k.shape[2]), raw)
                    raw = tensor if quantity.name == "scores" else raw
                    capture.keep_own(quantity, site, tensor, self._window(quantity, site, tensor))

    def _bound(self, quantity: MapQuantity, site: Site, n_keys: int) -> MapQuantity:
        """The quantity for the tokens of the running forward, where it depends on them."""
        if not isinstance(quantity, TokenMapQuantity):
            return quantity
        return quantity.bind(self._windows.position.tokens_of(site, n_keys))

    def _map(self, site: Site, call: Call, heads: Heads, quantity: MapQuantity, raw: Tensor | None = None) -> Tensor:
        """A quantity of the map of some heads; `raw` are their scores, where they are known."""
        parts = self._parts(site, call, heads)
        if len(parts) == 1 and not self._map_changes(site):
            part, _ = parts[0]
            return pattern_of(raw, part) if raw is not None and quantity.name == "pattern" else quantity.compute(part)
        joined = torch.cat([self._map_of_part(site, part, group, quantity) for part, group in parts], dim=1)
        order = [head for _, group in parts for head in group]
        return joined if order == list(heads) else joined[:, [order.index(head) for head in heads]]

    def _map_of_part(self, site: Site, part: Call, heads: Heads, quantity: MapQuantity) -> Tensor:
        changes = [change for change in self._map_changes(site) if set(change.at[site]) & set(heads)]
        changes = changes if quantity.of == "pattern" else [c for c in changes if c.quantity.name == "scores"]
        if not changes:
            return quantity.compute(part)
        if quantity.cut is None:
            raise CaptureError(
                f"{site.label}: {quantity.name} cannot be captured where {changes[0].quantity.name} is patched: "
                f"capture {quantity.of}"
            )
        return quantity.cut(self._changed_map(site, part, heads, quantity.of))

    def _changed_map(self, site: Site, part: Call, heads: Heads, name: str) -> Tensor:
        """The scores or the pattern of these heads after all patches."""
        raw = self._patched_map(site, scores(part), heads, "scores")
        return raw if name == "scores" else self._patched_map(site, pattern_of(raw, part), heads, "pattern")

    def _patched_map(self, site: Site, stored: Tensor, heads: Heads, name: str) -> Tensor:
        for change in self._map_changes(site):
            shared = tuple(number for number, head in enumerate(heads) if head in change.at[site])
            if change.quantity.name == name and shared:
                before = stored[:, list(shared)]
                window = self._window(change.quantity, site, before)
                stored = with_heads(stored, shared, change.new_value(site, before, window))
        return stored

    def _map_changes(self, site: Site) -> list[Change]:
        return self._registered.changes_at(site, MapQuantity)

    def _parts(self, site: Site, call: Call, heads: Heads) -> list[tuple[Call, Heads]]:
        """The chosen heads grouped by mechanism, each group with the softmax call that it amounts to."""
        parts: list[tuple[Call, Heads]] = []
        for mechanism, group in self._groups(site, heads).items():
            part = call if len(group) == site.n_heads else call.heads(group)
            softmax_call = part if mechanism is None else mechanism.seen(part)
            if softmax_call is None:
                raise CaptureError(
                    f"{site.label}: heads replaced by {mechanism!r} have no softmax map to capture or stream",
                    hint="capture z instead, or leave these heads out of the selection",
                )
            parts.append((softmax_call, group))
        return parts

    def _groups(self, site: Site, heads: Heads) -> dict[Mechanism | None, Heads]:
        if not self._registered.replacements:
            return {None: heads}
        if (site, heads) not in self._groups_of:
            self._groups_of[site, heads] = self._grouped(site, heads)
        return self._groups_of[site, heads]

    def _grouped(self, site: Site, heads: Heads) -> dict[Mechanism | None, Heads]:
        mechanisms = self._registered.mechanisms(site)
        if not mechanisms:
            return {None: heads}
        groups: dict[Mechanism | None, Heads] = {}
        for head in heads:
            groups[mechanisms.get(head)] = (*groups.get(mechanisms.get(head), ()), head)
        return groups

    def _stream_rows(self, site: Site, call: Call) -> None:
        """Every stream on this site takes the statistics of its rows."""
        for stream in self._registered.streams:
            heads = stream.at.get(site)
            if heads is None:
                continue
            self._refuse_patched_maps(site)
            real = self._windows.position.real_queries(site.stack, call.q.shape[2])
            is_self = site.kind == "self"
            groups = self._parts(site, call, heads)
            rows = [row_statistics(part, stream.request, real_queries=real, positional=is_self) for part, _ in groups]
            measured, uniform = stream.frames.current()
            order = [head for _, group in groups for head in group]
            measured[site] = RowStatistics.of_heads(rows, [order.index(head) for head in heads])
            uniform[site] = self._uniform_of(call, stream.request, real, is_self)

    def _refuse_patched_maps(self, site: Site) -> None:
        if changes := self._map_changes(site):
            raise CaptureError(
                f"{site.label}: a patched map is not that of any queries and keys, so it cannot be streamed",
                hint=f"capture the {changes[0].quantity.name} instead",
            )

    def _uniform_of(self, call: Call, request: Request, real: Tensor | None, positional: bool) -> RowStatistics:
        """The null depends only on what is visible, which most sites of a forward share: computed once."""
        places = (int(call.query_positions[0, 0]), call.q.shape[2], call.k.shape[2])
        key = (call.left, call.right, id(call.key_padding), id(call.mask), *places, request, positional)
        if key not in self._uniform:
            rows = uniform_statistics(call, request, real_queries=real, positional=positional)
            # The call is held too: while its masks live, no other mask can have their identity.
            self._uniform[key] = call, rows
        return self._uniform[key][1]

    def _attended(self, site: Site, call: Call, stored: Sequence[Part] | None) -> Tensor:
        all_heads = [(call, tuple(range(site.n_heads)), False)]
        pieces = [piece for part in stored or all_heads for piece in self._pieces(site, *part)]
        if len(pieces) == 1:
            return self._mixed(site, pieces[0][0], pieces[0][2])
        batch, n_heads, queries, _ = call.q.shape
        # Token after token, as transformers reads it: another order would be copied once more.
        out = call.q.new_empty(batch, queries, n_heads, call.v.shape[3]).transpose(1, 2)
        for mechanism, group, piece in pieces:
            out[:, head_index(group)] = self._mixed(site, mechanism, piece)
        return out

    def _pieces(
        self, site: Site, part: Call, heads: Heads, reads_all: bool
    ) -> list[tuple[Mechanism | None, Heads, Call]]:
        """The calls that give the heads of a part: one for each mechanism, or one for all of a single query.

        A single query reads all stored keys faster under a mask for each head than keys that are copied for the heads
        of each mechanism.
        """
        groups = self._groups(site, heads)
        masked = _masked(part, heads, groups) if len(groups) > 1 and part.q.shape[2] == 1 else None
        if masked is not None:
            return [(None, heads, masked)]
        return [
            (None if reads_all else mechanism, group, _piece(part, heads, group)) for mechanism, group in groups.items()
        ]

    def _mixed(self, site: Site, mechanism: Mechanism | None, call: Call) -> Tensor:
        if mechanism is None:
            return own_attention(call)
        if not mechanism.needs_all_queries:
            return mechanism(call).out
        full_call = self._past.full_call(site, mechanism, call, self._windows.position.offset(site.stack))
        return mechanism.last_rows(full_call, call.q.shape[2])

    def _with_changed_maps(self, site: Site, call: Call, out: Tensor) -> Tensor:
        """The output, where heads with patched scores or patterns mix their values by these."""
        heads = tuple(sorted({head for change in self._map_changes(site) for head in change.at[site]}))
        if not heads:
            return out
        parts = self._parts(site, call, heads)
        joined = [
            _mixed_by(self._changed_map(site, part, group, "pattern"), call.heads(group)) for part, group in parts
        ]
        order = tuple(head for _, group in parts for head in group)
        return with_heads(out, order, torch.cat(joined, dim=1))

    def _finished(self, site: Site, out: Tensor) -> Tensor:
        """The output after its patches and ablation, captured."""
        for change in self._registered.changes_at(site, OutputQuantity):
            quantity = change.quantity
            if isinstance(quantity, OutputQuantity) and quantity.write is not None:
                before = quantity.read(out)
                window = self._window(quantity, site, before)
                out = quantity.write(out, self._patched(before, site, change, window))
        if ablated := self._registered.ablated(site):
            out = with_heads(out, ablated, torch.zeros((), dtype=out.dtype, device=out.device))
        return self._ended(site, self._capture_output(site, out))

    def _ended(self, site: Site, out: Tensor) -> Tensor:
        self.z.clear()  # its output passes before the next site attends: the memory of a forward is one site's
        self.z[site] = out
        return out

    def _capture_output(self, site: Site, out: Tensor) -> Tensor:
        """Store what the heads give, or parts of it; the output goes on from what gradients lead to."""
        for capture in self._registered.captures:
            for quantity in capture.quantities_at(site):
                if isinstance(quantity, OutputQuantity):
                    out = in_graph(out) if capture.gradient else out
                    tensor = quantity.read(out)
                    window = self._window(quantity, site, tensor)
                    if capture.gradient:
                        capture.keep_in_graph(quantity, site, tensor, window, out)
                    else:
                        capture.keep(quantity, site, tensor, window)
        return out


def _masked(part: Call, heads: Heads, groups: Mapping[Mechanism | None, Heads]) -> Call | None:
    """The call in which every head sees the keys that its mechanism lets it see.

    None where a mechanism is no softmax over keys that positions alone choose.
    """
    batch, n_heads, rows, _ = part.q.shape
    allowed = part.q.new_ones((batch, n_heads, rows, part.k.shape[2]), dtype=torch.bool)
    for mechanism, group in groups.items():
        if mechanism is None:
            continue
        seen_call = None if mechanism.chooses_pairs else mechanism.seen(_places(part, len(group)))
        if seen_call is None or mechanism.supports(part) is not None:
            return None
        allowed[:, [heads.index(head) for head in group]] = seen_call.visible()
    return replace(part, mask=allowed if part.mask is None else part.mask & allowed)


def _places(call: Call, n_heads: int) -> Call:
    """The call of some heads without what is in its queries and keys; what positions decide is the same."""
    nothing = call.q.new_zeros(()).expand(call.q.shape[0], n_heads, call.k.shape[2], 1)
    empty = replace(call, q=nothing[:, :, : call.q.shape[2]], k=nothing, v=nothing, mask=None, bias=None, sinks=None)
    empty.__dict__["offset"] = call.offset
    return empty


def _piece(part: Call, heads: Heads, group: Heads) -> Call:
    """The call of a group of the heads of a part."""
    return part if len(group) == len(heads) else _of_heads(part, tuple(heads.index(head) for head in group))


def _of_heads(call: Call, heads: Heads) -> Call:
    """The part of a call for some heads: a view where they are whole groups side by side, otherwise a copy."""
    groups, first, last = call.groups, heads[0], heads[-1] + 1
    if heads == tuple(range(first, last)) and first % groups == 0 and last % groups == 0:
        return call.part(slice(None), slice(first // groups, last // groups))
    return call.heads(heads)


def _mixed_by(weights: Tensor, call: Call) -> Tensor:
    """The values mixed by a map."""
    return weights.to(call.v.dtype) @ call.v.repeat_interleave(call.groups, dim=1)


def in_graph(tensor: Tensor) -> Tensor:
    """A node that nobody else reads; where no graph is behind the tensor, a leaf, at which a gradient begins."""
    return tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_()


def with_heads(tensor: Tensor, heads: Sequence[int], value: Tensor) -> Tensor:
    """The tensor with another value at some heads."""
    changed = tensor.clone()
    changed[:, list(heads)] = value
    return changed
