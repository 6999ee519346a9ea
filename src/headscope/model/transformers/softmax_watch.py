"""Families that do not dispatch through the attention interface: their maps, read off the softmax itself.

While a model of such a family runs, every softmax it takes is watched. At opening, the maps so found are
compared with what the model itself returns as attentions; only where they are the same, number by number, is
the family opened. Then its statistics can be had, the places outside the attention, and each quantity that can be read
off a stored map (`session.captures`); and where its products are known (`product_search`), all the rest.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscope.core.site import Site
from headscope.model.rounding import agreement
from headscope.model.tracing.attention_sites import first_tensor
from headscope.model.transformers.attention_hook import implementation
from headscope.model.transformers.attention_products import (
    SOFTMAX,
    AttentionHandler,
    AttentionProducts,
    ProductWatch,
    Softmax,
)
from headscope.model.transformers.layers import enclosing_layer
from headscope.model.transformers.library_messages import reason
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs
from headscope.model.transformers.product_search import find_products
from headscope.model.transformers.unmasked_scores import MaskWatch

TOLERANCE = 1e-6
NOT_FOLLOWED = "the family masks its scores in a way that headscope does not follow, so the hidden ones are not known"


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
        if func in SOFTMAX:
            reached = args[0] if args else options["input"]
            self._note(Softmax(reached, result, self._masks.scores(reached) if follows else None))
        return result


@dataclass(frozen=True)
class SoftmaxSites:
    """The sites of a model whose maps come from softmaxes, and which softmax of a forward each one is.

    `streams`: whether each layer is given what the one before it gave, and that as windows, tokens and features in this
    order; only then is it known what the stream between layers is. `scores`: why the scores before the mask cannot be
    had; empty where they can. `products` are those of queries and keys and of pattern and values.
    """

    sites: tuple[Site, ...]
    ordinal: Mapping[int, Site]
    total: int
    streams: bool
    products: AttentionProducts
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
    products = find_products(model, ordinal)
    sites = tuple(products.sites.values())
    shape = (*next(iter(inputs.values())).shape[:2], int(model.config.get_text_config().hidden_size))
    layers = [passed[enclosing_layer(model, site.module)][site.call] for site in sites]
    streams = all(len(layer) == 2 and layer[0].shape == shape for layer in layers) and all(
        torch.equal(before[1], after[0]) for before, after in itertools.pairwise(layers)
    )
    scores = _scores_obstacle(model, inputs, products)
    return SoftmaxSites(sites, products.sites, len(patterns), streams, products, scores)


def _disagreement(model: Any, eager: Any, inputs: dict[str, Tensor], options: dict[str, bool]) -> float:
    """By how much the model's own attention changes what it answers under its eager attention, relative to the largest.

    Falcon with ALiBi adds its bias twice in transformers' eager attention, and once in its fused one.
    """
    with torch.no_grad():
        output = first_tensor(model(**inputs, **options))
    under_eager = first_tensor(eager)
    return float((output - under_eager).abs().max() / output.abs().max().clamp_min(torch.finfo(output.dtype).tiny))


def _scores_obstacle(model: Any, inputs: dict[str, Tensor], products: AttentionProducts) -> str:
    """Why the scores before the mask cannot be had, tried on a padded text; empty where they can."""
    padded = dict(inputs)
    if "input_ids" in inputs:
        padded["attention_mask"] = torch.ones_like(inputs["input_ids"])
        padded["attention_mask"][1, -2:] = 0
    check = _ScoreCheck(products)
    watch = ProductWatch(products, check, model.config.model_type)
    try:
        with torch.no_grad(), implementation(model, "eager"), watch.on(model):
            model(**padded, **forward_options(model))
    except Exception as error:  # noqa: BLE001  a family may do anything with a mask; its maps can still be read
        return f"the model could not be run on a padded text ({reason(error)})"
    return "" if check.sites == set(products.sites.values()) else NOT_FOLLOWED


class _ScoreCheck(AttentionHandler):
    """Collects the sites whose scores are known behind the mask too.

    Where nothing is added to them, they must be the products of queries and keys everywhere: a family that multiplies
    hidden scores by 0 leaves nothing of them.
    """

    def __init__(self, products: AttentionProducts) -> None:
        places = {site: products.products.get(number) for number, site in products.sites.items()}
        self._scores = {site: place.scores for site, place in places.items() if place is not None}
        self._products: Tensor | None = None
        self.sites: set[Site] = set()

    def follows_scores(self) -> bool:
        """Always."""
        return True

    def inputs(self, site: Site, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply queries and keys."""
        exact_q, exact_k = (states.cpu().double() for states in (q, k))  # not every device has float64
        self._products = exact_q @ exact_k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT
        return q, k

    def pattern(self, site: Site, softmax: Softmax) -> Tensor:
        """Compare the products with the scores."""
        place, products, scores = self._scores.get(site), self._products, softmax.scores
        if scores is not None and (place is None or place.adds != "nothing" or products is None):
            self.sites.add(site)
        elif scores is not None and place is not None and products is not None:
            error = float((scores.cpu() - place.scale * products).abs().max() / scores.abs().max())
            if error <= agreement(scores.dtype, 1):
                self.sites.add(site)
        self._products = None
        return softmax.pattern


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
