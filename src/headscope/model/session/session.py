"""A session: read and change the attention of a model while it runs, and leave nothing behind.

    with model.session() as s:
        maps = s.capture("pattern", at="L3")
        rows = s.stream(Request(bands=(1, 8)))
        s.replace("L10-19", headscope.attention.window(left=256))
        s.ablate("L0.H2")
        s.run(tokens)
        maps.take()["pattern"], rows.take()

What can be captured and patched is in `captures.QUANTITIES`. Within one attention call things happen in this order:
patches of the inputs (q, k, v); captures of inputs and maps, and the stream; the attention itself (replaced, or patched
patterns, or the model's own); patches of the output (z); ablation; captures of the output. So captures and streams see
what the call really computes.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from headscope.attention.call import Call
from headscope.attention.maps import pattern
from headscope.attention.mechanism import Mechanism
from headscope.attention.statistics import Request, RowStatistics, row_statistics, uniform_statistics
from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.errors import CaptureError, UsageError
from headscope.model.session.captures import (
    QUANTITIES,
    Heads,
    InputQuantity,
    MapQuantity,
    OutputQuantity,
    Quantity,
    WatchedQuantity,
    patchable_quantity,
    quantities_named,
)
from headscope.model.session.module_hooks import ModuleHook, module_hooks
from headscope.model.session.past_queries import PastQueries
from headscope.model.session.places import Spots
from headscope.model.session.recorder import Capture, Stream
from headscope.model.transformers.attention_hook import as_transformers, own_attention, tapped
from headscope.model.transformers.call_reader import RawCall, Reader
from headscope.model.transformers.forward_position import ForwardPosition
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options

if TYPE_CHECKING:
    from headscope.model.model import Model

Where = Selection | str | Site | None
Patch = Tensor | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Change:
    """One patch: which heads, which quantity, and the new value."""

    heads: Heads
    quantity: Quantity
    value: Patch


class Session:
    """Open one with `model.session()`; it is live inside its `with` block."""

    def __init__(self, model: "Model") -> None:
        self._model = model
        self._hf: Any = model.hf
        self._names = {id(module): name for name, module in self._hf.named_modules()}
        self._sites = {(site.module, site.call): site for site in model.sites}
        self._per_forward = Counter(site.module for site in model.sites)
        self._calls: Counter[str] = Counter()
        self._reader = Reader()
        self._position = ForwardPosition(self._hf)
        self._past = PastQueries()
        self._uniform: dict[tuple[object, ...], tuple[Call, RowStatistics]] = {}
        self._captures: list[Capture] = []
        self._streams: list[Stream] = []
        self._hooks: list[ModuleHook] = []
        self._replaced: dict[Site, dict[int, Mechanism]] = {}
        self._ablated: dict[Site, set[int]] = {}
        self._changes: dict[Site, list[_Change]] = {}
        self._after_call: Callable[[], None] | None = None
        self._stack: ExitStack | None = None

    def __enter__(self) -> "Session":
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stack is not None:
            self._stack.close()
            self._stack = None

    def _open(self, stack: ExitStack) -> None:
        stack.enter_context(tapped(self._hf, self._attention))
        # The body may run without its head, and generation runs an encoder on its own, once.
        for module in {id(m): m for m in (self._hf, self._hf.base_model)}.values():
            stack.callback(module.register_forward_pre_hook(self._begin, with_kwargs=True).remove)
        if self._hf.config.is_encoder_decoder:
            encoder = self._hf.get_encoder()
            stack.callback(encoder.register_forward_pre_hook(self._begin_encoder, with_kwargs=True).remove)

    @property
    def shown(self) -> frozenset[str]:
        """What can be captured of this model's attention."""
        return frozenset(QUANTITIES)

    def capture(self, *quantities: str, at: Where = None) -> Capture:
        """Store quantities of the selected heads in every forward from now on."""
        entries = self._entries(quantities)
        spots = {entry.name: entry.place(self._model) for entry in entries if isinstance(entry, WatchedQuantity)}
        capture = Capture(entries, self._resolve(at), {name: frozenset(by_site) for name, by_site in spots.items()})
        self._captures.append(capture)
        for name, spots_of_entry in spots.items():
            self._watch(capture, name, spots_of_entry)
        return capture

    def stream(self, request: Request | None = None, at: Where = None) -> Stream:
        """Compute row statistics of the selected sites in every forward from now on, without storing a map."""
        stream = Stream(request or Request(), self._resolve(at))
        self._streams.append(stream)
        return stream

    def replace(self, at: Where, mechanism: Mechanism) -> None:
        """Let the selected heads attend through another mechanism."""
        for site, heads in self._resolve(at).items():
            self._replaced.setdefault(site, {}).update(dict.fromkeys(heads, mechanism))

    def ablate(self, at: Where) -> None:
        """Zero the output (z) of the selected heads."""
        for site, heads in self._resolve(at).items():
            self._ablated.setdefault(site, set()).update(heads)

    def patch(self, at: Where, what: str, value: Patch) -> None:
        """Set a quantity of the selected heads to a tensor, or to a function of what it would be.

        `captures.QUANTITIES` says which quantities can be patched. The tensor must broadcast to the quantity of the
        selected heads. k and v are shared by the heads of a group: patching them changes every head that reads them.
        """
        quantity = patchable_quantity(what)
        for site, heads in self._resolve(at).items():
            self._changes.setdefault(site, []).append(_Change(heads, quantity, value))

    def run(
        self,
        tokens: Int[Tensor, "batch tokens"],
        real: Bool[Tensor, "batch tokens"] | None = None,
        *,
        each: Callable[[], None] | None = None,
    ) -> None:
        """One forward of the model without its output head; an encoder–decoder reads the text on both sides.

        `each` is called after every attention call: who drains captures and streams there never holds those of more
        than one site. What the last layers give comes after the last call.
        """
        body, device = self._hf.base_model, self._hf.device
        tokens = tokens.to(device)
        inputs: dict[str, Tensor] = {"input_ids": tokens}
        if real is not None:
            inputs["attention_mask"] = real.to(device).long()
        if self._model.spec.kind == "encoder-decoder":
            inputs["decoder_input_ids"] = tokens
            if real is not None:
                inputs["decoder_attention_mask"] = inputs["attention_mask"]
        self._after_call = each
        try:
            with torch.no_grad(), restored(self._hf):
                body(**inputs, **forward_options(body))
        finally:
            self._after_call = None

    def _attended_to(self) -> None:
        """One attention call is over, and all that it shows has been recorded."""
        if self._after_call is not None:
            self._after_call()

    def _entries(self, names: tuple[str, ...]) -> tuple[Quantity, ...]:
        """The entries of these names; raises where the model does not show one of them."""
        return quantities_named(names)

    def _live(self) -> ExitStack:
        if self._stack is None:
            raise UsageError("this session is not open", hint="use it inside `with model.session() as s:`")
        return self._stack

    def _resolve(self, at: Where) -> dict[Site, Heads]:
        self._live()
        return Selection.of(at).resolve(self._model.sites)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._position.read_model(module, args, kwargs)
        self._new_forward()

    def _begin_encoder(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._position.read_encoder(module, args, kwargs)
        self._new_forward()

    def _new_forward(self) -> None:
        self._calls.clear()
        self._reader.forget()
        self._uniform.clear()
        for capture in self._captures:
            capture.frames.begin()
        for stream in self._streams:
            stream.frames.begin()
        for hook in self._hooks:
            hook.begin()

    def _attention(self, raw: RawCall) -> Tensor:
        site = self._site_of(raw.module)
        call = self._reader.call(raw, query_offset=self._position.offset(site.stack), cross=site.kind == "cross")
        call = self._patched_inputs(site, call)
        self._capture_call(site, call)
        self._stream_rows(site, call)
        # The output never comes from a map or a pass that someone asked to see: another order of the same sums would
        # round otherwise, and every number behind it would depend on who is watching.
        finished = as_transformers(self._finished(site, call, self._attended(site, call)))
        self._attended_to()
        return finished

    def _site_of(self, module: nn.Module) -> Site:
        name = self._names[id(module)]
        if name not in self._per_forward:
            raise CaptureError(f"{name} attends now but did not when {self._model.spec.name} was opened")
        # Calls are counted within a forward; the remainder covers parts that run on their own (an encoder).
        number = self._calls[name] % self._per_forward[name]
        self._calls[name] += 1
        return self._sites[name, number]

    def _patched_inputs(self, site: Site, call: Call) -> Call:
        for change in self._changes.get(site, ()):
            quantity = change.quantity
            if isinstance(quantity, InputQuantity) and quantity.write is not None:
                call = quantity.write(call, _patched(quantity.read(call), site, change))
        return call

    def _capture_call(self, site: Site, call: Call) -> None:
        """Captures keep what comes from the call; what comes from the output follows later."""
        for capture in self._captures:
            heads = capture.at.get(site, ())
            for quantity in capture.quantities if heads else ():
                if isinstance(quantity, InputQuantity):
                    capture.keep(quantity.name, site, _selected(quantity.read(call), quantity, site, heads))
                elif isinstance(quantity, MapQuantity):
                    capture.keep(quantity.name, site, self._map(site, call, heads, quantity))

    def _map(self, site: Site, call: Call, heads: Heads, quantity: MapQuantity) -> Tensor:
        parts = self._parts(site, call, heads)
        joined = torch.cat([self._map_of_part(site, part, group, quantity) for part, group in parts], dim=1)
        order = [head for _, group in parts for head in group]
        return joined[:, [order.index(head) for head in heads]]

    def _map_of_part(self, site: Site, part: Call, heads: Heads, quantity: MapQuantity) -> Tensor:
        changes = [change for change in self._pattern_changes(site) if set(change.heads) & set(heads)]
        if not changes or quantity.of != "pattern":
            return quantity.compute(part)
        if quantity.cut is None:
            raise CaptureError(
                f"{site.label}: the {quantity.name} part of a patched pattern cannot be captured: capture the pattern"
            )
        return quantity.cut(_patched_pattern(part, heads, changes))

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
        replaced = self._replaced.get(site, {})
        groups: dict[Mechanism | None, Heads] = {}
        for head in heads:
            groups[replaced.get(head)] = (*groups.get(replaced.get(head), ()), head)
        return groups

    def _stream_rows(self, site: Site, call: Call) -> None:
        """Every stream on this site takes the statistics of its rows."""
        for stream in self._streams:
            heads = stream.at.get(site)
            if heads is None:
                continue
            self._refuse_patched_patterns(site)
            real = self._position.real_queries(site.stack, call.q.shape[2])
            is_self = site.kind == "self"
            groups = self._parts(site, call, heads)
            rows = [row_statistics(part, stream.request, real_queries=real, positional=is_self) for part, _ in groups]
            measured, uniform = stream.frames.current()
            order = [head for _, group in groups for head in group]
            measured[site] = RowStatistics.of_heads(rows, [order.index(head) for head in heads])
            uniform[site] = self._uniform_of(call, stream.request, real, is_self)

    def _pattern_changes(self, site: Site) -> list[_Change]:
        return [change for change in self._changes.get(site, ()) if isinstance(change.quantity, MapQuantity)]

    def _refuse_patched_patterns(self, site: Site) -> None:
        if self._pattern_changes(site):
            raise CaptureError(
                f"{site.label}: a patched pattern is not the softmax of any scores, so it cannot be streamed",
                hint="capture the pattern instead",
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

    def _attended(self, site: Site, call: Call) -> Tensor:
        groups = self._groups(site, tuple(range(site.n_heads)))
        if len(groups) == 1:
            return self._mixed(site, next(iter(groups)), call)
        out = call.q.new_empty(*call.q.shape[:3], call.v.shape[3])
        for mechanism, heads in groups.items():
            out[:, list(heads)] = self._mixed(site, mechanism, call.heads(heads))
        return out

    def _mixed(self, site: Site, mechanism: Mechanism | None, call: Call) -> Tensor:
        if mechanism is None:
            return own_attention(call)
        if not mechanism.needs_all_queries:
            return mechanism(call).out
        full_call = self._past.full_call(site, mechanism, call, self._position.offset(site.stack))
        return mechanism(full_call).out[:, :, -call.q.shape[2] :]

    def _finished(self, site: Site, call: Call, out: Tensor) -> Tensor:
        for change in self._changes.get(site, ()):
            quantity = change.quantity
            if isinstance(quantity, MapQuantity):
                part = call.heads(change.heads)
                mixed = self._map(site, call, change.heads, quantity).to(part.v.dtype) @ part.v
                out = _with_heads(out, change.heads, mixed)
            elif isinstance(quantity, OutputQuantity) and quantity.write is not None:
                out = quantity.write(out, _patched(quantity.read(out), site, change))
        if site in self._ablated:
            out = _with_heads(out, tuple(sorted(self._ablated[site])), torch.zeros((), dtype=out.dtype))
        for capture in self._captures:
            for quantity in capture.quantities if site in capture.at else ():
                if isinstance(quantity, OutputQuantity):
                    capture.keep(quantity.name, site, _selected(quantity.read(out), quantity, site, capture.at[site]))
        return out

    def _watch(self, capture: Capture, name: str, spots: Spots) -> None:
        for (module, side), hook in module_hooks(capture, name, spots).items():
            self._hooks.append(hook)
            self._live().callback(hook.attach(self._hf.get_submodule(module), side).remove)


def _selected(tensor: Tensor, quantity: Quantity, site: Site, heads: Heads) -> Tensor:
    """A copy of the part of a quantity that belongs to these query heads."""
    index = quantity.tensor_heads(site, heads)
    return tensor.clone() if index is None else tensor[:, list(index)]


def _patched_pattern(part: Call, heads: Heads, changes: Sequence[_Change]) -> Tensor:
    """The pattern of these heads after all its patches."""
    changed = pattern(part)
    for change in changes:
        shared = tuple(heads.index(head) for head in heads if head in change.heads)
        changed = _with_heads(changed, shared, _new_value(changed[:, list(shared)], change))
    return changed


def _patched(tensor: Tensor, site: Site, change: _Change) -> Tensor:
    """A tensor of all heads of a site, with that of the patched heads changed."""
    heads = change.quantity.tensor_heads(site, change.heads)
    if heads is None:
        return _new_value(tensor, change)
    return _with_heads(tensor, heads, _new_value(tensor[:, list(heads)], change))


def _new_value(before: Tensor, change: _Change) -> Tensor:
    value = change.value(before) if callable(change.value) else change.value
    try:
        return value.to(before.device, before.dtype).expand_as(before)
    except RuntimeError as error:
        raise UsageError(
            f"a patch of {change.quantity.name} has shape {tuple(value.shape)}, expected {tuple(before.shape)} or what "
            f"broadcasts to it ({', '.join(axis.name for axis in change.quantity.axes)})"
        ) from error


def _with_heads(tensor: Tensor, heads: Heads, value: Tensor) -> Tensor:
    changed = tensor.clone()
    changed[:, list(heads)] = value
    return changed
