"""Lets a forward of one text go on as several rows from a layer on.

Rows that differ only in what a layer's heads give are the same before it: there one row is computed for all of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headscope.core.site import Site
from headscope.model.session.places import layer_inputs

if TYPE_CHECKING:
    from headscope.model.model import Model


@contextmanager
def rows_from(model: "Model", site: Site, rows: int) -> Iterator[None]:
    """Repeat the stream of a text where the layer of a site begins: this layer and all after it have `rows` rows.

    Masks and positions stay those of one text, which most families take for all rows. Who uses this for a family first
    compares with whole rows.

    Properties:
        - the predictions are those of one row, in every row  (tested: test_rows_from_a_layer_on_are_whole_rows)
    """
    spot = layer_inputs(model).by_site[site]
    n_calls = 0

    def repeat(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        nonlocal n_calls
        n_calls += 1
        if n_calls != spot.call + 1:
            return None
        if args and isinstance(args[0], Tensor):
            return (_repeated(args[0], rows), *args[1:]), kwargs
        name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
        return args, {**kwargs, name: _repeated(kwargs[name], rows)}

    handle = model.hf.get_submodule(spot.module).register_forward_pre_hook(repeat, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _repeated(stream: Tensor, rows: int) -> Tensor:
    return torch.cat([stream] * rows)
