"""A session: read and change the attention of a model while it runs, and leave nothing behind.

    with model.session() as s:
        maps = s.capture("pattern", at="L3")
        rows = s.stream(Request(bands=(1, 8)))
        s.replace("L10-19", headscope.attention.window(left=256))
        s.ablate("L0.H2")
        s.run(tokens)
        maps.take()["pattern"], rows.take()

Within one attention call things happen in this order: patches of q, k, v; captures of q, k, v, scores, pattern
and the stream; the attention itself (replaced, or patched patterns, or the model's own); patches of z; ablation;
capture of z. So captures and streams see what the call really computes.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from headscope.attention.call import Call
from headscope.attention.maps import (
    corner,
    corner_size,
    early,
    pairs_of,
    pattern,
    pattern_pairs,
    score_rows,
    scores,
)
from headscope.attention.mechanism import Mechanism
from headscope.attention.statistics import Request, RowStatistics, row_statistics, uniform_statistics
from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.errors import CaptureError, UsageError
from headscope.model.session.past_queries import PastQueries
from headscope.model.session.recorder import Capture, Heads, Stream
from headscope.model.transformers.attention_hook import as_transformers, own_attention, tapped
from headscope.model.transformers.call_reader import RawCall, Reader
from headscope.model.transformers.forward_position import ForwardPosition
from headscope.model.transformers.layers import enclosing_layer, last_layer
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options
from headscope.shapes import CORNER

if TYPE_CHECKING:
    from headscope.model.model import Model

QUANTITIES = (
    "q", "k", "v", "scores", "rows", "scale", "pattern", "corner", "early", "pairs", "z", "corner_z", "resid", "x",
    "final",
)  # fmt: skip
_MAPS = {"scores": scores, "rows": score_rows, "pattern": pattern, "early": early, "pairs": pattern_pairs}
PATCHABLE = ("q", "k", "v", "pattern", "z")

Where = Selection | str | Site | None
Patch = Tensor | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Change:
    """One patch: which heads, which quantity, and the new value."""

    heads: Heads
    quantity: str
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
        self._check_quantities(quantities)
        capture = Capture(quantities, self._resolve(at))
        self._captures.append(capture)
        if "resid" in quantities:
            self._watch_residual(capture)
        if "final" in quantities:
            self._watch_final(capture)
        if "x" in quantities:
            self._watch_projections(capture)
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
        """Set q, k, v, pattern or z of the selected heads to a tensor, or to a function of what it would be.

        The tensor must broadcast to the quantity of the selected heads. k and v are shared by the heads of a
        group: patching them changes every head that reads them.
        """
        if what not in PATCHABLE:
            raise UsageError(f"cannot patch {what!r}", hint=f"one of {', '.join(PATCHABLE)}")
        for site, heads in self._resolve(at).items():
            self._changes.setdefault(site, []).append(_Change(heads, what, value))

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

    def _check_quantities(self, quantities: tuple[str, ...]) -> None:
        unknown = [name for name in quantities if name not in QUANTITIES and not corner_size(name)]
        if unknown or not quantities:
            raise UsageError(
                f"cannot capture {', '.join(unknown) or 'nothing'}",
                hint=f"one of {', '.join(QUANTITIES)}, or corner:N for a corner of N tokens",
            )

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

    def _attention(self, raw: RawCall) -> Tensor:
        site = self._site_of(raw.module)
        call = self._reader.call(raw, query_offset=self._position.offset(site.stack), cross=site.kind == "cross")
        call = self._patched_inputs(site, call)
        self._capture_inputs(site, call)
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
            shared = _kv_heads(site, change.heads)
            if change.quantity == "q":
                call = replace(call, q=_patched(call.q, change.heads, change))
            elif change.quantity == "k":
                call = replace(call, k=_patched(call.k, shared, change))
            elif change.quantity == "v":
                call = replace(call, v=_patched(call.v, shared, change))
        return call

    def _capture_inputs(self, site: Site, call: Call) -> None:
        """Captures keep what they ask for, except z, which comes later."""
        for capture in self._captures:
            heads = capture.at.get(site, ())
            for quantity in capture.quantities if heads else ():
                if quantity in ("q", "k", "v"):
                    tensor_heads = heads if quantity == "q" else _kv_heads(site, heads)
                    capture.keep(quantity, site, getattr(call, quantity)[:, list(tensor_heads)])
                elif quantity == "scale":
                    capture.keep(quantity, site, torch.tensor(call.scale, dtype=torch.float64))
                elif quantity in _MAPS or corner_size(quantity):
                    capture.keep(quantity, site, self._map(site, call, heads, quantity))

    def _map(self, site: Site, call: Call, heads: Heads, quantity: str) -> Tensor:
        maps = [self._one_map(site, part, group, quantity) for part, group in self._parts(site, call, heads)]
        order = [head for _, group in self._parts(site, call, heads) for head in group]
        joined = torch.cat(maps, dim=1)
        return joined[:, [order.index(head) for head in heads]]

    def _one_map(self, site: Site, part: Call, heads: Heads, quantity: str) -> Tensor:
        changes = self._changes.get(site, ())
        if quantity == "pairs" and any(change.quantity == "pattern" for change in changes):
            return pairs_of(self._one_map(site, part, heads, "pattern"))  # a patch is told the whole pattern
        size = corner_size(quantity)
        mapped = corner(part, size) if size else _MAPS[quantity](part)
        for change in changes:
            shared = tuple(head for head in heads if head in change.heads)
            if (size or quantity == "early") and change.quantity == "pattern" and shared:
                raise CaptureError(
                    f"{site.label}: the {quantity} part of a patched pattern cannot be captured: capture the pattern"
                )
            if quantity == "pattern" and change.quantity == "pattern" and shared:
                mapped = _patched(mapped, tuple(heads.index(head) for head in shared), change)
        return mapped

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

    def _refuse_patched_patterns(self, site: Site) -> None:
        if any(change.quantity == "pattern" for change in self._changes.get(site, ())):
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
            if change.quantity == "pattern":
                part = call.heads(change.heads)
                mixed = self._map(site, call, change.heads, "pattern").to(part.v.dtype) @ part.v
                out = _with_heads(out, change.heads, mixed)
            elif change.quantity == "z":
                out = _patched(out, change.heads, change)
        if site in self._ablated:
            out = _with_heads(out, tuple(sorted(self._ablated[site])), torch.zeros((), dtype=out.dtype))
        for capture in self._captures:
            if site in capture.at and "z" in capture.quantities:
                capture.keep("z", site, out[:, list(capture.at[site])])
            if site in capture.at and "corner_z" in capture.quantities:
                capture.keep("corner_z", site, out[:, list(capture.at[site]), :CORNER].clone())
        return out

    def _watch_residual(self, capture: Capture) -> None:
        blocks: dict[str, list[Site]] = {}
        for site in capture.at:
            blocks.setdefault(enclosing_layer(self._hf, site.module), []).append(site)
        for name, sites in blocks.items():
            hook = _InputHook(capture, sites, "resid")
            handle = self._hf.get_submodule(name).register_forward_pre_hook(hook, with_kwargs=True)
            self._live().callback(handle.remove)

    def _watch_projections(self, capture: Capture) -> None:
        """The input of the module that makes the queries, where the blueprint knows which one that is."""
        if not self._model.traced:
            raise UsageError(
                "x is the input of the query projection, and which module that is was not looked up yet",
                hint="call the model's weight_source() before the session is opened",
            )
        modules: dict[str, list[Site]] = {}
        for site in capture.at:
            projections = self._model.plan(site).projections
            if projections is not None:
                modules.setdefault(projections.q.module, []).append(site)
        for name, sites in modules.items():
            hook = _InputHook(capture, sites, "x")
            handle = self._hf.get_submodule(name).register_forward_pre_hook(hook, with_kwargs=True)
            self._live().callback(handle.remove)

    def _watch_final(self, capture: Capture) -> None:
        last = {site.stack: site for site in self._model.sites if site.kind == "self"}
        for site in last.values():
            if site in capture.at:
                name = last_layer(self._hf, site.module)
                # A layer that is called several times (ALBERT) is the last one in its last call only.
                calls = site.call + 1 if site.module.startswith(f"{name}.") else 1
                handle = self._hf.get_submodule(name).register_forward_hook(_FinalHook(capture, site, calls))
                self._live().callback(handle.remove)


class _InputHook:
    """Keeps the first tensor a module is given, for the sites in it; a shared module's calls go site by site."""

    def __init__(self, capture: Capture, sites: list[Site], quantity: str) -> None:
        self._capture, self._quantity = capture, quantity
        self._by_call: dict[int, list[Site]] = {}
        for site in sites:
            self._by_call.setdefault(site.call, []).append(site)
        self._calls = 0

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        calls = sorted(self._by_call)
        for site in self._by_call[calls[self._calls % len(calls)]]:
            self._capture.keep(self._quantity, site, inputs[0].clone())  # some models add to it in place
        self._calls += 1


class _FinalHook:
    """Keeps what the last layer of a stack gives."""

    def __init__(self, capture: Capture, site: Site, calls: int) -> None:
        self._capture, self._site, self._calls_per_forward = capture, site, calls
        self._calls = 0

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._calls += 1
        if self._calls % self._calls_per_forward:
            return
        outputs = (
            [output] if isinstance(output, Tensor) else [tensor for tensor in output if isinstance(tensor, Tensor)]
        )
        if not outputs:
            raise CaptureError(f"{self._site.label}: the last layer gives no tensor that could be captured")
        self._capture.keep("final", self._site, outputs[0].clone())


def _kv_heads(site: Site, heads: Heads) -> Heads:
    return tuple(dict.fromkeys(site.kv_head(head) for head in heads))


def _patched(tensor: Tensor, heads: Heads, change: _Change) -> Tensor:
    before = tensor[:, list(heads)]
    value = change.value(before) if callable(change.value) else change.value
    try:
        after = value.to(before.device, before.dtype).expand_as(before)
    except RuntimeError as error:
        raise UsageError(
            f"a patch of {change.quantity} has shape {tuple(value.shape)}, expected {tuple(before.shape)} or what "
            "broadcasts to it (batch, heads, positions, width)"
        ) from error
    return _with_heads(tensor, heads, after)


def _with_heads(tensor: Tensor, heads: Heads, value: Tensor) -> Tensor:
    changed = tensor.clone()
    changed[:, list(heads)] = value
    return changed
