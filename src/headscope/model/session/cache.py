"""What one forward showed, by place: `cache["L1.H3", "pattern"]`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from headscope.core.card import Card, Shown
from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.errors import UsageError
from headscope.model.capture_card import cache_card
from headscope.model.session import axes
from headscope.model.session.captures import Heads, Quantity, find_quantity
from headscope.model.session.hook_names import quantity_of_hook


@dataclass(frozen=True, repr=False)
class Cache(Shown):
    """Tensors by quantity and site.

    `cache["L1", "pattern"]` holds all heads of a site, `cache["L1.H3", "pattern"]` one head without the axis of heads,
    `cache["final"]` what only one site has. Hooks of TransformerLens are accepted as names.
    """

    tensors: Mapping[str, Mapping[Site, Tensor]]
    heads: Mapping[Site, Heads]

    def _card(self) -> Card:
        entries = {name: find_quantity(name) for name in self.tensors}
        axis_names = {name: [axis.name for axis in entry.axes] if entry else [] for name, entry in entries.items()}
        return cache_card(axis_names, self.heads, self.tensors)

    def __contains__(self, key: Any) -> bool:
        try:
            self[key]
        except UsageError:
            return False
        return True

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The keys: a site and a quantity each."""
        return iter([(site.label, name) for name, by_site in self.tensors.items() for site in by_site])

    def __len__(self) -> int:
        return sum(len(by_site) for by_site in self.tensors.values())

    def __getitem__(self, key: Any) -> Tensor:
        at, name = _site_and_name(key)
        hook = quantity_of_hook(name)
        if hook is not None:
            name, at = hook[0], at if hook[1] is None else f"L{hook[1]}"
        by_site = self._of(name)
        if at is None:
            if len(by_site) != 1:
                raise UsageError(f"{name} is there at {len(by_site)} sites", hint=f'say which: cache["L0", "{name}"]')
            return next(iter(by_site.values()))
        selection = Selection.of(at)
        site, heads = selection.one_site([site for site in self.heads if site in by_site])
        names_heads = any(term.heads is not None for term in selection.terms)
        return self._of_selection(name, site, heads, names_heads)

    def of_heads(self, quantity: Quantity, site: Site, heads: Heads) -> Tensor:
        """The tensor of a quantity at some heads, with the axis of heads."""
        by_site = self._of(quantity.name)
        if site not in by_site:
            raise UsageError(f"the cache holds no {quantity.name} of {site.label}", hint="capture it in the other run")
        wanted_heads = quantity.tensor_heads(site, heads)
        stored = quantity.tensor_heads(site, self.heads[site])
        if wanted_heads is None or stored is None or wanted_heads == stored:
            return by_site[site]
        if missing := [head for head in wanted_heads if head not in stored]:
            raise UsageError(f"the cache holds no {quantity.name} of {site.label}, head {missing[0]}")
        return by_site[site][:, [stored.index(head) for head in wanted_heads]]

    def mean(self) -> "Cache":
        """The mean of every tensor over its texts and tokens: one vector that stands for the reference text."""
        averaged = {
            name: {site: self._mean(name, tensor) for site, tensor in by_site.items()}
            for name, by_site in self.tensors.items()
        }
        return Cache(averaged, self.heads)

    @staticmethod
    def _mean(name: str, tensor: Tensor) -> Tensor:
        quantity = find_quantity(name)
        axis = None if quantity is None else quantity.token_axis
        if axis is None or tensor.ndim < 2:
            return tensor
        if quantity is not None and axes.KEYS in quantity.axes and axis != quantity.axes.index(axes.KEYS):
            return tensor.mean(0, keepdim=True)  # a map: its rows have different keys
        return tensor.mean((0, axis), keepdim=True)

    def _of(self, name: str) -> Mapping[Site, Tensor]:
        if name not in self.tensors:
            raise UsageError(f"the cache holds no {name}", hint=f"it holds {', '.join(self.tensors)}")
        return self.tensors[name]

    def _of_selection(self, name: str, site: Site, heads: Heads, names_heads: bool) -> Tensor:
        tensor = self.tensors[name][site]
        quantity = find_quantity(name)
        stored = None if quantity is None else quantity.tensor_heads(site, self.heads[site])
        if quantity is None or stored is None or not names_heads:
            return tensor
        selected = self.of_heads(quantity, site, heads)
        return selected[:, 0] if len(heads) == 1 else selected


def _site_and_name(key: Any) -> tuple[Any, str]:
    """The two parts of a key."""
    if isinstance(key, str):
        return None, key
    if not isinstance(key, tuple) or len(key) != 2 or not isinstance(key[1], str):
        raise UsageError(f"cannot look up {key!r}", hint='write cache["L1", "pattern"] or cache["L1.H3", "pattern"]')
    return key


class Forward(NamedTuple):
    """What a run gives: the logits (None for a model without an output head), and what was captured."""

    logits: Tensor | None
    cache: Cache
