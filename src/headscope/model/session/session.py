"""A session: read, change and differentiate a model while it runs, and leave nothing behind.

    with model.session() as s:
        maps = s.capture("pattern", at="L3")
        rows = s.stream(Request(bands=(1, 8)))
        s.replace("L10-19", headscope.attention.window(left=256))
        s.ablate("L0.H2")
        s.patch("L4", "resid_mid", "zero", positions=-1)
        answer = s.run(tokens)
        maps.take()["pattern"], rows.take()

What can be captured and patched is in `captures.QUANTITIES`; `attention_calls` says in which order things happen within
one attention call. Sessions nest: an inner one adds to what the outer one does, until it ends.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool
from torch import Tensor

from headscope.attention.mechanism import Mechanism
from headscope.attention.statistics import Request
from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.errors import CaptureError, UsageError
from headscope.model.session.cache import Cache
from headscope.model.session.capture_files import MEMORY, CaptureFiles
from headscope.model.session.captures import QUANTITIES, Heads, Quantity, WatchedQuantity, patchable_quantity
from headscope.model.session.changes import Change, NewValue, as_positions
from headscope.model.session.early_stop import stopping_at
from headscope.model.session.hook_names import Named, expanded_names
from headscope.model.session.live_model import LiveModel
from headscope.model.session.path_patches import PathPatch, check_order, reader_named, writer_named
from headscope.model.session.recorder import Capture, Stream
from headscope.model.session.registered import Mark, Replacement
from headscope.model.session.written_stream import WrittenStream
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options

if TYPE_CHECKING:
    from headscope.model.model import Model

Where = Selection | str | Site | None
Patch = Tensor | Callable[[Tensor], Tensor] | Cache | str
Filter = Callable[[str], bool]


class Session:
    """Open one with `model.session()`; it is live inside its `with` block."""

    def __init__(self, model: "Model") -> None:
        self._model = model
        self._hf: Any = model.hf
        self._live: LiveModel | None = None
        self._mark: Mark = (0, 0, 0, ())
        self._n_paths = 0

    def __repr__(self) -> str:
        state = "not open" if self._live is None else "open"
        return f"<session on {self._model.spec.name}, {state}>"

    def __enter__(self) -> "Session":
        if self._live is not None:
            raise UsageError("this session is open already", hint="open another one with model.session()")
        self._live = self._model.enter_session()
        self._mark, self._n_paths = self._live.registered.mark(), len(self._live.paths.patches)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.interrupted()
            live.registered.rewind(self._mark)
            live.paths.rewind(self._n_paths)
            self._model.leave_session(live)

    @property
    def shown(self) -> frozenset[str]:
        """What can be captured of this model."""
        return self.live.shown

    def capture(
        self,
        *quantities: str | Filter,
        at: Where = None,
        positions: int | slice | Sequence[int] | None = None,
        gradient: bool = False,
        folder: str | Path | None = None,
        above: int = MEMORY,
    ) -> Capture:
        """Store quantities of the selected heads in every forward from now on.

        A quantity is a name of `captures.QUANTITIES`, a hook of TransformerLens (`blocks.5.attn.hook_pattern`), or a
        function of names like `L5.pattern` that says which of them are stored. `positions`: only these tokens; negative
        ones count from the end. `gradient`: the tensors stay in torch's graph, and `gradients` of the capture
        differentiates by them; only what can be patched can be differentiated by. With a `folder`, tensors go to files
        there (safetensors) once the capture holds more than `above` bytes; they read as any other tensor.
        """
        live = self.live
        named = self._named(quantities, at, gradient=gradient)
        entries = live.entries(named.names)
        if gradient and (cut := [entry.name for entry in entries if not entry.patchable]):
            raise UsageError(
                f"the gradient of {cut[0]} is not followed",
                hint=f"one of {', '.join(quantity.name for quantity in QUANTITIES.values() if quantity.patchable)}",
            )
        for entry in entries if gradient else ():
            live.check_gradient(entry)
        selected = self._selected(named, at)
        sites = dict(named.sites)
        for entry in entries:
            if isinstance(entry, WatchedQuantity):
                sites[entry.name] = self._sites_of(entry, _only(selected, named, entry))
        if gradient and folder is not None:
            raise UsageError("tensors in torch's graph stay in memory", hint="leave out folder=, or gradient=True")
        files = None if folder is None else CaptureFiles(Path(folder), above)
        capture = Capture(entries, selected, sites, as_positions(positions), gradient, files)
        live.registered.captures.append(capture)
        live.refresh()
        return capture

    def everything(self, at: Where = None) -> tuple[str, ...]:
        """The names of all that can be captured at the selected heads and is not a part of something else."""
        selected, live = self._resolve(at), self.live
        return tuple(
            name
            for name, quantity in QUANTITIES.items()
            if quantity.part_of_all
            and name in live.shown
            and (not isinstance(quantity, WatchedQuantity) or set(self._model.spots(quantity).by_site) & set(selected))
        )

    def stream(self, request: Request | None = None, at: Where = None) -> Stream:
        """Compute row statistics of the selected sites in every forward from now on, without storing a map."""
        stream = Stream(request or Request(), self._resolve(at))
        self.live.registered.streams.append(stream)
        return stream

    def replace(self, at: Where, mechanism: Mechanism) -> None:
        """Let the selected heads attend through another mechanism."""
        live, selected = self.live, self._resolve(at)
        live.check_replacement(mechanism)
        for site in selected if mechanism.needs_all_queries else ():
            if site.kind == "cross":
                raise UsageError(
                    f"{site.label} cannot be replaced by {mechanism!r}: a row of its output depends on other queries, "
                    "and in cross-attention these are tokens that come later",
                    hint="select self-attention alone",
                )
        live.registered.replacements.append(Replacement(selected, mechanism))
        live.replaced(selected)

    def ablate(self, at: Where) -> None:
        """Zero the output (z) of the selected heads."""
        live = self.live
        live.check_change("ablated", QUANTITIES["z"])
        live.registered.replacements.append(Replacement(self._resolve(at), None))

    def patch(
        self,
        at: Where,
        what: str,
        value: Patch,
        *,
        positions: int | slice | Sequence[int] | None = None,
        order: int | None = None,
    ) -> None:
        """Set a quantity of the selected heads to another value.

        The value is a tensor that broadcasts to the quantity of the selected heads, a function of what it would be,
        "zero", or the `Cache` of another run (`cache.mean()` is its mean over texts and tokens). `positions`: only at
        these tokens. A second patch of the same quantity needs an `order`. k and v are shared by the heads of a group:
        patching them changes every head that reads them. While text is generated, a tensor as long as the prompt
        changes the prompt only.
        """
        live = self.live
        named = self._named((what,), at)
        quantity = patchable_quantity(named.names[0])
        live.check_change("patched", quantity)
        selected = self._selected(named, at)
        if isinstance(quantity, WatchedQuantity):
            shown = self._sites_of(quantity, selected)
            selected = {site: heads for site, heads in selected.items() if site in shown}
        change = Change(selected, quantity, _value(value, quantity, selected), as_positions(positions), order)
        live.registered.add_change(change)
        live.refresh()

    def patch_path(
        self,
        writer: str,
        reader: str | tuple[str, str],
        value: Tensor | Callable[[Tensor], Tensor] | WrittenStream | str = "zero",
        *,
        frozen: bool = False,
        positions: int | slice | Sequence[int] | None = None,
    ) -> None:
        """Change what one reader receives from one writer, and nothing else.

        A writer is `embed`, a head (`L3.H2`), the whole attention of a layer (`L3.attn`) or its feed-forward part
        (`L3.mlp`); a reader is `("L5.H1", "q")` (or k, v), `("L5", "mlp")` or `"logits"`. The value is what the writer
        adds to the stream (batch × tokens × d_model): a tensor, a function of it, "zero", or the stream of another text
        (`model.written(text)`). `frozen`: the norm before the reader keeps the scale of the unchanged stream.

        Raises:
            VariantRefused: The stream of this family is not a sum of what its parts write.
        """
        live = self.live
        source, target = writer_named(self._model, writer), reader_named(self._model, reader)
        check_order(self._model, self._model.stream_sum(source.site.stack), source, target)
        written = value[writer] if isinstance(value, WrittenStream) else value
        new_value = _value(written, QUANTITIES["attn_add"], {})
        with self._model.lock:
            live.paths.add(PathPatch(source, target, new_value, frozen, as_positions(positions)))

    def run(
        self,
        text: str | Tensor,
        real: Bool[Tensor, "batch tokens"] | None = None,
        *,
        head: bool = True,
        stop_at: Where = None,
        each: Callable[[], None] | None = None,
    ) -> Any:
        """One forward of the model; returns what the model gives. An encoder–decoder reads the text on both sides.

        The text may be given as numbers of tokens (batch × tokens) or as vectors in their place (batch × tokens ×
        d_model). Without `head` only the body runs. `stop_at`: the forward ends where this layer begins, and what would
        enter it is returned. `each` is called after every attention call: who drains captures and streams there never
        holds those of more than one site. What the last layers give comes after the last call.
        """
        live = self.live
        module = self._hf if head else self._hf.base_model
        inputs = self._inputs(self._model.encode(text) if isinstance(text, str) else text, real)
        follows_gradients = live.registered.wants_gradients()
        if follows_gradients and torch.is_inference_mode_enabled():
            raise UsageError(
                "gradients cannot be followed in inference mode", hint="leave torch.inference_mode() first"
            )
        live.after_call = each
        try:
            with (
                self._model.lock,
                torch.set_grad_enabled(follows_gradients),
                restored(self._hf),
                stopping_at(self._model, stop_at) as stopped,
            ):
                answer = module(**inputs, **forward_options(module))
        finally:
            live.after_call = None
            live.interrupted()
        return answer if stopped.stream is None else stopped.stream

    def _inputs(self, tokens: Tensor, real: Tensor | None) -> dict[str, Tensor]:
        device = self._hf.device
        tokens = tokens.to(device)
        if tokens.ndim == 1:
            tokens = tokens[None]
        are_vectors = tokens.is_floating_point()
        if tokens.ndim != 2 + are_vectors:
            raise UsageError(
                f"tokens have shape {tuple(tokens.shape)}",
                hint="expected batch × tokens, or vectors in their place as batch × tokens × d_model",
            )
        name = "inputs_embeds" if are_vectors else "input_ids"
        inputs = {name: tokens}
        if real is not None:
            inputs["attention_mask"] = real.to(device).long()
        if self._model.spec.kind == "encoder-decoder":
            inputs[f"decoder_{name}"] = tokens
            if real is not None:
                inputs["decoder_attention_mask"] = inputs["attention_mask"]
        return inputs

    @property
    def live(self) -> LiveModel:
        """The model with its open sessions."""
        if self._live is None:
            raise UsageError("this session is not open", hint="use it inside `with model.session() as s:`")
        return self._live

    def _resolve(self, at: Where) -> dict[Site, Heads]:
        return Selection.of(at).resolve(self.live.model.sites)

    def _named(self, quantities: Sequence[str | Filter], at: Where, *, gradient: bool = False) -> Named:
        """Names of the registry for what was asked, and where."""
        return expanded_names(quantities, at, self._model.sites, lambda: self._places(gradient))

    def _selected(self, named: Named, at: Where) -> dict[Site, Heads]:
        """The heads that were asked for; where every name says its sites, these sites and no others."""
        selected = self._resolve(at)
        if set(named.names) - set(named.sites):
            return selected
        wanted_heads = frozenset().union(*named.sites.values())
        return {site: heads for site, heads in selected.items() if site in wanted_heads}

    def _places(self, gradient: bool) -> Iterator[tuple[Site, str]]:
        """What a function may choose: all that the model has, but for cuttings of maps."""
        quantities = [
            quantity
            for name, quantity in QUANTITIES.items()
            if name in self.live.shown and (quantity.patchable or (quantity.part_of_all and not gradient))
        ]
        for site in self._model.sites:
            for quantity in quantities:
                if not isinstance(quantity, WatchedQuantity) or site in self._model.spots(quantity).by_site:
                    yield site, quantity.name

    def _sites_of(self, quantity: WatchedQuantity, selected: Mapping[Site, Heads]) -> frozenset[Site]:
        """The selected sites that have a place.

        Raises:
            CaptureError: None of them has it.
        """
        spots = self._model.spots(quantity)
        shown = frozenset(site for site in selected if site in spots.by_site)
        if not shown:
            raise self._missing(quantity, selected)
        return shown

    def _missing(self, quantity: Quantity, selected: Mapping[Site, Heads]) -> CaptureError:
        spots = self._model.spots(quantity) if isinstance(quantity, WatchedQuantity) else None
        by_site = {} if spots is None else spots.by_site
        label = next(iter(selected)).label
        if by_site:
            labels = ", ".join(site.label for site in list(by_site)[:4]) + (" …" if len(by_site) > 4 else "")
            return CaptureError(f"{label} has no {quantity.name}", hint=f"it is at {labels}")
        reasons = [] if spots is None else [spots.missing[site] for site in selected if site in spots.missing]
        other_names = ", ".join(sorted(self.live.shown - {quantity.name}))
        return CaptureError(
            f"{quantity.name} of {self._model.spec.family} models cannot be read at {label}: "
            f"{reasons[0] if reasons else 'this family has no such place'}",
            hint=f"what there may be: {other_names}",
        )


def _only(selected: Mapping[Site, Heads], named: Named, quantity: Quantity) -> dict[Site, Heads]:
    """The selected sites at which a quantity was asked for."""
    wanted_heads = named.sites.get(quantity.name)
    return {site: heads for site, heads in selected.items() if wanted_heads is None or site in wanted_heads}


def _value(value: Patch, quantity: Quantity, selected: Mapping[Site, Heads]) -> NewValue:
    """What a change puts in place: "zero" and other runs as tensors."""
    if isinstance(value, Cache):
        return {site: value.of_heads(quantity, site, heads) for site, heads in selected.items()}
    if isinstance(value, str):
        if value != "zero":
            raise UsageError(
                f"cannot set {quantity.name} to {value!r}",
                hint='give a tensor, a function, "zero", or the cache of another run',
            )
        return torch.zeros(())
    if not isinstance(value, Tensor) and not callable(value):
        raise UsageError(
            f"a patch of {quantity.name} is a tensor or a function, got {type(value).__name__}",
            hint='or "zero", or the cache of another run: model.run(text).cache',
        )
    return value
