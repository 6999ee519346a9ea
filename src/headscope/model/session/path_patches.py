"""Path patching: change what one reader receives from one writer, and nothing else.

The stream before the reader is the sum of all writers. The reader alone is given the stream with another value of the
writer in it; everyone else reads the stream as it is:

- the feed-forward part of a layer: the norm before it is computed a second time, and only that part reads the result;
- the output: the same at the norm after the last layer;
- q, k or v of a head: the attention module is run a second time on the changed input, up to its attention call, and the
  tensor of that head takes the place of the one of the first run.

So all other readers are computed from the same tensors as without the change, bit by bit.
"""

import copy
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.errors import CaptureError, UsageError
from headscope.model.session.attention_calls import AttentionCalls
from headscope.model.session.captures import QUANTITIES, WatchedQuantity, output_matrices
from headscope.model.session.changes import Change, NewValue, Positions
from headscope.model.session.module_taps import AdditionTap, ModuleTap, Watched, attached
from headscope.model.session.places import last_of_stacks
from headscope.model.session.stream_sum import StreamSum
from headscope.model.session.text_windows import TextWindows

if TYPE_CHECKING:
    from headscope.model.model import Model

Letter = Literal["q", "k", "v", "mlp", "logits"]
_WRITER = re.compile(r"(?P<at>.+)\.(?P<part>mlp|attn|H\d+)")


@dataclass(frozen=True)
class Writer:
    """A writer of the stream: the embedding, a head, the whole attention of a site, or a feed-forward part."""

    label: str
    site: Site
    part: Literal["embed", "attn", "mlp"]
    head: int | None = None


@dataclass(frozen=True)
class StreamReader:
    """A reader of the stream."""

    label: str
    site: Site
    letter: Letter
    head: int | None = None


@dataclass(frozen=True)
class PathPatch:
    """What a reader receives from a writer; `frozen`: through the norm's scale of the unchanged stream."""

    writer: Writer
    reader: StreamReader
    value: NewValue
    frozen: bool
    positions: Positions | None


def writer_named(model: "Model", name: str) -> Writer:
    """The writer of a name: `embed`, `L3.H2`, `L3.attn`, `L3.mlp`."""
    if name == "embed":
        site = model.sites_of_stack(last_of_stacks(model)[-1].stack)[0]
        return Writer(name, site, "embed")
    match = _WRITER.fullmatch(name)
    if match is None:
        raise UsageError(f"no writer is called {name!r}", hint="write embed, L3.H2, L3.attn or L3.mlp")
    part = match["part"]
    site, _ = Selection.of(name if part.startswith("H") else match["at"]).one_site(model.sites)
    if part.startswith("H"):
        return Writer(name, site, "attn", int(part[1:]))
    return Writer(name, site, "mlp" if part == "mlp" else "attn")


def reader_named(model: "Model", reader: str | tuple[str, str]) -> StreamReader:
    """The reader of a name: `("L5.H1", "q")`, `("L5", "mlp")`, `"logits"`."""
    if reader == "logits":
        return StreamReader("logits", last_of_stacks(model)[-1], "logits")
    if isinstance(reader, str) or len(reader) != 2 or reader[1] not in ("q", "k", "v", "mlp"):
        raise UsageError(f"no reader is called {reader!r}", hint='write ("L5.H1", "q"), ("L5", "mlp") or "logits"')
    at, letter = reader
    site, heads = Selection.of(at).one_site(model.sites)
    if letter == "mlp":
        return StreamReader(f"{site.label}.mlp", site, "mlp")
    if len(heads) > 1:
        raise UsageError(f"{at} names {len(heads)} heads, expected one", hint='write ("L5.H1", "q")')
    if site.kind == "cross" and letter != "q":
        raise CaptureError(f"{site.label}: the keys and values of cross-attention read the stream of the encoder")
    return StreamReader(f"{site.head_label(heads[0])}.{letter}", site, _letter(letter), heads[0])


def _letter(letter: str) -> Letter:
    return "q" if letter == "q" else "k" if letter == "k" else "v"


def check_order(model: "Model", stream_sum: StreamSum, writer: Writer, reader: StreamReader) -> None:
    """Refuse a reader that reads before the writer writes, or in another stack."""
    if reader.site.stack != writer.site.stack:
        raise UsageError(f"{reader.label} reads another stream than the one that {writer.label} writes into")
    written, read = _moments(model, stream_sum)
    moment = 0 if writer.part == "embed" else written[writer.site, writer.part]
    if reader.letter != "logits" and moment > read[reader.site, "mlp" if reader.letter == "mlp" else "attn"]:
        raise UsageError(f"{reader.label} reads the stream before {writer.label} writes into it")


def _moments(model: "Model", stream_sum: StreamSum) -> tuple[dict[tuple[Site, str], int], dict[tuple[Site, str], int]]:
    """When each part writes and reads, counted in writers."""
    written: dict[tuple[Site, str], int] = {}
    read: dict[tuple[Site, str], int] = {}
    between = _spots(model, "resid_mid")
    moment = 0
    for sites in stream_sum.layers:
        for site in sites:
            read[site, "attn"] = moment
            moment += 1
            written[site, "attn"] = moment
        read[sites[0], "mlp"] = moment if sites[0] in between else read[sites[0], "attn"]
        moment += 1
        written[sites[0], "mlp"] = moment
    return written, read


def _spots(model: "Model", name: str) -> Any:
    quantity = QUANTITIES[name]
    return model.spots(quantity).by_site if isinstance(quantity, WatchedQuantity) else {}


@dataclass
class _Reading:
    """One reader in the running forward: how the stream differs for it, and its norm's two outputs."""

    reader: StreamReader
    frozen: bool
    change: Tensor | None = None
    normed: Tensor | None = None
    other: Tensor | None = None


@dataclass
class PathPatches:
    """The path patches of a thread's sessions, and their taps."""

    model: "Model"
    windows: TextWindows
    attention_calls: AttentionCalls
    is_live: Callable[[], bool]
    suspended: Callable[[], Any]
    inputs_of: Callable[[Site, nn.Module, tuple[Any, ...], dict[str, Any]], Mapping[str, Tensor]]
    patches: list[PathPatch] = field(default_factory=list)
    _readings: dict[StreamReader, _Reading] = field(default_factory=dict)
    _taps: list[ModuleTap | AdditionTap] = field(default_factory=list)
    _attached: ExitStack = field(default_factory=ExitStack)

    def add(self, patch: PathPatch) -> None:
        """Add a patch; patches of one reader add up, and share one way to norm."""
        if any(other.reader == patch.reader and other.frozen != patch.frozen for other in self.patches):
            raise UsageError(f"{patch.reader.label} is patched both with a frozen scale and without")
        if any((other.reader, other.writer) == (patch.reader, patch.writer) for other in self.patches):
            raise UsageError(f"what {patch.reader.label} receives from {patch.writer.label} is changed twice")
        self.patches.append(patch)
        try:
            self.refresh()
        except BaseException:
            self.patches.pop()
            self.refresh()
            raise

    def rewind(self, count: int) -> None:
        """Keep the first patches only."""
        if count < len(self.patches):
            del self.patches[count:]
            self.refresh()

    def begin(self) -> None:
        """A forward begins."""
        self._readings = {patch.reader: _Reading(patch.reader, patch.frozen) for patch in self.patches}
        for tap in self._taps:
            tap.begin()

    def unwind(self) -> None:
        """Leave additions that a broken forward was in."""
        for tap in self._taps:
            if isinstance(tap, AdditionTap):
                tap.unwind()

    def refresh(self) -> None:
        """Attach the taps of the patches, and no others."""
        self._attached.close()
        self._attached, self._taps = ExitStack(), []
        writers = {patch.writer for patch in self.patches}
        readers = {patch.reader for patch in self.patches}
        places = {"embed": "resid", "attn": "attn_add", "mlp": "mlp_add"}
        for writer in writers:
            self._tap(places[writer.part], writer.site, _Written(self, writer))
        for reader in readers:
            seen_places = {"mlp": ("mlp_scale", "mlp_in"), "logits": ("final_scale", "")}.get(
                reader.letter, ("x_scale", "x")
            )
            if reader.site in _spots(self.model, seen_places[0]):
                self._tap(seen_places[0], reader.site, _Normed(self, reader))
            elif not seen_places[1] or not self.model.stream_map.reads_the_stream(reader.site, seen_places[1]):
                raise CaptureError(
                    f"{reader.label}: no norm stands directly before it, and it does not read the stream"
                )
            if reader.letter == "mlp":
                self._tap("mlp_in", reader.site, _Handed(self, reader))
            elif reader.letter != "logits":
                module = self.model.hf.get_submodule(reader.site.module)
                again = _SecondRun(self, reader)
                self._attached.callback(module.register_forward_pre_hook(again, with_kwargs=True).remove)

    def _tap(self, place: str, site: Site, passer: Callable[..., Tensor]) -> None:
        quantity, spot = QUANTITIES[place], _spots(self.model, place).get(site)
        if spot is None or not isinstance(quantity, WatchedQuantity):
            raise CaptureError(f"{site.label}: {place} is not known, so its path cannot be changed")
        self._taps += attached(self.model.hf, [Watched(quantity, site, spot)], passer, self.is_live, self._attached)

    def written(self, writer: Writer, tensor: Tensor, incoming: Tensor | None) -> None:
        """A writer has written: every reader that is to receive something else is told the difference."""
        value = self._value_of(writer, tensor, incoming)
        for patch in self.patches:
            if patch.writer == writer:
                quantity = QUANTITIES["attn_add"]
                change = Change({writer.site: ()}, quantity, patch.value, patch.positions)
                after = change.new_value(writer.site, value, self.windows.of(quantity, writer.site, value))
                reading = self._readings[patch.reader]
                difference = after - value
                reading.change = difference if reading.change is None else reading.change + difference

    def _value_of(self, writer: Writer, tensor: Tensor, incoming: Tensor | None) -> Tensor:
        if writer.head is None:
            return tensor
        route = self.model.stream_sum(writer.site.stack).routes[writer.site]
        if route is None:
            raise CaptureError(f"{writer.label}: what each head writes is not known")
        part = (
            self.attention_calls.z[writer.site][:, writer.head] @ output_matrices(self.model, writer.site)[writer.head]
        )
        return route.followed(part.reshape(tensor.shape), tensor if incoming is None else incoming, tensor)

    def reading(self, reader: StreamReader) -> _Reading | None:
        """A reader whose stream differs in this forward."""
        reading = self._readings.get(reader)
        return None if reading is None or reading.change is None else reading

    def changed_norm(self, reading: _Reading, watched: Watched, stream: Tensor, normed: Tensor) -> Tensor:
        """What the norm gives for the changed stream."""
        change = reading.change
        norm = watched.spot.norm
        if change is None or norm is None:
            return normed
        changed = stream + change.reshape(stream.shape)
        if reading.frozen:
            return norm.apply(changed, norm.scale(stream, normed))
        with self.suspended():
            other: Tensor = self.model.hf.get_submodule(norm.module)(changed)
        return other


@dataclass(frozen=True)
class _Written:
    patches: PathPatches
    writer: Writer

    def __call__(self, watched: Watched, tensor: Tensor, incoming: Tensor | None, module: str) -> Tensor:
        self.patches.written(self.writer, tensor, incoming)
        return tensor


@dataclass(frozen=True)
class _Normed:
    patches: PathPatches
    reader: StreamReader

    def __call__(self, watched: Watched, tensor: Tensor, incoming: Tensor | None, module: str) -> Tensor:
        reading = self.patches.reading(self.reader)
        if reading is None or incoming is None:
            return tensor
        other = self.patches.changed_norm(reading, watched, incoming, tensor)
        if self.reader.letter == "logits":
            return other
        reading.normed, reading.other = tensor, other
        return tensor


@dataclass(frozen=True)
class _Handed:
    patches: PathPatches
    reader: StreamReader

    def __call__(self, watched: Watched, tensor: Tensor, incoming: Tensor | None, module: str) -> Tensor:
        reading = self.patches.reading(self.reader)
        return tensor if reading is None else _for_reader(reading, tensor)


@dataclass(frozen=True)
class _SecondRun:
    """Runs an attention module on the changed input before its own run."""

    patches: PathPatches
    reader: StreamReader

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        reading = self.patches.reading(self.reader) if self.patches.is_live() else None
        if reading is None or self.reader.head is None:
            return
        values = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        reads = [value for value in values if reading.normed is None or _same(value, reading.normed)]
        if not reads:
            raise CaptureError(f"{self.reader.label}: its attention is not given what the norm before it gives")
        changed = _for_reader(reading, reads[0])
        inputs = self.patches.inputs_of(
            self.reader.site,
            module,
            tuple(changed if value is reads[0] else _own_cache(value) for value in args),
            {name: changed if value is reads[0] else _own_cache(value) for name, value in kwargs.items()},
        )
        letter = self.reader.letter
        path_inputs = self.patches.attention_calls.path_inputs
        path_inputs.setdefault(self.reader.site, []).append((letter, self.reader.head, inputs[letter]))


def _for_reader(reading: _Reading, tensor: Tensor) -> Tensor:
    """What the reader is given in the place of a tensor that everyone else reads."""
    if reading.other is not None and reading.normed is not None:
        return reading.other.reshape(tensor.shape) if _same(tensor, reading.normed) else tensor
    return tensor if reading.change is None else tensor + reading.change.reshape(tensor.shape)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same numbers in memory, whatever their axes."""
    return a.data_ptr() == b.data_ptr() and a.numel() == b.numel()


def _own_cache(value: Any) -> Any:
    """A copy of a cache, which the second run would add its keys to; anything else as it is."""
    return copy.deepcopy(value) if hasattr(value, "get_seq_length") else value
