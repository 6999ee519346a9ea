r"""Queries, keys, values and outputs of families that compute their attention themselves.

Between its projections such a family does what all do: a product of queries and keys, a softmax of it, and a product
of the pattern with the values, $z = \mathrm{softmax}(s\,q k^\top + \text{bias})\,v$. While a `ProductWatch` is open on
a model, each of these tensors is shown to a handler by heads, in the order in which they occur, and what the handler
gives takes its place. Which product belongs to which site is found and checked at opening (`product_search`).

Products are counted from one softmax to the next. An input on which the counts differ from those at opening, or on
which another tensor than the pattern mixes the values, ends with an error: nothing is read from the wrong place.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headscope.core.site import Site
from headscope.errors import CaptureError
from headscope.model.transformers.head_layout import HeadLayout
from headscope.model.transformers.matrix_products import Product, read_product
from headscope.model.transformers.unmasked_scores import HIDING, MaskWatch

Addition = Literal["nothing", "positions", "content"]
SOFTMAX = {torch.nn.functional.softmax, torch.softmax, Tensor.softmax}


@dataclass(frozen=True)
class Softmax:
    """One softmax of a forward: what reached it, what it gave, and the scores before the mask.

    `scores` is None where they were not followed, or where the way from them to the softmax is not understood.
    """

    reached: Tensor
    pattern: Tensor
    scores: Tensor | None


@dataclass(frozen=True)
class ScoreProduct:
    """The product of queries and keys: the `number`-th after the last softmax.

    `scale` is the factor of q·k in the scores. `adds`: what else the scores hold; terms of content are made of the
    tokens, as in DeBERTa, and those of positions of their places alone.
    """

    number: int
    q_is_left: bool
    q: HeadLayout
    k: HeadLayout
    scale: float = 1.0
    adds: Addition = "nothing"


@dataclass(frozen=True)
class ValueProduct:
    """The product of pattern and values: the `number`-th after the softmax of its site."""

    number: int
    pattern_is_left: bool
    v: HeadLayout
    z: HeadLayout


@dataclass(frozen=True)
class SiteProducts:
    """The products of one site; `scores` is None where that of queries and keys is not known."""

    values: ValueProduct
    scores: ScoreProduct | None


@dataclass(frozen=True)
class AttentionProducts:
    """Which softmaxes and products of a forward belong to which site.

    `sites` and `products` are by the number of the softmax; `counts` has the number of products before each softmax and
    after the last. `refusal`: why outputs and values are not known, `score_refusal`: why queries and keys are not;
    `change_refusal`: why these can be read but not changed. Empty where there is no reason.
    """

    sites: Mapping[int, Site]
    counts: tuple[int, ...]
    products: Mapping[int, SiteProducts] = field(default_factory=dict)
    refusal: str = ""
    score_refusal: str = ""
    change_refusal: str = ""


class AttentionHandler:
    """What is done with the tensors of a site, in the order of the methods.

    A method that returns the tensor it was given leaves the model's own in place, bit for bit. Any other tensor of the
    same shape takes its place; gradients go through it.
    """

    def follows_scores(self) -> bool:
        """Whether the scores before the mask are wanted in this forward."""
        return False

    def inputs(self, site: Site, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys, where they are multiplied."""
        return q, k

    def scores(self, site: Site, scores: Tensor) -> Tensor:
        """The scores before the mask, where they are followed and known."""
        return scores

    def pattern(self, site: Site, softmax: Softmax) -> Tensor:
        """What the softmax gave; all tensors are by heads."""
        return softmax.pattern

    def values(self, site: Site, v: Tensor) -> Tensor:
        """The values, where the pattern mixes them."""
        return v

    def output(self, site: Site, z: Tensor) -> Tensor:
        """What the heads give."""
        return z


class ProductWatch(TorchFunctionMode):
    """Shows the attention of a model to a handler while the model runs, and nothing else."""

    def __init__(
        self,
        products: AttentionProducts,
        handler: AttentionHandler,
        family: str,
        is_live: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self._places, self._handler, self._family, self._is_live = products, handler, family, is_live
        self._masks = MaskWatch()
        self._running = False
        self._n_softmaxes = 0
        self._n_products = 0
        self._pattern: Tensor | None = None

    @contextmanager
    def on(self, model: Any) -> Iterator[None]:
        """Watch the forwards of a model; either of model and body may run without the other."""
        with ExitStack() as stack:
            for module in {id(part): part for part in (model, model.base_model)}.values():
                stack.callback(module.register_forward_pre_hook(lambda *_: self.begin()).remove)
                leave = module.register_forward_hook(lambda _, __, output: self.end(output), always_call=True)
                stack.callback(leave.remove)
            stack.enter_context(self)
            yield

    def begin(self) -> None:
        """A forward begins."""
        self._running, self._n_softmaxes, self._n_products, self._pattern = True, 0, 0, None

    def end(self, output: Any) -> None:
        """A forward ends; `output` is None where an error ended it."""
        was_running, self._running = self._running, False
        if was_running and output is not None:
            self._check_counts()
            if self._n_softmaxes != len(self._places.counts) - 1:
                raise self._changed_form()

    def again(self, handler: AttentionHandler) -> "ProductWatch":
        """A watch for what a module does when it is run a second time from here on."""
        watch = ProductWatch(self._places, handler, self._family)
        watch._running, watch._n_softmaxes, watch._n_products = True, self._n_softmaxes, self._n_products
        return watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if not self._running or not self._is_live():
            return func(*args, **options)
        if func in SOFTMAX:
            return self._softmax(func, args, options)
        product = read_product(func, args, options)
        if product is not None:
            return self._product(product)
        return self._masks.run(func, args, options) if self._handler.follows_scores() else func(*args, **options)

    def _check_counts(self) -> None:
        expected = self._places.counts[self._n_softmaxes : self._n_softmaxes + 1]
        if expected != (self._n_products,) or self._pattern is not None:
            raise self._changed_form()

    def _softmax(self, func: Any, args: Any, options: dict[str, Any]) -> Tensor:
        self._check_counts()
        site = self._places.sites.get(self._n_softmaxes)
        products = self._places.products.get(self._n_softmaxes)
        self._n_softmaxes += 1
        self._n_products = 0
        if site is None:
            unseen: Tensor = func(*args, **options)
            return unseen
        reached = args[0] if args else options["input"]
        scores = self._masks.scores(reached) if self._handler.follows_scores() else None
        if scores is not None:
            by_head = self._by_head(site, scores)
            changed = self._handler.scores(site, by_head)
            if changed is not by_head:
                scores = changed.reshape(scores.shape)
                reached = torch.where(reached <= HIDING, reached, scores)
                args, options = ((reached, *args[1:]), options) if args else (args, {**options, "input": reached})
        result: Tensor = func(*args, **options)
        seen_tensor = Softmax(
            self._by_head(site, reached),
            self._by_head(site, result),
            None if scores is None else self._by_head(site, scores),
        )
        pattern = self._handler.pattern(site, seen_tensor)
        if pattern is not seen_tensor.pattern:
            result = pattern.to(result.dtype).reshape(result.shape).contiguous()
        self._pattern = None if products is None else result
        return result

    def _by_head(self, site: Site, attention_map: Tensor) -> Tensor:
        if attention_map.ndim not in (3, 4):
            raise self._changed_form()
        return attention_map.reshape(-1, site.n_heads, *attention_map.shape[-2:])

    def _product(self, product: Product) -> Tensor:
        number = self._n_products
        self._n_products += 1
        # The values of a site are mixed after its softmax, its scores are made before it.
        before, after = self._n_softmaxes - 1, self._n_softmaxes
        earlier, later = self._places.products.get(before), self._places.products.get(after)
        if earlier is not None and earlier.values.number == number:
            return self._mixed(self._places.sites[before], earlier.values, product)
        if later is not None and later.scores is not None and later.scores.number == number:
            return self._multiplied(self._places.sites[after], later.scores, product)
        return product.run()

    def _multiplied(self, site: Site, place: ScoreProduct, product: Product) -> Tensor:
        operands = _ordered(product.left, product.right, place.q_is_left)
        self._check_layouts(operands, (place.q, place.k))
        q, k = place.q.read(operands[0]), place.k.read(operands[1])
        changed_q, changed_k = self._handler.inputs(site, q, k)
        operands = (
            operands[0] if changed_q is q else _in_memory_of(operands[0], place.q.write(changed_q)),
            operands[1] if changed_k is k else _in_memory_of(operands[1], place.k.write(changed_k)),
        )
        return product.compute(*_ordered(*operands, place.q_is_left))

    def _mixed(self, site: Site, place: ValueProduct, product: Product) -> Tensor:
        pattern, values = _ordered(product.left, product.right, place.pattern_is_left)
        softmax_result, self._pattern = self._pattern, None
        if softmax_result is None or not is_same_map(pattern, softmax_result):
            raise self._changed_form()
        self._check_layouts((values,), (place.v,))
        v = place.v.read(values)
        changed_v = self._handler.values(site, v)
        operand = values if changed_v is v else _in_memory_of(values, place.v.write(changed_v))
        result = product.compute(*_ordered(pattern, operand, place.pattern_is_left))
        z = place.z.read(result)
        changed_z = self._handler.output(site, z)
        # Contiguous, since families view it in another shape.
        return result if changed_z is z else place.z.write(changed_z.to(result.dtype)).contiguous()

    def _check_layouts(self, tensors: tuple[Tensor, ...], layouts: tuple[HeadLayout, ...]) -> None:
        if not all(layout.fits(tensor) for tensor, layout in zip(tensors, layouts, strict=True)):
            raise self._changed_form()

    def _changed_form(self) -> CaptureError:
        return CaptureError(
            f"{self._family}: this input makes the model attend in another form than at opening "
            "(block-sparse, or with a cache), which headscope cannot read",
            hint="use a shorter text, without a cache",
        )


def is_same_map(operand: Tensor, softmax_result: Tensor) -> bool:
    """Whether the operand of a product is what a softmax gave, in another shape or dtype."""
    if operand.shape[-2:] != softmax_result.shape[-2:] or operand.numel() != softmax_result.numel():
        return False
    expected = softmax_result.to(operand.dtype).reshape(operand.shape)
    # A row that sees nothing may hold no numbers at all.
    return torch.equal(operand, expected) or torch.equal(operand.nan_to_num(), expected.nan_to_num())


def _ordered(first: Tensor, second: Tensor, is_left: bool) -> tuple[Tensor, Tensor]:
    return (first, second) if is_left else (second, first)


def _in_memory_of(original: Tensor, changed: Tensor) -> Tensor:
    """A changed operand in the order of memory of the model's original.

    Another order would be summed in another order too, and heads that nobody changes would round otherwise.
    """
    model = original if original.shape == changed.shape else original.expand(changed.shape)
    if model.stride() == changed.stride():
        return changed
    # A head that several queries share is copied by torch, batch by batch, into memory without gaps.
    is_copied = model is not original and model.shape[0] > 1
    order = torch.contiguous_format if is_copied else torch.preserve_format
    return torch.empty_like(model, dtype=changed.dtype, memory_format=order).copy_(changed)
