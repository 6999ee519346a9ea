"""Hooks that keep what passes a module, for the sites whose place it is."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headscope.core.site import Site
from headscope.errors import CaptureError
from headscope.model.session.places import Side, Spot, Spots
from headscope.model.session.recorder import Capture


class ModuleHook:
    """Keeps the first tensor on one side of a module; calls are counted within a forward."""

    def __init__(self, capture: Capture, quantity: str, spots: Spots) -> None:
        self._capture, self._quantity, self._spots = capture, quantity, spots
        self._n_calls = 0

    def begin(self) -> None:
        """A forward begins: the next call is its first."""
        self._n_calls = 0

    def attach(self, module: nn.Module, side: Side) -> RemovableHandle:
        """Watch a module from now on."""
        if side == "input":
            return module.register_forward_pre_hook(self._entered, with_kwargs=True)
        return module.register_forward_hook(self._left)

    def _entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._keep((*args, *kwargs.values()))

    def _left(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._keep((output,) if isinstance(output, Tensor) else output)

    def _keep(self, values: Iterable[Any]) -> None:
        for site in self._sites_of_call():
            tensor = next((value for value in values if isinstance(value, Tensor)), None)
            if tensor is None:
                raise CaptureError(
                    f"{site.label}: {self._spots[site].module} has no tensor that could be captured as {self._quantity}"
                )
            self._capture.keep(self._quantity, site, tensor.clone())  # some models add to it in place
        self._n_calls += 1

    def _sites_of_call(self) -> Iterator[Site]:
        for site, spot in self._spots.items():
            # The remainder covers parts that run on their own, several times in a forward.
            if self._n_calls % spot.calls_per_forward == spot.call:
                yield site


def module_hooks(capture: Capture, quantity: str, spots: Spots) -> dict[tuple[str, Side], ModuleHook]:
    """By module and side, the hook for the captured sites that have their place there."""
    by_module: dict[tuple[str, Side], dict[Site, Spot]] = defaultdict(dict)
    for site, spot in spots.items():
        if site in capture.at:
            by_module[spot.module, spot.side][site] = spot
    return {place: ModuleHook(capture, quantity, spots_there) for place, spots_there in by_module.items()}
