"""What a session records: captures and streams, one frame per forward, handed over by `take`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from headscope.attention.statistics import Request, RowStatistics
from headscope.core.card import Card, Shown
from headscope.core.site import Site
from headscope.errors import CaptureError, UsageError
from headscope.model.capture_card import capture_card
from headscope.model.session.capture_files import CaptureFiles
from headscope.model.session.captures import Heads, Quantity
from headscope.model.session.changes import Positions, Window, resolved

T = TypeVar("T")


class Frames(Generic[T]):
    """Values by site, one dictionary per forward since the last `take`."""

    def __init__(self, new: Callable[[], T]) -> None:
        self._new = new
        self._frames: list[T] = []
        self._open = False

    def begin(self) -> None:
        """A forward begins: what it shows goes into a frame of its own."""
        self._open = False

    @property
    def count(self) -> int:
        """The number of forwards since the last take."""
        return len(self._frames)

    @property
    def pending(self) -> tuple[T, ...]:
        """What the forwards since the last take showed; nothing is taken."""
        return tuple(self._frames)

    def current(self) -> T:
        """The frame of the forward that is running."""
        if not self._open:
            self._frames.append(self._new())
            self._open = True
        return self._frames[-1]

    def drain(self) -> T:
        """What the running forward has shown up to now; it goes on, and shows the rest later."""
        frame = self.current()
        self._frames[-1] = self._new()
        return frame

    def take(self) -> T:
        """What the one forward since the last take showed; several forwards want `take_all`."""
        if len(self._frames) != 1:
            raise UsageError(
                f"take() expects one forward since the last take, there were {len(self._frames)}",
                hint="use take_all() for one result per forward (each step of generate is a forward)",
            )
        return self.take_all()[0]

    def take_all(self) -> list[T]:
        """What each forward since the last take showed, in order."""
        frames, self._frames = self._frames, []
        self._open = False
        return frames


@dataclass(frozen=True)
class GradientPath:
    """A tensor that the output depends on, and how its gradient becomes that of a captured quantity."""

    tensor: Tensor
    turn: Callable[[Tensor], Tensor]


@dataclass(repr=False)
class Capture(Shown):
    """Stored tensors: `take()` gives name → site → tensor of the one forward that ran.

    `captures.QUANTITIES` says what each quantity is and which axes its tensor has. The heads axis holds the selected
    heads in order, an axis of key/value heads those that the selected heads read. `sites_by_quantity` holds the sites
    of quantities that are not stored at every site. With `positions` only these tokens are stored. With `gradient` the
    tensors stay in torch's graph, and `gradients(number)` gives the gradient of a number with respect to each of them.
    With `files` the tensors beyond a size are on disk.
    """

    quantities: tuple[Quantity, ...]
    at: dict[Site, Heads]
    sites_by_quantity: Mapping[str, frozenset[Site]] = field(default_factory=dict)
    positions: Positions | None = None
    gradient: bool = False
    files: CaptureFiles | None = None
    frames: Frames[dict[str, dict[Site, Tensor]]] = field(default_factory=lambda: Frames(dict))
    _paths: dict[tuple[str, Site], GradientPath] = field(default_factory=dict)
    _versions: list[tuple[str, Tensor, int]] = field(default_factory=list)

    def _card(self) -> Card:
        axes = {quantity.name: [axis.name for axis in quantity.axes] for quantity in self.quantities}
        return capture_card(axes, self.at, self.frames.pending)

    def sites_of(self, quantity: Quantity) -> tuple[Site, ...]:
        """The sites at which a quantity is stored."""
        sites = self.sites_by_quantity.get(quantity.name)
        return tuple(site for site in self.at if sites is None or site in sites)

    def quantities_at(self, site: Site) -> tuple[Quantity, ...]:
        """What is stored of a site."""
        if site not in self.at:
            return ()
        by_name = self.sites_by_quantity
        return tuple(entry for entry in self.quantities if entry.name not in by_name or site in by_name[entry.name])

    def begin(self) -> None:
        """A forward begins."""
        self.frames.begin()
        self._paths.clear()

    def drain(self) -> dict[str, dict[Site, Tensor]]:
        """The tensors that the running forward has shown up to now."""
        self._check_unwritten()
        return self.frames.drain()

    def take(self) -> dict[str, dict[Site, Tensor]]:
        """The tensors of the one forward since the last take."""
        self._check_unwritten()
        return self.frames.take()

    def take_all(self) -> list[dict[str, dict[Site, Tensor]]]:
        """The tensors of each forward since the last take."""
        self._check_unwritten()
        return self.frames.take_all()

    def _check_unwritten(self) -> None:
        """Refuse to hand out a tensor that somebody wrote over after it was captured."""
        versions, self._versions = self._versions, []
        for name, tensor, version in versions:
            if tensor._version != version:
                raise CaptureError(
                    f"{name} was written over in place after it was captured",
                    hint="the model itself does not: let the hook that does return a new tensor instead",
                )

    def gradients(self, number: Tensor) -> dict[str, dict[Site, Tensor]]:
        """The gradient of a number with respect to each captured tensor of the last forward, in one backward."""
        if not self.gradient:
            raise UsageError("this capture follows no gradients", hint="capture(…, gradient=True), then run again")
        if not self._paths:
            raise UsageError("no forward ran since the capture began, so there is nothing to differentiate by")
        if number.numel() != 1 or not number.requires_grad:
            raise UsageError(
                f"gradients are those of one number that depends on the forward, got a tensor of shape "
                f"{tuple(number.shape)}{'' if number.requires_grad else ' without a graph'}"
            )
        tensors = [path.tensor for path in self._paths.values()]
        computed = torch.autograd.grad(number.sum(), tensors, retain_graph=True, allow_unused=True)
        gradients: dict[str, dict[Site, Tensor]] = {}
        for ((name, site), path), gradient in zip(self._paths.items(), computed, strict=True):
            # A tensor that the number does not depend on has the gradient 0.
            gradients.setdefault(name, {})[site] = path.turn(
                torch.zeros_like(path.tensor) if gradient is None else gradient
            )
        return gradients

    def keep(self, quantity: Quantity, site: Site, tensor: Tensor, window: Window, *, is_lasting: bool = False) -> None:
        """Store a part of a tensor of the running forward as it is now.

        It is a copy that the model cannot change; where nobody writes over the tensor (`is_lasting`) it may be the
        tensor itself, and whoever does so after all is noticed when the capture is taken.
        """
        selected = self._select_positions(quantity, self._select_heads(quantity, site, tensor), window).detach()
        # Heads in their own memory, whatever the model's layout: products round alike for every family.
        if is_lasting and not selected.is_inference():
            stored = selected.contiguous()
            self._versions.append((f"{quantity.name} of {site.label}", stored, stored._version))
        else:
            stored = selected.clone(memory_format=torch.contiguous_format)
        self._store(quantity, site, stored)

    def keep_own(self, quantity: Quantity, site: Site, tensor: Tensor, window: Window) -> None:
        """Store a tensor that holds the selected heads alone and that nobody else has."""
        self._store(quantity, site, self._select_positions(quantity, tensor, window).detach())

    def keep_in_graph(
        self,
        quantity: Quantity,
        site: Site,
        tensor: Tensor,
        window: Window,
        on_path: Tensor,
        turn: Callable[[Tensor], Tensor] = lambda gradient: gradient,
    ) -> None:
        """Store a part of a tensor with its graph; the output depends on it through `on_path`."""
        heads = self._select_heads(quantity, site, tensor)
        self._store(quantity, site, self._select_positions(quantity, heads, window))
        self._paths[quantity.name, site] = GradientPath(
            on_path,
            lambda gradient: self._select_positions(
                quantity, self._select_heads(quantity, site, turn(gradient)), window
            ),
        )

    def _store(self, quantity: Quantity, site: Site, tensor: Tensor) -> None:
        stored = tensor if self.files is None else self.files.keep(f"{site.label}.{quantity.name}", tensor)
        self.frames.current().setdefault(quantity.name, {})[site] = stored

    def _select_heads(self, quantity: Quantity, site: Site, tensor: Tensor) -> Tensor:
        index = quantity.tensor_heads(site, self.at[site])
        return tensor if index is None or len(index) == tensor.shape[1] else tensor[:, list(index)]

    def _select_positions(self, quantity: Quantity, tensor: Tensor, window: Window) -> Tensor:
        axis = quantity.token_axis
        if self.positions is None or axis is None:
            return tensor
        numbers = [number - window.offset for number in resolved(self.positions, window, quantity)]
        numbers_here = [number for number in numbers if 0 <= number < tensor.shape[axis]]
        return tensor.index_select(axis, torch.tensor(numbers_here, dtype=torch.long, device=tensor.device))


@dataclass
class Stream:
    """Row statistics of every call, and those of uniform attention over the same visible keys."""

    request: Request
    at: dict[Site, Heads]
    frames: Frames[tuple[dict[Site, RowStatistics], dict[Site, RowStatistics]]] = field(
        default_factory=lambda: Frames(lambda: ({}, {}))
    )

    def drain(self) -> tuple[dict[Site, RowStatistics], dict[Site, RowStatistics]]:
        """Measured and uniform statistics that the running forward has shown up to now."""
        return self.frames.drain()

    def take(self) -> tuple[dict[Site, RowStatistics], dict[Site, RowStatistics]]:
        """Measured and uniform statistics of the one forward since the last take."""
        return self.frames.take()

    def take_all(self) -> list[tuple[dict[Site, RowStatistics], dict[Site, RowStatistics]]]:
        """Measured and uniform statistics of each forward since the last take."""
        return self.frames.take_all()
