"""Places of a model outside its attention calls: which module shows them, on which side, in which call.

A place is a function from a model to a `Spot` for each of its sites. A site that has no such place is left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headscope.core.site import Site
from headscope.errors import UsageError
from headscope.model.transformers.layers import enclosing_layer, last_layer

if TYPE_CHECKING:
    from headscope.model.model import Model

Side = Literal["input", "output"]


@dataclass(frozen=True)
class Spot:
    """The first tensor on one side of a module, in one of the calls that a forward makes of it."""

    module: str
    side: Side
    call: int = 0
    calls_per_forward: int = 1


Spots = Mapping[Site, Spot]
Place = Callable[["Model"], Spots]


def layer_inputs(model: "Model") -> Spots:
    """What enters the layer of each site: the nearest enclosing element of a module list."""
    return _inputs({site: enclosing_layer(model.hf, site.module) for site in model.sites})


def query_inputs(model: "Model") -> Spots:
    """What enters the module that makes the queries, for the sites whose weights are known."""
    if not model.traced:
        raise UsageError(
            "which modules make the queries, and so what enters them, was not looked up yet",
            hint="call the model's weight_source() before the session is opened",
        )
    projections = {site: model.plan(site).projections for site in model.sites}
    return _inputs({site: roles.q.module for site, roles in projections.items() if roles is not None})


def stack_outputs(model: "Model") -> Spots:
    """What the last layer of each stack gives, at the last self-attention of the stack."""
    last_sites = {site.stack: site for site in model.sites if site.kind == "self"}
    return {site: _stack_output(model, site) for site in last_sites.values()}


def _stack_output(model: "Model", site: Site) -> Spot:
    module = last_layer(model.hf, site.module)
    # A layer that is called several times (ALBERT) is the last one in its last call only.
    is_inside = site.module.startswith(f"{module}.")
    return Spot(module, "output", site.call, site.call + 1) if is_inside else Spot(module, "output")


def _inputs(module_by_site: Mapping[Site, str]) -> Spots:
    """The inputs of these modules; the calls of a module that several layers share go site by site."""
    calls: dict[str, list[int]] = {}
    for site, module in module_by_site.items():
        calls[module] = sorted({*calls.get(module, ()), site.call})
    return {
        site: Spot(module, "input", calls[module].index(site.call), len(calls[module]))
        for site, module in module_by_site.items()
    }
