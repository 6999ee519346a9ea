"""Families that do not dispatch through the attention interface: their maps, read off the softmax itself.

While a model of such a family runs, every softmax it takes is watched. At opening, the maps so found are
compared with what the model itself returns as attentions; only where they are the same, number by number, is
the family opened. Then its statistics can be had, the places outside the attention, and each quantity that can be read
off a stored map (`session.captures`).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscope.attention.call import Call
from headscope.attention.statistics import pattern_statistics, uniform_statistics
from headscope.core.site import Site
from headscope.errors import CaptureError
from headscope.model.rounding import agreement
from headscope.model.session.captures import QUANTITIES, MapQuantity, Quantity, WatchedQuantity
from headscope.model.session.live_model import LiveModel
from headscope.model.tracing.attention_sites import first_tensor
from headscope.model.transformers.attention_hook import implementation
from headscope.model.transformers.layers import enclosing_layer
from headscope.model.transformers.library_messages import reason
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs
from headscope.model.transformers.unmasked_scores import MaskWatch

if TYPE_CHECKING:
    from headscope.model.model import Model

TOLERANCE = 1e-6
_NOT_FOLLOWED = "the family masks its scores in a way that headscope does not follow, so the hidden ones are not known"
_SOFTMAX = {torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax}


@dataclass(frozen=True)
class Softmax:
    """One softmax of a forward: what reached it, what it gave, and the scores before the mask.

    `scores` is None where they were not followed, or where the way from them to the softmax is not understood.
    """

    reached: Tensor
    pattern: Tensor
    scores: Tensor | None


class SoftmaxWatch(TorchFunctionMode):
    """Reports every softmax to `note`; the scores before the mask too, while `follows` says so."""

    def __init__(self, note: Callable[[Softmax], None], follows: Callable[[], bool]) -> None:
        super().__init__()
        self._note, self._follows = note, follows
        self._masks = MaskWatch()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        follows = self._follows()
        result = self._masks.run(func, args, options) if follows else func(*args, **options)
        if func in _SOFTMAX:
            reached = args[0] if args else options["input"]
            self._note(Softmax(reached, result, self._masks.scores(reached) if follows else None))
        return result


@dataclass(frozen=True)
class SoftmaxSites:
    """The sites of a model whose maps come from softmaxes, and which softmax of a forward each one is.

    `streams`: whether each layer is given what the one before it gave, and that as windows, tokens and features in this
    order; only then is it known what the stream between layers is. `scores`: why the scores before the mask cannot be
    had; empty where they can.
    """

    sites: tuple[Site, ...]
    ordinal: dict[int, Site]
    total: int
    streams: bool
    scores: str = ""


def find_softmax_sites(model: Any) -> SoftmaxSites | str:
    """Match every attention map the model returns to a softmax it took; the reason unless all are matched exactly."""
    patterns: list[Tensor] = []
    inside: list[str] = []
    inputs = probe_inputs(model, batch=2)
    options = forward_options(model)
    passed: dict[str, list[list[Tensor]]] = {}

    def note(running: list[str], softmax: Softmax) -> None:
        patterns.append(softmax.pattern)
        inside.append(running[-1])

    with torch.no_grad(), implementation(model, "eager"):
        with _followed(model, passed) as running, SoftmaxWatch(lambda softmax: note(running, softmax), lambda: False):
            plain = model(**inputs, **options)
        returned = getattr(model(**inputs, **options, output_attentions=True), "attentions", None)
    disagreement = _disagreement(model, plain, inputs, options)
    del plain
    if not patterns:
        return "it takes no softmax at all: it seems to have no attention, or none in the layers it was given"
    if not returned or any(attention_map is None or attention_map.ndim != 4 for attention_map in returned):
        return "it returns no maps that a softmax could be checked against"
    if any(attention_map.shape[2] != attention_map.shape[3] for attention_map in returned):
        return "the maps it returns are not square: it attends in bands, or shortens the text on the way"
    if disagreement > agreement(model.dtype, len(returned)):
        return (
            "transformers computes it in two ways that disagree: its eager attention, which alone shows maps, changes "
            f"the output by {disagreement:.1e} (relative)"
        )
    ordinal: dict[int, Site] = {}
    for layer, attention in enumerate(returned):
        index = _matching(attention, patterns, ordinal)
        if index is None:
            return "no softmax in it gives the maps that it returns"
        call = sum(site.module == inside[index] for site in ordinal.values())
        ordinal[index] = _site(model, layer, attention, inside[index], call)
    sites = tuple(ordinal.values())
    shape = (*next(iter(inputs.values())).shape[:2], int(model.config.get_text_config().hidden_size))
    layers = [passed[enclosing_layer(model, site.module)][site.call] for site in sites]
    streams = all(len(layer) == 2 and layer[0].shape == shape for layer in layers) and all(
        torch.equal(before[1], after[0]) for before, after in itertools.pairwise(layers)
    )
    return SoftmaxSites(sites, ordinal, len(patterns), streams, _scores_obstacle(model, inputs, frozenset(ordinal)))


def _disagreement(model: Any, eager: Any, inputs: dict[str, Tensor], options: dict[str, bool]) -> float:
    """By how much the model's own attention changes what it answers under its eager attention, relative to the largest.

    Falcon with ALiBi adds its bias twice in transformers' eager attention, and once in its fused one.
    """
    with torch.no_grad():
        own = first_tensor(model(**inputs, **options))
    under_eager = first_tensor(eager)
    return float((own - under_eager).abs().max() / own.abs().max().clamp_min(torch.finfo(own.dtype).tiny))


def _scores_obstacle(model: Any, inputs: dict[str, Tensor], places: frozenset[int]) -> str:
    """Why the scores before the mask cannot be had, tried on a padded text; empty where they can."""
    softmaxes: list[Softmax] = []
    padded = dict(inputs)
    if "input_ids" in inputs:
        padded["attention_mask"] = torch.ones_like(inputs["input_ids"])
        padded["attention_mask"][1, -2:] = 0
    try:
        with torch.no_grad(), implementation(model, "eager"), SoftmaxWatch(softmaxes.append, lambda: True):
            model(**padded, **forward_options(model))
    except Exception as error:  # noqa: BLE001  a family may do anything with a mask; its maps can still be read
        return f"the model could not be run on a padded text ({reason(error)})"
    places_without_scores = [place for place in places if place >= len(softmaxes) or softmaxes[place].scores is None]
    return _NOT_FOLLOWED if places_without_scores else ""


@contextmanager
def _followed(model: nn.Module, passed: dict[str, list[list[Tensor]]]) -> Iterator[list[str]]:
    """The names of the modules that are running, the innermost last.

    In `passed`, for each call of each module the first tensor it was given and the first it gave, where there are any.
    """
    running: list[str] = []
    with ExitStack() as stack:
        for name, module in model.named_modules():

            def enter(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                running.append(name)
                passed.setdefault(name, []).append(_first_tensor((*args, *kwargs.values())))

            def leave(_: nn.Module, args: Any, output: Any, name: str = name) -> None:
                running.pop()
                passed[name][-1] += _first_tensor(output if isinstance(output, tuple) else (output,))

            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield running


def _first_tensor(values: Iterable[Any]) -> list[Tensor]:
    tensors = [value for value in values if isinstance(value, Tensor)]
    return [tensors[0].clone()] if tensors else []  # some models add to it in place


def _matching(attention: Tensor, patterns: list[Tensor], used: Iterable[int]) -> int | None:
    for index, result in enumerate(patterns):
        if index in used or result.numel() != attention.numel() or result.shape[-2:] != attention.shape[-2:]:
            continue
        # A softmax taken in float32 is rounded to the dtype of the model before it is returned.
        rounded = result.reshape(attention.shape).to(attention.dtype)
        if float((rounded - attention).abs().max()) <= TOLERANCE:
            return index
    return None


def _site(model: Any, layer: int, attention: Tensor, module: str, call: int) -> Site:
    text = model.config.get_text_config()
    heads = attention.shape[1]
    causal = not bool(attention.triu(1).any())
    width = int(text.hidden_size) // heads
    return Site("only", "self", layer, heads, heads, width, width, causal, module=module, call=call)


@contextmanager
def softmaxes_observed(hf: Any, softmax_sites: SoftmaxSites, note: Callable[[Site, Tensor], None]) -> Iterator[None]:
    """Call `note` with each site and its pattern while the model runs one forward."""
    numbers = itertools.count()

    def observe(softmax: Softmax) -> None:
        site = softmax_sites.ordinal.get(next(numbers))
        if site is not None:
            note(site, softmax.pattern)

    with implementation(hf, "eager"), SoftmaxWatch(observe, lambda: False):
        yield


class SoftmaxModel(LiveModel):
    """A live model whose attention can be looked at but not changed."""

    def __init__(self, model: "Model", softmax_sites: SoftmaxSites) -> None:
        super().__init__(model)
        self._softmax_sites = softmax_sites
        self._n_softmaxes = 0
        self._running = False
        self._follows_scores = False

    def _open(self, stack: ExitStack) -> None:
        stack.enter_context(implementation(self.hf, "eager"))
        self._open_forwards(stack)
        stack.enter_context(SoftmaxWatch(self._note, self._wants_scores))

    @property
    def shown(self) -> frozenset[str]:
        """What can be read off a stored map or at a place outside the attention, where these are known."""
        return frozenset(name for name, quantity in QUANTITIES.items() if self._shows(quantity))

    def _shows(self, quantity: Quantity) -> bool:
        if isinstance(quantity, MapQuantity):
            return quantity.off_map and not self._obstacle(quantity)
        if not isinstance(quantity, WatchedQuantity) or quantity.needs == "weights":
            return False
        return self._softmax_sites.streams and bool(self.model.spots(quantity).by_site)

    def _obstacle(self, quantity: MapQuantity) -> str:
        """Why the scores that a quantity is read off are not known; empty where they are, or where it needs none."""
        return self._softmax_sites.scores if quantity.of == "scores" else ""

    def check_change(self, verb: str, quantity: Quantity | None = None) -> None:
        """Refuse what concerns the attention: this family computes it itself."""
        if not isinstance(quantity, WatchedQuantity) or not self._shows(quantity):
            raise self._refusal(verb)

    def _refusal(self, verb: str) -> CaptureError:
        return CaptureError(
            f"the attention of {self.model.spec.family} models cannot be {verb}: the family does not compute it "
            "through the attention interface of transformers",
            hint=f"what can be captured: {', '.join(name for name in QUANTITIES if name in self.shown)}",
        )

    def entries(self, names: tuple[str, ...]) -> tuple[Quantity, ...]:
        """The entries of these names; raises where the model does not show one of them."""
        quantities = super().entries(names)
        for quantity in quantities:
            if isinstance(quantity, MapQuantity) and quantity.off_map and (why := self._obstacle(quantity)):
                raise CaptureError(
                    f"the {quantity.name} of {self.model.spec.family} models cannot be captured: {why}",
                    hint="capture the pattern, which is what the softmax gives",
                )
        if hidden := [quantity.name for quantity in quantities if not self._shows(quantity)]:
            raise self._refusal(f"captured as {', '.join(hidden)}")
        return quantities

    def new_forward(self) -> None:
        """A forward begins."""
        super().new_forward()
        self._n_softmaxes = 0
        self._running = True
        quantities = [quantity for capture in self.registered.captures for quantity in capture.quantities]
        self._follows_scores = any(
            isinstance(quantity, MapQuantity) and quantity.of == "scores" for quantity in quantities
        )

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        super()._end(module, args, output)
        if not self.is_live():
            return
        self._running = False
        if output is not None and self._n_softmaxes != self._softmax_sites.total:
            raise self._changed_form()

    def _wants_scores(self) -> bool:
        return self._running and self._follows_scores

    def _note(self, softmax: Softmax) -> None:
        if not self._running or not self.is_live():
            return
        site = self._softmax_sites.ordinal.get(self._n_softmaxes)
        self._n_softmaxes += 1
        if site is not None:
            self._record(site, softmax)
            self.attended_to()

    def _as_map(self, site: Site, tensor: Tensor) -> Tensor:
        if tensor.shape[-1] != tensor.shape[-2] or tensor.ndim not in (3, 4):
            raise self._changed_form()
        return tensor.detach().reshape(-1, site.n_heads, *tensor.shape[-2:])

    def _scores(self, site: Site, softmax: Softmax) -> Tensor:
        if softmax.scores is None:
            raise CaptureError(f"{site.label}: the scores before the mask cannot be captured: {_NOT_FOLLOWED}")
        # At least float32, as the scores of every family.
        scores = softmax.scores.to(torch.promote_types(softmax.scores.dtype, torch.float32))
        return self._as_map(site, scores).clone()

    def _changed_form(self) -> CaptureError:
        return CaptureError(
            f"{self.model.spec.family}: this input makes the model attend in another form than at opening "
            "(block-sparse, or with a cache), which headscope cannot read",
            hint="use a shorter text, without a cache",
        )

    def _record(self, site: Site, softmax: Softmax) -> None:
        masked, pattern = self._as_map(site, softmax.reached), self._as_map(site, softmax.pattern)
        for capture in self.registered.captures:
            for quantity in capture.quantities_at(site):
                if isinstance(quantity, MapQuantity) and quantity.cut is not None:
                    stored = pattern if quantity.of == "pattern" else self._scores(site, softmax)
                    tensor = quantity.cut(stored)
                    capture.keep(quantity, site, tensor, self.windows.of(quantity, site, tensor))
        for stream in self.registered.streams:
            if site in stream.at:
                stream_heads = list(stream.at[site])
                measured, uniform = stream.frames.current()
                call = _as_call(masked[:, stream_heads])
                real = self.windows.position.real_queries(site.stack, masked.shape[2])
                measured[site] = pattern_statistics(pattern[:, stream_heads], call, stream.request, real_queries=real)
                uniform[site] = uniform_statistics(call, stream.request, real_queries=real)


def _as_call(scores: Tensor) -> Call:
    """The positions and the visible keys of a map whose masked scores are known, without its q, k and v."""
    batch, heads, queries, keys = scores.shape
    visible = scores > torch.finfo(scores.dtype).min / 2
    real = visible.any(dim=1).any(dim=1)
    return Call(
        q=scores.new_zeros(batch, heads, queries, 1),
        k=scores.new_zeros(batch, heads, keys, 1),
        v=scores.new_zeros(batch, heads, keys, 1),
        scale=1.0,
        query_positions=torch.arange(queries, device=scores.device)[None],
        key_positions=torch.arange(keys, device=scores.device)[None],
        key_padding=real,
        mask=visible,
    )
