"""Places of a model outside its attention calls: where in a forward their tensors can be read and changed.

A place is a function from a model to a `Spot` for each of its sites, and the reason at the sites that have none. What
belongs to a layer rather than to one of its attentions stands at the layer's first site; what belongs to a stack, at
its first or last self-attention.

The places here follow from names of modules and from where the weights are; those between the parts of a layer are
found by `stream_map.StreamMap`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from headscope.core.site import Site
from headscope.model.tracing.norms import Norm
from headscope.model.transformers.layers import enclosing_layer, last_layer, list_elements

if TYPE_CHECKING:
    from headscope.model.model import Model

Side = Literal["input", "output", "sum", "operand"]


@dataclass(frozen=True)
class Spot:
    """Where the tensor of a place passes: on one side of a module, or at an addition in a module's own code.

    Modules: all that are given the tensor; the first of them shows it. `call`: in which of the `calls_per_forward` of
    the module. `number`: which addition of the module; `operand`: which of its operands; `block`: the layer around it.
    `view`: where the same tensor can be read more cheaply, though not changed for everyone who reads it. `norm`: the
    norm that the module is.
    """

    modules: tuple[str, ...]
    side: Side
    call: int = 0
    calls_per_forward: int = 1
    number: int = 0
    operand: int = 0
    block: str = ""
    view: "Spot | None" = None
    norm: Norm | None = field(default=None, compare=False)

    @property
    def module(self) -> str:
        """The module that shows it."""
        return self.modules[0]


@dataclass(frozen=True)
class Spots:
    """The spot of each site that has the place, and why the others do not."""

    by_site: Mapping[Site, Spot]
    missing: Mapping[Site, str] = field(default_factory=dict)


Place = Callable[["Model"], Spots]


def layer_inputs(model: "Model") -> Spots:
    """What enters the layer of each site: the nearest enclosing element of a module list."""
    return Spots(_inputs({site: (enclosing_layer(model.hf, site.module),) for site in model.sites}))


def query_inputs(model: "Model") -> Spots:
    """What enters the projections of each site, where they are known; for cross-attention, that of the queries."""
    modules: dict[Site, tuple[str, ...]] = {}
    missing: dict[Site, str] = {}
    for site in model.sites:
        plan = model.plan(site)
        if plan.projections is None:
            missing[site] = plan.status.reason
            continue
        letters = "q" if site.kind == "cross" else "qkv"
        modules[site] = tuple(dict.fromkeys(getattr(plan.projections, letter).module for letter in letters))
    return Spots(_inputs(modules), missing)


def projection_outputs(letter: Literal["q", "k", "v", "o"], model: "Model") -> Spots:
    """What one projection of each site gives, where it is known."""
    spots: dict[Site, Spot] = {}
    missing: dict[Site, str] = {}
    calls = _calls(model.sites)
    for site in model.sites:
        plan = model.plan(site)
        rows = plan.output if letter == "o" else getattr(plan.projections, letter, None)
        if rows is None:
            missing[site] = plan.status.reason
        else:
            spots[site] = Spot((rows.module,), "output", *calls[site])
    return Spots(spots, missing)


def attention_outputs(model: "Model") -> Spots:
    """What the output projection of each site gives, where it is known."""
    return projection_outputs("o", model)


def layer_outputs(model: "Model") -> Spots:
    """What each layer gives."""
    spots = _inputs({site: (whole_layer(model, site),) for site in first_of_layers(model)})
    return Spots({site: _at_output(spot) for site, spot in spots.items()})


def whole_layer(model: "Model", site: Site) -> str:
    """The outermost element of a module list around a site that holds no other layer (T5 has lists inside layers)."""
    other_modules = [other.module for other in model.sites if (other.stack, other.layer) != (site.stack, site.layer)]
    elements = list(list_elements(model.hf, site.module))
    alone = [name for name in elements if not any(other.startswith(f"{name}.") for other in other_modules)]
    return alone[-1] if alone else enclosing_layer(model.hf, site.module)


def stack_outputs(model: "Model") -> Spots:
    """What the last layer of each stack gives, at the last self-attention of the stack."""
    return Spots({site: _stack_output(model, site) for site in last_of_stacks(model)})


def first_of_layers(model: "Model") -> tuple[Site, ...]:
    """The first site of each layer, in order."""
    first: dict[tuple[str, int], Site] = {}
    for site in model.sites:
        first.setdefault((site.stack, site.layer), site)
    return tuple(first.values())


def last_of_stacks(model: "Model") -> tuple[Site, ...]:
    """The last self-attention of each stack."""
    return tuple({site.stack: site for site in model.sites if site.kind == "self"}.values())


def first_of_stacks(model: "Model") -> tuple[Site, ...]:
    """The first self-attention of each stack."""
    return tuple({site.stack: site for site in reversed(model.sites) if site.kind == "self"}.values())[::-1]


def _stack_output(model: "Model", site: Site) -> Spot:
    module = last_layer(model.hf, site.module)
    # A layer that is called several times (ALBERT) is the last one in its last call only.
    is_inside = site.module.startswith(f"{module}.")
    return Spot((module,), "output", site.call, site.call + 1) if is_inside else Spot((module,), "output")


def _at_output(spot: Spot) -> Spot:
    return Spot(spot.modules, "output", spot.call, spot.calls_per_forward)


def _calls(sites: Sequence[Site]) -> dict[Site, tuple[int, int]]:
    """For each site the call of its module, and how many there are."""
    calls: dict[Site, tuple[int, int]] = {}
    for site in sites:
        numbers = sorted({other.call for other in sites if other.module == site.module})
        calls[site] = (numbers.index(site.call), len(numbers))
    return calls


def _inputs(modules_by_site: Mapping[Site, tuple[str, ...]]) -> dict[Site, Spot]:
    """The inputs of these modules; the calls of a module that several layers share go site by site."""
    calls: dict[str, list[int]] = {}
    for site, modules in modules_by_site.items():
        calls[modules[0]] = sorted({*calls.get(modules[0], ()), site.call})
    return {
        site: Spot(modules, "input", calls[modules[0]].index(site.call), len(calls[modules[0]]))
        for site, modules in modules_by_site.items()
    }
