"""Finds the attention sites of a model by running it on a few tokens.

No table of families: everything needed is in a call (its module, how often that module was called, shapes, positions,
which keys a query may see, what else enters the scores).
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headscope.attention.call import Call
from headscope.attention.devices import has_float64
from headscope.attention.head_mechanisms import mechanisms_of
from headscope.core.site import Kind, Site, Stack
from headscope.errors import CaptureError, CheckpointError
from headscope.model.rounding import agreement, widened
from headscope.model.transformers.attention_hook import DENSE, as_transformers, implementation, tapped
from headscope.model.transformers.call_reader import RawCall, Reader
from headscope.model.transformers.probe_inputs import (
    DECODER_TOKENS,
    ENCODER_TOKENS,
    forward_options,
    has_two_towers,
    probe_inputs,
)

_SMALLEST = 1e-30  # avoids division by zero


@dataclass(frozen=True)
class Sighting:
    """One attention call of the probe."""

    module: str
    call: int
    read: Call
    sliding_window: int | None


class CallRecorder:
    """A handler that computes the model's own attention and records each call."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.sightings: list[Sighting] = []
        self._calls: Counter[str] = Counter()
        self._reader = Reader()

    def __call__(self, raw: RawCall) -> Tensor:
        """Record the call and attend as the model does."""
        name = self.names[id(raw.module)]
        read = self._reader.call(raw)
        window = raw.options.get("sliding_window")
        self.sightings.append(Sighting(name, self._calls[name], read, window if isinstance(window, int) else None))
        self._calls[name] += 1
        mechanisms = mechanisms_of(raw.module)
        return as_transformers(DENSE(read).out if mechanisms is None else mechanisms(read))


def find_sites(model: Any) -> tuple[Site, ...]:
    """The attention sites of a model, in the order of its forward.

    Empty where no attention goes through the interface.
    """
    recorder = CallRecorder(model)
    inputs = probe_inputs(model, batch=1)
    try:
        with torch.no_grad(), tapped(model, recorder):
            model(**inputs, **forward_options(model))
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
        # A family that does not know our name may fail before it attends; after its first attention call it must not.
        if recorder.sightings:
            raise
    _refuse_split_attention(recorder.sightings)
    if has_two_towers(model):
        return _towers(recorder.sightings)
    return label(recorder.sightings, two_stacks=bool(model.config.is_encoder_decoder))


def _refuse_split_attention(sightings: list[Sighting]) -> None:
    """Refuse a layer that mixes two attention calls with the same queries and keys.

    Differential attention does this: each call has a map, but neither is the map of a head.
    """
    for before, after in itertools.pairwise(sightings):
        a, b = before.read, after.read
        if before.module == after.module and a.q.shape == b.q.shape and torch.equal(a.q, b.q) and torch.equal(a.k, b.k):
            raise CaptureError(
                f"{after.module} attends twice with the same queries and keys and mixes the results, so the map of a "
                "call is not the map of a head",
                hint="differential attention cannot be opened",
            )


_TOWERS: dict[str, Stack] = {"text": "text", "vision": "image", "image": "image", "audio": "sound"}


def _towers(sightings: list[Sighting]) -> tuple[Site, ...]:
    """The sites of a model with two parallel towers, each named by its part."""
    sites = []
    for site in (_site(sighting, two_stacks=False) for sighting in sightings):
        part = site.module.split(".")[0]
        stack = _TOWERS.get(part.removesuffix("_model"))
        if stack is None:
            raise CaptureError(
                f"the attention in {site.module} belongs to neither of the towers that this model runs side by side",
                hint="open the text or the vision part of the model on its own",
            )
        sites.append(replace(site, stack=stack))
    return tuple(_with_layers(sites))


def check_agreement(model: Any, sites: int) -> tuple[str, ...]:
    """Refuse a family whose output changes under our computation of its attention.

    A model in a narrow dtype is judged as a float32 copy (see `rounding`); a note says where this was not possible.
    """
    wide = widened(model)
    compared_model = model if wide is None else wide
    _check_agreement(compared_model, agreement(compared_model.dtype, sites))
    if wide is not None:
        return ()
    dtype = str(model.dtype).removeprefix("torch.")
    return (
        f"there was no memory to check its attention in float32: it agrees with transformers' own in {dtype}, "
        f"to within {agreement(model.dtype, sites):.1g} of the largest output",
    )


def _check_agreement(model: Any, tolerance: float) -> None:
    error = _disagreement(model, tolerance)
    if not error <= tolerance and has_float64(model.device):
        exact_model = widened(model, torch.float64)
        error = error if exact_model is None else _disagreement(exact_model, tolerance)
    if not error <= tolerance:
        raise CaptureError(
            f"{type(model).__name__}: attention computed from the call differs from transformers' eager attention "
            f"by {error:.1e} (relative, tolerance {tolerance:.0e}), so this family does something to its scores that "
            "the attention interface does not show",
            hint="get its maps from transformers with attn_implementation='eager' and output_attentions=True",
        )


def _disagreement(model: Any, tolerance: float) -> float:
    """The largest difference of both outputs, relative to the largest output.

    Raises:
        CaptureError: The outputs differ by more than the tolerance because the model draws random numbers.
        CheckpointError: The model's own output is not finite.
    """
    inputs = probe_inputs(model, batch=2, seed=1)
    options = forward_options(model)
    with torch.no_grad(), tapped(model, CallRecorder(model)):
        ours = first_tensor(model(**inputs, **options))
    theirs = _eager(model, inputs, options)
    if not bool(torch.isfinite(theirs).all()):
        raise CheckpointError(
            f"{type(model).__name__} answers random inputs with values that are not finite, in transformers too",
            hint="a number in the configuration may be damaged (an epsilon, a rotary base), or a weight is too large",
        )
    error = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(_SMALLEST))
    if not error <= tolerance:
        _refuse_random(model, theirs, _eager(model, inputs, options))
    return error


def _refuse_random(model: Any, first_output: Tensor, second_output: Tensor) -> None:
    if not torch.equal(first_output, second_output):
        raise CaptureError(
            f"{type(model).__name__} gives another output each time for the same input: it uses random numbers even in "
            "eval mode",
            hint="its attention does not follow from its input",
        )


def _eager(model: Any, inputs: dict[str, Tensor], options: dict[str, bool]) -> Tensor:
    with torch.no_grad(), implementation(model, "eager"):
        return first_tensor(model(**inputs, **options))


def label(sightings: Iterable[Sighting], *, two_stacks: bool) -> tuple[Site, ...]:
    """The sites with their places: stack, kind and layer."""
    sites = [_site(sighting, two_stacks) for sighting in sightings]
    return tuple(_with_layers(sites))


def _site(sighting: Sighting, two_stacks: bool) -> Site:
    call = sighting.read
    queries, keys = call.q.shape[2], call.k.shape[2]
    stack: Stack = "only" if not two_stacks else "dec" if queries == DECODER_TOKENS else "enc"
    kind: Kind = "self" if queries == keys else "cross"
    if stack == "dec" and keys == queries + ENCODER_TOKENS:
        raise CaptureError(
            f"{sighting.module} attends to its own text and to the encoder's in one softmax, which is neither "
            "self-attention nor cross-attention"
        )
    # T5 passes a bias of zeros to its cross-attention; that does not count.
    extras = ["bias"] if call.bias is not None and bool(call.bias.any()) else []
    extras += [name for name in ("softcap", "sinks") if getattr(call, name) is not None]
    return Site(
        stack=stack,
        kind=kind,
        layer=-1,
        n_heads=call.q.shape[1],
        n_kv_heads=call.k.shape[1],
        d_head=call.q.shape[3],
        d_value=call.v.shape[3],
        causal=call.causal and queries > 1,
        window=sighting.sliding_window,
        extras=tuple(extras),
        module=sighting.module,
        call=sighting.call,
    )


def _with_layers(sites: list[Site]) -> list[Site]:
    """Number the layers, by the module's name or by the order of calls.

    The number in the name is better where only some layers attend (hybrids with recurrent layers); the order counts
    where layers share one module.
    """
    numbered_sites: list[Site] = []
    for site in sites:
        alike = [other for other in sites if (other.stack, other.kind) == (site.stack, site.kind)]
        names = [_number(other.module) for other in alike]
        number = _number(site.module)
        distinct = None not in names and len(set(names)) == len(names)
        numbered_sites.append(replace(site, layer=number if distinct and number is not None else alike.index(site)))
    return numbered_sites


def _number(module: str) -> int | None:
    match = re.search(r"(?:^|\.)(\d+)(?:\.|$)", module)
    return int(match[1]) if match else None


def first_tensor(output: Any) -> Tensor:
    """The first floating-point tensor in the output of a model."""
    values = output.values() if hasattr(output, "values") else output
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    raise CaptureError(f"{type(output).__name__} holds no tensor to compare")
