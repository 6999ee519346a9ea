"""HeadView: the attention of one head on a text, with its tokens and its numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np
from jaxtyping import Float
from torch import Tensor

from headscope.core.card import Card, Point, Shown, listed
from headscope.core.numbers import counted, number
from headscope.core.ports import save_heads
from headscope.core.site import Site
from headscope.core.token_map import TokenMap
from headscope.errors import UsageError

LISTED_WEIGHTS = 6
_MAPS_IN_NOTEBOOK = 4


@dataclass(frozen=True)
class HeadNumber:
    """One number of a head, and the same for attention that is uniform over the visible keys (`null`).

    None where it has no meaning, such as a distance in cross-attention. Shares are between 0 and 1.
    """

    key: str
    label: str
    unit: str
    value: float | None
    null: float | None

    @property
    def text(self) -> str:
        """The value with its unit."""
        return with_unit(self.value, self.unit)

    @property
    def null_text(self) -> str:
        """The null with its unit."""
        return with_unit(self.null, self.unit)


@dataclass(frozen=True)
class Weight:
    """A weight with the places and the tokens of its query and key."""

    query: int
    key: int
    query_token: str
    key_token: str
    weight: float


@dataclass(frozen=True, eq=False, repr=False)
class HeadView(Shown):
    """The attention of one head on a text; in a notebook it draws itself.

    `pattern` is queries × keys, as the model computes it. `tokens` are the queries. `key_tokens` are the keys: the same
    in self-attention, and in cross-attention the tokens of the encoder. `numbers` are those of the lens `focus` on this
    text; `quantities` has their values by name.
    """

    model: str
    site: Site
    head: int
    text: str
    pattern: Float[Tensor, "queries keys"]
    tokens: tuple[str, ...]
    key_tokens: tuple[str, ...]
    numbers: tuple[HeadNumber, ...]

    @property
    def label(self) -> str:
        """The name of the head: `L3.H7`."""
        return self.site.head_label(self.head)

    @property
    def is_causal(self) -> bool:
        """Whether no query sees a later key."""
        return self.site.causal and self.site.kind == "self"

    @property
    def quantities(self) -> dict[str, float | None]:
        """The numbers of the head by name: `entropy_nats`, `first`, `distance`, …"""
        return {entry.key: entry.value for entry in self.numbers}

    @property
    def nulls(self) -> dict[str, float | None]:
        """The same numbers for attention that is uniform over the visible keys."""
        return {entry.key: entry.null for entry in self.numbers}

    @cached_property
    def token_map(self) -> TokenMap:
        """The pattern as a numpy array with its tokens."""
        return TokenMap(self.pattern.numpy(), self.tokens, self.key_tokens, self.title)

    @property
    def title(self) -> str:
        """`L1.H3 of tiny, 64 tokens of plain English`."""
        return f"{self.label} of {self.model}, {counted(len(self.tokens), 'token')} of {self.text}"

    def largest(self, most: int = LISTED_WEIGHTS) -> tuple[Weight, ...]:
        """The largest weights, without those on the first key: many heads rest there, and `first` says how much."""
        weights = self.pattern.double().numpy()[:, 1:]
        order = np.argsort(-weights, axis=None, kind="stable")[:most]
        places = [(int(place) // weights.shape[1], int(place) % weights.shape[1] + 1) for place in order]
        return tuple(
            Weight(query, key, self.tokens[query], self.key_tokens[key], float(self.pattern[query, key]))
            for query, key in places
            if self.pattern[query, key] > 0
        )

    def save(self, path: str | Path) -> Path:
        """Write a page (.html) or a drawing (.png, .svg, .pdf), by the name of the file."""
        return HeadViews((self,)).save(path)

    def _card(self) -> Card:
        facts = [(entry.label, _with_null(entry)) for entry in self.numbers if entry.value is not None]
        weights = [f"{entry.query_token!r} → {entry.key_token!r} {number(entry.weight)}" for entry in self.largest()]
        points = (Point("largest weights", ", ".join(weights)),) if weights else ()
        return Card(self.title, points=points, facts=tuple(facts))

    def _repr_html_(self) -> str:
        return f"{self.token_map._repr_html_()}{Card('', facts=self._card().facts).html()}"


@dataclass(frozen=True, eq=False, repr=False)
class HeadViews(Shown, Sequence[HeadView]):
    """Several heads of one model on the same text, in the order in which they were named."""

    views: tuple[HeadView, ...]

    @property
    def title(self) -> str:
        """The title of one head, or the names of all."""
        first = self.views[0]
        if len(self.views) == 1:
            return first.title
        labels = listed([view.label for view in self.views])
        return f"{labels} of {first.model}, {counted(len(first.tokens), 'token')} of {first.text}"

    def __len__(self) -> int:
        return len(self.views)

    def __iter__(self) -> Iterator[HeadView]:
        return iter(self.views)

    @overload
    def __getitem__(self, place: int | str) -> HeadView: ...
    @overload
    def __getitem__(self, place: slice) -> "HeadViews": ...
    def __getitem__(self, place: int | str | slice) -> "HeadView | HeadViews":
        """A head by its number or its label."""
        if isinstance(place, slice):
            return HeadViews(self.views[place])
        if isinstance(place, int):
            return self.views[place]
        view = next((view for view in self.views if view.label == place), None)
        if view is None:
            raise UsageError(f"{place!r} is not among {listed([view.label for view in self.views])}")
        return view

    def save(self, path: str | Path) -> Path:
        """Write a page (.html) or a drawing (.png, .svg, .pdf), by the name of the file."""
        return save_heads(self, Path(path))

    def _card(self) -> Card:
        points = (Point(view.label, ", ".join(_short(view))) for view in self.views)
        return Card(self.title, points=tuple(points))

    def _repr_html_(self) -> str:
        maps = "".join(view.token_map._repr_html_() for view in self.views[:_MAPS_IN_NOTEBOOK])
        return f"{self._card().html()}{maps}"


def with_unit(value: float | None, unit: str) -> str:
    """A number with its unit; shares in percent."""
    if value is None:
        return "–"
    if unit == "share":
        return f"{number(100 * value)} %"
    return f"{number(value)} {unit}".strip()


def _with_null(entry: HeadNumber) -> str:
    return entry.text if entry.null is None else f"{entry.text}; {entry.null_text} for uniform attention"


def _short(view: HeadView) -> Iterator[str]:
    labels = {"entropy_nats": "entropy", "first": "first token", "distance": "distance"}
    for entry in view.numbers:
        if entry.key in labels and entry.value is not None:
            yield f"{labels[entry.key]} {entry.text}"
