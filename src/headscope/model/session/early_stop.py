"""Ends a forward where a layer begins."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from headscope.core.selection import Selection
from headscope.model.session.module_taps import first_tensor
from headscope.model.session.places import layer_inputs

if TYPE_CHECKING:
    from headscope.model.model import Model


@dataclass
class Stopped:
    """What would have entered the layer; None while the forward has not stopped."""

    stream: Tensor | None = None


class _Stop(Exception):
    """Leaves the model's own code."""


@contextmanager
def stopping_at(model: "Model", at: Any) -> Iterator[Stopped]:
    """Stop the forward inside where the first selected layer begins; None lets it run."""
    stopped = Stopped()
    if at is None:
        yield stopped
        return
    site = next(iter(Selection.of(at).resolve(model.sites)))
    spot = layer_inputs(model).by_site[site]
    n_calls = 0

    def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == spot.call + 1:
            stopped.stream = first_tensor((*args, *kwargs.values()))
            raise _Stop

    handle = model.hf.get_submodule(spot.module).register_forward_pre_hook(stop, with_kwargs=True)
    try:
        yield stopped
    except _Stop:
        pass
    finally:
        handle.remove()
