"""The taps of the places that are captured or changed: attached when first asked for, gone with the last who asked."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headscope.core.site import Site
from headscope.model.session.attention_calls import in_graph, with_heads
from headscope.model.session.captures import QUANTITIES, Passage, WatchedQuantity
from headscope.model.session.changes import Change
from headscope.model.session.module_taps import AdditionTap, ModuleTap, Watched, attached
from headscope.model.session.places import Spot
from headscope.model.session.recorder import Capture
from headscope.model.session.registered import Registered
from headscope.model.session.text_windows import TextWindows

if TYPE_CHECKING:
    from headscope.model.model import Model


class PlaceTaps:
    """Taps for what was registered, and what they do with the tensors that pass."""

    def __init__(
        self,
        model: "Model",
        registered: Registered,
        windows: TextWindows,
        z: dict[Site, Tensor],
        is_live: Callable[[], bool],
    ) -> None:
        self._model, self._registered, self._windows, self._z, self._is_live = model, registered, windows, z, is_live
        self._taps: list[ModuleTap | AdditionTap] = []
        self._attached = ExitStack()
        self._watched: frozenset[tuple[str, Site, Spot]] = frozenset()
        self._is_lasting = False
        # What took the place of a tensor that several modules are given.
        self._stand_ins: dict[tuple[str, Site], tuple[Tensor, Tensor]] = {}

    def begin(self) -> None:
        """A forward begins."""
        self._stand_ins.clear()
        for tap in self._taps:
            tap.begin()

    def refresh(self) -> None:
        """Attach what is asked for now, and nothing else."""
        entries = list(self._entries())
        # A function of a change may write over what it is handed.
        self._is_lasting = bool(entries) and not self._registered.changes and not self._model.overwrites
        watched = frozenset((entry.quantity.name, entry.site, entry.spot) for entry in entries)
        if watched == self._watched:
            return
        self.close()
        self._watched = watched
        order = list(QUANTITIES)
        # What is a part of another quantity comes before it: a change of the whole goes by its changed parts.
        entries.sort(key=lambda entry: order.index(entry.quantity.name) if entry.quantity.name in order else len(order))
        self._taps = attached(self._model.hf, entries, self._passed, self._is_live, self._attached)

    def unwind(self) -> None:
        """Leave additions that a broken forward was in."""
        for tap in self._taps:
            if isinstance(tap, AdditionTap):
                tap.unwind()

    def close(self) -> None:
        """Remove every hook."""
        self._attached.close()
        self._attached = ExitStack()
        self._taps.clear()
        self._watched = frozenset()
        self._stand_ins.clear()

    def _entries(self) -> list[Watched]:
        entries: dict[tuple[str, Site], Watched] = {}
        for capture in self._registered.captures:
            for site in capture.at:
                for quantity in capture.quantities_at(site):
                    if isinstance(quantity, WatchedQuantity):
                        spot = self._model.spots(quantity).by_site[site]
                        self._add(entries, quantity, site, _for_reading(spot, capture))
        for change in self._registered.changes:
            if isinstance(change.quantity, WatchedQuantity):
                spots = self._model.spots(change.quantity).by_site
                for site in change.at:
                    self._add(entries, change.quantity, site, spots[site])
        return list(entries.values())

    @staticmethod
    def _add(entries: dict[tuple[str, Site], Watched], quantity: WatchedQuantity, site: Site, spot: Spot) -> None:
        before = entries.get((quantity.name, site))
        # A spot at which the tensor can be changed serves those who only read too; so does one on all its modules.
        if before is None or (before.spot.side == "input" and (spot.side != "input" or len(spot.modules) > 1)):
            entries[quantity.name, site] = Watched(quantity, site, spot)

    def _passed(self, watched: Watched, tensor: Tensor, incoming: Tensor | None, module: str) -> Tensor:
        """Change the tensor of a place, let captures have it, and pass it on."""
        quantity, site, spot = watched.quantity, watched.site, watched.spot
        n_texts = self._windows.position.n_texts
        if n_texts and tensor.ndim == 2 and len(quantity.axes) >= 3:
            # Some families read all texts as one long list of tokens.
            texts = tensor.view(n_texts, -1, tensor.shape[-1])
            given_texts = None if incoming is None else incoming.view(n_texts, -1, incoming.shape[-1])
            after = self._passed(watched, texts, given_texts, module)
            return tensor if after is texts else after.reshape(tensor.shape)
        if module != spot.module:
            before, after = self._stand_ins.get((quantity.name, site), (None, tensor))
            return after if before is tensor else self._changed(watched, tensor, incoming)[0].tensor
        passage, value = self._changed(watched, tensor, incoming)
        for capture in self._captures(quantity, site):
            passage = self._captured(capture, watched, passage, value)
        if len(spot.modules) > 1 and passage.tensor is not tensor:
            self._stand_ins[quantity.name, site] = tensor, passage.tensor
        return passage.tensor

    def _changed(self, watched: Watched, tensor: Tensor, incoming: Tensor | None) -> tuple[Passage, Tensor | None]:
        """The passage after all changes, and the changed quantity; None where nothing changes it."""
        quantity, site = watched.quantity, watched.site
        passage = Passage(self._model, site, watched.spot, tensor, incoming, self._z.get(site))
        changes = self._registered.changes_of(site, quantity)
        if not changes:
            return passage, None
        before = value = quantity.read(passage)
        for change in changes:
            value = self._new_value(change, site, value)
        return replace(passage, tensor=quantity.write(passage, before, value)), value

    def _new_value(self, change: Change, site: Site, value: Tensor) -> Tensor:
        window = self._windows.of(change.quantity, site, value)
        heads = change.quantity.tensor_heads(site, change.at[site])
        if heads is None:
            return change.new_value(site, value, window)
        return with_heads(value, heads, change.new_value(site, value[:, list(heads)], window))

    def _captures(self, quantity: WatchedQuantity, site: Site) -> list[Capture]:
        return [
            capture
            for capture in self._registered.captures
            if any(entry.name == quantity.name for entry in capture.quantities_at(site))
        ]

    def _captured(self, capture: Capture, watched: Watched, passage: Passage, value: Tensor | None) -> Passage:
        quantity, site = watched.quantity, watched.site
        if not capture.gradient:
            tensor = quantity.read(passage) if value is None else value
            window = self._windows.of(quantity, site, tensor)
            capture.keep(quantity, site, tensor, window, is_lasting=self._is_lasting)
            return passage
        passage = replace(passage, tensor=in_graph(passage.tensor))
        tensor = quantity.read(passage) if value is None else value
        window = self._windows.of(quantity, site, tensor)
        capture.keep_in_graph(quantity, site, tensor, window, passage.tensor, _Turn(quantity, passage))
        # Some models add to the tensor in place: to a copy of it, then.
        return replace(passage, tensor=passage.tensor.clone())


class _Turn:
    """Turns the gradient with respect to a tensor into that with respect to a quantity of it."""

    def __init__(self, quantity: WatchedQuantity, passage: Passage) -> None:
        self._quantity, self._passage = quantity, passage

    def __call__(self, gradient: Tensor) -> Tensor:
        with torch.no_grad():
            return self._quantity.gradient(self._passage, gradient)


def _for_reading(spot: Spot, capture: Capture) -> Spot:
    """Where a capture reads a place: at one module only, and where that is cheapest."""
    if capture.gradient:
        return spot
    reading = spot if spot.view is None else spot.view
    return replace(reading, modules=reading.modules[:1])
