"""A model with open sessions: what its forwards meet on their way, for one thread.

The first session of a thread opens it, the last one closes it; sessions between add to what is registered. Forwards of
other threads do not see it.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from headscope.attention.mechanism import Mechanism
from headscope.core.site import Site
from headscope.errors import CaptureError
from headscope.model.session.attention_calls import AttentionCalls
from headscope.model.session.captures import QUANTITIES, Quantity, quantities_named
from headscope.model.session.key_dropping import KeyDropping
from headscope.model.session.path_patches import PathPatches
from headscope.model.session.place_taps import PlaceTaps
from headscope.model.session.registered import Registered, built_in
from headscope.model.session.text_windows import TextWindows
from headscope.model.transformers.attention_hook import as_transformers, handled, plain_attention, tapped
from headscope.model.transformers.call_reader import RawCall, Reader
from headscope.model.transformers.forward_position import ForwardPosition

if TYPE_CHECKING:
    from headscope.model.model import Model


class Reached(Exception):
    """The second run of an attention module has come to its attention."""


class LiveModel:
    """What was registered for a model, and the hooks that do it."""

    def __init__(self, model: "Model") -> None:
        self.model = model
        self.hf: Any = model.hf
        # A network may have been built with mechanisms in its heads: they are there before anything is asked for.
        self.registered = Registered(replacements=built_in(self.hf, model.sites))
        self.after_call: Callable[[], None] | None = None
        self.n_sessions = 0
        self._thread = threading.get_ident()
        self._names = {id(self.hf.get_submodule(site.module)): site.module for site in model.sites}
        self._sites = {(site.module, site.call): site for site in model.sites}
        self._per_forward = Counter(site.module for site in model.sites)
        self._calls: Counter[str] = Counter()
        self.reader = Reader()
        self.windows = TextWindows(ForwardPosition(self.hf))
        self.attention_calls = self._answers()
        self.taps = PlaceTaps(model, self.registered, self.windows, self.attention_calls.z, self.is_live)
        self.paths = PathPatches(
            model, self.windows, self.attention_calls, self.is_live, self.suspended, self.inputs_of
        )
        self.key_dropping = KeyDropping(
            self.hf, model.sites, self.registered, self.is_live, lambda: bool(self.paths.patches)
        )
        self._suspended = 0
        self._depth = 0
        self._stack = ExitStack()

    def _answers(self) -> AttentionCalls:
        return AttentionCalls(self.registered, self.windows)

    def open(self) -> None:
        """Put the hooks of attention in place."""
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Leave the model as it was."""
        self.taps.close()
        self.key_dropping.close()
        self.paths.rewind(0)
        self._stack.close()

    def _open(self, stack: ExitStack) -> None:
        stack.enter_context(tapped(self.hf, self._attention))
        self._open_forwards(stack)

    def _open_forwards(self, stack: ExitStack) -> None:
        """Hooks that notice a forward: the body may run without its head, and generation runs an encoder on its own."""
        for module in {id(m): m for m in (self.hf, self.hf.base_model)}.values():
            stack.callback(module.register_forward_pre_hook(self._begin, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(self._end, always_call=True).remove)
        if self.hf.config.is_encoder_decoder:
            encoder = self.hf.get_encoder()
            stack.callback(encoder.register_forward_pre_hook(self._begin_encoder, with_kwargs=True).remove)

    def is_live(self) -> bool:
        """Whether a forward that is running now is one of this thread, and not one of headscope's own."""
        return not self._suspended and threading.get_ident() == self._thread

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let the model run as if no session were open."""
        self._suspended += 1
        try:
            yield
        finally:
            self._suspended -= 1

    @property
    def shown(self) -> frozenset[str]:
        """What can be captured of this model."""
        return frozenset(QUANTITIES)

    def entries(self, names: tuple[str, ...]) -> tuple[Quantity, ...]:
        """The entries of these names; raises where the model does not show one of them."""
        return quantities_named(names)

    def check_change(self, verb: str, quantity: Quantity) -> None:
        """Raise where a quantity cannot be changed."""

    def check_gradient(self, quantity: Quantity) -> None:
        """Raise where the gradient by a quantity cannot be followed."""

    def check_replacement(self, mechanism: Mechanism) -> None:
        """Raise where heads cannot attend through another mechanism."""

    def inputs_of(
        self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Mapping[str, Tensor]:
        """Queries, keys and values of a second run of the module that attends, by letter."""
        calls: list[RawCall] = []

        def reached(raw: RawCall) -> Tensor:
            calls.append(raw)
            raise Reached

        with self.suspended(), handled(module, reached):
            try:
                module(*args, **kwargs)
            except Reached:
                return {"q": calls[0].query, "k": calls[0].key, "v": calls[0].value}
        raise CaptureError(f"{site.label}: its module does not attend")

    def refresh(self) -> None:
        """What is registered has changed."""
        with self.model.lock:
            self.taps.refresh()
            self.attention_calls.refresh()
            self.key_dropping.refresh()

    def replaced(self, sites: Iterable[Site]) -> None:
        """Heads of these sites attend through another mechanism."""
        with self.model.lock:
            self.attention_calls.refresh()
            self.key_dropping.refresh(sites)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.is_live():
            return
        # The body runs inside the whole model: that is one forward. The whole model never runs inside its body, so it
        # also begins anew after a forward that was interrupted.
        self._depth = 1 if module is self.hf else self._depth + 1
        if self._depth == 1:
            self.windows.position.read_model(module, args, kwargs)
            self.windows.begin()
            self.new_forward()

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.is_live():
            self._depth = max(0, self._depth - 1)
            if self._depth == 0:
                self.key_dropping.release()

    def _begin_encoder(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.is_live():
            self.windows.position.read_encoder(module, args, kwargs)
            if self._depth == 0:
                self.windows.begin()
                self.new_forward()

    def interrupted(self) -> None:
        """A forward ended, maybe in the middle: nothing of it is left."""
        self._depth = 0
        self.key_dropping.release()
        self.taps.unwind()
        self.paths.unwind()

    def new_forward(self) -> None:
        """A forward begins."""
        self._calls.clear()
        self.reader.forget()
        self.attention_calls.begin()
        self.taps.begin()
        self.paths.begin()
        for capture in self.registered.captures:
            capture.begin()
        for stream in self.registered.streams:
            stream.frames.begin()

    def _attention(self, raw: RawCall) -> Tensor:
        if not self.is_live():
            return plain_attention(raw)
        site = self._site_of(raw.module)
        offset = self.windows.position.offset(site.stack)
        call = self.reader.call(raw, query_offset=offset, cross=site.kind == "cross")
        stored = self.key_dropping.parts(site, raw, call)
        finished = as_transformers(self.attention_calls.answer(site, call, stored))
        self.key_dropping.settle(site, raw)
        self.attended_to()
        return finished

    def attended_to(self) -> None:
        """One attention call is over, and all that it shows has been recorded."""
        if self.after_call is not None:
            self.after_call()

    def _site_of(self, module: nn.Module) -> Site:
        name = self._names.get(id(module))
        if name is None:
            name = next(name for name, part in self.hf.named_modules() if part is module)
            raise CaptureError(f"{name} attends now but did not when {self.model.spec.name} was opened")
        # Calls are counted within a forward; the remainder covers parts that run on their own (an encoder).
        number = self._calls[name] % self._per_forward[name]
        self._calls[name] += 1
        return self._sites[name, number]
