"""What the open sessions of one thread have asked for, in the order in which they asked.

Sessions nest: an inner one adds to what the outer one asked for, and takes its own back when it ends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headscope.attention.mechanism import Mechanism
from headscope.core.site import Site
from headscope.errors import UsageError
from headscope.model.built_in_mechanisms import heads_by_built_in_mechanism
from headscope.model.session.captures import Heads, Quantity
from headscope.model.session.changes import Change
from headscope.model.session.recorder import Capture, Stream

Mark = tuple[int, int, int, tuple[Change, ...]]


@dataclass(frozen=True)
class Replacement:
    """Heads that attend through another mechanism; None: whose output is zero."""

    at: Mapping[Site, Heads]
    mechanism: Mechanism | None


def built_in(hf: Any, sites: Iterable[Site]) -> list[Replacement]:
    """The heads that attend through a mechanism by the configuration of the model, as replacements that stay."""
    heads = heads_by_built_in_mechanism(hf, sites)
    return [Replacement(group, mechanism) for mechanism, group in heads.items() if mechanism is not None]


@dataclass
class Registered:
    """Captures, streams, replacements and changes."""

    captures: list[Capture] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    replacements: list[Replacement] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def mark(self) -> Mark:
        """What there is now; `rewind` returns to it."""
        # Changes are kept by their order, not by when they were asked for.
        return len(self.captures), len(self.streams), len(self.replacements), tuple(self.changes)

    def rewind(self, mark: Mark) -> None:
        """Forget everything that was asked for since the mark."""
        n_captures, n_streams, n_replacements, changes = mark
        del self.captures[n_captures:]
        del self.streams[n_streams:]
        del self.replacements[n_replacements:]
        self.changes[:] = changes

    @property
    def is_silent(self) -> bool:
        """Whether nothing is shown or changed in an attention call, but for mechanisms that take another's place."""
        is_ablated = any(replacement.mechanism is None for replacement in self.replacements)
        return not (self.captures or self.streams or self.changes or is_ablated)

    def mechanisms(self, site: Site) -> dict[int, Mechanism]:
        """The mechanism of each replaced head; the last one asked for stands."""
        return {
            head: replacement.mechanism
            for replacement in self.replacements
            if replacement.mechanism is not None
            for head in replacement.at.get(site, ())
        }

    def ablated(self, site: Site) -> Heads:
        """The heads whose output is zero."""
        return tuple(
            sorted({h for entry in self.replacements if entry.mechanism is None for h in entry.at.get(site, ())})
        )

    def changes_at(self, site: Site, kind: type[Quantity]) -> list[Change]:
        """The changes of one kind of quantity at a site, in their order."""
        return [change for change in self.changes if site in change.at and isinstance(change.quantity, kind)]

    def changes_of(self, site: Site, quantity: Quantity) -> list[Change]:
        """The changes of one quantity at a site, in their order."""
        return [change for change in self.changes if site in change.at and change.quantity.name == quantity.name]

    def add_change(self, change: Change) -> None:
        """Add a change in its order.

        Raises:
            UsageError: Another change has the same heads, positions and quantity, and no order was said.
        """
        for other in self.changes:
            if (label := _overlap(other, change)) and (change.order is None or other.order == change.order):
                raise UsageError(
                    f"{change.quantity.name} of {label} is changed twice"
                    + ("" if change.order is None else f" in the same order {change.order}"),
                    hint="say in which order: patch(…, order=1), patch(…, order=2); what has no order comes first",
                )
        self.changes.append(change)
        # A change without an order comes before those that have one; `sort` leaves equal ones as they were asked for.
        self.changes.sort(key=lambda entry: -1 if entry.order is None else entry.order)

    def wants_gradients(self) -> bool:
        """Whether a capture follows gradients."""
        return any(capture.gradient for capture in self.captures)


def _overlap(a: Change, b: Change) -> str:
    """The first site where two changes meet; empty where they do not."""
    are_apart = a.positions is not None and b.positions is not None and not set(a.positions) & set(b.positions)
    if a.quantity.name != b.quantity.name or are_apart:
        return ""
    for site in a.at:
        mine, other_heads = a.quantity.tensor_heads(site, a.at[site]), b.quantity.tensor_heads(site, b.at.get(site, ()))
        if site in b.at and (mine is None or other_heads is None or set(mine) & set(other_heads)):
            return site.label
    return ""
