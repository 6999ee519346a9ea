"""Answers the attention of a family that computes it itself: the same order, at the products of the family.

Queries and keys are shown where they are multiplied, the map at its softmax, values and output where the values are
mixed (`transformers.attention_products`). What nobody changes stays the model's own tensor, bit by bit. Heads that
attend through another mechanism get it at the end, when all of the call is known.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.statistics import pattern_statistics, uniform_statistics
from headscope.core.site import Site
from headscope.errors import CaptureError
from headscope.model.session.attention_calls import AttentionCalls, in_graph, with_heads
from headscope.model.session.captures import InputQuantity, MapName, MapQuantity, OutputQuantity, Quantity
from headscope.model.session.recorder import Capture
from headscope.model.session.registered import Registered
from headscope.model.session.text_windows import TextWindows
from headscope.model.transformers.attention_products import (
    AttentionHandler,
    ScoreProduct,
    Softmax,
)
from headscope.model.transformers.call_reader import visibility_of
from headscope.model.transformers.softmax_watch import NOT_FOLLOWED, SoftmaxSites
from headscope.model.transformers.unmasked_scores import HIDING


@dataclass
class _Attending:
    """What is known so far of the site that attends: its inputs as a call without mask, and its map."""

    call: Call | None = None
    softmax: Softmax | None = None


class SoftmaxCalls(AttentionCalls, AttentionHandler):
    """The answers of one model, by what was registered."""

    def __init__(
        self,
        registered: Registered,
        windows: TextWindows,
        softmax_sites: SoftmaxSites,
        attended_to: Callable[[], None],
    ) -> None:
        super().__init__(registered, windows)
        products = softmax_sites.products
        places = {site: products.products.get(number) for number, site in products.sites.items()}
        self._scores: dict[Site, ScoreProduct | None] = {
            site: None if place is None else place.scores for site, place in places.items()
        }
        self._has_scores = not softmax_sites.scores
        self._mixes = {site for site, place in places.items() if place is not None}
        self._attended_to = attended_to
        self._attending = _Attending()
        self._follows = False

    def begin(self) -> None:
        """A forward begins."""
        super().begin()
        self._attending = _Attending()
        self._follows = self._wants_scores()

    def follows_scores(self) -> bool:
        """Whether a capture, a patch or another mechanism needs the scores before the mask."""
        return self._follows

    def _wants_scores(self) -> bool:
        quantities = [quantity for capture in self._registered.captures for quantity in capture.quantities]
        quantities += [change.quantity for change in self._registered.changes]
        if self._has_scores and any(isinstance(entry, MapQuantity) and entry.of == "scores" for entry in quantities):
            return True
        is_called = any(self._needs_call(quantity) for quantity in quantities)
        is_replaced = any(entry.mechanism is not None for entry in self._registered.replacements)
        return (is_called or is_replaced) and any(
            place is not None and place.adds != "nothing" for place in self._scores.values()
        )

    def inputs(self, site: Site, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Patch queries and keys; they are captured when all inputs are known."""
        place = self._scores[site]
        follows = self._follows_gradient(site, InputQuantity)
        own_q, own_k = (in_graph(q), in_graph(k)) if follows else (q, k)
        own_q = self._with_own_heads(site, "q", own_q)
        own_k = own_k if own_k.shape[1] < site.n_heads else self._with_own_heads(site, "k", own_k)
        call = self._bare_call(site, own_q, own_k, own_k[..., :0], 1.0 if place is None else place.scale)
        call = self._patched_inputs(site, call, lambda quantity: quantity.read(call) is not call.v)
        self._attending = _Attending(call)
        return call.q, self._with_own_heads(site, "k", call.k) if call.groups > 1 else call.k

    def scores(self, site: Site, scores: Tensor) -> Tensor:
        """Patch the scores before the mask."""
        return scores if self._registered.mechanisms(site) else self._changed_whole(site, scores, "scores")

    def pattern(self, site: Site, softmax: Softmax) -> Tensor:
        """Patch and capture the map, and take its statistics."""
        if site not in self._mixes or not self._registered.mechanisms(site):
            softmax = replace(softmax, pattern=self._changed_whole(site, softmax.pattern, "pattern"))
            self._capture_stored(site, softmax)
            self._stream_stored(site, softmax)
        self._attending.softmax = softmax
        if site not in self._mixes:
            self._attended_to()
        return softmax.pattern

    def values(self, site: Site, v: Tensor) -> Tensor:
        """Patch the values, and capture all inputs."""
        own_tensor = in_graph(v) if self._follows_gradient(site, InputQuantity) else v
        own_tensor = own_tensor if own_tensor.shape[1] < site.n_heads else self._with_own_heads(site, "v", own_tensor)
        before, softmax = self._attending.call, self._attending.softmax
        if before is None and softmax is not None:  # queries and keys are not known
            queries = softmax.pattern.shape[2]
            before = self._bare_call(
                site,
                own_tensor.new_empty(own_tensor.shape[0], site.n_heads, queries, 0),
                own_tensor[..., :0],
                own_tensor[..., :0],
                1.0,
            )
        if before is None:
            return v
        call = replace(before, v=own_tensor)
        call = self._patched_inputs(site, call, lambda quantity: quantity.read(before) is before.v)
        self._capture_inputs(site, call)
        self._attending.call = call
        return self._with_own_heads(site, "v", call.v) if call.groups > 1 else call.v

    def output(self, site: Site, z: Tensor) -> Tensor:
        """Replace, patch, ablate and capture what the heads give."""
        out = in_graph(z) if self._follows_gradient(site, OutputQuantity) else z
        if self._registered.mechanisms(site):
            out = self._replaced(site, out)
        else:
            self._capture_computed(site)
        out = self._finished(site, out)
        self._attending = _Attending()
        self._attended_to()
        return out

    def _replaced(self, site: Site, out: Tensor) -> Tensor:
        """The output, where some heads attend through another mechanism."""
        if site.n_heads > site.n_kv_heads and any(letter != "q" for letter, _, _ in self.path_inputs.get(site, ())):
            raise CaptureError(f"{site.label}: a path to a shared key head cannot be changed where heads are replaced")
        call = self._whole_call(site)
        self._maps_in_graph(site, call)
        self._capture_maps(site, call)
        self._stream_rows(site, call)
        for mechanism, heads in self._groups(site, tuple(range(site.n_heads))).items():
            if mechanism is not None:
                out = with_heads(out, heads, self._mixed(site, mechanism, call.heads(heads)).to(out.dtype))
        return self._with_changed_maps(site, call, out)

    def _with_own_heads(self, site: Site, letter: str, states: Tensor) -> Tensor:
        """Queries, keys or values with those of single heads in place; each head has its own then."""
        for path_letter, head, tensor in self.path_inputs.get(site, ()):
            if path_letter == letter:
                row = tensor[:, head if letter == "q" else site.kv_head(head)][:, None]
                copies = site.n_heads // states.shape[1]
                states = with_heads(states.repeat_interleave(copies, dim=1), (head,), row)
        return states

    def _changed_whole(self, site: Site, stored: Tensor, name: MapName) -> Tensor:
        """A whole map after its patches, in the graph of a gradient that is followed."""
        heads = tuple(range(site.n_heads))
        changed = self._patched_map(site, stored, heads, name)
        followed = [
            (capture, quantity) for capture, quantity in self._map_captures(site, gradient=True) if quantity.of == name
        ]
        if followed:
            changed = in_graph(changed)
        for capture, quantity in followed:
            if not quantity.is_whole:
                raise CaptureError(f"the gradient of {quantity.name} is not followed: capture scores or pattern")
            capture.keep_in_graph(quantity, site, changed, self._window(quantity, site, changed), changed)
        return changed

    def _map_captures(self, site: Site, *, gradient: bool) -> list[tuple[Capture, MapQuantity]]:
        return [
            (capture, quantity)
            for capture in self._registered.captures
            if capture.gradient == gradient
            for quantity in capture.quantities_at(site)
            if isinstance(quantity, MapQuantity)
        ]

    def _capture_stored(self, site: Site, softmax: Softmax) -> None:
        """Captures of what can be read off the map that the model computes."""
        for capture, quantity in self._map_captures(site, gradient=False):
            if quantity.cut is not None and not self._needs_call(quantity):
                stored = softmax.pattern if quantity.of == "pattern" else _known_scores(site, softmax)
                bound = self._bound(quantity, site, stored.shape[-1])
                tensor = (bound.cut or quantity.cut)(stored)
                capture.keep(quantity, site, tensor, self._window(quantity, site, tensor))

    def _capture_computed(self, site: Site) -> None:
        """Captures of what is computed from the call."""
        quantities = self._map_captures(site, gradient=False)
        if not any(self._needs_call(quantity) for _, quantity in quantities):
            return
        call = self._whole_call(site)
        for capture, quantity in quantities:
            if self._needs_call(quantity):
                tensor = self._map(site, call, capture.at[site], self._bound(quantity, site, call.k.shape[2]))
                capture.keep_own(quantity, site, tensor, self._window(quantity, site, tensor))

    def _needs_call(self, quantity: Quantity) -> bool:
        """Whether a quantity cannot be read off the map that the model computes."""
        if not isinstance(quantity, MapQuantity):
            return False
        return quantity.cut is None or (quantity.of == "scores" and not self._has_scores)

    def _stream_stored(self, site: Site, softmax: Softmax) -> None:
        """Every stream on this site takes the statistics of the map."""
        for stream in self._registered.streams:
            if site not in stream.at:
                continue
            self._refuse_patched_maps(site)
            heads = list(stream.at[site])
            measured, uniform = stream.frames.current()
            call = self._masked_call(site, softmax.reached[:, heads])
            real = self._windows.position.real_queries(site.stack, softmax.reached.shape[2])
            measured[site] = pattern_statistics(softmax.pattern[:, heads], call, stream.request, real_queries=real)
            uniform[site] = uniform_statistics(call, stream.request, real_queries=real)

    def _follows_gradient(self, site: Site, kind: type[Quantity]) -> bool:
        return any(
            isinstance(quantity, kind)
            for capture in self._registered.captures
            if capture.gradient
            for quantity in capture.quantities_at(site)
        )

    def _bare_call(self, site: Site, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Call:
        """A call of these tensors at their positions, without what hides keys."""
        offset, queries, keys = self._windows.position.offset(site.stack), q.shape[2], k.shape[2]
        first_key = max(0, offset + queries - keys)  # a sliding cache holds only the last keys
        return Call(
            q=q,
            k=k,
            v=v,
            scale=scale,
            query_positions=torch.arange(offset, offset + queries, device=q.device)[None],
            key_positions=torch.arange(first_key, first_key + keys, device=q.device)[None],
        )

    def _masked_call(self, site: Site, reached: Tensor) -> Call:
        """The positions and the visible keys of a map whose masked scores are known, without its q, k and v."""
        batch, heads, queries, keys = reached.shape
        visible = reached > HIDING
        empty_q, empty_k = reached.new_zeros(batch, heads, queries, 1), reached.new_zeros(batch, heads, keys, 1)
        call = self._bare_call(site, empty_q, empty_k, empty_k, 1.0)
        return replace(call, key_padding=visible.any(dim=1).any(dim=1), mask=visible)

    def _whole_call(self, site: Site) -> Call:
        """The call that the model computes, with all that shapes its scores."""
        call, softmax, place = self._attending.call, self._attending.softmax, self._scores[site]
        if call is None or softmax is None or place is None:
            raise CaptureError(f"{site.label}: its queries and keys are not known")
        visible = visibility_of(
            softmax.reached > HIDING, call.query_positions, call.key_positions, softmax.reached.shape[0]
        )
        bias = None
        if place.adds != "nothing":
            k = call.k.repeat_interleave(call.groups, dim=1)
            bias = _known_scores(site, softmax) - place.scale * (call.q @ k.mT)
        return replace(
            call,
            left=visible.left,
            right=visible.right,
            key_padding=visible.key_padding,
            mask=visible.mask,
            bias=bias,
        )


def _known_scores(site: Site, softmax: Softmax) -> Tensor:
    """The scores before the mask, at least float32, as those of every family."""
    if softmax.scores is None:
        raise CaptureError(f"{site.label}: the scores before the mask cannot be captured: {NOT_FOLLOWED}")
    return softmax.scores.to(torch.promote_types(softmax.scores.dtype, torch.float32))
