"""Inputs of attention layers in the original, and what swapped heads make of them.

Each layer is looked at alone: its module is called with the arguments that it had in a forward of the original, so that
the errors of earlier layers do not reach it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.attention.mechanism import Mechanism
from headscope.core import Site
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.model.transformers.attention_hook import as_transformers, own_attention, tapped
from headscope.model.transformers.call_reader import RawCall, Reader
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options

HeadStates = Float[Tensor, "tokens channels"]  # z of some heads, one after the other


@dataclass(frozen=True)
class SwappedSite:
    """A site with its swapped heads, in order, and the mechanism of each."""

    site: Site
    mechanisms: Mapping[int, Mechanism]

    @property
    def heads(self) -> tuple[int, ...]:
        """The swapped heads, in order."""
        return tuple(sorted(self.mechanisms))

    @property
    def groups(self) -> dict[Mechanism, tuple[int, ...]]:
        """The heads of each mechanism, in order."""
        groups: dict[Mechanism, tuple[int, ...]] = {}
        for head in self.heads:
            mechanism = self.mechanisms[head]
            groups[mechanism] = (*groups.get(mechanism, ()), head)
        return groups


@dataclass(frozen=True)
class LayerInput:
    """The arguments of an attention module, and what its swapped heads gave."""

    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    z: HeadStates


class _Stop(Exception):  # it reports no error
    """The swapped heads have attended: the rest of the module is not needed."""


def layer_inputs(model: Model, sites: Sequence[SwappedSite], tokens: Tokens) -> dict[Site, LayerInput]:
    """Run the original once, and keep input and output of each site."""
    arguments: dict[Site, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    z: dict[Site, HeadStates] = {}
    swapped_by_module = {model.hf.get_submodule(swapped.site.module): swapped for swapped in sites}

    def attend(raw: RawCall) -> Tensor:
        out = own_attention(Reader().call(raw), raw.module)
        swapped = swapped_by_module.get(raw.module)
        if swapped is not None:
            z[swapped.site] = _flat(out[:, list(swapped.heads)])
        return as_transformers(out)

    body: Any = model.hf.base_model  # the logits are not needed
    with _noted_arguments(swapped_by_module, arguments), torch.no_grad(), restored(model.hf), tapped(model.hf, attend):
        body(input_ids=tokens[None].to(model.hf.device), **forward_options(body))
    return {site: LayerInput(arguments[site], z[site]) for site in z}


def swapped_states(
    model: Model, swapped: SwappedSite, inputs: LayerInput, weights: Mapping[str, Tensor] | None = None
) -> HeadStates:
    """The output of the swapped heads on these inputs.

    `weights` replace parameters of the model; gradients reach them.

    Properties:
        - mechanisms that see everything give what the original gave  (tested: test_wide_mechanisms_need_no_repair)
    """
    states: list[HeadStates] = []
    site, module = swapped.site, model.hf.get_submodule(swapped.site.module)

    def attend(raw: RawCall) -> Tensor:
        call = Reader().call(raw)
        outputs = {
            head: out
            for mechanism, heads in swapped.groups.items()
            for head, out in zip(heads, mechanism(call.heads(heads)).out.unbind(1), strict=True)
        }
        states.append(_flat(torch.stack([outputs[head] for head in swapped.heads], dim=1)))
        raise _Stop

    prefix = f"{site.module}."
    substitutes = {name.removeprefix(prefix): weight for name, weight in (weights or {}).items()}
    args, kwargs = inputs.arguments
    with tapped(model.hf, attend):
        try:
            torch.func.functional_call(module, substitutes, args, kwargs)
        except _Stop:
            return states[0]
    raise RuntimeError(f"{site.label} does not attend")  # it did when its inputs were kept


@contextmanager
def _noted_arguments(
    swapped_by_module: Mapping[nn.Module, SwappedSite], arguments: dict[Site, tuple[tuple[Any, ...], dict[str, Any]]]
) -> Iterator[None]:
    """Keep the arguments of these modules while the model runs."""

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments[swapped_by_module[module].site] = (args, kwargs)

    handles = [module.register_forward_pre_hook(note, with_kwargs=True) for module in swapped_by_module]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _flat(out: Float[Tensor, "1 some_heads tokens d_value"]) -> HeadStates:
    return out[0].transpose(0, 1).flatten(1)
